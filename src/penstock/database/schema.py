"""
Tables that are made when they are first needed, each with a version.

The versions are in the table ``penstock_schema``. A table that a newer Penstock made is refused: it may mean something else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.database.dialect import Transaction, number_of
from penstock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.database.dialect import PostgresDialect, SqliteDialect

VERSIONS = '"penstock_schema"'


def create(dialect: SqliteDialect | PostgresDialect, table: str, version: int, statements: Sequence[str]) -> None:
    """Make *table* by *statements*, in a transaction of its own, unless it is there. Raises `UsageError` if it is a newer one."""
    with Transaction(dialect) as cursor:
        create_inside(dialect, cursor, table, version, statements)


def create_inside(
    dialect: SqliteDialect | PostgresDialect, cursor: Any, table: str, version: int, statements: Sequence[str]
) -> None:
    """The same in the transaction of *cursor*."""
    # Two who create a table at once would both find none, and one of them would fail.
    dialect.lock(cursor, number_of("schema"))
    dialect.execute(cursor, f"CREATE TABLE IF NOT EXISTS {VERSIONS} (name TEXT PRIMARY KEY, version INTEGER NOT NULL)")
    dialect.execute(cursor, f"SELECT version FROM {VERSIONS} WHERE name = ?", (table,))  # noqa: S608 - our own name
    found = cursor.fetchone()
    if found is not None:
        if found[0] != version:
            what = "update Penstock" if found[0] > version else "it was made before the first release: drop it, and begin anew"
            raise UsageError(f"table {table} has version {found[0]}, and this Penstock knows version {version}; {what}")
        return
    for statement in statements:
        dialect.execute(cursor, statement)
    dialect.execute(cursor, f"INSERT INTO {VERSIONS} (name, version) VALUES (?, ?)", (table, version))  # noqa: S608
