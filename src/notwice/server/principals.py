"""Whose key it is: the principal of a guarded request, as `HttpPolicy.principal` asks for it.

A token is never only decoded. Its signature is verified with a secret or with the issuer's public keys, by an
algorithm of the list; ``none`` is on no list, and a list never holds both kinds, so that a public key can't be used as
a secret. It must have an end (``exp``) that is not over; ``nbf``, ``iss`` and ``aud`` are checked as RFC 7519 says,
the latter two where they are configured. Whatever is wrong with a token, its caller is not known: 401.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, Protocol

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from notwice.errors import InvalidKey
from notwice.http import SHARED, RequestView
from notwice.identity import check_namespace, join_scope
from notwice.server.fetching import fetch
from notwice.server.options import SettingsError
from notwice.server.settings import SECRET_BYTES_MIN, Settings

Principal = Callable[[RequestView], Awaitable[str | None]]

KEYS_FRESH_SECONDS: Final = 300.0  # keys that an issuer took back are trusted no longer than this
KEYS_RENEWED_SECONDS: Final = 240.0  # the issuer is asked so early that an answer can be late
KEYS_ASKED_SECONDS: Final = 10.0  # a token with an unknown key can't make the gateway ask the issuer more often
KEYS_TIMEOUT_SECONDS: Final = 5.0  # for the whole of the set

logger = logging.getLogger("notwice.server")


class KeySource(Protocol):
    """Where the key comes from that verifies a token."""

    async def key_for(self, token: str) -> Any:  # noqa: ANN401 - whatever the token library takes as a key
        """Give the key. Raises `jwt.PyJWTError` if there is none."""
        ...


class OneKey:
    """The same key for every token: a secret, or one public key."""

    def __init__(self, key: str | bytes) -> None:
        self._key = key

    async def key_for(self, token: str) -> str | bytes:
        """Give the key."""
        del token
        return self._key


class KeySet:
    """The keys of a set (RFC 7517) that was read once."""

    def __init__(self, keys: jwt.PyJWKSet) -> None:
        self._keys = keys

    async def key_for(self, token: str) -> jwt.PyJWK:
        """Give the key that the token names, or the only one if it names none."""
        return _choose(self._keys, token)


class FetchedKeySet:
    """The keys of a set that the issuer serves.

    They are fetched when they are needed, and again before they are too old: those that are there serve meanwhile. Only
    one fetch is under way at a time, and whoever needs what it may bring waits for no more than that.
    """

    def __init__(self, url: str, *, now: Callable[[], float] = time.monotonic) -> None:
        self._url = url
        self._now = now
        self._keys: jwt.PyJWKSet | None = None
        self._fetched = self._asked = float("-inf")
        self._fetching: asyncio.Task[None] | None = None

    async def key_for(self, token: str) -> jwt.PyJWK:
        """Give the key that the token names. An unknown one makes the set be fetched again, but not too often."""
        if self._age() > KEYS_RENEWED_SECONDS:
            self._ask()
        if self._age() > KEYS_FRESH_SECONDS:
            await self._news()
        try:
            return _choose(self._current(), token)
        except jwt.PyJWKSetError:
            if self._age() > KEYS_ASKED_SECONDS:
                self._ask()
            await self._news()
            return _choose(self._current(), token)

    def _age(self) -> float:
        return self._now() - self._fetched

    def _current(self) -> jwt.PyJWKSet:
        if self._keys is None or self._age() > KEYS_FRESH_SECONDS:
            raise jwt.PyJWKClientConnectionError("the issuer's keys can't be fetched")
        return self._keys

    def _ask(self) -> None:
        now = self._now()
        if self._fetching is None and now - self._asked > KEYS_ASKED_SECONDS:
            self._asked = now
            self._fetching = asyncio.create_task(self._fetch(now))

    async def _news(self) -> None:
        if self._fetching is not None:
            await asyncio.wait([self._fetching])

    async def _fetch(self, now: float) -> None:
        try:
            document = await fetch(self._url, timeout_s=KEYS_TIMEOUT_SECONDS)
            self._keys = _usable(lambda: jwt.PyJWKSet.from_json(document.decode()))
            self._fetched = now
        except (jwt.PyJWTError, OSError, ValueError) as error:
            logger.error("The issuer's keys can't be fetched: %s", error)  # noqa: TRY400 - the reason is in the message
        finally:
            self._fetching = None


class TokenPrincipal:
    """The claim of a verified bearer token."""

    def __init__(self, settings: Settings, keys: KeySource) -> None:
        self._claim = settings.principal.name
        self._keys = keys
        self._checks: dict[str, Any] = {
            "algorithms": list(settings.accepted_algorithms),
            "issuer": settings.jwt_issuer or None,
            "audience": list(settings.jwt_audience) or None,
            "leeway": settings.jwt_leeway,
            "options": {"require": ["exp", self._claim], "verify_aud": bool(settings.jwt_audience)},
        }

    async def __call__(self, request: RequestView) -> str | None:
        """Give the claim, or ``None``."""
        lines = request.headers.lines("authorization")
        scheme, _, token = lines[0].partition(" ") if len(lines) == 1 else ("", "", "")
        if scheme.lower() != "bearer":
            return None
        try:
            claims = jwt.decode(token.strip(), await self._keys.key_for(token.strip()), **self._checks)
        except jwt.PyJWTError as error:
            logger.info("A token was refused: %s", type(error).__name__)
            return None
        value = claims[self._claim]
        if isinstance(value, bool) or not isinstance(value, str | int) or not _is_name(str(value)):
            logger.info("A token was refused: its claim %s names nobody", self._claim)
            return None
        return str(value)


def _is_name(text: str) -> bool:
    """Say whether an account can be called so."""
    try:
        return bool(text.strip() and check_namespace(join_scope((text,))))
    except InvalidKey:
        return False


class HeaderPrincipal:
    """The value of a header that whoever stands before the gateway sets. Two different values are none.

    It is read as UTF-8. Only blanks and tabs are taken off around it: the other characters that Unicode counts as
    white space stand for bytes that end the names of other accounts.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    async def __call__(self, request: RequestView) -> str | None:
        """Give the value, or ``None``."""
        found = {line.strip(" \t") for line in request.headers.lines(self._name)}
        try:
            return found.pop().encode("latin-1").decode() or None if len(found) == 1 else None
        except UnicodeDecodeError:
            return None


def principal_of(settings: Settings) -> Any:  # noqa: ANN401 - a function of a request, or the marker that all are one
    """Make what `settings` say. Raises `SettingsError` if the secret or the keys can't be read."""
    match settings.principal.kind:
        case "header":
            return HeaderPrincipal(settings.principal.name)
        case "jwt":
            return TokenPrincipal(settings, _keys(settings))
        case _:
            return SHARED


def _keys(settings: Settings) -> KeySource:
    if settings.jwt_keys.startswith(("https://", "http://")):
        return FetchedKeySet(settings.jwt_keys)
    try:
        return _public_keys(Path(settings.jwt_keys).read_text()) if settings.jwt_keys else OneKey(_secret(settings))
    except OSError as error:
        raise SettingsError([f"{error.filename} can't be read: {error.strerror}."]) from error
    except (jwt.PyJWTError, ValueError) as error:
        raise SettingsError([f"--jwt-keys: {settings.jwt_keys} holds no usable public keys: {error}."]) from error


def _secret(settings: Settings) -> bytes:
    secret = settings.secret()
    if len(secret) < SECRET_BYTES_MIN:
        raise SettingsError(
            [f"--jwt-secret-file: the secret is too short to be safe: use at least {SECRET_BYTES_MIN} bytes."]
        )
    return secret


def _public_keys(text: str) -> KeySource:
    if not text.lstrip().startswith("-----BEGIN"):
        return KeySet(_usable(lambda: jwt.PyJWKSet.from_json(text)))
    if "PRIVATE" in text:
        raise ValueError("it holds a private key; the gateway needs the public one only")
    try:
        load_pem_public_key(text.encode())
    except UnsupportedAlgorithm as error:
        raise ValueError("the key's kind is not known") from error
    return OneKey(text)


def _usable(read: Callable[[], jwt.PyJWKSet]) -> jwt.PyJWKSet:
    """Read a key set. The library looks into whatever JSON it is given; what makes no sense of it is no key set."""
    try:
        return read()
    except (AttributeError, LookupError, TypeError, RecursionError) as error:
        raise jwt.PyJWKSetError("it is not of the form of RFC 7517") from error


def _choose(keys: jwt.PyJWKSet, token: str) -> jwt.PyJWK:
    """Find the key by the token's ``kid``. A key that is meant for encryption verifies nothing."""
    name = jwt.get_unverified_header(token).get("kid")
    usable = [key for key in keys.keys if key.public_key_use in (None, "sig")]
    found = usable if name is None else [key for key in usable if key.key_id == name]
    if len(found) != 1:
        raise jwt.PyJWKSetError("the token names no key of the set")
    return found[0]
