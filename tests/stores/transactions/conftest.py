"""Private servers, each started when the first test asks for it and killed after the last one, and a guard on them."""

from collections.abc import Callable, Iterator

import django
import pytest
from django.conf import settings

from notwice import Guard
from notwice.stores import open_store
from notwice.testing import VirtualClock
from tests.engines.mariadb import MariadbServer, mariadb_server
from tests.engines.postgres import PACKAGED, PostgresServer, postgres_server
from tests.stores.transactions.ledgers import LEVELS, Ledger


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL of a package's, so that at least one is there."""
    with postgres_server(PACKAGED) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariadbServer]:
    """A MariaDB with its own defaults."""
    with mariadb_server() as server:
        yield server


@pytest.fixture(scope="session")
def django_databases() -> Callable[..., tuple[str, ...]]:
    """Django, set up without a project: adds a database, and gives the names of two connections to it."""
    if not settings.configured:
        settings.configure(USE_TZ=True)
    django.setup()
    from django.db import connections  # noqa: PLC0415 - Django is set up first

    def added(**given: object) -> tuple[str, ...]:
        known = connections.settings
        names = (f"d{len(known)}", f"d{len(known)}again")
        known |= connections.configure_settings({"default": {}, **{name: dict(given) for name in names}})
        return names

    return added


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> str:
    """Each isolation level that servers have in common."""
    name: str = request.param
    return name


@pytest.fixture
def guard(ledger: Ledger) -> Iterator[Guard]:
    """A guard whose heart beats only when it is told to. Each module, or class, has its ledger."""
    with Guard(open_store(ledger.url), clock=VirtualClock()) as guard:
        yield guard


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    """A key, and a row's name, that no other test has."""
    name: str = request.node.nodeid
    return name.partition("::")[2].replace("'", "")[-90:]
