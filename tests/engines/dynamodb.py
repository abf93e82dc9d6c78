"""A private emulator of DynamoDB. It carries out one write at a time, as the service does for one item.

It is served by uvicorn: the server that it brings takes twice the processor for a request.
"""

import fcntl
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import botocore.session
import pytest

from notwice.stores import migrate
from notwice.stores.dynamodb.place import Place, place_of
from notwice.stores.urls import parsed
from tests.engines.private import Server, free_port, missing, server_folder
from tests.sources import ROOT

PINS = Path(__file__).with_name("ministack.txt")
ENVIRONMENT = ROOT / ".venv-ministack"
REGION = "eu-central-1"
NUMBERS = itertools.count()
ACCOUNT = {
    "AWS_ACCESS_KEY_ID": "tests",
    "AWS_SECRET_ACCESS_KEY": "tests",
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}


class Table:
    """A table of its own."""

    def __init__(self, server: Server, url: str) -> None:
        self.server = server
        self.url = url

    @property
    def place(self) -> Place:
        return place_of(parsed(self.url))

    def client(self) -> Any:
        return botocore.session.Session().create_client(
            "dynamodb", region_name=REGION, endpoint_url=f"http://127.0.0.1:{self.server.port}"
        )

    def items(self) -> list[dict[str, Any]]:
        """What lies in it, if that is little."""
        return list(self.client().scan(TableName=self.place.table)["Items"])

    def through(self, port: int) -> str:
        """Its URL by another port."""
        return self.url.replace(str(self.server.port), str(port))


def new_table(server: Server, **options: object) -> Table:
    """Make a table as `notwice migrate` makes it."""
    given = {"region": REGION, "endpoint": f"http://127.0.0.1:{server.port}", "timeout": 10, **options}
    query = "&".join(f"{name}={value}" for name, value in given.items())
    url = f"dynamodb://table-{next(NUMBERS)}?{query}"
    assert len(migrate(url, dry_run=False)) == 3
    return Table(server, url)


def python() -> Path:
    """The interpreter of an environment that has the emulator, and nothing of ours; it is made if it is not there."""
    stamp = ENVIRONMENT / "pins.txt"
    found = ENVIRONMENT / "bin" / "python"
    with ENVIRONMENT.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes may share the tests out
        if not stamp.exists() or stamp.read_bytes() != PINS.read_bytes():
            subprocess.run([sys.executable, "-m", "venv", "--clear", ENVIRONMENT], check=True)
            pip = [str(found), "-m", "pip", "--disable-pip-version-check", "-qq"]
            install = [*pip, "install", "--requirement", str(PINS)]
            if subprocess.run(install, check=False, stderr=subprocess.DEVNULL).returncode:
                missing("the emulator of DynamoDB")
            stamp.write_bytes(PINS.read_bytes())
    return found


@contextmanager
def dynamodb_server() -> Iterator[Server]:
    """An emulator of its own. It is killed in the end."""
    with server_folder() as folder, pytest.MonkeyPatch.context() as patch:
        for name, value in ACCOUNT.items():
            patch.setenv(name, value)
        port = free_port()
        settings = {
            "BIND_HOST": "127.0.0.1",
            "GATEWAY_PORT": port,
            "SERVICES": "dynamodb",
            "LOG_LEVEL": "WARNING",
            "HOME": folder,
            "TMPDIR": folder,
        }
        given = [f"{name}={value}" for name, value in settings.items()]
        serve = ["-m", "uvicorn", "ministack.app:app", "--host", "127.0.0.1", "--port", str(port)]
        command = ["/usr/bin/env", "-i", *given, str(python()), *serve, "--log-level", "warning", "--no-access-log"]
        server = Server(command, port=port, log=folder / "log", own_user=True)
        try:
            yield server
        finally:
            server.kill()
