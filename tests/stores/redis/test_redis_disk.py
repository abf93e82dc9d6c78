"""Power cuts and full disks under a server; and connections that are encrypted."""

import datetime as dt
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from notwice import StoreUnavailable
from notwice.model import Insert, Reply
from notwice.stores import open_async_store, open_store
from notwice.stores.redis.settings import settings_of
from notwice.stores.redis.store import Plan, RedisStore
from notwice.stores.shared import PartlyDone
from notwice.stores.urls import parsed
from notwice.testing.conformance.records import get, insert, new_record, stored
from tests.engines.disasters import DisasterCases, Risk
from tests.engines.disks import Disk, disk_in
from tests.engines.private import server_folder
from tests.engines.redis import (
    REDIS,
    SAFE,
    VALKEY,
    RedisServer,
    free_ports,
    programs,
    reachable,
    redis_server,
    server_in,
)

EVERY_SECOND = ("--appendonly", "yes", "--appendfsync", "everysec", "--save", "")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with disk_in(tmp_path) as disk:
        yield disk


@contextmanager
def server_of(disk: Disk, kind: str, settings: Sequence[str]) -> Iterator[RedisServer]:
    with server_folder() as folder, disk.mounted() as mounted:
        program = reachable(programs(kind)[0], folder)
        server = server_in(mounted / "data", program, free_ports(1)[0], settings, own_user=True)
        try:
            yield server
        finally:
            server.kill()


class TestDisasters(DisasterCases):
    """Servers that sync each write, and one that syncs every second, which loses claims."""

    @pytest.fixture(params=[REDIS, VALKEY])
    def risk(self, disk: Disk, request: pytest.FixtureRequest) -> Risk:
        safe, lazy = (partial(server_of, disk, request.param, settings) for settings in (SAFE, EVERY_SECOND))
        return Risk(disk, safe, lazy, partial(redis_server, request.param), named="prefix", claims_max=800)


def test_a_full_memory() -> None:
    """P2, P8: a server without memory refuses new claims; what shares a trip with one is read and replayed as ever."""
    with redis_server(REDIS) as server, server.client() as client:
        store = RedisStore(Plan(settings_of(parsed(server.url(safe="ignore")))))
        record = new_record("a")
        insert(store, record)
        client.config_set("maxmemory", 1)
        with pytest.raises(PartlyDone) as raised:
            store.apply([Insert(new_record("b")), Insert(record), Insert(new_record("c"))])
        first, seen, last = raised.value.outcomes
        assert isinstance(first, StoreUnavailable)
        assert isinstance(last, StoreUnavailable)
        assert isinstance(seen, Reply)
        assert seen.record == stored(store, record)
        client.config_set("maxmemory", 0)
        assert insert(store, new_record("b")).won
        store.close()


# --- encrypted connections --------------------------------------------------------------------------------------------


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for the loopback address that vouches for itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "certificate.pem", folder / "key.pem"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    pem = serialization.PrivateFormat.PKCS8
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, pem, serialization.NoEncryption()))
    for path in paths:
        path.chmod(0o644)
    return paths


@pytest.fixture
def encrypted() -> Iterator[tuple[RedisServer, int, Path]]:
    with server_folder() as folder:
        vouched, key = certificate(folder)
        (port,) = free_ports(1)
        tls = ["--tls-port", str(port), "--tls-cert-file", str(vouched), "--tls-key-file", str(key)]
        tls += ["--tls-ca-cert-file", str(vouched), "--tls-auth-clients", "no"]
        with redis_server(REDIS, [*SAFE, *tls]) as server:
            yield server, port, vouched


async def test_encrypted_connections(encrypted: tuple[RedisServer, int, Path]) -> None:
    """Encrypted connections work for threads and event loops; a certificate that nobody vouches for is refused."""
    _, port, vouched = encrypted
    url = f"rediss://127.0.0.1:{port}?timeout=5"
    trusting = f"{url}&ca_file={vouched}"
    store = open_store(trusting)
    insert(store, new_record())
    assert stored(store, new_record())
    store.close()
    tasks = open_async_store(trusting)
    assert not (await tasks.apply([Insert(new_record())]))[0].won
    await tasks.close()
    wary = open_store(url)
    with pytest.raises(StoreUnavailable, match="nothing was done"):
        get(wary, new_record())
    wary.close()
