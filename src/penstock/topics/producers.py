"""
Which producers there are: the incarnation of each named one, and the transactions that each has committed.

A name that is opened again gets the next incarnation, durably, before it may publish; from then on whoever still publishes under an older
one is fenced. A name belongs to whoever opens it: over a server to the name of its token, and another token that uses the same name has
another producer (`scoped`). In the process of the store, and on servers without tokens, there is one owner.

Transactions of a producer are numbered by it and rise; the last ones are remembered with their result, so that a repeated commit gives the
first answer.

```
entry of the journal (owner 2): kind u8, 0 * 3, length u32, then JSON
  1 producer      id, incarnation, time_us, name; and "published" where it only says that this incarnation published then
  2 transaction   producer, number, time_us, result
snapshot: the same entries
```
"""

from __future__ import annotations

import hashlib
import json
import struct
from typing import TYPE_CHECKING, Any

from penstock import threads as threading
from penstock.clock import settled_us
from penstock.errors import BadBytes, LimitReached, ProducerFenced, TransactionFenced, UnsupportedFormat, UsageError
from penstock.volume.tickets import Other

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.clock import Clock
    from penstock.format.batch_header import Producer
    from penstock.log.partition_log import PartitionLog
    from penstock.volume.layer import Ended
    from penstock.volume.volume import Volume

PRODUCERS_OWNER = 2
_ENTRY = struct.Struct("<B3xI")
_PRODUCER, _TRANSACTION = 1, 2
EXPIRY_US = 7 * 86_400 * 1_000_000
"""A producer that was silent so long is forgotten."""
REFRESH_US = 3_600 * 1_000_000
"""That a producer publishes is noted so often, and not with each batch."""
ONCE_PREFIX = "once."
"""A producer of transactions whose name begins so makes only one, and is forgotten when it is silent, like the others."""
TRANSACTIONS_KEPT = 16
"""Results that are remembered for each producer of transactions."""


def producer_id(name: str) -> int:
    """The number under which the batches of a named producer go; never 0."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") | 1


def scoped(name: str, owner: str) -> str:
    """The *name* of a producer of *owner*, a token's name; one that has none is empty. Neither has an @ where the other begins."""
    return f"{name}@{owner}" if owner else name


def _entry(kind: int, values: dict[str, Any]) -> bytes:
    body = json.dumps(values, separators=(",", ":")).encode()
    return _ENTRY.pack(kind, len(body)) + body


class Producers:
    """The producers of one store: a layer of the volume. Safe to call from any thread."""

    owner = PRODUCERS_OWNER

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._open_lock = threading.Lock()
        self._incarnations: dict[int, tuple[int, int]] = {}
        self._names: dict[int, str] = {}
        """As `scoped` makes them; those that an older version opened are not known."""
        self._transactions: dict[str, dict[int, tuple[int, Any]]] = {}
        self._noted: list[bytes] = []
        """Entries that ride along with the next frame."""
        self._volume: Volume | None = None

    def attach(self, volume: Volume) -> None:
        """Begin to work: the volume is open."""
        self._volume = volume

    # -- the layer --------------------------------------------------------------------------------------------------

    def restore(self, snapshot: bytes) -> None:
        """See `Layer`."""
        self._incarnations, self._names, self._transactions, self._noted = {}, {}, {}, []
        self.replay(snapshot)

    def replay(self, body: bytes) -> None:
        """See `Layer`."""
        at = 0
        with self._lock:
            while at < len(body):
                if len(body) - at < _ENTRY.size:
                    raise BadBytes("producer entry", "is cut off")
                kind, length = _ENTRY.unpack_from(body, at)
                at += _ENTRY.size
                if length > len(body) - at:
                    raise BadBytes("producer entry", f"has the impossible length {length}")
                try:
                    self._take(kind, json.loads(body[at : at + length]))
                except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
                    raise BadBytes("producer entry", f"{type(error).__name__}: {error}") from None
                at += length

    apply = replay

    def _take(self, kind: int, values: dict[str, Any]) -> None:
        if kind == _PRODUCER:
            identity, incarnation = int(values["id"]), int(values["incarnation"])
            if values.get("published") and self._incarnations.get(identity, (-1, 0))[0] != incarnation:
                return  # a newer one was opened before this was in a frame
            self._incarnations[identity] = (incarnation, int(values["time_us"]))
            if "name" in values:
                self._names[identity] = str(values["name"])
        elif kind == _TRANSACTION:
            known = self._transactions.setdefault(str(values["producer"]), {})
            known[int(values["number"])] = (int(values["time_us"]), values["result"])
            for number in sorted(known)[:-TRANSACTIONS_KEPT]:
                del known[number]
        else:
            raise UnsupportedFormat("the journal", f"producer entry {kind}")

    def recovered(self, ends: dict[bytes, list[int]], ended: Ended) -> None:
        """See `Layer`."""

    @property
    def pending(self) -> bool:
        """See `Layer`."""
        return bool(self._noted)

    def take_pending(self, bytes_max: int) -> bytes:
        """See `Layer`."""
        with self._lock:
            size = count = 0
            for entry in self._noted:
                size += len(entry)
                if count and size > bytes_max:
                    break
                count += 1
            taken, self._noted = self._noted[:count], self._noted[count:]
        return b"".join(taken)

    def committed(self) -> None:
        """See `Layer`. Nobody waits for what is noted here."""

    def snapshot(self) -> bytes:
        """See `Layer`. What has expired is left out."""
        oldest = settled_us(self._clock) - EXPIRY_US
        with self._lock:
            self._incarnations = {one: state for one, state in self._incarnations.items() if state[1] > oldest}
            self._names = {one: name for one, name in self._names.items() if one in self._incarnations}
            parts = [
                _entry(_PRODUCER, {"id": one, "incarnation": incarnation, "time_us": time_us, **self._named(one)})
                for one, (incarnation, time_us) in self._incarnations.items()
            ]
            for producer in [name for name in self._transactions if name.startswith(ONCE_PREFIX)]:
                if all(time_us <= oldest for time_us, _ in self._transactions[producer].values()):
                    del self._transactions[producer]
            for producer, known in self._transactions.items():
                parts += [
                    _entry(_TRANSACTION, {"producer": producer, "number": number, "time_us": time_us, "result": result})
                    for number, (time_us, result) in known.items()
                ]
        return b"".join(parts)

    # -- named producers --------------------------------------------------------------------------------------------

    def _named(self, identity: int) -> dict[str, str]:
        name = self._names.get(identity)
        return {} if name is None else {"name": name}

    def name_of(self, identity: int) -> str:
        """What errors call the producer with that id: its name, if it is known."""
        name = self._names.get(identity)
        return f"{identity:#018x}" if name is None else repr(name.partition("@")[0])

    def open(self, name: str, logs: Sequence[PartitionLog], owner: str = "") -> tuple[int, int]:
        """
        (id, incarnation) for a producer of that name, of *owner*; older ones are fenced when this returns, and after any crash.

        *logs* are what it will write to: they may remember it longer than this table does. Raises `LimitReached`.
        """
        assert self._volume is not None
        whole_name = scoped(name, owner)
        identity = producer_id(whole_name)
        with self._open_lock:
            if identity not in self._incarnations:
                self._check_room(owner)
            written = [recent.incarnation for log in logs if (recent := log.state.recent.get(identity)) is not None]
            incarnation = max([self._incarnations.get(identity, (-1, 0))[0], *written]) + 1
            values = {"id": identity, "incarnation": incarnation, "time_us": self._clock.now_us(), "name": whole_name}
            self._volume.commit_changes([Other(self.owner, _entry(_PRODUCER, values))])
        return identity, incarnation

    def _check_room(self, owner: str) -> None:
        """Under the lock of opening. Raises `LimitReached`."""
        assert self._volume is not None
        most = self._volume.settings.producers_max
        if len(self._names) < most:
            return
        with self._lock:
            count = sum([name.partition("@")[2] == owner for name in self._names.values()])
        if count >= most:
            whose = f" of {owner!r}" if owner else ""
            raise LimitReached(f"named producers{whose}", most, "producers_max")

    def check(self, identity: int, incarnation: int) -> None:
        """A producer publishes. Raise `ProducerFenced` if a newer incarnation was opened; else it is remembered from now on anew."""
        known = self._incarnations.get(identity)
        if known is None:
            return
        if known[0] > incarnation:
            raise ProducerFenced(self.name_of(identity), incarnation, known[0])
        now_us = self._clock.now_us()
        if now_us - known[1] >= REFRESH_US and known[0] == incarnation:
            with self._lock:
                if self._incarnations.get(identity) == known:
                    self._incarnations[identity] = (incarnation, now_us)
                    values = {"id": identity, "incarnation": incarnation, "time_us": now_us, "published": True}
                    self._noted.append(_entry(_PRODUCER, values))

    def check_opened(self, producer: Producer, owner: str = "") -> None:
        """Raise `UsageError` if a client of *owner* says to be a named producer (their ids are odd) that it never opened."""
        if producer.id & 1:
            known, name = self._incarnations.get(producer.id), self._names.get(producer.id)
            if known is not None and producer.incarnation > known[0]:
                raise UsageError(f"producer {self.name_of(producer.id)} was never opened as number {producer.incarnation}")
            if name is not None and name.partition("@")[2] != owner:
                raise UsageError(f"producer {producer.id:#018x} is another client's")

    # -- transactions -----------------------------------------------------------------------------------------------

    def result_of(self, producer: str, number: int) -> Any:
        """
        What the transaction *number* of *producer* gave, None if it was never committed.

        Raises `TransactionFenced`: a later one was committed, and this one is not remembered.
        """
        known = self._transactions.get(producer, {})
        if number in known:
            return known[number][1]
        if known and number < max(known):
            raise TransactionFenced(producer, number, max(known))
        return None

    def newest_of(self, producer: str) -> int | None:
        """The highest number that *producer* has committed."""
        known = self._transactions.get(producer)
        return max(known) if known else None

    def last_commit_us(self, producer: str) -> int | None:
        """When the last transaction of *producer* was committed."""
        known = self._transactions.get(producer)
        return max(time_us for time_us, _ in known.values()) if known else None

    def transaction_entry(self, producer: str, number: int, result: Any) -> Other:
        """The entry that records a transaction, for the frame that commits it."""
        values = {"producer": producer, "number": number, "time_us": self._clock.now_us(), "result": result}
        return Other(self.owner, _entry(_TRANSACTION, values))
