"""
Other embedded queues for Python, each brought to the same durability as ours.

Two classes are compared. `os`: what was acknowledged survives the death of the process, not the loss of power. `fsync`: it
survives both. Each peer is used in the fastest way that its interface has for the class; what its source says about durability:

| peer | as shipped | class `os` here | class `fsync` here | batches |
| --- | --- | --- | --- | --- |
| sqlite3, a table by hand | FULL, no WAL | WAL, synchronous=OFF | WAL, synchronous=FULL | executemany, one transaction |
| litequeue | WAL, NORMAL | set to OFF | set to FULL | `transaction()` around put, and around done |
| diskcache.Deque | WAL, NORMAL | `sqlite_synchronous=0` | `sqlite_synchronous=2` | `transact()` around append, popleft |
| huey's SqliteStorage | WAL, FULL | `fsync=False`: OFF | `fsync=True`: FULL | none |
| persistqueue.FIFOSQLiteQueue | WAL, FULL | set to OFF | as shipped | `auto_commit=False`: one `task_done` for all |
| persistqueue.SQLiteAckQueue | WAL, FULL | set to OFF | as shipped | none |
| persistqueue.Queue, files | a write and a rename a put | files never full: no sync | none | one `task_done` stores all |

"As shipped" FULL is what SQLite is built with where nothing is set. OFF never syncs, NORMAL only when the WAL is copied back; both
survive a SIGKILL, so the faster one is used. A database with OFF may be damaged after a loss of power: more than our `os` risks.
persistqueue.Queue syncs a file when it is full, no single put. diskcache and huey forget a message when they hand it out, there is
nothing to acknowledge; the others do both. A trace of the system calls shows the same: no sync in class `os`, one for each put in
class `fsync`.
"""

from __future__ import annotations

import importlib
import os
import sqlite3
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.load import VALUE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_OFF, _FULL = 0, 2
_TEXT = "0123456789" * (len(VALUE) // 10)


class OpenPeer:
    """
    An open queue of a peer: `put` is one message, `take` gets and finishes messages one by one, `take_many` together.

    Only what the peer's row in `PEERS` promises is there.
    """

    value: Any = VALUE
    """A message of 100 bytes, of the type that the peer takes."""

    def put(self, value: Any) -> object:
        """Store one message."""
        raise NotImplementedError

    def put_many(self, values: Sequence[Any]) -> object:
        """Store messages in one transaction."""
        raise NotImplementedError

    def take(self, count: int) -> None:
        """Get a message and finish it, so many times."""
        raise NotImplementedError

    def take_many(self, count: int) -> None:
        """Get so many messages and finish them in one transaction."""
        raise NotImplementedError

    def tidy(self) -> None:
        """Remove what is finished, where that is a call of its own; never measured."""

    def close(self) -> None:
        """Close files."""
        raise NotImplementedError


def _check_synchronous(connection: sqlite3.Connection, *, fsync: bool) -> None:
    """Fail if the peer is not in its class: better no figure than a wrong one."""
    wanted = ("wal", _FULL if fsync else _OFF)
    found = connection.execute("PRAGMA journal_mode").fetchone()[0], connection.execute("PRAGMA synchronous").fetchone()[0]
    if found != wanted:
        raise AssertionError(f"journal_mode and synchronous are {found}, wanted {wanted}")


class _Sqlite(OpenPeer):
    """What one would write by hand: a table, the position of the only consumer in memory, finishing is deleting."""

    def __init__(self, path: str, *, fsync: bool) -> None:
        self._connection = sqlite3.connect(os.path.join(path, "queue.db"), isolation_level=None, check_same_thread=False)
        self._lock = threading.Lock()
        self._position = 0
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute(f"PRAGMA synchronous={_FULL if fsync else _OFF}")
        self._connection.execute("CREATE TABLE queue (id INTEGER PRIMARY KEY AUTOINCREMENT, value BLOB)")
        _check_synchronous(self._connection, fsync=fsync)

    def put(self, value: Any) -> None:
        with self._lock:
            self._connection.execute("INSERT INTO queue (value) VALUES (?)", (value,))

    def put_many(self, values: Sequence[Any]) -> None:
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany("INSERT INTO queue (value) VALUES (?)", [(value,) for value in values])
            self._connection.execute("COMMIT")

    def take(self, count: int) -> None:
        for _ in range(count):
            self.take_many(1)

    def take_many(self, count: int) -> None:
        with self._lock:
            found = self._connection.execute(
                "SELECT id, value FROM queue WHERE id > ? ORDER BY id LIMIT ?", (self._position, count)
            ).fetchall()
            assert len(found) == count
            self._position = found[-1][0]
            self._connection.execute("DELETE FROM queue WHERE id <= ?", (self._position,))

    def close(self) -> None:
        self._connection.close()


class _LiteQueue(OpenPeer):
    value = _TEXT

    def __init__(self, path: str, *, fsync: bool) -> None:
        module = importlib.import_module("litequeue")
        self._queue = module.LiteQueue(os.path.join(path, "queue.db"))
        self._queue.conn.execute(f"PRAGMA synchronous={_FULL if fsync else _OFF}")
        _check_synchronous(self._queue.conn, fsync=fsync)
        self.put = self._queue.put  # type: ignore[method-assign]

    def put_many(self, values: Sequence[Any]) -> None:
        with self._queue.transaction():
            for value in values:
                self._queue.put(value)

    def take(self, count: int) -> None:
        for _ in range(count):
            self._queue.done(self._queue.pop().message_id)

    def take_many(self, count: int) -> None:
        # pop() is a transaction of its own.
        found = [self._queue.pop().message_id for _ in range(count)]
        with self._queue.transaction():
            for message_id in found:
                self._queue.done(message_id)

    def tidy(self) -> None:
        self._queue.prune()

    def close(self) -> None:
        self._queue.close()


class _Deque(OpenPeer):
    def __init__(self, path: str, *, fsync: bool) -> None:
        module = importlib.import_module("diskcache")
        self._cache = module.Cache(path, eviction_policy="none", sqlite_synchronous=_FULL if fsync else _OFF)
        self._deque = module.Deque.fromcache(self._cache)
        _check_synchronous(self._cache._con, fsync=fsync)  # noqa: SLF001
        self.put = self._deque.append  # type: ignore[method-assign]

    def put_many(self, values: Sequence[Any]) -> None:
        with self._deque.transact():
            self._deque.extend(values)

    def take(self, count: int) -> None:
        for _ in range(count):
            self._deque.popleft()

    def take_many(self, count: int) -> None:
        with self._deque.transact():
            self.take(count)

    def close(self) -> None:
        self._cache.close()


class _Huey(OpenPeer):
    def __init__(self, path: str, *, fsync: bool) -> None:
        module = importlib.import_module("huey.storage")
        self._storage = module.SqliteStorage(filename=os.path.join(path, "queue.db"), fsync=fsync)
        _check_synchronous(self._storage.conn, fsync=fsync)
        self.put = self._storage.enqueue  # type: ignore[method-assign]

    def take(self, count: int) -> None:
        for _ in range(count):
            assert self._storage.dequeue() is not None

    def close(self) -> None:
        self._storage.close()


class _PersistSqlite(OpenPeer):
    def __init__(self, path: str, *, fsync: bool) -> None:
        module = importlib.import_module("persistqueue")
        self._queue = module.FIFOSQLiteQueue(path, auto_commit=False, multithreading=True)
        _set_persist(self._queue, fsync=fsync)
        self.put = self._queue.put  # type: ignore[method-assign]

    def take(self, count: int) -> None:
        for _ in range(count):
            self.take_many(1)

    def take_many(self, count: int) -> None:
        for _ in range(count):
            self._queue.get(block=False)
        self._queue.task_done()

    def close(self) -> None:
        self._queue.close()


class _PersistAck(OpenPeer):
    def __init__(self, path: str, *, fsync: bool) -> None:
        module = importlib.import_module("persistqueue")
        self._queue = module.SQLiteAckQueue(path, multithreading=True)
        _set_persist(self._queue, fsync=fsync)
        self.put = self._queue.put  # type: ignore[method-assign]

    def take(self, count: int) -> None:
        for _ in range(count):
            # By its number: to find the item it would search all that are out.
            self._queue.ack(id=self._queue.get(block=False, raw=True)["pqid"])

    def tidy(self) -> None:
        # Each get() walks over all that is acknowledged and still there.
        self._queue.clear_acked_data(max_delete=-1, keep_latest=0)

    def close(self) -> None:
        self._queue.close()


def _set_persist(queue: Any, *, fsync: bool) -> None:
    """It opens its connections without a word about syncing."""
    for connection in (queue._putter, queue._getter):  # noqa: SLF001
        if not fsync:
            connection.execute(f"PRAGMA synchronous={_OFF}")
        _check_synchronous(connection, fsync=fsync)


class _PersistFile(OpenPeer):
    def __init__(self, path: str, *, fsync: bool) -> None:
        assert not fsync
        module = importlib.import_module("persistqueue")
        # A full file is synced and removed; with the usual 100 messages in each it would pay for syncs that nobody asked for.
        self._queue = module.Queue(path, chunksize=1_000_000, tempdir=path)
        self.put = self._queue.put  # type: ignore[method-assign]

    def take(self, count: int) -> None:
        for _ in range(count):
            self._queue.get(block=False)
            self._queue.task_done()

    def take_many(self, count: int) -> None:
        for _ in range(count):
            self._queue.get(block=False)
        # The first one stores the position for all.
        for _ in range(count):
            self._queue.task_done()

    def close(self) -> None:
        self._queue.headf.close()
        self._queue.tailf.close()


class Peer(NamedTuple):
    """A queue to compare with."""

    name: str
    module: str
    """What to import; the package is named in the `bench` extra."""
    make: Callable[..., OpenPeer]
    put_many: str = ""
    """How it stores many at once; empty if it cannot."""
    take_many: str = ""
    """How it finishes many at once; empty if it cannot."""
    has_fsync: bool = True

    @property
    def missing(self) -> str:
        """Why it cannot be used here; empty if it can."""
        try:
            importlib.import_module(self.module)
        except ImportError as error:
            return f"{self.module} cannot be imported ({error}); `make bench` installs it"
        return ""

    def open(self, folder: str, *, fsync: bool) -> OpenPeer:
        """Make a queue of its own below *folder*."""
        path = os.path.join(folder, self.name)
        os.mkdir(path)
        return self.make(path, fsync=fsync)


PEERS = (
    Peer("sqlite3", "sqlite3", _Sqlite, "executemany in one transaction", "one SELECT, one DELETE"),
    Peer("litequeue", "litequeue", _LiteQueue, "transaction()", "pop() each, done() in one transaction()"),
    Peer("diskcache", "diskcache", _Deque, "transact()", "transact(), no ack"),
    Peer("huey", "huey.storage", _Huey),
    Peer("persist-sqlite", "persistqueue", _PersistSqlite, "", "get() each, one task_done()"),
    Peer("persist-ack", "persistqueue", _PersistAck),
    Peer("persist-file", "persistqueue", _PersistFile, "", "get() each, one task_done() that stores", has_fsync=False),
)
