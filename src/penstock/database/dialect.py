"""
What differs between databases: how a transaction begins and ends, how parameters are written, and which errors are not a message's fault.

Everything else is SQL that SQLite (3.24 or newer) and PostgreSQL both know. Statements are written with ``?``.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
import sys
import zlib
from typing import TYPE_CHECKING, Any, Protocol

from penstock.arguments import shown
from penstock.errors import BadArgument, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_TABLE = re.compile(r"(?:[A-Za-z_][A-Za-z0-9_]{0,47}\.)?[A-Za-z_][A-Za-z0-9_]{0,47}", re.ASCII)
_ENDED = (
    "the transaction was ended inside the block, without the position: messages may have their effect twice; leave commit and rollback "
    "to the end of the block"
)
_MARK = "penstock_block"
"""A savepoint of SQLite that lasts as long as the transaction in which it was set."""
_NO_TRANSACTION = "the connection commits by itself, and no transaction is open: begin one, and publish in it"
_LOCKS = 0x50656E73
"""The first half of our advisory locks in PostgreSQL."""


def check_table(name: object) -> str:
    """The *name* of a table, with or without its schema, quoted for SQL. Raises `BadArgument`."""
    if not isinstance(name, str) or _TABLE.fullmatch(name) is None:
        raise BadArgument("table", shown(name), "must be at most 48 of A-Z a-z 0-9 _, after a schema and a dot if there is one")
    return ".".join(f'"{part}"' for part in name.split("."))


class Dialect(Protocol):
    """One kind of database, for one connection."""

    connection: Any
    blob: str
    """The type of columns of bytes."""
    identity: str
    """The type of a primary key that grows with each row, and is never used again."""
    table_query: str
    """Asks for a table by its quoted name: a row that is not NULL if it is there."""

    def begin(self) -> Any:
        """Begin a transaction that may write; returns a cursor for our own use. Raises `UsageError` if one is open already."""
        ...

    def join(self) -> Any:
        """A cursor in the caller's transaction, which begins now if none is open. Raises `UsageError` if the connection has none."""
        ...

    def cursor(self) -> Any:
        """A cursor whose rows are tuples, whatever the user's are."""
        ...

    def check_inside(self) -> None:
        """Raise `UsageError` if somebody else has ended the transaction."""
        ...

    def commit(self) -> None:
        """Commit it."""
        ...

    def rollback(self) -> None:
        """Undo it, as far as the connection still lives; raises nothing."""
        ...

    def execute(self, cursor: Any, statement: str, values: Sequence[object] = ()) -> Any:
        """Run a statement."""
        ...

    def read(self, statement: str, values: Sequence[object] = ()) -> list[Any]:
        """Rows, read in a transaction of its own that does not keep writers waiting."""
        ...

    def lock(self, cursor: Any, number: int) -> None:
        """Keep others who lock the same *number* waiting until the transaction ends."""
        ...

    def is_excused(self, error: BaseException) -> bool:
        """Whether the database is to blame, and not the message: it is down, busy, or two transactions met."""
        ...

    @property
    def is_broken(self) -> bool:
        """Whether the connection is of no use any more."""
        ...


class SqliteDialect:
    """SQLite: one writer at a time, so that the order of ids is the order of commits."""

    blob = "BLOB"
    identity = "INTEGER PRIMARY KEY AUTOINCREMENT"
    table_query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND '\"' || name || '\"' = ?"

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        # Python 3.12: with autocommit=True the connection's own commit does nothing, with False a transaction is always open.
        autocommit = getattr(connection, "autocommit", None)
        self._always_open = autocommit is False

    def begin(self) -> Any:
        """See `Dialect`. It takes the lock for writing now, so that it need not be given up half-way."""
        cursor = self.cursor()
        if not self._always_open:
            if self.connection.in_transaction:
                raise UsageError("the connection has a transaction open; end it, or use a connection of its own here")
            cursor.execute("BEGIN IMMEDIATE")
        cursor.execute(f"SAVEPOINT {_MARK}")
        return cursor

    def join(self) -> Any:
        """
        See `Dialect`. Python begins one for the first row that is written, but not for a table that is made.

        It takes the lock for writing now: SQLite makes nobody wait who has read before and wants to write then, but refuses it at once.
        """
        if not self._always_open and not self.connection.in_transaction:
            if self.connection.isolation_level is None or getattr(self.connection, "autocommit", None) is True:
                raise UsageError(_NO_TRANSACTION)
            self.connection.execute("BEGIN IMMEDIATE")
        return self.cursor()

    def cursor(self) -> Any:
        """See `Dialect`."""
        cursor = self.connection.cursor()
        cursor.row_factory = None
        return cursor

    def check_inside(self) -> None:
        """See `Dialect`. Another one may be open by now: Python begins it by itself. The mark is gone with ours."""
        try:
            self.connection.execute(f"RELEASE {_MARK}")
        except sqlite3.OperationalError as error:
            if "no such savepoint" not in str(error):
                raise
            raise UsageError(_ENDED) from None

    def commit(self) -> None:
        """See `Dialect`."""
        if self._always_open:
            self.connection.commit()
        else:
            self.connection.execute("COMMIT")

    def rollback(self) -> None:
        """See `Dialect`."""
        with contextlib.suppress(sqlite3.Error):
            if self._always_open:
                self.connection.rollback()
            elif self.connection.in_transaction:
                self.connection.execute("ROLLBACK")

    def execute(self, cursor: Any, statement: str, values: Sequence[object] = ()) -> Any:
        """See `Dialect`."""
        return cursor.execute(statement, values)

    def read(self, statement: str, values: Sequence[object] = ()) -> list[Any]:
        """See `Dialect`."""
        found: list[Any] = self.cursor().execute(statement, values).fetchall()
        if self._always_open:
            self.connection.rollback()
        return found

    def lock(self, cursor: Any, number: int) -> None:
        """See `Dialect`: who writes is alone."""

    def is_excused(self, error: BaseException) -> bool:
        """See `Dialect`."""
        return isinstance(error, (sqlite3.OperationalError, sqlite3.InterfaceError))

    @property
    def is_broken(self) -> bool:
        """See `Dialect`."""
        try:
            self.connection.in_transaction  # noqa: B018 - it raises when the connection is closed
            self.connection.total_changes  # noqa: B018
        except sqlite3.ProgrammingError:
            return True
        return False


class PostgresDialect:
    """PostgreSQL through psycopg 3."""

    blob = "BYTEA"
    identity = "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
    table_query = "SELECT to_regclass(?)"

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self._block: Any = None

    def begin(self) -> Any:
        """See `Dialect`."""
        import psycopg

        if self.connection.info.transaction_status not in (
            psycopg.pq.TransactionStatus.IDLE,
            psycopg.pq.TransactionStatus.UNKNOWN,
        ):
            raise UsageError("the connection has a transaction open; end it, or use a connection of its own here")
        # A block, since psycopg then refuses a commit inside it, and since it works with autocommit too.
        block = self.connection.transaction()
        block.__enter__()
        self._block = block
        return self.cursor()

    def join(self) -> Any:
        """See `Dialect`."""
        import psycopg

        idle = self.connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        if self.connection.autocommit and idle:
            raise UsageError(_NO_TRANSACTION)
        return self.cursor()

    def cursor(self) -> Any:
        """See `Dialect`."""
        from psycopg.rows import tuple_row

        return self.connection.cursor(row_factory=tuple_row)

    def check_inside(self) -> None:
        """See `Dialect`."""
        import psycopg

        if self.connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            raise UsageError(_ENDED)

    def commit(self) -> None:
        """See `Dialect`."""
        block, self._block = self._block, None
        block.__exit__(None, None, None)

    def rollback(self) -> None:
        """See `Dialect`."""
        import psycopg

        block, self._block = self._block, None
        if block is not None:
            with contextlib.suppress(psycopg.Error):
                error = psycopg.Rollback(block)
                block.__exit__(type(error), error, None)

    def execute(self, cursor: Any, statement: str, values: Sequence[object] = ()) -> Any:
        """See `Dialect`."""
        return cursor.execute(statement.replace("?", "%s"), values)

    def read(self, statement: str, values: Sequence[object] = ()) -> list[Any]:
        """See `Dialect`."""
        with self.connection.transaction():
            found: list[Any] = self.execute(self.cursor(), statement, values).fetchall()
            return found

    def lock(self, cursor: Any, number: int) -> None:
        """See `Dialect`."""
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", (_LOCKS, number))

    def is_excused(self, error: BaseException) -> bool:
        """See `Dialect`."""
        import psycopg

        return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))

    @property
    def is_broken(self) -> bool:
        """See `Dialect`."""
        return bool(self.connection.closed or self.connection.broken)


def dialect_of(connection: object) -> SqliteDialect | PostgresDialect:
    """How to talk to *connection*. Raises `BadArgument`."""
    if isinstance(connection, sqlite3.Connection):
        return SqliteDialect(connection)
    psycopg = sys.modules.get("psycopg")
    if psycopg is not None and isinstance(connection, psycopg.Connection):
        return PostgresDialect(connection)
    raise BadArgument("connection", shown(connection), "must be a connection of sqlite3 or of psycopg (version 3, not async)")


def _reading_dialect_of(connection: object) -> SqliteDialect | PostgresDialect:
    """The same for who reads our tables. Raises `BadArgument`, also if text comes as bytes: names would be taken for others."""
    if isinstance(connection, sqlite3.Connection) and connection.text_factory in (bytes, bytearray):
        raise BadArgument(
            "connection", shown(connection), "gives text as bytes; leave its text_factory alone, or give another one"
        )
    return dialect_of(connection)


class Transaction:
    """A block in a transaction, with a cursor for our own use: committed when it ends, rolled back when it raises."""

    def __init__(self, dialect: SqliteDialect | PostgresDialect) -> None:
        self._dialect = dialect

    def __enter__(self) -> Any:
        return self._dialect.begin()

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            self._dialect.rollback()
            return
        try:
            self._dialect.commit()
        except BaseException:
            self._dialect.rollback()
            raise


class Source:
    """Where connections come from: one that is given and kept, or a function that opens one and is asked again when that breaks."""

    def __init__(self, given: Any) -> None:
        self._connect: Callable[[], Any] | None = None
        self._dialect: SqliteDialect | PostgresDialect | None = None
        if callable(given) and not isinstance(given, sqlite3.Connection):  # sqlite3's can be called
            self._connect = given
        else:
            self._dialect = _reading_dialect_of(given)

    @property
    def dialect(self) -> SqliteDialect | PostgresDialect:
        """A connection that works, as far as is known. Raises what connecting raises."""
        found = self._dialect
        if found is not None and self._connect is not None and found.is_broken:
            self.close()
            found = None
        if found is None:
            assert self._connect is not None
            found = self._dialect = _reading_dialect_of(self._connect())
        return found

    def close(self) -> None:
        """Close a connection that was opened here; one that was given stays open."""
        if self._connect is not None and self._dialect is not None:
            with contextlib.suppress(Exception):
                self._dialect.connection.close()
            self._dialect = None


def number_of(text: str | bytes) -> int:
    """A number for an advisory lock; the same in every process."""
    data = text.encode() if isinstance(text, str) else text
    return zlib.crc32(data) - (1 << 31)


def is_database_error(error: BaseException) -> bool:
    """Whether *error* is one of a database module that we know, as PEP 249 names them."""
    return any(
        base.__name__ == "Error" and base.__module__.split(".")[0] in ("sqlite3", "psycopg") for base in type(error).__mro__
    )
