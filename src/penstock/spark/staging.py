"""
What the sinks share: tasks stage rows, the driver commits the stages.

A stage means nothing until it is committed, so attempts that fail, are killed or lose against a copy of themselves leave no trace but
files that expire. On a folder a task writes them itself; on a server it sends the rows there.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import WriterCommitMessage

from penstock.errors import (
    BadColumn,
    OutcomeUnknown,
    PenstockError,
    StageNotFound,
    TopicNotFound,
    Unavailable,
)
from penstock.format import digest
from penstock.spark import connections
from penstock.store.outside import stage_outside
from penstock.values import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.spark.options import StorePlace, WriteOptions
    from penstock.store.staging import Committed

KEPT_BYTES_MAX = 64 * MIB
"""As much as a task keeps to stage it again when the server goes away; with more, Spark runs the task again."""


@dataclass(frozen=True, slots=True)
class Staged(WriterCommitMessage):
    """What a task tells the driver."""

    producer: str
    stage: str | None
    messages: int


class TaskStage:
    """Stages the rows of one task under *producer*. Needs no answer from an owner, or goes through the server."""

    def __init__(self, options: WriteOptions, columns: Sequence[str], producer: str) -> None:
        self._options = options
        self._columns = [name for name in columns if name != "topic"]
        self._has_topics = options.topic is None
        self._producer = producer
        self._kept: list[Any] | None = [] if options.place.is_server else None
        self._kept_bytes = 0
        digest.prepare()

    def write(self, batches: Iterator[Any]) -> Staged:
        """Stage all rows; durable when it returns. Where there are none, nothing is made. Raises `PenstockError`: nothing is left then."""
        stage: Any = None
        try:
            for batch in batches:
                if not batch.num_rows:
                    continue
                if stage is None:
                    stage = self._begin()
                self._keep(batch)
                try:
                    self._add(stage, batch)
                except Unavailable:
                    stage = self._again(stage)
            if stage is None:
                return Staged(self._producer, None, 0)
            try:
                identity = stage.finish()
            except (Unavailable, StageNotFound):
                stage = self._again(stage)
                identity = stage.finish()
        except BaseException:
            if stage is not None:
                with contextlib.suppress(PenstockError, OSError):
                    stage.abandon()
            raise
        return Staged(self._producer, identity, stage.messages)

    def _begin(self) -> Any:
        place = self._options.place
        store = connections.reader(place)
        if place.is_server:
            return connections.patiently(place, lambda: store.stage(self._producer))
        return stage_outside(store, self._producer)

    def _keep(self, batch: Any) -> None:
        if self._kept is not None:
            self._kept_bytes += batch.nbytes
            self._kept.append(batch)
            if self._kept_bytes > KEPT_BYTES_MAX:
                self._kept = None

    def _again(self, lost: Any) -> Any:
        """A new stage with all rows so far: the server went away, and the old stage with it."""
        kept = self._kept
        if kept is None:
            raise  # noqa: PLE0704 - called where an error is being handled
        with contextlib.suppress(PenstockError):
            lost.abandon()

        def stage_all() -> Any:
            stage = self._begin()
            for batch in kept:
                self._add(stage, batch)
            return stage

        return connections.patiently(self._options.place, stage_all)

    def _add(self, stage: Any, batch: Any) -> None:
        rows = batch.select(self._columns)
        if not self._has_topics:
            self._publish(stage, self._options.topic, rows)
            return
        import pyarrow.compute as pc

        topics = batch["topic"]
        if topics.null_count:
            raise BadColumn("topic", "must not be null: each row needs a topic")
        names = pc.unique(topics).to_pylist()
        if len(names) == 1:
            self._publish(stage, names[0], rows)
            return
        for name in names:
            self._publish(stage, name, rows.filter(pc.equal(topics, name)))

    def _publish(self, stage: Any, topic: str | None, rows: Any) -> None:
        assert topic is not None
        try:
            stage.publish_arrow(topic, rows)
        except TopicNotFound as error:
            if self._options.place.is_server or error.partition is not None:
                raise
            make_topic(self._options.place, topic)
            stage.publish_arrow(topic, rows)


def make_topic(place: StorePlace, topic: str) -> None:
    """Make *topic* if it is not there, as publishing does."""
    with connections.owner(place) as store:
        try:
            store.topic(topic)
        except TopicNotFound:
            store.create_topic(topic)


def commit(options: WriteOptions, producer: str, number: int, stages: Sequence[str], note: str | None = None) -> Committed:
    """
    Publish the stages at once. Repeated until the outcome is known, or the option `retryTimeoutMs` has passed.

    Raises `TransactionFenced`, `TransactionChanged`, `StageNotFound`: nothing was changed.
    """
    keep = not options.fail_on_changed_batch

    def attempt() -> Committed:
        try:
            with connections.owner(options.place) as store:
                done: Committed = store.commit(producer, number, stages, keep_committed=keep, note=note)
                return done
        except OutcomeUnknown as error:
            raise Unavailable(str(error)) from error

    return connections.patiently(options.place, attempt)


def committed(place: StorePlace, producer: str, number: int) -> Committed | None:
    """What was committed under that number, None if nothing was. Raises `TransactionFenced` if later ones were, and it is not known."""

    def attempt() -> Committed | None:
        with connections.owner(place) as store:
            found: Committed | None = store.committed(producer, number)
            return found

    return connections.patiently(place, attempt)


def abort(place: StorePlace, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Drop the stages of a write that failed, as far as they are known and the store can be reached; the others expire."""
    _, stages, _ = stages_of(messages)
    if stages:
        with (
            contextlib.suppress(PenstockError, OSError),
            connections.owner(place._replace(retry_ms=min(place.retry_ms, 2_000))) as store,
        ):
            store.abort(stages)


def stages_of(messages: Sequence[WriterCommitMessage | None]) -> tuple[str | None, list[str], int]:
    """(producer, stage ids, rows) of all tasks."""
    staged = [message for message in messages if isinstance(message, Staged)]
    return (
        staged[0].producer if staged else None,
        [message.stage for message in staged if message.stage is not None],
        sum(message.messages for message in staged),
    )
