"""A stage on a server."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Self

from penstock.client.gathering import place_message, place_messages
from penstock.client.pending import ConnectionLost
from penstock.client.transaction import parts_of
from penstock.errors import PenstockError, Unavailable, UsageError
from penstock.format import digest
from penstock.format.batch import Batch
from penstock.topics.arrow_messages import batches_of
from penstock.topics.options import options
from penstock.wire.answers import text
from penstock.wire.calls import Call

if TYPE_CHECKING:
    from types import TracebackType

    from penstock.client.connection import Connection
    from penstock.client.gathering import Target
    from penstock.format.batch import EncodedBatch

GATHER_BYTES = 1024 * 1024
"""What is gathered here before it is sent."""


class RemoteStage:
    """A stage that takes messages; for one thread. See `penstock.OpenStage`. It is gone if the connection is lost before `finish`."""

    def __init__(self, connection: Connection, producer: str, to_publish: Target) -> None:
        self._connection = connection
        self._to_publish = to_publish
        self._generation = connection.generation
        self.identity = text(self._call(Call.STAGE, {"producer": producer}, []), "stage")
        self.messages = 0
        self._ended = False
        self._parts: list[tuple[str, int]] = []
        self._batches: list[bytearray] = []
        self._digest: int | None = 0 if digest.is_quick() else None

    def _call(self, call: int, fields: dict[str, Any], payload: list[bytearray]) -> dict[str, Any]:
        try:
            lost = ConnectionLost("the connection was lost")
            return self._connection.call(call, fields, payload, resend=False, lost=lost, generation=self._generation).fields
        except ConnectionLost:
            raise Unavailable("the connection was lost, and the stage with it; begin another one") from None

    def publish(self, topic: str, value: object, *, key: object = None, headers: object = None, partition: object = None,
                timestamp: object = None, ttl: object = None, delay: object = None, priority: object = None,
                compression: object = None) -> None:  # fmt: skip
        """Publish a message when the stage is committed."""
        self._check()
        chosen = options(ttl, delay, priority, compression)
        target, number, batch = place_message(self._to_publish, topic, value, key, headers, partition, timestamp, chosen)
        self._add(target.name, number, batch)

    def publish_many(self, topic: str, values: object, *, keys: object = None, headers: object = None, partition: object = None,
                     timestamps: object = None, ttls: object = None, delays: object = None, priorities: object = None,
                     compression: object = None) -> None:  # fmt: skip
        """Publish messages when the stage is committed."""
        self._check()
        chosen = options(ttls, delays, priorities, compression)
        placed = place_messages(self._to_publish, topic, values, keys, headers, partition, timestamps, chosen)
        for target, number, batch in placed:
            self._add(target.name, number, batch)

    def publish_arrow(self, topic: str, table: Any) -> None:
        """Publish the rows of a `pyarrow.RecordBatch` when the stage is committed. See `OpenStage.publish_arrow`."""
        self._check()
        target = self._to_publish(topic, lambda new: batches_of(new, table))
        for number, batch in batches_of(target, table):
            self._add(target.name, number, batch)

    def _add(self, topic: str, partition: int, batch: EncodedBatch) -> None:
        batch.stamp(0, 0, 0, 0, 0, 0)
        if self._digest is not None:
            # Here, where there is one of many clients, and not in the server that all of them share.
            self._digest = digest.add(self._digest, digest.digest_of(topic, Batch(batch.data)))
        self._parts.append((topic, partition))
        self._batches.append(batch.data)
        self.messages += batch.count
        if sum(map(len, self._batches)) >= GATHER_BYTES:
            self._send()

    def _send(self) -> None:
        if self._batches:
            parts, batches = self._parts, self._batches
            self._parts, self._batches = [], []
            fields: dict[str, Any] = {"stage": self.identity, **parts_of(parts)}
            if self._digest is not None:
                fields["digest"], self._digest = self._digest, 0
            self._call(Call.STAGE_ADD, fields, batches)

    def _check(self) -> None:
        if self._ended:
            raise UsageError("the stage has ended; begin another one")

    def finish(self) -> str:
        """Make the stage durable; returns its id, for `commit`."""
        self._check()
        self._send()
        self._ended = True
        return text(self._call(Call.STAGE_FINISH, {"stage": self.identity}, []), "stage")

    def abandon(self) -> None:
        """Drop it."""
        if not self._ended:
            self._ended = True
            with contextlib.suppress(PenstockError):
                self._call(Call.STAGE_ABANDON, {"stage": self.identity}, [])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._ended:
            return
        if error is None:
            self.finish()
        else:
            self.abandon()
