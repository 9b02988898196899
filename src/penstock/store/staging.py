"""
Transactions in two phases, for work that many processes do together: each stages its messages, one commits them all.

`Staging.begin` gives a stage to publish to; finishing it makes it durable and gives an id, which travels to whoever commits. `commit`
publishes all messages of a list of stages in one frame, under the producer's number: repeating a number gives the first answer and
changes nothing, and a lower one than the last is refused. So a committer that does not know whether it succeeded asks again.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from penstock.arguments import check_whole_number, shown
from penstock.errors import BadArgument, BadBytes, BatchTooLarge, DamagedFile, StorageFailed, TopicNotFound, UsageError
from penstock.format.batch import EncodedBatch
from penstock.topics.topic import Columns
from penstock.values import check_name
from penstock.volume.tickets import Append

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from penstock.topics.catalog import Catalog
    from penstock.topics.producers import Producers
    from penstock.topics.stages import Stages, StageWriter
    from penstock.volume.tickets import Change
    from penstock.volume.volume import Volume

COMMIT_BYTES_MAX = 1 << 30
"""The most that the stages of one commit may hold together."""
NUMBER_MAX = (1 << 63) - 1


class Committed(NamedTuple):
    """The answer of a two-phase commit. *duplicate*: it was committed before, and this is the answer of then."""

    producer: str
    number: int
    messages: int
    duplicate: bool


class OpenStage:
    """
    A stage that takes messages. Made by `Store.stage`; for one thread.

    As a context manager it is finished when the block ends, and dropped when the block raises. `identity` is what the committer needs.
    """

    def __init__(self, writer: StageWriter, catalog: Catalog) -> None:
        self._writer = writer
        self._catalog = catalog
        self._ended = False
        self.identity = writer.identity
        self.messages = 0

    def publish(self, topic: str, value: object, *, key: object = None, headers: object = None, partition: object = None,
                timestamp: object = None) -> None:  # fmt: skip
        """Publish a message when the stage is committed. Raises `UsageError` or `StorageFull`."""
        self._check()
        target = self._catalog.to_publish(topic)
        batch, key_data = target.encode(value, key, headers, timestamp)
        self._add(target.topic_id, target.partition_for(key_data, partition), batch)

    def publish_many(self, topic: str, values: object, *, keys: object = None, headers: object = None, partition: object = None,
                     timestamps: object = None) -> None:  # fmt: skip
        """Publish messages when the stage is committed. Raises `UsageError` or `StorageFull`."""
        self._check()
        target = self._catalog.to_publish(topic)
        columns = Columns(target, values, keys, headers, timestamps, None)
        if columns.values:
            for number, _, batch in columns.split(partition):
                self._add(target.topic_id, number, batch)

    def _add(self, topic_id: bytes, partition: int, batch: EncodedBatch) -> None:
        self._writer.add(topic_id, partition, batch)
        self.messages += batch.count

    def _check(self) -> None:
        if self._ended:
            raise UsageError("the stage has ended; begin another one")

    def finish(self) -> str:
        """Make the stage durable; returns its id, for `Store.commit`."""
        self._check()
        self._ended = True
        try:
            return self._writer.finish()
        except BaseException:
            self._writer.abandon()
            raise

    def abandon(self) -> None:
        """Drop it."""
        self._ended = True
        self._writer.abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._ended:
            return
        if error is None:
            self.finish()
        else:
            self.abandon()


class Staging:
    """Stages and their commits in one store. Safe to call from any thread."""

    def __init__(self, stages: Stages, catalog: Catalog, producers: Producers, volume: Volume) -> None:
        self._stages = stages
        self._catalog = catalog
        self._producers = producers
        self._volume = volume
        self._lock = threading.Lock()

    def begin(self, producer: str) -> OpenStage:
        """A new stage of *producer*."""
        check_name("producer", producer)
        return OpenStage(self._stages.begin(producer), self._catalog)

    def commit(self, producer: str, number: int, stages: Sequence[str]) -> Committed:
        """See `Store.commit`."""
        check_name("producer", producer)
        number = check_whole_number("number", number, 0, NUMBER_MAX)
        if isinstance(stages, (str, bytes)) or not hasattr(stages, "__iter__"):
            raise BadArgument("stages", shown(stages), "must be a list of stage ids")
        wanted = list(dict.fromkeys(stages))
        with self._lock:
            known = self._producers.result_of(producer, number)
            if known is not None:
                own = {identity for identity, owner, _ in self._stages.all() if owner == producer}
                self._remove([identity for identity in wanted if identity in own])
                return Committed(producer, number, int(known["messages"]), duplicate=True)
            changes, messages = self._changes(producer, wanted)
            result = {"messages": messages, "stages": len(wanted)}
            before = self._producers.last_commit_us(producer)
            self._volume.commit_changes([*changes, self._producers.transaction_entry(producer, number, result)])
            self._remove(wanted)
            if before is not None:
                # Left over from attempts that were made before the last commit: nobody can want them any more.
                self._stages.remove_expired(producer, before)
        return Committed(producer, number, messages, duplicate=False)

    def _changes(self, producer: str, wanted: list[str]) -> tuple[list[Change], int]:
        """Everything is checked before anything is decided."""
        changes: list[Change] = []
        messages = size = 0
        for identity in wanted:
            stage = self._stages.load(identity)
            if stage.producer != producer:
                raise BadArgument("stages", identity, f"was staged by {stage.producer!r}, not by {producer!r}")
            for entry in stage.entries:
                size += len(entry.batch)
                if size > COMMIT_BYTES_MAX:
                    raise BatchTooLarge("bytes", size, COMMIT_BYTES_MAX)
                try:
                    batch = EncodedBatch.adopt(entry.batch)
                except BadBytes as error:
                    raise DamagedFile(self._stages.path_of(identity), 0, None, str(error)) from None
                topic = self._catalog.find(entry.topic_id)
                if topic is None or entry.partition >= topic.partitions:
                    raise TopicNotFound(entry.topic_id.hex(), entry.partition)
                changes.append(Append(topic.logs[entry.partition], batch))
                messages += batch.count
        return changes, messages

    def _remove(self, wanted: Sequence[str]) -> None:
        for identity in wanted:
            self._stages.remove(identity)

    def abort(self, stages: Sequence[str]) -> int:
        """Remove stages; returns how many were there."""
        with self._lock:
            return sum(self._stages.remove(identity) for identity in stages)

    def result(self, producer: str, number: int) -> Committed | None:
        """What `commit` gave for that number, None if it was not committed."""
        known: Any = self._producers.result_of(producer, number)
        return None if known is None else Committed(producer, number, int(known["messages"]), duplicate=True)

    def remove_expired(self) -> int:
        """Remove what nobody committed for days."""
        try:
            return self._stages.remove_expired()
        except OSError as error:
            raise StorageFailed(self._stages.directory, str(error)) from None
