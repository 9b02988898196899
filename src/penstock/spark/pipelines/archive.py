"""
Archiving a topic as Parquet files, exactly once, while retention waits for it.

The archive itself says how far it reaches (`archive_folder.py`), so there is no checkpoint that could be lost, be older than the files, or
belong to others: a run looks there, has tasks write what is new, and commits files and position together. Run twice, it finds nothing
to do; killed, it goes on; two at a time are refused.

A group of the topic follows behind, named by the archive's id: with the setting ``retain="until_acked"``, the default, retention removes
nothing that the group has not finished. The group is made before the first message is read, and moved only when the files that
it stands for are on the disk. It holds until it is deleted: `penstock groups delete`.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.arguments import check_whole_number
from penstock.errors import BadName
from penstock.spark import connections, planning
from penstock.spark.loss import LossCheck
from penstock.spark.offsets import Offsets
from penstock.spark.pipelines.archive_folder import ArchiveFolder
from penstock.spark.pipelines.archive_task import write_range
from penstock.spark.pipelines.failures import told_as_ours
from penstock.spark.pipelines.place import changing, place_of, positions
from penstock.spark.pipelines.progress import Progress, quiet, wait
from penstock.values import is_name

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from penstock.spark.pipelines.archive_folder import ArchiveState
    from penstock.spark.pipelines.progress import Report
    from penstock.store.reading import TopicPositions

BATCH_ROWS_DEFAULT = 5_000_000
_FILE_ROWS = 1_000_000
_LOST = "give another folder, for a new archive that begins with what the log has; the files of this one stay"
_TASK_ROWS = 100_000
"""Fewer messages than this are not shared among tasks: many small files are slow to read for ever after."""


class Archived(NamedTuple):
    """What a run of the archive has done."""

    topic: str
    folder: str
    messages: int
    """That this run has archived."""
    files: int
    bytes: int
    batches: int
    seconds: float
    messages_per_second: float
    total: int
    """Messages in the archive."""
    ends: dict[int, int]
    """By partition, the first offset that is not in the archive."""
    group: str
    held: bool
    """Whether retention waits for the group; not where the topic has ``retain="always"``."""


class Archive:
    """
    *topic* of *store*, to be archived in the folder *to*.

    Making it checks all that can be checked without Spark. Raises `BadArgument`, `BadSetting`, `BadName`, `TopicNotFound`, `StoreNotFound`,
    `Unavailable`, and `DataLost` if the archive does not fit the topic any more.
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | Mapping[str, str],
        topic: str,
        to: str | os.PathLike[str],
        *,
        batch_rows: int = BATCH_ROWS_DEFAULT,
    ) -> None:
        if not is_name(topic):
            raise BadName("topic", topic)
        self._place = place_of(store)
        self._topic = topic
        self._folder = ArchiveFolder(to, topic)
        self._batch_rows = check_whole_number("batch_rows", batch_rows, 1, 1 << 40)
        now = positions(self._place, topic)
        state = self._folder.state()
        if state is not None and state.offsets is not None:
            self._begin(state.offsets, now)

    def _begin(self, reached: Offsets, now: TopicPositions) -> dict[int, int]:
        """Where to go on. Raises `DataLost`."""
        check = LossCheck(connections.reader(self._place), fail=True, advice=_LOST)
        return check.begin(reached, {self._topic: now})[self._topic]

    def run(self, spark: SparkSession, report: Report = quiet, *, every_s: float | None = None) -> Archived:
        """
        Archive what is there now; with *every_s* go on, a batch each so many seconds, until *report* says so.

        Raises `Unavailable` if another process archives the topic there, `DataLost`, and `PipelineFailed` for what Spark says.
        """
        began = time.monotonic()
        progress = Progress()
        with self._folder.lock():
            state = first = self._prepare()
            goal = positions(self._place, self._topic) if every_s is None else None
            while True:
                turn = time.monotonic()
                state, rows, lag = self._batch(spark, state, goal)
                if rows is not None:
                    progress = progress.after(rows, time.monotonic() - turn, lag)
                    self._hold(state)
                if report(progress):
                    break
                if rows is not None and lag:
                    continue
                if every_s is None or wait(turn + every_s - time.monotonic(), progress, report):
                    break
        assert state.offsets is not None
        seconds = time.monotonic() - began
        return Archived(
            self._topic, self._folder.path, state.rows - first.rows, state.files - first.files, state.bytes - first.bytes,
            progress.batches, seconds, (state.rows - first.rows) / max(seconds, 1e-6), state.rows,
            state.offsets.topics[self._topic], state.group, self._is_held(),
        )  # fmt: skip

    # -- before the first batch -------------------------------------------------------------------------------------

    def _prepare(self) -> ArchiveState:
        """The archive as the last run left it, and its group; both made if they are not there."""
        state = self._folder.begin()
        with changing(self._place) as store:
            if state.group not in [one.name for one in store.groups(self._topic)]:
                # The archive's id is durable already: no crash leaves a group that nobody moves.
                store.subscribe(self._topic, state.group, start="earliest", prefetch=1).close()
        if state.offsets is None:
            now = positions(self._place, self._topic)
            state = self._folder.set_start(state, dict(now.starts), self._offsets(now, now.starts))
        else:
            self._hold(state)
        return state

    def _offsets(self, now: TopicPositions, reached: dict[int, int]) -> Offsets:
        return Offsets(now.log_epoch, {self._topic: now.topic_id.hex()}, {self._topic: dict(reached)})

    def _hold(self, state: ArchiveState) -> None:
        """Let retention remove what is archived."""
        assert state.offsets is not None
        reached = state.offsets.topics[self._topic]

        def move() -> None:
            with changing(self._place) as store:
                store.seek(self._topic, state.group, reached)

        connections.patiently(self._place, move)

    def _is_held(self) -> bool:
        info: Any = connections.reader(self._place).topic(self._topic)
        return bool(info.settings.retain == "until_acked")

    # -- a batch ----------------------------------------------------------------------------------------------------

    def _batch(
        self, spark: SparkSession, state: ArchiveState, goal: TopicPositions | None
    ) -> tuple[ArchiveState, int | None, int]:
        """Archive the next messages, up to *goal* or what is there. Gives (state, rows or None for nothing new, how many are left)."""
        assert state.offsets is not None
        now = positions(self._place, self._topic)
        begin = self._begin(state.offsets, now)
        last = {number: max(end, begin[number]) for number, end in (goal or now).ends.items()}
        waiting = sum(last[number] - begin[number] for number in begin)
        if not waiting:
            return state, None, 0
        end = planning.admit({self._topic: begin}, {self._topic: last}, self._batch_rows)[self._topic]
        ranges = [
            planning.Range(self._topic, number, begin[number], end[number], now.topic_id.hex(), now.log_epoch)
            for number in begin
        ]
        planned = sum(end[number] - begin[number] for number in begin)
        context = spark.sparkContext
        tasks = max(min(context.defaultParallelism, planned // _TASK_ROWS), planned // _FILE_ROWS)
        parts = planning.split(ranges, tasks or None)
        task = partial(write_range, self._place, self._folder.stage())
        with told_as_ours(lost=_LOST):
            written = [file for files in context.parallelize(parts, len(parts)).map(task).collect() for file in files]
        new = self._folder.commit(state, written, self._offsets(now, end))
        return new, new.rows - state.rows, waiting - planned


def archive(
    spark: SparkSession,
    store: str | os.PathLike[str] | Mapping[str, str],
    topic: str,
    to: str | os.PathLike[str],
    *,
    every_s: float | None = None,
    report: Report = quiet,
) -> Archived:
    """Archive *topic* in the folder *to*: what is there now, or with *every_s* for ever. See `Archive`."""
    return Archive(store, topic, to).run(spark, report, every_s=every_s)
