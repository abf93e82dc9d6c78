"""Options of the gateway: one definition, four sources, all errors at once."""

import argparse
import tomllib
from pathlib import Path
from typing import Any

import pytest

from notwice.server import options
from notwice.server.app import compose
from notwice.server.durations import in_words, parse_duration, parse_size
from notwice.server.kinds import Address, PrincipalSource, Target
from notwice.server.options import SettingsError
from notwice.server.own import is_own
from notwice.server.settings import Settings

ENOUGH = {"upstream": "http://127.0.0.1:9000", "principal": "shared"}
SECRET = "s" * 32


def read(environment: Any = None, **flags: object) -> Settings:
    return options.read(Settings, {**ENOUGH, **flags}, environment or {})


def sentences(environment: Any = None, **flags: object) -> list[str]:
    with pytest.raises(SettingsError) as raised:
        options.read(Settings, flags, environment or {})
    return list(raised.value.sentences)


def test_every_option_has_a_flag_a_variable_and_a_name_in_the_file(tmp_path: Path) -> None:
    """An option that is defined can be said in all three ways, but a secret has no flag."""
    parser = argparse.ArgumentParser()
    options.add_flags(parser, Settings)
    flags = {name for action in parser._actions for name in action.option_strings}
    for option in options.options(Settings):
        assert (option.flag in flags) == (not option.secret)
        environment = {option.variable: option.default}
        file = tmp_path / "notwice.toml"
        file.write_text(f'{option.name} = "{option.default}"\n')
        assert tomllib.loads(file.read_text())
        if option.default:
            assert read(environment) == read() == read(config=str(file))


def test_a_flag_wins_over_a_variable_and_that_over_the_file(tmp_path: Path) -> None:
    """Precedence: flag, environment, file, default."""
    file = tmp_path / "notwice.toml"
    file.write_text('lease = "3s"\nwait = "3s"\nscope = "three"\n')
    found = read({"NOTWICE_CONFIG": str(file), "NOTWICE_LEASE": "2", "NOTWICE_WAIT": "2"}, lease="1s")
    assert (found.lease, found.wait, found.scope, found.store_timeout) == (1.0, 2.0, "three", 2.0)


def test_a_file_may_hold_numbers_lists_and_switches(tmp_path: Path) -> None:
    """TOML values are taken as they are."""
    file = tmp_path / "notwice.toml"
    file.write_text('lease = 90\nwait = 0.5\nmethods = ["POST", "put"]\nrequired = true\nrequest_bytes_max = 4096\n')
    found = read(config=str(file))
    assert (found.lease, found.wait, found.methods, found.required) == (90.0, 0.5, ("POST", "PUT"), True)
    assert found.request_bytes_max == 4096


def test_an_unknown_option_gets_a_suggestion_wherever_it_stands(tmp_path: Path) -> None:
    """A misspelt name is refused in each source, in the spelling of that source."""
    file = tmp_path / "notwice.toml"
    file.write_text('up-stream = "sqlite:///x.db"\nleese = 3\n')
    found = sentences({"NOTWICE_UPSTREEM": "http://h"}, **ENOUGH, principle="shared", config=str(file))
    assert f"up-stream in {file}: there is no such option. Did you mean upstream?" in found
    assert f"leese in {file}: there is no such option. Did you mean lease?" in found
    assert "NOTWICE_UPSTREEM: there is no such option. Did you mean NOTWICE_UPSTREAM?" in found
    assert "--principle: there is no such option. Did you mean --principal?" in found


def test_a_password_in_an_address_is_not_said_again() -> None:
    """P15: what is wrong with the address of the service is told without the credential that stands in it."""
    found = sentences(upstream="http://user:hunter2@h", principal="shared")
    assert len(found) == 1
    assert "password" in found[0]
    assert "hunter2" not in found[0]


def test_variables_that_a_platform_sets_for_a_service_of_this_name_are_no_options() -> None:
    """A container platform announces a service called notwice by variables of our prefix; they are passed over."""
    announced = {
        "NOTWICE_SERVICE_HOST": "10.0.0.1",
        "NOTWICE_PORT": "tcp://10.0.0.1:80",
        "NOTWICE_PORT_80_TCP_ADDR": "10.0.0.1",
    }
    assert read(announced) == read()


def test_all_errors_are_told_at_once() -> None:
    """Whoever starts the gateway need not find one mistake after the other."""
    found = sentences({"NOTWICE_LEASE": "5 minutes"}, listen="8080", recovery="redo")
    assert len(found) == 5
    assert [line.split(":")[0] for line in found[:3]] == ["--listen", "--recovery", "NOTWICE_LEASE"]
    assert found[1] == "--recovery: 'redo' is none of hold, rerun."
    assert found[3].startswith("The service to guard is missing")
    assert found[4].startswith("Whose keys are they?")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("upstream", "ftp://h"), ("upstream", "127.0.0.1:9000"), ("upstream", "http://u:p@h"), ("upstream", "http://"),
        ("upstream", "http://h:99999"), ("upstream", "http://h?x=1"), ("upstream", "http://straße"),
        ("upstream", "http://h:0"), ("upstream", "http://a..b"), ("upstream", "http://h h"),
        ("upstream", "http://h/a b"), ("upstream", "http://h/a\r\nX: y"), ("scope", "a\nb"), ("scope", "s" * 5000),
        ("principal", "header"), ("principal", "header:"), ("principal", "header:a b"), ("principal", "jwt:"),
        ("principal", "shared:x"), ("principal", "everybody"), ("listen", "h:99999"), ("listen", "::1:80"),
        ("lease", "0"), ("lease", "-1"), ("lease", "1y"), ("retention", "0s"), ("wait", "soon"), ("methods", ""),
        ("methods", "P OST"), ("methods", "OPTIONS"), ("header", "X:Y"), ("status_path", "status"),
        ("required", "maybe"),
        ("request_bytes_max", "0"), ("request_bytes_max", "10 furlongs"), ("jwt_algorithms", "none"),
        ("statuses", "503"), ("statuses", "503=free"), ("statuses", "600=failed"), ("statuses", "=failed"),
        ("statuses", "503=failed,503=unknown"),
        ("principal", "header:idempotency-key"), ("status_path", "/-/notwice/health"),
        ("status_path", "/-/notwice/health/ready"),
        ("health_path", ""), ("log_level", "loud"), ("config", "no-such-file.toml"), ("scope", ""),
    ],
)  # fmt: skip
def test_what_can_not_be_is_refused_with_a_sentence(name: str, value: str) -> None:
    """Each option refuses what makes no sense, and says so in a sentence that names it."""
    found = sentences(**{**ENOUGH, name: value})
    assert len(found) == 1
    assert found[0].endswith(".")
    assert name in found[0].replace("-", "_") or value in found[0]


@pytest.mark.parametrize(
    ("name", "value", "meant"),
    [
        ("upstream", "http://127.0.0.1:9000/api/", Target("http", "127.0.0.1", 9000, "/api", "127.0.0.1:9000")),
        ("upstream", "https://[::1]", Target("https", "::1", 443, "", "[::1]")),
        ("principal", "jwt:https://example.com/account", PrincipalSource("jwt", "https://example.com/account")),
        ("listen", ":80", Address("0.0.0.0", 80)),
        ("listen", "[::1]:0", Address("::1", 0)),
        ("retention", "forever", None),
        ("required", "yes", True),
        ("methods", "post, delete", ("POST", "DELETE")),
    ],
)
def test_values_mean_what_they_say(name: str, value: str, meant: object) -> None:
    """Texts become values."""
    environment = {"NOTWICE_JWT_SECRET": SECRET} if "jwt" in value else {}
    assert getattr(read(environment, **{name: value}), name) == meant


def token(**flags: Any) -> list[str]:
    environment = flags.pop("environment", {})
    return sentences(environment, upstream="http://h", principal="jwt:sub", **flags)


def test_a_token_needs_exactly_one_source_of_keys() -> None:
    """With none, or with two, nobody knows what a token is verified with."""
    assert "none is given" in token()[0]
    assert "more than one is given" in token(jwt_keys="k.json", jwt_secret_file="s")[0]


def test_a_list_never_holds_algorithms_of_both_kinds() -> None:
    """A public key must not be usable as a secret, so HS and RS never stand on one list."""
    assert "RS256 can't be used with a secret" in token(jwt_secret_file="s", jwt_algorithms="HS256,RS256")[0]
    assert "HS256 can't be used with public keys" in token(jwt_keys="k.json", jwt_algorithms="HS256,RS256")[0]


def test_a_short_secret_and_keys_over_plain_http_are_refused() -> None:
    """What anyone could guess or put in verifies nothing."""
    assert "too short" in token(environment={"NOTWICE_JWT_SECRET": "secret"})[0]
    assert "over https" in token(jwt_keys="http://issuer.example/keys")[0]


@pytest.mark.parametrize("url", ["https://me:hunter2@h/keys", "https://[hunter2/keys", "http://h:hunter2", "https://"])
def test_an_address_of_keys_is_not_said_again(url: str) -> None:
    """P15: a password in it would be in the log when they can't be fetched; what is wrong is told without it."""
    [told] = token(jwt_keys=url)
    assert told == "--jwt-keys: write the address without a user and a password, as in https://issuer.example/keys."


@pytest.mark.parametrize("principal", ["shared", "header:X-Account-Id"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("jwt_keys", "k.json"), ("jwt_secret_file", "s"), ("jwt_algorithms", "HS512"), ("jwt_issuer", "https://issuer"),
        ("jwt_audience", "payments"), ("jwt_leeway", "1s"),
    ],
)  # fmt: skip
def test_options_of_tokens_without_a_principal_that_uses_them_are_refused(
    name: str, value: str, principal: str
) -> None:
    """Whoever says anything of tokens expects them to be verified."""
    [told] = sentences(upstream="http://h", principal=principal, **{name: value})
    assert told == f"--{name.replace('_', '-')}: --principal does not say jwt:CLAIM, so no token would be verified."


def test_a_secret_without_a_principal_that_uses_it_is_refused() -> None:
    """The same holds for the secret, which is named and not shown."""
    [told] = sentences({"NOTWICE_JWT_SECRET": SECRET}, **ENOUGH)
    assert told.startswith("NOTWICE_JWT_SECRET: ")


@pytest.mark.parametrize("name", ["SEAL_KEYS", "SEAL_KEYS_FILE", "JWT_SECRET", "JWT_SECRET_FILE"])
@pytest.mark.parametrize("value", ["", " ", "\n"])
def test_a_secret_that_is_given_empty_was_forgotten(name: str, value: str) -> None:
    """P15: a variable that a deployment fills from a secret that is not there is no wish to do without it."""
    [told] = sentences({f"NOTWICE_{name}": value}, **ENOUGH)
    assert told == f"NOTWICE_{name} is empty: say it, or leave it out."


def test_keys_that_seal_are_read_from_where_they_are_said_to_be(tmp_path: Path) -> None:
    """P15: a text or a file without a key is refused; without either nothing is sealed."""
    file = tmp_path / "keys"
    file.write_text("a:b c:d\n")
    assert read(seal_keys_file=str(file)).sealing_keys() == ("a:b", "c:d")
    assert read({"NOTWICE_SEAL_KEYS": "a:b"}).sealing_keys() == ("a:b",)
    assert read().sealing_keys() == ()
    file.write_text(",\n")
    with pytest.raises(ValueError, match=r"--seal-keys-file: .*keys holds no key that seals"):
        read(seal_keys_file=str(file)).sealing_keys()
    with pytest.raises(ValueError, match="NOTWICE_SEAL_KEYS holds no key that seals"):
        read({"NOTWICE_SEAL_KEYS": ","}).sealing_keys()


@pytest.mark.parametrize(
    "written", ['statuses = "503=abandoned, 5XX=failed"', '[statuses]\n503 = "abandoned"\n5xx = "failed"']
)
def test_statuses_are_a_text_or_a_table(tmp_path: Path, written: str) -> None:
    """What statuses mean is said like ``503=abandoned,5xx=failed``, or as a table of the file."""
    file = tmp_path / "notwice.toml"
    file.write_text(written + "\n")
    assert read(config=str(file)).statuses == ((503, "abandoned"), ("5xx", "failed"))


def test_a_table_of_the_file_is_no_option(tmp_path: Path) -> None:
    """Options do not stand in a table of their own; nothing is guessed from its name, but a misspelt ``statuses``."""
    file = tmp_path / "notwice.toml"
    file.write_text('[gateway]\nlease = "1m"\n[statusses]\n503 = "abandoned"\n')
    assert sentences(**ENOUGH, config=str(file)) == [
        f"gateway in {file}: options stand at the top of the file, and not in a table.",
        f"statusses in {file}: there is no such option. Did you mean statuses?",
    ]


@pytest.mark.parametrize("content", [None, "upstream = http://h"])
def test_a_file_that_can_not_be_read_is_all_that_is_told(tmp_path: Path, content: str | None) -> None:
    """What would stand in the file is not asked for beside it."""
    file = tmp_path / "notwice.toml"
    if content is not None:
        file.write_text(content)
    [told] = sentences(config=str(file))
    assert str(file) in told


@pytest.mark.parametrize(
    ("upstream", "listening", "own"),
    [
        ("http://127.0.0.1:8080", ("127.0.0.1", 8080), True),
        ("http://localhost:8080", ("127.0.0.1", 8080), True),
        ("http://127.0.0.1:8080", ("0.0.0.0", 8080), True),
        ("http://127.0.0.9:8080", ("0.0.0.0", 8080), True),
        ("http://[::1]:8080", ("::", 8080, 0, 0), True),
        ("http://127.0.0.1:8081", ("127.0.0.1", 8080), False),
        ("http://127.0.0.2:8080", ("127.0.0.1", 8080), False),
        ("http://192.0.2.1:8080", ("0.0.0.0", 8080), False),
        ("http://no-such-name.invalid:8080", ("0.0.0.0", 8080), False),
    ],
)
def test_the_gateway_knows_itself(upstream: str, listening: tuple[object, ...], own: bool) -> None:
    """An upstream is the gateway itself if its name leads to where the gateway listens."""
    assert is_own(read(upstream=upstream).upstream, listening) is own


@pytest.mark.parametrize(("name", "value"), [("header", "Host"), ("retention_header", "Set-Cookie")])
def test_a_header_that_says_something_else_is_refused_at_the_start(name: str, value: str) -> None:
    """What only the guard's own policy refuses ends the start of the gateway with its sentence, too."""
    with pytest.raises(SettingsError, match=rf"^{name} can not be {value}.*\.$"):
        compose(options.read(Settings, {**ENOUGH, name: value}, {}))


def test_a_secret_is_never_shown() -> None:
    """P15: neither the settings nor the help give it away."""
    settings = options.read(Settings, {**ENOUGH, "principal": "jwt:sub"}, {"NOTWICE_JWT_SECRET": SECRET})
    assert SECRET not in repr(settings)
    assert settings.secret() == SECRET.encode()


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("1.5s", 1.5), ("250ms", 0.25), ("2h30m", 9000), ("1w", 604_800)]
)
def test_durations(text: str, seconds: float) -> None:
    """A duration is written with units, or as seconds."""
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(("text", "size"), [("65536", 65536), ("64KiB", 65536), ("10 MB", 10_000_000), ("1gib", 2**30)])
def test_sizes(text: str, size: int) -> None:
    """A size is written with units, or as bytes."""
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("duration_ms", "words"),
    [(999, "under a second"), (1000, "1 second"), (119_000, "1 minute"), (7_200_000, "2 hours"), (10**9, "11 days")],
)
def test_ages_in_words(duration_ms: int, words: str) -> None:
    """An age is said in one unit, rounded down."""
    assert in_words(duration_ms) == words
