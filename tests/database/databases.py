"""The databases that the tests run on, by an address: the path of a file is SQLite, anything else PostgreSQL."""

from __future__ import annotations

import os
import shutil
import sqlite3
from typing import Any


def memory_folder(otherwise: str) -> str:
    """Where files are in memory, if there is room: these tests kill processes and no machine, so nothing needs a disk."""
    memory = "/dev/shm"
    return memory if os.path.isdir(memory) and shutil.disk_usage(memory).free > 1 << 30 else otherwise


def connect(address: str) -> Any:
    """A new connection."""
    if address.startswith("/"):
        connection = sqlite3.connect(address, timeout=20)
        connection.execute("PRAGMA synchronous = OFF")
        return connection
    import psycopg

    return psycopg.connect(address)


class Database:
    """An empty database, and shorthand for looking at it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._opened: list[Any] = []

    @property
    def is_sqlite(self) -> bool:
        return self.address.startswith("/")

    def connect(self) -> Any:
        connection = connect(self.address)
        self._opened.append(connection)
        return connection

    def run(self, statement: str, *values: object) -> list[Any]:
        """Run a statement, written with ?, in a transaction of its own; its rows, if it gives any."""
        connection = connect(self.address)
        try:
            cursor = connection.cursor()
            cursor.execute(statement if self.is_sqlite else statement.replace("?", "%s"), values)
            found = cursor.fetchall() if cursor.description else []
            connection.commit()
            return found
        finally:
            connection.close()

    def insert(self, cursor: Any, text: str) -> None:
        """The effect of a message, in the tests."""
        cursor.execute(
            "INSERT INTO effects (what) VALUES (?)" if self.is_sqlite else "INSERT INTO effects (what) VALUES (%s)", (text,)
        )

    def effects(self) -> list[str]:
        return [row[0] for row in self.run("SELECT what FROM effects ORDER BY id")]

    def close(self) -> None:
        for connection in self._opened:
            connection.close()


def make_effects(database: Database) -> None:
    identity = "INTEGER PRIMARY KEY AUTOINCREMENT" if database.is_sqlite else "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
    database.run(f"CREATE TABLE effects (id {identity}, what TEXT NOT NULL)")
    if database.is_sqlite:
        database.run("PRAGMA journal_mode = WAL")
