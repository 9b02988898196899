"""
The outbox: messages that are published if, and only if, the caller's database transaction commits.

`publish` inserts a row; a relay (`relay.py`) takes the rows to the store. Rows of one key are published in the order in which their
transactions committed: ids grow in that order, because in SQLite only one transaction writes at a time, and because in PostgreSQL `publish`
takes a lock for the key that lasts until the transaction ends. Two transactions that publish the same two keys in different order can
therefore block each other; PostgreSQL ends one of them, and it is to be repeated, as with rows. Messages without a key take no lock.
"""

from __future__ import annotations

import base64
import json
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.arguments import check_whole_number
from penstock.database import schema
from penstock.database.dialect import Transaction, check_table, dialect_of, number_of
from penstock.errors import MessageTooLarge
from penstock.topics import publication
from penstock.topics.catalog import check_publishable
from penstock.values import MESSAGE_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.database.dialect import PostgresDialect, SqliteDialect

TABLE = "penstock_outbox"
VERSION = 1


@dataclass(frozen=True, slots=True)
class SetAside:
    """A message of an outbox that the store refused."""

    id: int
    topic: str
    key: bytes | None
    value: bytes | None
    error: str


class Outbox:
    """Messages in a table of the user's database, on their way to a store. Safe to share: it holds no connection."""

    def __init__(self, table: str = TABLE) -> None:
        self.table = table
        self.quoted = check_table(table)
        self.relay_table = check_table(f"{table}_relay")
        """One row: under which name and number its relay publishes, and who that is."""

    def create(self, connection: Any) -> None:
        """Make the tables unless they are there, in a transaction of its own. `publish` does it too, at the price of looking each time."""
        dialect = dialect_of(connection)
        schema.create(dialect, self.table, VERSION, self.statements(dialect))

    def statements(self, dialect: SqliteDialect | PostgresDialect) -> list[str]:
        """What makes its tables."""
        columns = (
            f"id {dialect.identity}, topic TEXT NOT NULL, message_key {dialect.blob}, message_value {dialect.blob}, headers TEXT, "
            "timestamp_us BIGINT NOT NULL, batch_number BIGINT, error TEXT"
        )
        relay = "id INTEGER PRIMARY KEY, producer TEXT NOT NULL, batch_number BIGINT NOT NULL, owner TEXT NOT NULL"
        return [
            f"CREATE TABLE {self.quoted} ({columns})",
            f"CREATE TABLE {self.relay_table} ({relay})",
            # The name is this table's as long as nobody sets it back: the store knows by it what was published.
            f"INSERT INTO {self.relay_table} VALUES (1, '{_new_name()}', 0, '')",  # noqa: S608 - checked and quoted
        ]

    def publish(
        self, connection: Any, topic: str, value: bytes | None, *, key: bytes | str | None = None, headers: Any = None
    ) -> None:
        """
        Publish a message when the transaction of *connection* commits. The relay sends it; its timestamp is now.

        The caller commits. Raises `UsageError` if no topic can take the message, or no transaction is open on a connection that commits by
        itself; nothing was inserted then.
        """
        dialect = dialect_of(connection)
        check_publishable(topic)
        data, key_data, pairs = publication.value_bytes(value), publication.key_bytes(key), publication.header_pairs(headers)
        size = publication.message_bytes(data, key_data, pairs)
        if size > MESSAGE_BYTES_MAX:
            raise MessageTooLarge("a message", size, MESSAGE_BYTES_MAX)
        cursor = dialect.join()
        if not self._exists(dialect, cursor):
            schema.create_inside(dialect, cursor, self.table, VERSION, self.statements(dialect))
        if key_data is not None:
            dialect.lock(cursor, number_of(topic.encode() + b"\0" + key_data))
        columns = "topic, message_key, message_value, headers, timestamp_us"
        dialect.execute(
            cursor,
            f"INSERT INTO {self.quoted} ({columns}) VALUES (?, ?, ?, ?, ?)",  # noqa: S608
            (topic, key_data, data, encode_headers(pairs), time.time_ns() // 1000),
        )

    def _exists(self, dialect: SqliteDialect | PostgresDialect, cursor: Any) -> bool:
        # Asked each time: what was made in a transaction that was rolled back is not there any more.
        dialect.execute(cursor, dialect.table_query, (self.quoted,))
        row = cursor.fetchone()
        return row is not None and row[0] is not None

    def set_aside(self, connection: Any) -> list[SetAside]:
        """The messages that the store refused, oldest first. The others go on without them."""
        columns = "id, topic, message_key, message_value, error"
        rows = dialect_of(connection).read(f"SELECT {columns} FROM {self.quoted} WHERE error IS NOT NULL ORDER BY id")  # noqa: S608
        return [SetAside(row[0], row[1], _bytes(row[2]), _bytes(row[3]), row[4]) for row in rows]

    def retry(self, connection: Any, ids: Iterable[int] | None = None) -> int:
        """Let the relay try messages again that were set aside, all or those of *ids*; commits, and returns how many."""
        dialect = dialect_of(connection)
        chosen = None if ids is None else [check_whole_number("ids", one, 0, (1 << 63) - 1) for one in ids]
        statement = f"UPDATE {self.quoted} SET error = NULL WHERE error IS NOT NULL"  # noqa: S608
        with Transaction(dialect) as cursor:
            if chosen is None:
                return int(dialect.execute(cursor, statement).rowcount)
            return sum(dialect.execute(cursor, statement + " AND id = ?", (one,)).rowcount for one in chosen)

    def begin_anew(self, connection: Any) -> int:
        """
        Let the relay publish all that is in the outbox, under a new name; commits, and returns how many messages that are.

        It is for a database that was set back to an earlier state, from a backup perhaps, which a relay tells as `Conflict`. What was
        published since then and is in the outbox again comes twice. A relay that is at work is told `TakenOver`.
        """
        dialect = dialect_of(connection)
        with Transaction(dialect) as cursor:
            change = f"UPDATE {self.relay_table} SET producer = ?, batch_number = 0, owner = ''"  # noqa: S608
            dialect.execute(cursor, change, (_new_name(),))
            dialect.execute(cursor, f"UPDATE {self.quoted} SET batch_number = NULL WHERE error IS NULL")  # noqa: S608
            return int(cursor.rowcount)


def _new_name() -> str:
    return f"outbox-{uuid.uuid4().hex}"


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


def encode_headers(pairs: list[tuple[str, bytes]] | None) -> str | None:
    """Headers as a column has them."""
    return None if not pairs else json.dumps([[name, base64.b64encode(value).decode()] for name, value in pairs])


def decode_headers(text: str | None) -> list[tuple[str, bytes]] | None:
    """Headers of a column."""
    return None if text is None else [(name, base64.b64decode(value)) for name, value in json.loads(text)]
