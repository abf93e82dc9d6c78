"""The options of `notwice serve`, each defined once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from notwice.privacy import KEYS_VARIABLE, keys_in
from notwice.server.kinds import (
    ADDRESS,
    ALGORITHMS,
    ASYMMETRIC,
    BYTES_OR_NEVER,
    DURATION,
    FILE,
    HEADER,
    KEYS,
    METHODS,
    NAMES,
    OPTIONAL_HEADER,
    PATH,
    PRINCIPAL,
    RETENTION,
    SCOPE,
    SECRET,
    SIZE,
    STATUSES,
    STORE,
    SWITCH,
    SYMMETRIC,
    TEXT,
    TIMEOUT,
    UNLIMITED,
    UPSTREAM,
    Address,
    PrincipalSource,
    Target,
    one_of,
)
from notwice.server.options import option, options

LOOPBACK = ("localhost", "127.0.0.1", "::1")
SECRET_BYTES_MIN = 32  # RFC 7518, section 3.2: as long as the digest of HS256, or longer


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All options of the gateway. Flags, environment variables and the file are derived from these fields."""

    upstream: Target = option(UPSTREAM, "", "the service to guard (must be given), like http://127.0.0.1:9000")
    principal: PrincipalSource = option(
        PRINCIPAL,
        "",
        "whose key it is; must be given: header:NAME (a header that whoever stands before the gateway sets and clients "
        "can't), jwt:CLAIM (a claim of a verified bearer token), or shared (all callers are one)",
    )
    listen: Address = option(ADDRESS, "127.0.0.1:8080", "where to listen; port 0 takes a free one")
    store: str = option(STORE, "sqlite:///notwice.db", "where the records are kept")

    methods: tuple[str, ...] = option(METHODS, "POST,PATCH", "the guarded methods")
    required: bool = option(SWITCH, "false", "refuse a guarded method that comes without a key")
    header: str = option(HEADER, "Idempotency-Key", "the header that carries the key")
    scope: str = option(SCOPE, "http", "the scope under which the keys are stored")
    statuses: tuple[tuple[int | str, str], ...] = option(
        STATUSES,
        "",
        "what answers of the service mean in place of the rule, like 503=abandoned,5xx=failed: completed, failed, "
        "abandoned (it is certain that nothing happened) or unknown",
    )
    recovery: Literal["hold", "rerun"] = option(
        one_of("hold", "rerun"),
        "hold",
        "what may happen to a request whose outcome is unknown: hold it, or send it to the upstream again",
    )
    store_requests: bool = option(
        SWITCH,
        "false",
        "keep each request until its outcome is known, to send it to the upstream again without waiting for a retry; "
        "with --recovery rerun, and for requests of up to 256 KiB",
    )
    stored_headers: tuple[str, ...] = option(
        NAMES, "", "headers to keep with a request although they look like credentials, like Authorization"
    )
    attempts_max: int | None = option(
        UNLIMITED,
        "5",
        "how often --recovery rerun may send a request in all, within 20 hours; the pauses are 2, 4, 8 ... seconds, at "
        "most 5 minutes, so that 5 are over in half a minute, and 250 in 20 hours",
    )
    recover_every: float = option(TIMEOUT, "10s", "how often stored requests are looked for that have to be sent again")
    wait: float = option(DURATION, "0", "how long a duplicate of a running request waits for its answer")
    lease: float = option(TIMEOUT, "5m", "how long a gateway may be silent before its requests count as unresolved")
    retention: float | None = option(RETENTION, "30d", "how long an answer is kept; forever: without end")
    retention_header: str = option(
        OPTIONAL_HEADER,
        "",
        "a header that tells for how many more seconds a duplicate gets the answer, like Idempotency-Retention "
        "(default: none)",
    )
    purge_every: float = option(DURATION, "1h", "how often expired answers are dropped, in small steps; 0: never")
    unresolved_max: int | None = option(
        UNLIMITED,
        "unlimited",
        "how many requests of one caller may be unresolved before new ones are refused with 429",
    )
    store_timeout: float = option(TIMEOUT, "2s", "how long the store may take before a request is refused")
    store_failure: Literal["refuse", "proceed"] = option(
        one_of("refuse", "proceed"), "refuse", "what happens to guarded requests while the store is down"
    )
    request_bytes_max: int = option(SIZE, "10MiB", "the largest body of a guarded request")
    response_bytes_max: int = option(SIZE, "1MiB", "the largest answer that is kept whole")
    seal_keys: str = option(SECRET, "", "the keys that seal answers in the store: name:secret, several", secret=True)
    seal_keys_file: str = option(FILE, "", "a file with the keys that seal answers in the store")
    hash_keys: bool = option(SWITCH, "false", "store no caller's key: its operation id stands in its place")
    compress_above: int | None = option(BYTES_OR_NEVER, "never", "compress records in the store that are longer")
    status_path: str = option(PATH, "", "a path at which callers can look a key up (default: none)")

    upstream_host: Literal["keep", "upstream"] = option(
        one_of("keep", "upstream"), "keep", "the Host that the upstream sees: the caller's, or its own"
    )
    upstream_connect_timeout: float = option(TIMEOUT, "5s", "how long a connection to the upstream may take")
    upstream_timeout: float = option(TIMEOUT, "60s", "how long the upstream may be silent, or not read")
    forwarded: Literal["append", "replace"] = option(
        one_of("append", "replace"),
        "append",
        "what becomes of X-Forwarded headers that a caller sends: replace them where no trusted proxy stands before",
    )

    jwt_secret: str = option(SECRET, "", "the secret that signs tokens (HS256 and its kin)", secret=True)
    jwt_secret_file: str = option(FILE, "", "a file with the secret that signs tokens")
    jwt_keys: str = option(KEYS, "", "the public keys of the issuer: a key set (RFC 7517) or a PEM file")
    jwt_algorithms: tuple[str, ...] = option(
        ALGORITHMS, "", "the algorithms that are accepted (default: HS256 or, with keys, RS256,ES256)"
    )
    jwt_issuer: str = option(TEXT, "", "the issuer that a token must name")
    jwt_audience: tuple[str, ...] = option(NAMES, "", "the audience that a token must name, or one of several")
    jwt_leeway: float = option(DURATION, "30s", "by how much clocks may differ when a token's times are checked")

    health_path: str = option(PATH, "/-/notwice/health", "where /live and /ready are answered; never forwarded")
    shutdown_grace: float = option(DURATION, "30s", "how long a stop waits for requests that are running")
    access_log: bool = option(SWITCH, "true", "log a line for each request, without keys, bodies and credentials")
    log_level: Literal["debug", "info", "warning", "error"] = option(
        one_of("debug", "info", "warning", "error"), "info", "the least severe lines that are logged"
    )

    @property
    def accepted_algorithms(self) -> tuple[str, ...]:
        """The algorithms that a token may be signed with; never both with a secret and with a key pair."""
        return self.jwt_algorithms or (("RS256", "ES256") if self.jwt_keys else ("HS256",))

    def complaints(self) -> Iterator[str]:
        """Give a sentence for each way in which the options do not fit together."""
        if not self.upstream.host:
            yield "The service to guard is missing: say it with --upstream URL, like http://127.0.0.1:9000."
        if self.principal.kind == "missing":
            yield (
                "Whose keys are they? Say --principal header:NAME, jwt:CLAIM, or shared if all callers are one. "
                "Keys without an owner would leak one caller's answers to another."
            )
        if not self.health_path:
            yield "--health-path can't be empty: say a path that the upstream does not use."
        yield from self._complaints_of_names()
        yield from self._complaints_of_requests()
        if self.seal_keys and self.seal_keys_file:
            yield "The keys that seal are given by NOTWICE_SEAL_KEYS or --seal-keys-file, not by both."
        if self.principal.kind == "jwt":
            yield from self._complaints_of_tokens()
        elif unused := self._given_for_tokens():
            yield f"{', '.join(unused)}: --principal does not say jwt:CLAIM, so no token would be verified."

    def _complaints_of_names(self) -> Iterator[str]:
        if self.principal.kind == "header" and self.principal.name.lower() == self.header.lower():
            yield f"--principal: {self.header} holds the key; say the header that names the account."
        if self.health_path and f"{self.status_path}/".startswith(f"{self.health_path}/"):
            yield "--status-path: --health-path answers there, so no key could be looked up; say another path."

    def _complaints_of_requests(self) -> Iterator[str]:
        if self.store_requests and self.recovery != "rerun":
            yield "--store-requests: only with --recovery rerun is a request sent again; say that, or leave this out."
        if self.stored_headers and not self.store_requests:
            yield "--stored-headers: no request is stored without --store-requests."
        if self.store_requests and self.hash_keys and not (self.seal_keys or self.seal_keys_file):
            yield (
                "--store-requests keeps each request with its key, which --hash-keys is to hide: give keys that seal, "
                "too, by --seal-keys-file."
            )

    def _given_for_tokens(self) -> list[str]:
        return [
            item.variable if item.secret else item.flag
            for item in options(type(self))
            if item.name.startswith("jwt_") and getattr(self, item.name) != item.kind.parse(item.default)
        ]

    def _complaints_of_tokens(self) -> Iterator[str]:
        sources = [bool(self.jwt_secret), bool(self.jwt_secret_file), bool(self.jwt_keys)]
        if sum(sources) != 1:
            yield (
                "A token is verified with exactly one of NOTWICE_JWT_SECRET, --jwt-secret-file and --jwt-keys; "
                f"{'none' if not any(sources) else 'more than one'} is given."
            )
        if self.jwt_keys.startswith(("http://", "https://")):
            yield from _complaints_of_address(self.jwt_keys)
        usable = ASYMMETRIC if self.jwt_keys else SYMMETRIC
        for name in self.accepted_algorithms:
            if name not in usable:
                kind = "public keys" if self.jwt_keys else "a secret"
                yield f"--jwt-algorithms: {name} can't be used with {kind}; choose from {', '.join(usable)}."
        if self.jwt_secret and len(self.jwt_secret.encode()) < SECRET_BYTES_MIN:
            yield f"The secret that signs tokens is too short to be safe: use at least {SECRET_BYTES_MIN} bytes."

    def sealing_keys(self) -> tuple[str, ...]:
        """Give the keys that seal, read from their file if they stand in one.

        Raises `OSError`, or `ValueError` if there are none where they are said to be.
        """
        if self.seal_keys_file:
            return keys_in(Path(self.seal_keys_file).read_text(), f"--seal-keys-file: {self.seal_keys_file}")
        return keys_in(self.seal_keys, KEYS_VARIABLE) if self.seal_keys else ()

    def secret(self) -> bytes:
        """Give the secret that signs tokens, read from its file if it stands in one. Raises `OSError`."""
        if self.jwt_secret_file:
            return Path(self.jwt_secret_file).read_bytes().rstrip(b"\r\n")
        return self.jwt_secret.encode()


def _complaints_of_address(url: str) -> Iterator[str]:
    """What is wrong with an address that keys are fetched from, without repeating it: it may hold a password."""
    try:
        parts = urlsplit(url)
        host = parts.hostname if parts.port != 0 and "@" not in url else None
    except ValueError:
        host = None
    if not host:
        yield "--jwt-keys: write the address without a user and a password, as in https://issuer.example/keys."
    elif url.startswith("http://") and host not in LOOPBACK:
        yield "--jwt-keys: fetch keys over https; over http anyone on the way could put in their own."
