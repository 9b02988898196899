"""Databases and stores for the tests of `penstock.database`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.database.databases import Database, connect, make_effects
from tests.database.postgres import PostgresServer
from tests.faces import open_face

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.client.store import RemoteStore
    from penstock.store.store import Store


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With PostgreSQL the store on a server is enough: what differs between the two faces does not depend on the database."""
    items[:] = [item for item in items if "path-postgres" not in item.name]


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.stop()


# All tests with PostgreSQL in one test process: they share the server.
@pytest.fixture(
    params=["sqlite", pytest.param("postgres", marks=[pytest.mark.long, pytest.mark.xdist_group("postgres")])],
)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    if request.param == "sqlite":
        found = Database(str(tmp_path / "effects.sqlite"))
    else:
        found = _new_database(request.getfixturevalue("postgres_server"))
    make_effects(found)
    yield found
    found.close()


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Database]:
    """A database of SQLite."""
    found = Database(str(tmp_path / "effects.sqlite"))
    make_effects(found)
    yield found
    found.close()


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> Iterator[Database]:
    """A database of PostgreSQL; tests that use it are long ones, in the group ``postgres``."""
    found = _new_database(postgres_server)
    make_effects(found)
    yield found
    found.close()


def _new_database(server: PostgresServer) -> Database:
    """Empty: one database is emptied again and again, since making one copies a thousand files."""
    with connect(server.address()) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = %s",
            ("postgres",),
        )
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    return Database(server.address())


@pytest.fixture(params=["path", "url"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store | RemoteStore]:
    with open_face(tmp_path, served=request.param == "url") as found:
        yield found
