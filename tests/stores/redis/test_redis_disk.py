"""Power cuts and full disks under a server; and connections that are encrypted."""

import datetime as dt
import itertools
import random
import subprocess
from collections import deque
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from notwice import StoreUnavailable
from notwice.model import Insert
from notwice.stores import open_async_store, open_store
from notwice.testing.conformance.records import get, insert, new_record, stored
from tests.engines.claims import Claims, missing_in
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
from tests.stores.test_power_cut import Disk, why_not

CUTS = 20
CONTROL_CUTS_MAX = 20
EVERY_SECOND = ("--appendonly", "yes", "--appendfsync", "everysec", "--save", "")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    try:
        disk = Disk(tmp_path)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no loop device to be had: {error.stderr}")
    yield disk
    disk.detach()


def cut_once(disk: Disk, program: Path, settings: Sequence[str], *, claims: int) -> tuple[int, int]:
    """Cut the power under a server; how many claims were acknowledged before, and how many of those are lost."""
    disk.mount()
    server = server_in(disk.mounted_at, program, free_ports(1)[0], settings, own_user=True)
    try:
        url = server.url(safe="ignore", timeout=2)
        writers = Claims(url, enough=claims)
        assert writers.enough.wait(30)
        before = list(writers.acknowledged)
        disk.cut_power()
        server.kill()
        writers.join()
        disk.unmount()
        disk.mount()
        server.start()
        store = open_store(url)
        lost = missing_in(store, before)
        store.close()
    finally:
        server.kill()
        disk.unmount()
    return len(before), lost


@pytest.mark.slow
@pytest.mark.parametrize("kind", [REDIS, VALKEY])
def test_power_cuts(disk: Disk, kind: str) -> None:
    """P1, P7: a server that syncs each write loses no acknowledged claim in a power cut; bound 3/n for n claims."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with server_folder() as folder:
        program = reachable(programs(kind)[0], folder)
        counts = [cut_once(disk, program, SAFE, claims=chance.randrange(1, 800)) for _ in range(CUTS)]
    print(f"{sum(count for count, _ in counts)} claims were acknowledged")
    assert sum(lost for _, lost in counts) == 0


@pytest.mark.slow
def test_power_cuts_of_a_lazy_server(disk: Disk) -> None:
    """The control: a server that syncs every second loses claims in a power cut."""
    with server_folder() as folder:
        program = reachable(programs(REDIS)[0], folder)
        assert any(cut_once(disk, program, EVERY_SECOND, claims=500)[1] for _ in range(CONTROL_CUTS_MAX))


def test_a_full_disk(disk: Disk) -> None:
    """P8: on a full disk a begin is refused, and nothing that was acknowledged before is lost."""
    disk.mount()
    filler = disk.mounted_at / "filler"
    with server_folder() as folder:
        program = reachable(programs(REDIS)[0], folder)
        server = server_in(disk.mounted_at, program, free_ports(1)[0], SAFE, own_user=True)
        try:
            store = open_store(server.url(timeout=2, safe="ignore"))
            insert(store, new_record("before"))
            with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
                file.writelines(itertools.repeat(bytes(4_096)))
            records = (new_record(f"{number}", error="x" * 4_096) for number in range(1_000))
            with pytest.raises(StoreUnavailable):
                deque((insert(store, record) for record in records), maxlen=0)
            filler.unlink()
            server.kill()
            server.start()
            assert stored(store, new_record("before"))
            store.close()
        finally:
            server.kill()
            disk.unmount()


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
