"""
The latest value of each key of a topic as a table, kept up to date.

```text
DIR/current -> v00000007            a link: what the table is now
DIR/v00000007/bucket=3/*.parquet    one row a key, in the bucket of its key
DIR/v00000007/_state.json           how far the topic was read for it
```

A run reads what has come since, finds the newest message of each key in it, and makes the next version: buckets that it touches are
merged and written, the others are hard links to the same files. Then the link is moved, which changes rows and position at once, so a
run that is killed leaves nothing but a folder that nobody looks at, and a batch is never applied twice. The last version stays beside
the new one, for those who are reading it.

What is newest is what the log has last. Offsets tell that within a partition, so a key stands for itself in each partition, as in
the compaction of logs; messages that are published with a key and no partition have one partition for each key. A tombstone removes
its key. Messages without a key are counted and left out.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.arguments import check_whole_number
from penstock.errors import BadArgument, BadName, Conflict, DataLost, NotFound, PipelineFailed, UnsupportedFormat
from penstock.spark.offsets import Offsets
from penstock.spark.pipelines.durable import make_folder, only_one, read_document, sync, sync_all, write_document
from penstock.spark.pipelines.failures import told_as_ours
from penstock.spark.pipelines.history import LOST, History, plan
from penstock.spark.pipelines.progress import Progress, quiet, wait
from penstock.spark.pipelines.tables import AS_NAMED
from penstock.spark.schema import BASIC, HEADERS
from penstock.values import is_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from penstock.spark.pipelines.progress import Report

FORMAT = 1
BUCKETS_DEFAULT = 16
BATCH_ROWS_DEFAULT = 5_000_000
LOSSES_MAX = 5
"""How often in a row a batch is planned anew because its messages went from the log to the archive."""
_COLUMNS = ("key", "value", "partition", "offset", "timestamp", "timestampType", "headers")
_VERSION = re.compile(r"v(\d{8,})", re.ASCII)
_STATE = "_state.json"


class _State(NamedTuple):
    """What a version of the table stands for."""

    topic: str
    version: int
    buckets: int
    offsets: Offsets | None
    messages: int
    """Messages that were read for it, in all."""
    without_key: int


class Kept(NamedTuple):
    """What a run has done."""

    topic: str
    folder: str
    messages: int
    """That this run has read."""
    without_key: int
    """Of these, messages without a key: they are in no table."""
    batches: int
    seconds: float
    messages_per_second: float
    keys: int
    """Rows of the table."""
    version: int
    ends: dict[int, int]


class Latest:
    """
    The table of the latest values of *topic* in the folder *to*, from the log, and from *archive* what is not in the log any more.

    Making it checks all that can be checked without Spark. Raises `BadArgument`, `BadName`, `TopicNotFound`, `StoreNotFound`, `Conflict`
    if the folder is another topic's, and `DataLost` if messages between the table and the topic are gone.
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | Mapping[str, str],
        topic: str,
        to: str | os.PathLike[str],
        *,
        archive: str | os.PathLike[str] | None = None,
        buckets: int = BUCKETS_DEFAULT,
        batch_rows: int = BATCH_ROWS_DEFAULT,
    ) -> None:
        if not is_name(topic):
            raise BadName("topic", topic)
        self._store, self._topic, self._archive = store, topic, archive
        self._folder = table_folder(to)
        self._buckets = check_whole_number("buckets", buckets, 1, 10_000)
        self._batch_rows = check_whole_number("batch_rows", batch_rows, 1, 1 << 40)
        self._plan(self._state())

    def _state(self) -> _State:
        found = _read_state(self._folder)
        if found is None:
            return _State(self._topic, 0, self._buckets, None, 0, 0)
        if found.topic != self._topic:
            raise Conflict(f"{self._folder} is the table of {found.topic!r}, not of {self._topic!r}; give each its own folder")
        return found

    def _plan(self, state: _State) -> History:
        """What is new. Raises `DataLost`."""
        return plan(self._store, self._topic, self._archive, behind=state.offsets)

    def run(self, spark: SparkSession, report: Report = quiet, *, every_s: float | None = None) -> Kept:
        """
        Take in what is there now; with *every_s* go on, a batch each so many seconds, until *report* says so.

        Raises `Unavailable` if another process keeps the table, `DataLost`, and `PipelineFailed` for what Spark says.
        """
        began = time.monotonic()
        progress = Progress()
        make_folder(self._folder)
        with only_one(os.path.join(self._folder, "_lock"), f"the table in {self._folder}"):
            state = first = self._state()
            self._clean(state)
            goal = self._plan(state) if every_s is None else None
            losses = 0
            while True:
                turn = time.monotonic()
                new = self._plan(state)
                if goal is not None:
                    new = new.between(new.starts, goal.ends)
                if new.messages or not state.version:
                    before = state.messages
                    try:
                        state, left = self._batch(spark, state, new)
                    except PipelineFailed as error:
                        # Retention took from the log what was archived meanwhile: then the archive has it.
                        losses += 1
                        if error.cause != DataLost.code or self._archive is None or losses > LOSSES_MAX:
                            raise
                        continue
                    losses = 0
                    progress = progress.after(state.messages - before, time.monotonic() - turn, left)
                else:
                    left = 0
                if report(progress):
                    break
                if left:
                    continue
                if every_s is None or wait(turn + every_s - time.monotonic(), progress, report):
                    break
            with told_as_ours():
                keys = read_latest(spark, self._folder).count()
        assert state.offsets is not None
        seconds, messages = time.monotonic() - began, state.messages - first.messages
        return Kept(
            self._topic, self._folder, messages, state.without_key - first.without_key, progress.batches, seconds,
            messages / max(seconds, 1e-6), keys, state.version, state.offsets.topics[self._topic],
        )  # fmt: skip

    def _clean(self, state: _State) -> None:
        """Remove what a run that was killed has left, and old versions but the last."""
        for name in os.listdir(self._folder):
            parts = _VERSION.fullmatch(name)
            if name.startswith("_new-") or (parts is not None and not state.version - 1 <= int(parts[1]) <= state.version):
                shutil.rmtree(os.path.join(self._folder, name), ignore_errors=True)

    def _batch(self, spark: SparkSession, state: _State, new: History) -> tuple[_State, int]:
        """Make the next version with the next messages of *new*; how many are left."""
        from penstock.spark import planning

        ends = planning.admit({self._topic: new.starts}, {self._topic: new.ends}, self._batch_rows)[self._topic]
        part = new.between(new.starts, ends)
        folder = os.path.join(self._folder, f"_new-{uuid.uuid4().hex}")
        with told_as_ours(lost=LOST):
            touched, rows, without_key = self._merge(spark, state, part, folder)
        current = _current(self._folder)
        if current is not None:
            _link_others(current, folder, touched)
        _give_a_schema(folder)
        following = _State(
            self._topic, state.version + 1, state.buckets, part.offsets, state.messages + rows, state.without_key + without_key
        )
        self._publish(folder, following)
        self._clean(following)
        return following, new.messages - part.messages

    def _merge(self, spark: SparkSession, state: _State, part: History, folder: str) -> tuple[set[int], int, int]:
        """Write the buckets that messages of *part* belong to into *folder*; (those buckets, messages, messages without a key)."""
        from pyspark.sql import functions as f

        found = part.frame(spark).select(*_COLUMNS)
        newest = _newest(found).withColumn("bucket", f.expr(f"cast(pmod(xxhash64(key), {state.buckets}) as int)")).persist()
        try:
            counts = newest.groupBy("bucket", f.isnull("key").alias("keyless")).agg(f.sum("messages")).collect()
            touched = {int(bucket) for bucket, keyless, _ in counts if not keyless}
            without_key = sum(int(count) for _, keyless, count in counts if keyless)
            merged = newest.where("key is not null").drop("messages")
            if state.version and touched:
                old = read_latest(spark, self._folder, with_bucket=True).where(f.col("bucket").isin(list(touched)))
                merged = _newest(old.unionByName(merged), "bucket").drop("messages")
            # Tombstones go last: they remove what the table had.
            chosen = merged.where("value is not null").repartition("bucket").sortWithinPartitions("bucket", "key")
            chosen.write.partitionBy("bucket").parquet(folder)
        finally:
            newest.unpersist()
        return touched, sum(int(count) for _, _, count in counts), without_key

    def _publish(self, folder: str, state: _State) -> None:
        """Let *folder* be the table; durable when it returns."""
        for root, _, names in os.walk(folder):
            sync_all(os.path.join(root, name) for name in names)
            sync(root)
        write_document(os.path.join(folder, _STATE), _encode(state))
        name = f"v{state.version:08}"
        final = os.path.join(self._folder, name)
        shutil.rmtree(final, ignore_errors=True)  # of a run that was killed before it moved the link
        os.rename(folder, final)
        sync(self._folder)
        link = os.path.join(self._folder, f"_new-{uuid.uuid4().hex}")
        os.symlink(name, link)
        os.replace(link, os.path.join(self._folder, "current"))
        sync(self._folder)


def _newest(frame: DataFrame, *more: str) -> DataFrame:
    """The message with the highest offset of each key in each partition; `messages` says among how many."""
    from pyspark.sql import functions as f

    rest = [name for name in _COLUMNS if name not in ("key", "partition")]
    chosen = frame.groupBy("key", "partition", *more).agg(
        f.max_by(f.struct(*rest), "offset").alias("last"), f.count("*").alias("messages")
    )
    return chosen.select("key", "partition", *more, "last.*", "messages").select(*_COLUMNS, *more, "messages")


def _link_others(current: str, folder: str, touched: set[int]) -> None:
    """Take over the buckets that were not touched, as hard links."""
    for name in os.listdir(current):
        kind, _, number = name.partition("=")
        if kind != "bucket" or int(number) in touched:
            continue
        os.makedirs(os.path.join(folder, name), exist_ok=True)
        for file in os.listdir(os.path.join(current, name)):
            if file.endswith(".parquet") and not file.startswith(("_", ".")):
                with contextlib.suppress(FileExistsError):
                    os.link(os.path.join(current, name, file), os.path.join(folder, name, file))


def _give_a_schema(folder: str) -> None:
    """A table without rows still has columns: Spark finds them in a file."""
    if any(name.startswith("bucket=") for name in os.listdir(folder)):
        return
    import pyarrow.parquet as pq
    from pyspark.sql.pandas.types import to_arrow_schema

    os.makedirs(os.path.join(folder, "bucket=0"))
    schema = to_arrow_schema(_schema(), timezone="UTC")
    pq.ParquetWriter(os.path.join(folder, "bucket=0", "empty.parquet"), schema, store_schema=False).close()


# -- the folder -----------------------------------------------------------------------------------------------------


def table_folder(path: str | os.PathLike[str]) -> str:
    """The folder of a table. Raises `BadArgument`."""
    text = os.fspath(path)
    if not text or "\0" in text or "://" in text:
        raise BadArgument("to", text, "must be a folder of this machine, or one that is mounted on it")
    if os.path.exists(text) and not os.path.isdir(text):
        raise BadArgument("to", text, "is not a folder")
    if os.path.isdir(text) and os.listdir(text) and not os.path.exists(os.path.join(text, "_lock")):
        raise BadArgument("to", text, "holds something else; give a new folder, or one that this command has made")
    return os.path.abspath(text)


def _current(folder: str) -> str | None:
    try:
        return os.path.join(folder, os.readlink(os.path.join(folder, "current")))
    except FileNotFoundError:
        return None


def _read_state(folder: str) -> _State | None:
    current = _current(folder)
    document = None if current is None else read_document(os.path.join(current, _STATE))
    if document is None:
        return None
    if document.get("format") != FORMAT:
        raise UnsupportedFormat(folder, f"format {document.get('format')} of its tables")
    return _State(
        document["topic"], document["version"], document["buckets"], Offsets.from_json(document["offsets"]), document["messages"],
        document["without_key"],
    )  # fmt: skip


def _encode(state: _State) -> dict[str, Any]:
    assert state.offsets is not None
    return {"format": FORMAT, **state._asdict(), "offsets": state.offsets.to_json()}


def _schema() -> StructType:
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(name, HEADERS if name == "headers" else BASIC[name]) for name in _COLUMNS])


def read_latest(spark: SparkSession, folder: str | os.PathLike[str], *, with_bucket: bool = False) -> DataFrame:
    """
    The table of the latest values in *folder* as it is now: one row for each key of each partition.

    A reader of one version is not disturbed by the next one; the one after that removes the files. Raises `NotFound`.
    """
    current = _current(os.path.abspath(folder))
    if current is None:
        raise NotFound(f"{os.fspath(folder)} holds no table; `penstock pipeline latest` makes one")
    schema = _schema().add("bucket", BASIC["partition"])
    found = spark.read.schema(schema).option("basePath", current).options(**AS_NAMED).parquet(current)
    return found if with_bucket else found.drop("bucket")


def latest(
    spark: SparkSession,
    store: str | os.PathLike[str] | Mapping[str, str],
    topic: str,
    to: str | os.PathLike[str],
    *,
    archive: str | os.PathLike[str] | None = None,
    every_s: float | None = None,
    report: Report = quiet,
) -> Kept:
    """Bring the table of the latest values of *topic* in *to* up to date: once, or with *every_s* for ever. See `Latest`."""
    return Latest(store, topic, to, archive=archive).run(spark, report, every_s=every_s)
