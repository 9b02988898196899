"""
All messages of a topic as one DataFrame: from the archive what it has, from the log what comes behind; each once.

The border is where the archive reached when the DataFrame was made. What is archived later is still read from the log, and if retention
removes it meanwhile, reading fails with `DataLost`: messages are never left out without a word.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import DataLost, NotFound
from penstock.spark import connections
from penstock.spark.loss import LossCheck
from penstock.spark.offsets import Offsets
from penstock.spark.options import LOSS_ADVICE
from penstock.spark.pipelines.archive_folder import ArchivedFile, ArchiveFolder
from penstock.spark.pipelines.place import place_of, positions, source_options
from penstock.spark.pipelines.tables import AS_NAMED
from penstock.spark.schema import read_schema

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from penstock.spark.options import StorePlace
    from penstock.spark.pipelines.archive_folder import ArchiveState
    from penstock.store.reading import TopicPositions

LOST = "if an archive has them, give that one; else begin anew with what is there, in another folder"
"""What can be done where messages are in neither place."""
_MOVED = "call history() again: it takes from the archive what that has by then, and from the log what is there"
"""What can be done where messages went while a DataFrame was there."""
_DAY = "((unix_micros(timestamp) - pmod(unix_micros(timestamp), 86400000000)) div 86400000000)"
_DATE = f"case when {_DAY} between -719162 and 2932896 then date_add(date'1970-01-01', cast({_DAY} as int)) end"
"""As the archive has it, whatever the session's time zone is."""


class History(NamedTuple):
    """The messages [starts, ends) of a topic, and where they are. Made by `plan`."""

    store: dict[str, str]
    topic: str
    archive: str | None
    files: list[ArchivedFile]
    starts: dict[int, int]
    border: dict[int, int]
    """Below it in the archive, from it on in the log."""
    ends: dict[int, int]
    now: TopicPositions

    @property
    def offsets(self) -> Offsets:
        """How far it reaches, as a query's checkpoint says it."""
        return Offsets(self.now.log_epoch, {self.topic: self.now.topic_id.hex()}, {self.topic: dict(self.ends)})

    @property
    def messages(self) -> int:
        """How many offsets it spans."""
        return sum(end - self.starts[number] for number, end in self.ends.items())

    def between(self, starts: Mapping[int, int], ends: Mapping[int, int]) -> History:
        """A part of it."""
        chosen = {number: min(max(starts[number], self.starts[number]), self.ends[number]) for number in self.ends}
        until = {number: min(max(ends[number], chosen[number]), self.ends[number]) for number in self.ends}
        return self._replace(
            starts=chosen,
            ends=until,
            border={number: min(max(self.border[number], chosen[number]), until[number]) for number in self.ends},
            files=[one for one in self.files if one.start < until[one.partition] and one.end > chosen[one.partition]],
        )

    def frame(self, spark: SparkSession, *, advice: str = DataLost.ADVICE) -> DataFrame:
        """
        The messages: the columns of the data source with `headers`, and `date`, the day of `timestamp` in UTC.

        *advice* is what `DataLost` says can be done, where it fails later.
        """
        parts = []
        if any(start < self.border[number] for number, start in self.starts.items()):
            parts.append(self._archived(spark))
        if any(border < self.ends[number] for number, border in self.border.items()):
            parts.append(self._log(spark, advice))
        if not parts:
            return spark.createDataFrame([], _schema())
        return parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])

    def _log(self, spark: SparkSession, advice: str) -> DataFrame:
        # Only partitions with something to read: where there is nothing, the log may begin behind the border.
        chosen = [number for number, border in self.border.items() if border < self.ends[number]]

        def offsets(places: dict[int, int]) -> str:
            return json.dumps({self.topic: {str(number): places[number] for number in chosen}})

        reader = spark.read.format("penstock").options(**self.store).option("includeHeaders", "true")
        reader = reader.option("assign", json.dumps({self.topic: chosen}))
        reader = reader.option("startingOffsets", offsets(self.border)).option("endingOffsets", offsets(self.ends))
        reader = reader.option(LOSS_ADVICE, advice)
        return reader.load().selectExpr("*", f"{_DATE} as date")

    def _archived(self, spark: SparkSession) -> DataFrame:
        assert self.archive is not None
        schema = _schema()
        reader = spark.read.schema(schema).option("basePath", self.archive).options(**AS_NAMED)
        found = reader.parquet(*[one.path for one in self.files])
        bounds = [
            f"(partition = {number} and offset >= {start} and offset < {self.border[number]})"
            for number, start in self.starts.items()
            if start < self.border[number]
        ]
        return found.where(" or ".join(bounds)).select(schema.names)


def _schema() -> StructType:
    return read_schema(include_headers=True, include_delivery=False).add("date", "date")


def plan(
    store: str | os.PathLike[str] | Mapping[str, str],
    topic: str,
    archive: str | os.PathLike[str] | None = None,
    *,
    behind: Offsets | None = None,
    until: Mapping[int, int] | None = None,
) -> History:
    """
    Find out where the messages of *topic* are: all, or those *behind* offsets that were reached before. Needs no Spark.

    With *until* only those before these offsets are wanted: what became of a partition that is as far does not matter.
    Raises `DataLost` if some of them are in neither place, `NotFound` if *archive* holds no archive of the topic, `TopicNotFound`.
    """
    place = place_of(store)
    folder = None if archive is None else ArchiveFolder(archive, topic)
    state = None if folder is None else folder.state()
    if folder is not None and state is None:
        raise NotFound(f"{folder.path} holds no archive of {topic!r}; `penstock pipeline archive` makes one")
    while True:
        try:
            found = _plan(store, topic, folder, state)
            return found if behind is None else found.between(_reached(place, found, behind, until or {}), found.ends)
        except DataLost:
            # Retention may have taken from the log what was archived since the state was read.
            newer = None if folder is None else folder.state()
            if newer is None or state is None or newer.version == state.version:
                raise
            state = newer


def _plan(
    store: str | os.PathLike[str] | Mapping[str, str], topic: str, folder: ArchiveFolder | None, state: ArchiveState | None
) -> History:
    """All messages, with an archive that is as *state* says. Raises `DataLost`."""
    place = place_of(store)
    # The archive's state is read first: what it has is in its place, and what comes later the log still has, or the reading fails.
    files = [] if folder is None or state is None else folder.archived(state)
    now = positions(place, topic)
    if state is None or state.offsets is None or folder is None:
        return History(source_options(store), topic, None, [], dict(now.starts), dict(now.starts), dict(now.ends), now)
    border = _checked(place, topic, state.offsets, now)
    starts = {number: state.starts.get(number, 0) for number in border}
    return History(source_options(store), topic, folder.path, files, starts, border, dict(now.ends), now)


def _checked(place: StorePlace, topic: str, reached: Offsets, now: TopicPositions) -> dict[int, int]:
    return LossCheck(connections.reader(place), fail=True, advice=LOST).begin(reached, {topic: now})[topic]


def _reached(place: StorePlace, found: History, behind: Offsets, until: Mapping[int, int]) -> dict[int, int]:
    """The offsets of *behind*, if history has them and they mean the same, or are where *until* ends. Raises `DataLost`."""
    topic = found.topic
    done = {
        number: offset for number, offset in behind.topics.get(topic, {}).items() if offset >= until.get(number, offset + 1)
    }
    # Retention may have removed what the archive has: then the archive's own offsets were compared with the log.
    lowered = found.now._replace(
        starts={number: min(start, found.starts[number]) for number, start in found.now.starts.items() if number not in done},
        ends={number: end for number, end in found.now.ends.items() if number not in done},
    )
    chosen = {number: offset for number, offset in behind.topics.get(topic, {}).items() if number not in done}
    for number, offset in chosen.items():
        if offset < found.starts.get(number, 0):
            reason = f"the messages from offset {offset} to {found.starts[number]} are in no archive"
            raise DataLost(topic, number, reason, LOST)
    check = LossCheck(connections.reader(place), fail=True, advice=LOST)
    return done | check.begin(behind._replace(topics={topic: chosen}), {topic: lowered})[topic]


def history(
    spark: SparkSession,
    store: str | os.PathLike[str] | Mapping[str, str],
    topic: str,
    archive: str | os.PathLike[str] | None = None,
) -> DataFrame:
    """
    All messages of *topic* as of now: those in *archive*, the folder that `archive` writes to, and behind them those in the log.

    No message is missing and none comes twice, also while the archive goes on. Raises as `plan`.
    """
    return plan(store, topic, archive).frame(spark, advice=_MOVED)
