"""What a URL says of a server or a cluster."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from notwice.stores.redis.routes import Address
from notwice.stores.urls import StoreUrl, check_ports, one_of, seconds

PREFIX: Final = "notwice:"
PORT: Final = 6379
TIMEOUT: Final = 2.0


class Login(NamedTuple):
    """What all connections of a store have in common. ``timeout`` is in seconds, for a whole call."""

    options: Mapping[str, Any]
    encrypted: bool
    timeout: float

    def __repr__(self) -> str:
        """Without a user and a password."""
        return f"<Login encrypted={self.encrypted} timeout={self.timeout:g}>"


class Settings(NamedTuple):
    """What a URL says.

    ``replicas`` of more than 0 makes a write count only once so many replicas have it. ``safe`` says what to do about
    settings of the server that lose writes: ``warn``, ``require`` (refuse them), or ``ignore``.
    """

    addresses: tuple[Address, ...]
    cluster: bool
    login: Login
    prefix: str = PREFIX
    replicas: int = 0
    safe: str = "warn"

    @property
    def shown(self) -> str:
        """The store for people, without a password."""
        where = ",".join(f"{host}:{port}" for host, port in self.addresses)
        return f"redis{'+cluster' if self.cluster else ''}://{where}"


def _prefix(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9:_.-]{0,100}", text):
        raise ValueError("it may have letters, digits and the signs : _ . -, 100 at most")
    return text


def _replicas(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,3}", text):
        raise ValueError("it is a number of replicas, 0 or more")
    return int(text)


OPTIONS: Final[dict[str, Callable[[str], object]]] = {
    "prefix": _prefix,
    "wait": _replicas,
    "timeout": seconds,
    "safe": one_of("warn", "require", "ignore"),
    "ca_file": str,
}
"""The options of a URL, with what reads them."""


def settings_of(url: StoreUrl) -> Settings:
    """Read ``redis://``, ``rediss://``, ``redis+cluster://`` or ``rediss+cluster://``. Raises `ValueError`."""
    options: dict[str, Any] = url.read_options(OPTIONS)
    check_ports(url.host)
    cluster = url.scheme.endswith("+cluster")
    encrypted = url.scheme.startswith("rediss")
    login: dict[str, Any] = {"protocol": 2, **_account(url.host)}
    if "ca_file" in options:
        if not encrypted:
            raise ValueError(f"ca_file is for encrypted connections: {url.scheme.replace('redis', 'rediss')}://")
        login["ssl_ca_certs"] = options["ca_file"]
    if not cluster:
        login["db"] = _database(url)
    elif url.path.strip("/"):
        raise ValueError(f"a cluster has no databases: {url.scheme}://host:port")
    return Settings(
        addresses=_addresses(url, cluster=cluster),
        cluster=cluster,
        login=Login(login, encrypted, options.get("timeout", TIMEOUT)),
        prefix=options.get("prefix", PREFIX),
        replicas=options.get("wait", 0),
        safe=options.get("safe", "warn"),
    )


def _account(host: str) -> dict[str, str]:
    account, at, _ = host.rpartition("@")
    user, _, password = account.partition(":")
    named = {"username": unquote(user), "password": unquote(password)} if at else {}
    return {name: value for name, value in named.items() if value}


def _addresses(url: StoreUrl, *, cluster: bool) -> tuple[Address, ...]:
    texts = url.host.rpartition("@")[2].split(",")
    found = [re.fullmatch(r"(\[[^\]]+\]|[^:\[\]]+)(?::([0-9]{1,5}))?", text) for text in texts]
    if not all(found) or (len(found) > 1 and not cluster):
        raise ValueError(f"name {'nodes' if cluster else 'a server'} as in {url.scheme}://localhost:{PORT}")
    return tuple((each[1].strip("[]"), int(each[2] or PORT)) for each in found if each)


def _database(url: StoreUrl) -> int:
    text = url.path.strip("/")
    if text and not re.fullmatch(r"[0-9]{1,5}", text):
        raise ValueError(f"a database of a server is a number, as in {url.scheme}://localhost:{PORT}/0")
    return int(text or 0)
