"""
Transactions in two phases, for work that many processes do together: each stages its messages, one commits them all.

`Staging.begin` gives a stage to publish to; finishing it makes it durable and gives an id, which travels to whoever commits. `commit`
publishes all messages of a list of stages in one frame (large parts of them become segments of their logs, and are not copied), under
the producer's number: repeating a number with the same messages gives the first answer and
changes nothing, with others it is refused, and so is a lower one than the last. So a committer that does not know whether it succeeded
asks again, and one that believes to repeat a transaction and does not loses nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from penstock import threads as threading
from penstock.arguments import check_texts, check_whole_number, shown
from penstock.errors import (
    BadArgument,
    OutcomeUnknown,
    PenstockError,
    StageNotFound,
    StorageFailed,
    TransactionChanged,
    UsageError,
)
from penstock.files import descriptors_max
from penstock.format import digest
from penstock.store.staged_contents import CommitLimits, StagedContents
from penstock.topics.arrow_messages import batches_of
from penstock.topics.encoder import Columns
from penstock.topics.options import options
from penstock.values import check_name
from penstock.volume.tickets import ENTRY_OVERHEAD_BYTES, Outgrown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from penstock.format.batch import EncodedBatch
    from penstock.log.partition_log import PartitionLog
    from penstock.topics.catalog import Catalog
    from penstock.topics.producers import Producers
    from penstock.topics.stages import Stages, StageWriter
    from penstock.topics.topic import Topic
    from penstock.volume.volume import Volume

COMMIT_BYTES_MAX = 1 << 30
"""The most that one commit copies; what is adopted does not count. It holds that in memory."""
_RESULT_BYTES_MAX = 4096
"""More than the entry takes that tells what a commit did, but for its note."""
NUMBER_MAX = (1 << 63) - 1
NOTE_BYTES_MAX = 2048
_REPEATS_KEPT = 1024


class Committed(NamedTuple):
    """
    The answer of a two-phase commit. *duplicate*: it was committed before, and this is the answer of then.

    *newest* is the highest number of the producer that is committed: where it is higher than *number*, somebody else goes on. *note* is
    what the committer wrote beside it.
    """

    producer: str
    number: int
    messages: int
    duplicate: bool
    newest: int
    note: str | None = None


def check_note(note: object) -> str | None:
    """The note of a commit. Raises `BadArgument`."""
    if note is not None and not isinstance(note, str):
        raise BadArgument("note", shown(note), "must be text (str) or None")
    if note is not None and len(note.encode("utf-8", "surrogatepass")) > NOTE_BYTES_MAX:
        raise BadArgument("note", shown(note), f"must have at most {NOTE_BYTES_MAX:,} bytes")
    return note


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

    def add_batch(self, topic: Topic, partition: int, batch: EncodedBatch, known_digest: int | None = None) -> None:
        """Publish a batch that somebody else encoded, and may know the digest of, when the stage is committed."""
        self._check()
        self._add(topic.logs[partition], batch, known_digest)

    def _add(self, log: PartitionLog, batch: EncodedBatch, known_digest: int | None = None) -> None:
        self._writer.add(log, batch, known_digest)
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


class Staging:
    """Stages and their commits in one store. Safe to call from any thread."""

    def __init__(self, stages: Stages, catalog: Catalog, producers: Producers, volume: Volume) -> None:
        self._stages = stages
        self._catalog = catalog
        self._producers = producers
        self._volume = volume
        self._lock = threading.Lock()
        self._repeats: OrderedDict[tuple[str, int, str], None] = OrderedDict()
        """Stages that were found to repeat a transaction, and are gone: the answer may be asked for once more."""

    def begin(self, producer: str, check_open: Callable[[], None]) -> OpenStage:
        """A new stage of *producer*; *check_open* raises `Closed` once the store is closed."""
        check_name("producer", producer)
        return OpenStage(self._stages.begin(producer), self._catalog, check_open)

    def commit(
        self, producer: str, number: int, stages: Sequence[str], *, keep_committed: bool = False, note: str | None = None
    ) -> Committed:
        """See `Store.commit`."""
        check_note(note)
        check_name("producer", producer)
        number = check_whole_number("number", number, 0, NUMBER_MAX)
        wanted = list(dict.fromkeys(check_texts("stages", stages, "stage ids")))
        with self._lock:
            known = self._producers.result_of(producer, number)
            if known is not None:
                if not keep_committed:
                    self._check_same(producer, number, wanted, known)
                own = {identity for identity, owner, _ in self._stages.all() if owner == producer}
                self._remove([identity for identity in wanted if identity in own])
                return self._known(producer, number, known)
            before = self._producers.last_commit_us(producer)
            messages = self._commit(producer, number, wanted, note)
            if before is not None:
                # Left over from attempts that were made before the last commit: nobody can want them any more.
                self._stages.remove_expired(producer, before)
        return Committed(producer, number, messages, duplicate=False, newest=number, note=note)

    def _check_same(self, producer: str, number: int, wanted: list[str], known: Any) -> None:
        """
        Raise `TransactionChanged` if *wanted* holds other messages than those that were committed.

        Stages that are gone cannot be compared: those of that commit itself, and of a repetition whose answer was lost. A commit of an
        older version tells only how many messages it had.
        """
        names = _names(wanted)
        if not wanted or known.get("names") == names or (producer, number, names) in self._repeats:
            return
        messages = 0
        total: int | None = 0
        missing = []
        for identity in wanted:
            try:
                stage = self._stages.load(identity)
            except StageNotFound:
                missing.append(identity)
                continue
            messages += stage.messages
            total = None if total is None or stage.digest is None else digest.add(total, stage.digest)
        if len(missing) == len(wanted):
            return
        if missing:
            raise StageNotFound(missing[0])
        committed = known.get("digest")
        is_other = committed is not None and total is not None and int(committed, 16) != total
        if is_other or messages != int(known["messages"]):
            raise TransactionChanged(producer, number, int(known["messages"]), messages)
        self._repeats[producer, number, names] = None
        if len(self._repeats) > _REPEATS_KEPT:
            self._repeats.popitem(last=False)

    def _known(self, producer: str, number: int, result: Any) -> Committed:
        newest = self._producers.newest_of(producer)
        return Committed(
            producer, number, int(result["messages"]), duplicate=True, newest=max(number, newest or 0), note=result.get("note")
        )

    def _commit(self, producer: str, number: int, wanted: list[str], note: str | None) -> int:
        """Decide it, and remove the stages; returns how many messages it published."""
        outgrown: set[str] = set()
        while True:
            try:
                return self._try_to_commit(producer, number, wanted, note, outgrown)
            except Outgrown as error:
                # They are copied, or gathered into parts that leave more room.
                if outgrown.issuperset(error.paths):
                    raise
                outgrown.update(error.paths)

    def _try_to_commit(self, producer: str, number: int, wanted: list[str], note: str | None, outgrown: set[str]) -> int:
        """The same. Everything is checked before anything is decided. Raises `Outgrown`: nothing was changed."""
        volume = self._volume
        limits = CommitLimits(
            COMMIT_BYTES_MAX,
            max(1, (volume.settings.frame_bytes - _RESULT_BYTES_MAX - len(json.dumps(note))) // ENTRY_OVERHEAD_BYTES - 1),
            descriptors_max() // 2,
        )
        contents = StagedContents(self._stages, self._catalog, producer, limits, outgrown)
        try:
            for identity in wanted:
                contents.add(identity)
            contents.settle()
        except BaseException:
            contents.discard()
            raise
        result: dict[str, Any] = {"messages": contents.messages, "stages": len(wanted), "names": _names(wanted)}
        if contents.digest is not None:
            result["digest"] = f"{contents.digest:016x}"
        if note is not None:
            result["note"] = note
        try:
            volume.commit_changes([*contents.changes, self._producers.transaction_entry(producer, number, result)])
        except OutcomeUnknown:
            raise  # the files are the log's
        except PenstockError:
            contents.discard()
            raise
        self._remove([*wanted, *([contents.made] if contents.made else [])])
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


def _names(stages: Sequence[str]) -> str:
    """The ids of stages as one short text, in whatever order they come."""
    return hashlib.sha256("\n".join(sorted(set(stages))).encode()).hexdigest()[:32]
