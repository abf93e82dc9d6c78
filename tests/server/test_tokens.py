"""Principals from tokens: verified, never only decoded."""

import asyncio
import base64
import contextlib
import http.server
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from notwice.http import RequestHeaders, RequestView
from notwice.server import options, principals
from notwice.server.fetching import BYTES_MAX
from notwice.server.options import SettingsError
from notwice.server.principals import FetchedKeySet, HeaderPrincipal, principal_of
from notwice.server.settings import Settings
from tests.server import processes
from tests.server.processes import ask

SECRET = "0123456789abcdef0123456789abcdef"
RSA = rsa.generate_private_key(65537, 2048)
OTHER_RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
PEM = RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def settings(**flags: Any) -> Settings:
    environment = {} if {"jwt_keys", "jwt_secret_file"} & set(flags) else {"NOTWICE_JWT_SECRET": SECRET}
    return options.read(Settings, {"upstream": "http://h", "principal": "jwt:sub", **flags}, environment)


def claims(**changes: Any) -> dict[str, Any]:
    return {"sub": "a1", "exp": int(time.time()) + 600, **changes}


def signed(
    key: Any = SECRET, algorithm: str = "HS256", *, headers: dict[str, Any] | None = None, **changes: Any
) -> str:
    return jwt.encode(claims(**changes), key, algorithm, headers=headers)


def request(*lines: str) -> RequestView:
    headers = RequestHeaders([("authorization", line) for line in lines])
    return RequestView(method="POST", path="/", raw_path="/", query="", headers=headers, scope={})


async def caller(token: str, **flags: Any) -> str | None:
    found: str | None = await principal_of(settings(**flags))(request(f"Bearer {token}"))
    return found


def key_set(**keys: Any) -> dict[str, Any]:
    found = []
    for name, key in keys.items():
        kind = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
        found.append({**kind.to_jwk(key.public_key(), as_dict=True), "kid": name, "use": "sig"})
    return {"keys": found}


def unsigned(header: dict[str, Any], **changes: Any) -> str:
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (header, claims(**changes))]
    return b".".join([*parts, b""]).decode()


async def test_a_token_with_a_right_signature_names_its_caller() -> None:
    """The claim of a verified token is the principal; a number is taken as its digits."""
    assert await caller(signed()) == "a1"
    assert await caller(signed(account=7), principal="jwt:account") == "7"


@pytest.mark.parametrize(
    "token",
    [
        signed("another secret that is long enough!!"),
        signed() + "x",
        signed().rpartition(".")[0] + ".",
        unsigned({"alg": "none"}),
        unsigned({"alg": "None"}),
        unsigned({}),
        signed(exp=int(time.time()) - 3600),
        signed(nbf=int(time.time()) + 3600),
        jwt.encode({"sub": "a1"}, SECRET),
        jwt.encode({"exp": int(time.time()) + 600}, SECRET),
        signed(algorithm="HS512", key=SECRET * 2),
        signed(RSA, "RS256"),
        "",
        "a.b.c",
    ],
    ids=[
        "another secret", "changed signature", "no signature", "none", "None", "no algorithm", "expired", "not yet",
        "endless", "without the claim", "algorithm not on the list", "public key", "empty", "nonsense",
    ],
)  # fmt: skip
async def test_a_token_that_is_not_verified_names_nobody(token: str) -> None:
    """Whatever is wrong with a token, its caller is not known."""
    assert await caller(token) is None


@pytest.mark.parametrize("claim", [True, None, ["a1"], {"a": 1}, 1.5, "", " ", "\ud800", "a\0", "x" * 256])
async def test_a_claim_that_names_nobody_is_none(claim: object, caplog: pytest.LogCaptureFixture) -> None:
    """Only a text or a whole number names an account; a token that names none is refused with a line in the log."""
    caplog.set_level("INFO", "notwice.server")
    assert await caller(signed(account=claim), principal="jwt:account") is None
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["A token was refused"]


async def test_issuer_and_audience_are_checked_where_they_are_configured() -> None:
    """A token for somebody else, or from somebody else, names nobody."""
    right = {"jwt_issuer": "https://issuer", "jwt_audience": "shop,till"}
    assert await caller(signed(iss="https://issuer", aud="till"), **right) == "a1"
    assert await caller(signed(iss="https://issuer", aud="other"), **right) is None
    assert await caller(signed(iss="https://issuer"), **right) is None
    assert await caller(signed(iss="https://evil", aud="till"), **right) is None
    assert await caller(signed(aud="till"), **right) is None
    assert await caller(signed(aud="anyone")) == "a1"


@pytest.mark.parametrize(
    "lines", [(), ("Basic YTE6cA==",), ("Bearer",), (f"Bearer {signed()}", f"Bearer {signed(sub='a2')}")]
)
async def test_what_is_not_one_bearer_token_names_nobody(lines: tuple[str, ...]) -> None:
    """No header, another scheme, and two tokens in one request name nobody."""
    assert await principal_of(settings())(request(*lines)) is None


async def test_the_scheme_is_named_in_any_case() -> None:
    """RFC 9110, section 11.1: the name of a scheme has no case."""
    assert await principal_of(settings())(request(f"bearer  {signed()}")) == "a1"


@pytest.fixture
def keys(tmp_path: Path) -> Callable[[Any], str]:
    def write(content: Any) -> str:
        file = tmp_path / "keys"
        file.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return str(file)

    return write


async def test_a_key_set_verifies_by_the_key_that_a_token_names(keys: Callable[[Any], str]) -> None:
    """RFC 7517: RS256 and ES256 keys side by side; a token is verified by its own key and by no other."""
    file = keys(key_set(one=RSA, two=EC))
    assert await caller(signed(RSA, "RS256", headers={"kid": "one"}), jwt_keys=file) == "a1"
    assert await caller(signed(EC, "ES256", headers={"kid": "two"}), jwt_keys=file) == "a1"
    assert await caller(signed(OTHER_RSA, "RS256", headers={"kid": "one"}), jwt_keys=file) is None
    assert await caller(signed(RSA, "RS256", headers={"kid": "two"}), jwt_keys=file) is None
    assert await caller(signed(RSA, "RS256", headers={"kid": "three"}), jwt_keys=file) is None
    assert await caller(signed(RSA, "RS256"), jwt_keys=file) is None


async def test_a_public_key_is_no_secret(keys: Callable[[Any], str]) -> None:
    """The confusion of HS256 and RS256: a token signed with the public key as a secret names nobody."""
    forged = [
        hs256(PEM, {"alg": "HS256"}),
        hs256(PEM, {"alg": "HS256", "kid": "one"}),
        hs256(json.dumps(key_set(one=RSA)).encode(), {"alg": "HS256", "kid": "one"}),
    ]
    for file in (keys(PEM), keys(key_set(one=RSA))):
        assert [await caller(token, jwt_keys=file) for token in forged] == [None] * 3
    assert await caller(signed(RSA, "RS256"), jwt_keys=keys(PEM)) == "a1"


def hs256(secret: bytes, header: dict[str, Any]) -> str:
    """A token signed by hand: the library refuses to sign with a public key."""
    body = unsigned(header).rpartition(".")[0]
    signature = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256).sign(body.encode(), secret)
    return f"{body}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


async def test_a_secret_in_a_key_set_verifies_nothing(keys: Callable[[Any], str]) -> None:
    """A symmetric key that got into a set of public keys is everybody's; it is on no list."""
    secret = {"kty": "oct", "k": base64.urlsafe_b64encode(SECRET.encode()).decode().rstrip("="), "kid": "s"}
    file = keys({"keys": [secret, *key_set(one=RSA)["keys"]]})
    assert await caller(signed(headers={"kid": "s"}), jwt_keys=file) is None


@pytest.mark.parametrize(
    "content",
    [
        b"not json", {}, {"keys": []}, b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
        RSA.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    ],
)  # fmt: skip
def test_keys_that_verify_nothing_are_refused_at_the_start(keys: Callable[[Any], str], content: Any) -> None:
    """A file without usable public keys, or with a private one, is told of before the first request."""
    with pytest.raises(SettingsError, match="holds no usable public keys"):
        principal_of(settings(jwt_keys=keys(content)))


def test_a_secret_file_is_read_at_the_start(tmp_path: Path) -> None:
    """The secret may stand in a file; one that is missing or too short is told of at once."""
    file = tmp_path / "secret"
    with pytest.raises(SettingsError, match="can't be read"):
        principal_of(settings(jwt_secret_file=str(file)))
    file.write_text("short\n")
    with pytest.raises(SettingsError, match="too short"):
        principal_of(settings(jwt_secret_file=str(file)))
    file.write_text(SECRET + "\n")
    assert principal_of(settings(jwt_secret_file=str(file)))


class Issuer(http.server.ThreadingHTTPServer):
    """Serves a key set that can change or go away, and counts who asks."""

    def __init__(self) -> None:
        self.document: dict[str, Any] | None = key_set(one=RSA)
        self.asked = 0
        issuer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked += 1
                body = json.dumps(issuer.document).encode()
                self.send_response(200 if issuer.document else 500)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as http.server has it
                pass

        super().__init__(("127.0.0.1", 0), Handler)


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


class Hands:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


async def test_keys_are_fetched_from_the_issuer_and_kept(issuer: Issuer) -> None:
    """Keys are asked for when they are needed, kept for minutes, and asked for again when they are old."""
    hands = Hands()
    source = FetchedKeySet(f"http://127.0.0.1:{issuer.server_port}/", now=hands)
    token = signed(RSA, "RS256", headers={"kid": "one"})
    for _ in range(3):
        await source.key_for(token)
    assert issuer.asked == 1
    hands.time += principals.KEYS_FRESH_SECONDS + 1
    await source.key_for(token)
    assert issuer.asked == 2


async def test_a_new_key_of_the_issuer_is_found_and_an_unknown_one_asks_no_storm(issuer: Issuer) -> None:
    """A key that was rotated in is fetched on demand, but strangers can't make the gateway ask again and again."""
    hands = Hands()
    source = FetchedKeySet(f"http://127.0.0.1:{issuer.server_port}/", now=hands)
    await source.key_for(signed(RSA, "RS256", headers={"kid": "one"}))
    issuer.document = key_set(two=EC)
    hands.time += principals.KEYS_ASKED_SECONDS + 1
    assert (await source.key_for(signed(EC, "ES256", headers={"kid": "two"}))).key_id == "two"
    for _ in range(5):
        with pytest.raises(jwt.PyJWKSetError):
            await source.key_for(signed(EC, "ES256", headers={"kid": "unknown"}))
    assert issuer.asked == 2


async def test_old_keys_serve_while_the_issuer_is_away_but_not_for_ever(issuer: Issuer) -> None:
    """A key that the issuer may have taken back meanwhile is trusted no longer than it is fresh."""
    hands = Hands()
    source = FetchedKeySet(f"http://127.0.0.1:{issuer.server_port}/", now=hands)
    token = signed(RSA, "RS256", headers={"kid": "one"})
    await source.key_for(token)
    issuer.document = None
    hands.time += principals.KEYS_FRESH_SECONDS - 1
    await source.key_for(token)
    hands.time += 2
    with pytest.raises(jwt.PyJWTError):
        await source.key_for(token)


class Dripping:
    """An issuer that gives a byte now and then, of its head or of its body, and never comes to an end."""

    def __init__(self, first: bytes) -> None:
        self._first = first
        self._over = threading.Event()
        self.asked = threading.Event()
        self.left = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        caller, _ = self._listener.accept()
        with caller, contextlib.suppress(OSError):
            caller.recv(65536)
            self.asked.set()
            caller.sendall(self._first)
            while not self._over.wait(0.02):
                caller.sendall(b"x")
        self.left.set()

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._listener.close()


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{"


@pytest.fixture(params=[b"", b"HTTP/1.1 200 OK\r\nX: ", HEAD], ids=["line", "head", "body"])
def dripping(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dripping]:
    monkeypatch.setattr(principals, "KEYS_TIMEOUT_SECONDS", 0.1)
    server = Dripping(request.param)
    yield server
    server.close()


async def test_an_issuer_that_drips_holds_nobody_up_for_longer_than_the_whole_may_take(dripping: Dripping) -> None:
    """The time for a key set is for all of it; then its connection is broken off, and the issuer is told by that."""
    source = FetchedKeySet(dripping.url)
    token = signed(RSA, "RS256", headers={"kid": "one"})
    found = await asyncio.gather(*(source.key_for(token) for _ in range(3)), return_exceptions=True)
    assert [type(each) for each in found] == [jwt.PyJWKClientConnectionError] * 3
    assert await asyncio.to_thread(dripping.left.wait, 20)


@pytest.mark.parametrize("dripping", [HEAD], indirect=True)
def test_a_stop_waits_for_no_issuer(tmp_path: Path, dripping: Dripping) -> None:
    """A gateway that is told to stop while its issuer drips is gone after its grace."""
    flags = ("--principal", "jwt:sub", "--jwt-keys", dripping.url, "--shutdown-grace", "10ms")
    token = signed(RSA, "RS256", headers={"kid": "one"})
    with processes.gateway(tmp_path, 1, *flags) as gateway, processes.Raw(gateway.port) as raw:
        lines = f"Authorization: Bearer {token}\r\nIdempotency-Key: k\r\nContent-Length: 0"
        raw.say(f"POST / HTTP/1.1\r\nHost: h\r\n{lines}\r\n\r\n".encode())
        assert dripping.asked.wait(20)
        gateway.terminate()
        assert gateway.wait() == 0


async def test_old_keys_serve_while_new_ones_are_fetched(issuer: Issuer, dripping: Dripping) -> None:
    """Whoever has a key of the set that is there waits for no fetch, however long that takes."""
    hands = Hands()
    source = FetchedKeySet(f"http://127.0.0.1:{issuer.server_port}/", now=hands)
    token = signed(RSA, "RS256", headers={"kid": "one"})
    await source.key_for(token)
    source._url = dripping.url
    hands.time += principals.KEYS_RENEWED_SECONDS + 1
    assert (await source.key_for(token)).key_id == "one"
    fetching = source._fetching
    assert fetching is not None
    assert not fetching.done()
    assert (await source.key_for(token)).key_id == "one"
    await fetching


async def test_keys_are_renewed_before_they_are_too_old(issuer: Issuer) -> None:
    """The new set is there when the old one may not be used any more."""
    hands = Hands()
    source = FetchedKeySet(f"http://127.0.0.1:{issuer.server_port}/", now=hands)
    token = signed(RSA, "RS256", headers={"kid": "one"})
    await source.key_for(token)
    hands.time += principals.KEYS_RENEWED_SECONDS + 1
    await source.key_for(token)
    assert source._fetching is not None
    await source._fetching
    issuer.document = None
    hands.time += principals.KEYS_FRESH_SECONDS - principals.KEYS_RENEWED_SECONDS
    assert (await source.key_for(token)).key_id == "one"
    assert issuer.asked == 2


@pytest.mark.parametrize("answer", [b"nonsense\r\n\r\n", b"", b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (BYTES_MAX + 1)])
async def test_an_issuer_that_speaks_no_http_or_too_much_is_one_that_is_down(answer: bytes) -> None:
    """Whatever comes in place of a key set, callers are not known, and the reason is in the log."""

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        source = FetchedKeySet(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        with pytest.raises(jwt.PyJWKClientConnectionError):
            await source.key_for("token")


async def test_a_header_names_its_caller_unless_it_says_two_things() -> None:
    """Repeated lines that agree are one; lines that differ, and an empty one, are nobody."""
    principal = HeaderPrincipal("Authorization")
    assert await principal(request("a1")) == "a1"
    assert await principal(request("a1", " a1 ")) == "a1"
    assert await principal(request("a1", "a2")) is None
    assert await principal(request("")) is None
    assert await principal(request()) is None


def test_the_gateway_gives_each_token_its_own_keys(tmp_path: Path) -> None:
    """P11: two accounts never meet in one key; a rotated token finds its account's answer; no token is 401."""
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    flags = ("--principal", "jwt:sub", "--jwt-secret-file", str(secret))

    def charge(gateway: processes.Process, token: str) -> processes.Answer:
        headers = {"Idempotency-Key": "k1", "Authorization": f"Bearer {token}"}
        return ask(gateway.port, "POST", "/charge", headers=headers)

    with processes.upstream(tmp_path) as service, processes.gateway(tmp_path, service.port, *flags) as gateway:
        assert charge(gateway, signed()).header("idempotency-replayed") is None
        assert charge(gateway, signed(jti="rotated")).header("idempotency-replayed") == "true"
        assert charge(gateway, signed(sub="a2")).header("idempotency-replayed") is None
        unknown = charge(gateway, signed("x" * 32))
        assert (unknown.status, unknown.header("www-authenticate")) == (401, "Bearer")
        assert ask(gateway.port, "POST", "/charge").status == 201
    assert len(processes.begun(tmp_path)) == 3
