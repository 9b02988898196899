"""
Transactions in two phases, for work that many processes do together: each stages its messages, one commits them all.

`Staging.begin` gives a stage to publish to; finishing it makes it durable and gives an id, which travels to whoever commits. `commit`
publishes all messages of a list of stages in one frame (large parts of them become segments of their logs, and are not copied), under
the producer's number: repeating a number gives the first answer and
changes nothing, and a lower one than the last is refused. So a committer that does not know whether it succeeded asks again.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from penstock.arguments import check_texts, check_whole_number
from penstock.errors import (
    BadArgument,
    BadBytes,
    BatchTooLarge,
    DamagedFile,
    OutcomeUnknown,
    PenstockError,
    StorageFailed,
    TopicNotFound,
    UsageError,
)
from penstock.format.batch import EncodedBatch
from penstock.topics.arrow_messages import batches_of
from penstock.topics.encoder import Columns
from penstock.topics.options import options
from penstock.values import check_name
from penstock.volume.tickets import Adopt, Append

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from penstock.files import Buffer
    from penstock.log.partition_log import PartitionLog
    from penstock.log.staged_segment import StagedSegment
    from penstock.topics.catalog import Catalog
    from penstock.topics.producers import Producers
    from penstock.topics.stages import Stages, StageWriter
    from penstock.topics.topic import Topic
    from penstock.volume.tickets import Change
    from penstock.volume.volume import Volume

COMMIT_BYTES_MAX = 1 << 30
"""The most that one commit copies; what is adopted does not count."""
NUMBER_MAX = (1 << 63) - 1


class Committed(NamedTuple):
    """
    The answer of a two-phase commit. *duplicate*: it was committed before, and this is the answer of then.

    *newest* is the highest number of the producer that is committed: where it is higher than *number*, somebody else goes on.
    """

    producer: str
    number: int
    messages: int
    duplicate: bool
    newest: int


class OpenStage:
    """
    A stage that takes messages. Made by `Store.stage`; for one thread.

    As a context manager it is finished when the block ends, and dropped when the block raises. `identity` is what the committer needs.
    """

    def __init__(self, writer: StageWriter, catalog: Catalog, check_open: Callable[[], None]) -> None:
        self._writer = writer
        self._catalog = catalog
        self._check_open = check_open
        self._ended = False
        self.identity = writer.identity
        self.messages = 0

    def publish(self, topic: str, value: object, *, key: object = None, headers: object = None, partition: object = None,
                timestamp: object = None, ttl: object = None, delay: object = None, priority: object = None,
                compression: object = None) -> None:  # fmt: skip
        """Publish a message when the stage is committed. Raises `UsageError` or `StorageFull`."""
        self._check()
        chosen = options(ttl, delay, priority, compression)
        target = self._catalog.to_publish(
            topic, lambda new: new.check_message(value, key, headers, partition, timestamp, None, None, chosen)
        )
        batch, key_data = target.encode(value, key, headers, timestamp, None, chosen)
        self._add(target.logs[target.partition_for(key_data, partition)], batch)

    def publish_many(self, topic: str, values: object, *, keys: object = None, headers: object = None, partition: object = None,
                     timestamps: object = None, ttls: object = None, delays: object = None, priorities: object = None,
                     compression: object = None) -> None:  # fmt: skip
        """Publish messages when the stage is committed. Raises `UsageError` or `StorageFull`."""
        self._check()
        chosen = options(ttls, delays, priorities, compression)
        target = self._catalog.to_publish(
            topic, lambda new: new.check_messages(values, keys, headers, partition, timestamps, None, None, chosen)
        )
        columns = Columns(target, values, keys, headers, timestamps, None, chosen)
        if columns.values:
            for number, _, batch in columns.split(partition):
                self._add(target.logs[number], batch)

    def publish_arrow(self, topic: str, table: Any) -> None:
        """
        Publish the rows of a `pyarrow.RecordBatch` when the stage is committed: nothing is done per message. Needs pyarrow.

        It has the column `value` and any of key, headers, timestamp, expires_at, deliver_at, priority and partition; rows of one key, or
        of no key, keep their order. Raises `UsageError` or `StorageFull`.
        """
        self._check()
        target = self._catalog.to_publish(topic)
        for number, batch in batches_of(target, table):
            self._add(target.logs[number], batch)

    def add_batch(self, topic: Topic, partition: int, batch: EncodedBatch) -> None:
        """Publish a batch that somebody else encoded when the stage is committed."""
        self._check()
        self._add(topic.logs[partition], batch)

    def _add(self, log: PartitionLog, batch: EncodedBatch) -> None:
        self._writer.add(log, batch)
        self.messages += batch.count

    def _check(self) -> None:
        if self._ended:
            raise UsageError("the stage has ended; begin another one")
        self._check_open()

    def finish(self) -> str:
        """Make the stage durable; returns its id, for `Store.commit`."""
        if self._ended:
            self._check()
        self._ended = True
        try:
            self._check_open()
            return self._writer.finish()
        except BaseException as error:
            self._writer.abandon()
            if isinstance(error, FileNotFoundError):
                # The store was closed at this moment, and whoever opened it since has tidied up.
                self._check_open()
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


class StagedContents:
    """The changes that publish some stages: appends first, then whole segments, so that nothing can fail between them."""

    def __init__(self, stages: Stages, catalog: Catalog, *, adopting: bool) -> None:
        self._stages = stages
        self._catalog = catalog
        self._adopting = adopting
        self._appends: list[Append] = []
        self._adoptions: list[Adopt] = []
        self._copied_bytes = 0
        self.messages = 0

    @property
    def changes(self) -> list[Change]:
        """All of them."""
        return [*self._appends, *self._adoptions]

    def add(self, identity: str, producer: str) -> None:
        """Take in a stage. Raises `StageNotFound`, `Corrupt`, `TopicNotFound`, `BatchTooLarge`."""
        stage = self._stages.load(identity)
        if stage.producer != producer:
            raise BadArgument("stages", identity, f"was staged by {stage.producer!r}, not by {producer!r}")
        for entry in stage.entries:
            self._append(self._log(entry.topic_id, entry.partition), entry.batch, self._stages.path_of(identity))
        parts: dict[PartitionLog, list[StagedSegment]] = {}
        try:
            for part in stage.parts:
                log = self._log(part.topic_id, part.partition)
                parts.setdefault(log, []).append(self._stages.open_part(identity, part))
            for log in list(parts):
                # All or none of a log's parts, so that they keep their order.
                if self._adopting and self._is_worth(parts[log]):
                    self._adoptions += [Adopt(log, staged) for staged in parts[log]]
                    self.messages += sum(staged.messages for staged in parts.pop(log))
                else:
                    for staged in parts[log]:
                        for data in staged.batches():
                            self._append(log, data, staged.path)
        finally:
            for copied in parts.values():
                for staged in copied:
                    staged.file.close()

    def _log(self, topic_id: bytes, partition: int) -> PartitionLog:
        topic = self._catalog.find(topic_id)
        if topic is None or partition >= topic.partitions:
            raise TopicNotFound(topic_id.hex(), partition)
        return topic.logs[partition]

    def _is_worth(self, parts: list[StagedSegment]) -> bool:
        """
        Whether adopting is worth it: small segments and small batches are better copied, into few of both.

        A file that has other names already is left alone: writing to it could change a segment, or somebody's copy of the store.
        """
        limits = self._stages.limits
        size = sum(staged.data_end - staged.data_start for staged in parts)
        batches = sum(staged.count for staged in parts)
        return (
            size >= limits.adopt_bytes_min
            and size >= limits.adopt_batch_bytes_min * batches
            and all(staged.file.links() == 1 for staged in parts)
        )

    def _append(self, log: PartitionLog, data: Buffer, path: str) -> None:
        self._copied_bytes += len(data)
        if self._copied_bytes > COMMIT_BYTES_MAX:
            raise BatchTooLarge("bytes", self._copied_bytes, COMMIT_BYTES_MAX)
        try:
            batch = EncodedBatch.adopt(data)
        except BadBytes as error:
            raise DamagedFile(path, 0, None, str(error)) from None
        self._appends.append(Append(log, batch))
        self.messages += batch.count

    def close(self) -> None:
        """Close the files of segments that were not adopted."""
        for adoption in self._adoptions:
            adoption.staged.file.close()


class Staging:
    """Stages and their commits in one store. Safe to call from any thread."""

    def __init__(self, stages: Stages, catalog: Catalog, producers: Producers, volume: Volume) -> None:
        self._stages = stages
        self._catalog = catalog
        self._producers = producers
        self._volume = volume
        self._lock = threading.Lock()

    def begin(self, producer: str, check_open: Callable[[], None]) -> OpenStage:
        """A new stage of *producer*; *check_open* raises `Closed` once the store is closed."""
        check_name("producer", producer)
        return OpenStage(self._stages.begin(producer), self._catalog, check_open)

    def commit(self, producer: str, number: int, stages: Sequence[str]) -> Committed:
        """See `Store.commit`."""
        check_name("producer", producer)
        number = check_whole_number("number", number, 0, NUMBER_MAX)
        wanted = list(dict.fromkeys(check_texts("stages", stages, "stage ids")))
        with self._lock:
            known = self._producers.result_of(producer, number)
            if known is not None:
                own = {identity for identity, owner, _ in self._stages.all() if owner == producer}
                self._remove([identity for identity in wanted if identity in own])
                return self._known(producer, number, known)
            before = self._producers.last_commit_us(producer)
            try:
                messages = self._commit(producer, number, wanted, adopting=True)
            except BatchTooLarge:
                # A log's state has outgrown the room that a part left for it: copy the parts.
                messages = self._commit(producer, number, wanted, adopting=False)
            self._remove(wanted)
            if before is not None:
                # Left over from attempts that were made before the last commit: nobody can want them any more.
                self._stages.remove_expired(producer, before)
        return Committed(producer, number, messages, duplicate=False, newest=number)

    def _known(self, producer: str, number: int, result: Any) -> Committed:
        newest = self._producers.newest_of(producer)
        return Committed(producer, number, int(result["messages"]), duplicate=True, newest=max(number, newest or 0))

    def _commit(self, producer: str, number: int, wanted: list[str], *, adopting: bool) -> int:
        """Decide it; returns how many messages it published. Everything is checked before anything is decided."""
        contents = StagedContents(self._stages, self._catalog, adopting=adopting)
        try:
            for identity in wanted:
                contents.add(identity, producer)
            result = {"messages": contents.messages, "stages": len(wanted)}
            self._volume.commit_changes([*contents.changes, self._producers.transaction_entry(producer, number, result)])
        except OutcomeUnknown:
            raise  # the files are the log's
        except PenstockError:
            contents.close()
            raise
        return contents.messages

    def _remove(self, wanted: Sequence[str]) -> None:
        for identity in wanted:
            self._stages.remove(identity)

    def abort(self, stages: Sequence[str]) -> int:
        """Remove stages; returns how many were there. Nothing is removed if one of them cannot be an id."""
        wanted = check_texts("stages", stages, "stage ids")
        for identity in wanted:
            self._stages.path_of(identity)
        with self._lock:
            return sum(self._stages.remove(identity) for identity in wanted)

    def result(self, producer: str, number: int) -> Committed | None:
        """What `commit` gave for that number, None if it was not committed."""
        check_name("producer", producer)
        number = check_whole_number("number", number, 0, NUMBER_MAX)
        known: Any = self._producers.result_of(producer, number)
        return None if known is None else self._known(producer, number, known)

    def remove_expired(self) -> int:
        """Remove what nobody committed for days."""
        try:
            with self._lock:  # not while a commit is about to take one of them
                return self._stages.remove_expired()
        except OSError as error:
            raise StorageFailed(self._stages.directory, str(error)) from None
