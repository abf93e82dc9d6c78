"""P15: whatever is wrong with a store's URL, nothing that is said of it repeats the password."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from notwice import AsyncGuard, Guard, Policy
from notwice.cli import main
from notwice.stores import migrate
from notwice.stores.mysql import place as mysql
from notwice.stores.postgres import place as postgres
from notwice.stores.redis.settings import settings_of
from notwice.stores.urls import parsed

SECRET = "hunter2"
NOWHERE = "127.0.0.1:1"
"""Nothing listens there."""

PASSWORDS = {
    "plain": SECRET,
    "a percent sign": f"s%zz{SECRET}",
    "a percent sign at the end": f"{SECRET}%",
    "a blank": f"s {SECRET}",
    "a line break": f"s\n{SECRET}",
    "a control character": f"s%00{SECRET}",
    "an at sign": f"s@{SECRET}",
    "a slash": f"12/{SECRET}",
    "a slash and an at sign": f"1@2/{SECRET}",
    "a question mark": f"12?{SECRET}",
    "a question mark and an ampersand": f"12?{SECRET}&x=1",
    "an option": f"12?timeout={SECRET}",
    "an option that is none": f"12?x={SECRET}",
    "a hash": f"12#{SECRET}",
    "a colon": f"12:{SECRET}",
    "a bracket": f"[{SECRET}",
    "two brackets": f"[{SECRET}]",
    "what is a slash to some": f"\u2100{SECRET}",
    "no unicode": f"\udc80{SECRET}",
    "letters of an alphabet": f"pä{SECRET}",
}
ENGINES = {
    "postgresql": "/notwice",
    "mysql": "/notwice",
    "redis": "/0",
    "rediss": "/0",
    "redis+cluster": "",
    "dynamodb": "",
    "memory": "",
    "sqlite": "/no/such/folder/x.db",
    "file": "/no/such/folder/x.json",
    "oracle": "/notwice",
}
OPTIONS = [
    f"password={SECRET}",
    f"{SECRET}%20{SECRET}=1",
    f"timeout={SECRET}",
    f"pool={SECRET}",
    f"wait={SECRET}",
    f"safe={SECRET}",
    f"tables={SECRET}",
    f"table=;{SECRET}",
    f"records_max={SECRET}",
    f"retention={SECRET}",
    f"endpoint=https://me:{SECRET}@host",
    f"region={SECRET}",
    f"timeout=1&timeout={SECRET}",
]
URLS = [
    f"{engine}://bob:{password}@{NOWHERE}{path}" for engine, path in ENGINES.items() for password in PASSWORDS.values()
]
URLS += [f"{engine}://{NOWHERE}{path}?{option}" for engine, path in ENGINES.items() for option in OPTIONS]
URLS += [f"bob:{SECRET}@host/x", f"bob:{SECRET}@host/x://", f"postgresql:bob:{SECRET}@host/x?y=http://"]
URLS += [
    f"postgresql://bob:{SECRET}@{host}/notwice" for host in ("a b", "[::1", "[::1]x", "[a b]", "%zz", "h:x", ",h:1,")
]


def blocking(url: str) -> None:
    with Guard.open(url, policy=Policy(store_timeout=1)) as guard:
        guard.begin("s", "k")


def in_a_loop(url: str) -> None:
    async def begin() -> None:
        async with AsyncGuard.open(url, policy=Policy(store_timeout=1)) as guard:
            await guard.begin("s", "k")

    asyncio.run(begin())


def tables(url: str) -> None:
    migrate(url, dry_run=True)


def chain(error: BaseException | None) -> list[BaseException]:
    """An error with all that it came of."""
    found: list[BaseException] = []
    waiting = [error]
    while waiting:
        each = waiting.pop()
        if each is not None and each not in found:
            found.append(each)
            waiting += [each.__cause__, each.__context__]
    return found


@pytest.mark.parametrize("use", [blocking, in_a_loop, tables])
def test_no_error_repeats_a_password(use: Callable[[str], None]) -> None:
    """P15: neither an error nor what it came of holds a piece of a URL that may be a password, on any engine."""
    told = {}
    for url in URLS:
        try:
            use(url)
        except Exception as error:  # noqa: BLE001 - whatever it is
            told[url] = "".join(f"{each} {each!r}" for each in chain(error))
    assert len(told) > len(URLS) * 3 // 4
    assert [url for url, text in told.items() if SECRET in text] == []


def test_no_command_prints_a_password(capsys: pytest.CaptureFixture[str]) -> None:
    """P15: nor do the commands; each says what is wrong."""
    for url in URLS:
        if not url.startswith(("rediss:", "redis+cluster:", "oracle:")):  # they are read as others are
            status = main(["ls", "--store", url])
            said = capsys.readouterr()
            assert SECRET not in said.out + said.err, url
            assert status == 0 or said.err, url


@pytest.mark.parametrize("engine", ["postgresql", "mysql", "redis"])
@pytest.mark.parametrize("password", ["s%zz", "s\n", "s%00", "[s", "12/s"])
def test_what_can_not_be_read_is_told_how_to_be_written(engine: str, password: str) -> None:
    """T21: a URL that readers take for something else is refused with what to write instead."""
    with pytest.raises(ValueError, match=r"special characters in a user or a password are written as %XX, as urllib"):
        Guard.open(f"{engine}://bob:{password}@{NOWHERE}/0")


def test_a_password_that_is_written_so_reaches_the_driver() -> None:
    """P15: a blank and other signs that only one of the drivers' parsers minds are written for them."""
    place = postgres.place_of(parsed(f"postgresql://b%40b:a b%2F:%25ä@{NOWHERE}/notwice"))
    assert place.address == f"postgresql://b%40b:a%20b%2F%3A%25%C3%A4@{NOWHERE}/notwice"
    assert postgres.place_of(parsed("postgresql://bob@h/x")).address == "postgresql://bob@h/x"
    assert postgres.place_of(parsed("postgresql://h/x")).address == "postgresql://h/x"


def test_what_holds_a_password_does_not_print_it() -> None:
    """P15: the values that carry it from the URL to the driver."""
    url = parsed(f"postgresql://bob:{SECRET}@{NOWHERE}/notwice")
    of_redis = settings_of(parsed(f"redis://bob:{SECRET}@{NOWHERE}"))
    for value in (url, postgres.place_of(url), mysql.place_of(url), of_redis, of_redis.login):
        assert SECRET not in repr(value) + str(value)
