"""
Publishing messages again: from a topic, its archive or its dead letters into a topic, those that an SQL condition chooses, at a rate.

What is replayed is fixed when a run begins: a range of offsets, and for dead letters which of them are there. Without a rate it is
published in one transaction: all of it, or nothing. With a rate it is cut into parts, each a transaction that is numbered under the run's
id, so a part that was published before a crash is known to the store and not published again. The plan and how many parts are done are
kept in the run's checkpoint; a run with the same checkpoint goes on, and one that is done does nothing.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import time
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import BadArgument, BadName, Conflict, DataLost, NotFound, UsageError
from penstock.groups.dead_letters import HEADER_PREFIX, SUFFIX
from penstock.spark import planning
from penstock.spark.offsets import Offsets
from penstock.spark.pipelines.durable import make_folder, only_one, read_document, write_document
from penstock.spark.pipelines.failures import told_as_ours
from penstock.spark.pipelines.history import LOST, plan
from penstock.spark.pipelines.place import changing, place_of, positions, source_options
from penstock.spark.pipelines.progress import Progress, quiet, wait
from penstock.topics.catalog import DELIVERIES_SUFFIX
from penstock.values import is_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from penstock.spark.pipelines.history import History
    from penstock.spark.pipelines.progress import Report
    from penstock.store.staging import Committed

    Place = int | str | dt.datetime

FORMAT = 2
"""Of the checkpoint. It does not say where parts begin: another rule for that (`planning.admit`) is another format."""
PART_SECONDS = 2.0
"""How much of a rate is published at once."""
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_US = dt.timedelta(microseconds=1)
_FIRST_HEADERS = "filter(headers, (h, i) -> not exists(slice(headers, 1, i), g -> g.key = h.key))"
_HEADER_MAP = f"map_from_entries(transform({_FIRST_HEADERS}, h -> struct(h.key, cast(h.value as string))))"


class Replayed(NamedTuple):
    """What a run has done."""

    topic: str
    to: str
    run: str
    offsets: int
    """How many offsets the whole run looks at."""
    messages: int
    """Published by the whole run."""
    already: int
    """Of these, published before this process began."""
    left: int
    """Offsets that the run has not looked at yet; only where *report* ended it."""
    parts: int
    seconds: float
    messages_per_second: float
    discarded: int
    repeated: bool
    """Whether all of it was published before this process began, which has published nothing."""


class _Run(NamedTuple):
    """A run's plan, and how far it is."""

    run: str
    asked: dict[str, Any]
    offsets: Offsets
    """Up to which offset of each partition it goes."""
    starts: dict[int, int]
    part_rows: int
    letters: dict[int, list[list[int]]] | None
    """Ranges of the dead letters that were there."""
    done: int
    messages: int

    @property
    def producer(self) -> str:
        """Under which the store knows the run's transactions."""
        return f"spark-txn.replay.{self.run}"


class Replay:
    """
    Messages of *topic* that are to be published to the topic *to* of the same store.

    *archive* is the folder of the topic's archive, for messages that the log does not have any more; with *dead_letters* the dead letters
    of *topic* are meant. *where* is an SQL condition over the columns of a topic, and `text`, the value as text, and `header`, a map of the
    headers as text. *start* and *end* are offsets of each partition or times of the messages. *rate* is in messages a second; it needs a
    *checkpoint*, a folder. *run* names the run; *discard* takes dead letters out when they are replayed.

    Making it checks all that can be checked without Spark. Raises `BadArgument`, `BadName`, `UsageError`, `NotFound`, `DataLost`.
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | Mapping[str, str],
        topic: str,
        to: str,
        *,
        archive: str | os.PathLike[str] | None = None,
        dead_letters: bool = False,
        where: str | None = None,
        start: Place = "earliest",
        end: Place = "latest",
        rate: float | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        run: str | None = None,
        discard: bool = False,
    ) -> None:
        for name in (topic, to):
            if not is_name(name):
                raise BadName("topic", name)
        if to.endswith(SUFFIX):
            raise BadArgument("to", to, "dead letters come from groups only; choose another topic")
        if to.endswith(DELIVERIES_SUFFIX):
            raise BadArgument("to", to, "records of deliveries come from groups only; choose another topic")
        if dead_letters and topic.endswith(SUFFIX):
            raise BadArgument("topic", topic, f"name the topic that they come from: {topic.removesuffix(SUFFIX)}")
        if dead_letters and archive is not None:
            raise UsageError("dead letters are in the log, not in an archive: leave one of the two out")
        if discard and not dead_letters:
            raise UsageError("only dead letters can be discarded")
        if rate is not None and not 0 < rate < 1e12:
            raise BadArgument("rate", str(rate), "must be more than 0 messages a second")
        if rate is not None and checkpoint is None:
            raise UsageError(
                "at a rate messages are published in parts: give a checkpoint, so that a run that is cut short can go on"
            )
        if run is not None and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", run, re.ASCII) is None:
            raise BadArgument("run", run, "use up to 100 of A-Z a-z 0-9 . _ -")
        if where is not None and not where.strip():
            raise BadArgument("where", where, "is no condition")
        self._store, self._place, self._topic, self._to = source_options(store), place_of(store), topic, to
        self._archive = None if archive is None else os.path.abspath(archive)
        self._where, self._rate, self._discard = where, rate, discard
        self._start, self._end = _checked_place("start", start), _checked_place("end", end)
        self._source = topic + SUFFIX if dead_letters else topic
        self._is_dead = dead_letters
        self._checkpoint = None if checkpoint is None else os.path.abspath(checkpoint)
        self._run_id = run
        known = self._known()
        if known is None:
            positions(self._place, topic)
            self._history(None)
        else:
            self._history(known)

    # -- the plan ---------------------------------------------------------------------------------------------------

    @property
    def _asked(self) -> dict[str, Any]:
        """What makes a run: it cannot change on the way."""
        return {
            "topic": self._topic, "to": self._to, "dead_letters": self._is_dead, "archive": self._archive, "where": self._where,
            "start": _text(self._start), "end": _text(self._end),
        }  # fmt: skip

    @property
    def _path(self) -> str | None:
        return None if self._checkpoint is None else os.path.join(self._checkpoint, "replay.json")

    def _known(self) -> _Run | None:
        """The run of the checkpoint. Raises `Conflict` if that is another one."""
        document = None if self._path is None else read_document(self._path)
        if document is None:
            return None
        found = _decode(document)
        differs = [name for name, value in self._asked.items() if found.asked.get(name) != value]
        if self._run_id not in (None, found.run):
            differs.append("run")
        if differs:
            raise Conflict(
                f"{self._checkpoint} is the checkpoint of another replay: {', '.join(differs)} differ; use another folder for this one"
            )
        return found

    def _history(self, run: _Run | None) -> History:
        """The messages of the whole run, or of what is left of it. Raises `DataLost`, `NotFound`."""
        if run is None:
            if self._is_dead and not _has_topic(self._place, self._source):
                raise NotFound(f"topic {self._topic!r} has no dead letters")
            return plan(self._store, self._source, self._archive)
        begin, _ = self._part(run, run.done)
        ends = run.offsets.topics[self._source]
        behind = run.offsets._replace(topics={self._source: begin})
        found = plan(self._store, self._source, self._archive, behind=behind, until=ends)
        for number, end in ends.items():
            if begin[number] < end > found.ends[number]:
                reason = f"the messages from offset {found.ends[number]} to {end} were lost"
                raise DataLost(self._source, number, reason, "begin a new run, with another checkpoint")
        return found.between(begin, ends)

    def _begin(self) -> _Run:
        """The run that goes on, or a new one; durable if it has a checkpoint."""
        known = self._known()
        if known is not None:
            return known
        letters = self._letters() if self._is_dead else None
        found = self._history(None)
        starts = {
            number: _offset(self._start, found.starts[number], end, found.starts[number]) for number, end in found.ends.items()
        }
        ends = {
            number: max(_offset(self._end, found.starts[number], end, end), starts[number])
            for number, end in found.ends.items()
        }
        total = sum(ends.values()) - sum(starts.values())
        run = _Run(
            self._run_id or uuid.uuid4().hex[:16], self._asked, found.offsets._replace(topics={self._source: ends}), starts,
            total if self._rate is None else max(int(self._rate * PART_SECONDS), 1), letters, 0, 0,
        )  # fmt: skip
        if self._committed(run, 0) is not None and self._path is not None:
            raise Conflict(f"a replay {run.run!r} was begun with another checkpoint; give this one another name")
        self._save(run)
        return run

    def _letters(self) -> dict[int, list[list[int]]]:
        """Which dead letters are there, as ranges by partition."""
        found: dict[int, list[list[int]]] = {}
        with changing(self._place) as store:
            for letter in store.dead_letters(self._topic):
                ranges = found.setdefault(letter.partition, [])
                if ranges and ranges[-1][1] == letter.offset:
                    ranges[-1][1] += 1
                else:
                    ranges.append([letter.offset, letter.offset + 1])
        return found

    def _save(self, run: _Run) -> None:
        if self._path is not None:
            write_document(self._path, _encode(run))

    def _part(self, run: _Run, number: int) -> tuple[dict[int, int], dict[int, int]]:
        """Where a part begins and ends, in each partition: always the same for the same plan."""
        begin = end = run.starts
        for _ in range(number + 1):
            begin, end = end, self._following(run, end)
        return begin, end

    def _following(self, run: _Run, begin: dict[int, int]) -> dict[int, int]:
        """Where the part ends that begins at *begin*."""
        return planning.admit({self._source: begin}, run.offsets.topics, max(run.part_rows, 1))[self._source]

    def _committed(self, run: _Run, part: int) -> Committed | None:
        with changing(self._place) as store:
            found: Committed | None = store.committed(run.producer, part)
            return found

    # -- the work ---------------------------------------------------------------------------------------------------

    def run(self, spark: SparkSession, report: Report = quiet) -> Replayed:
        """
        Publish what is left of the run; returns when all of it is published, or *report* says so.

        A name under which something was published without a checkpoint publishes nothing again, and throws away nothing, whatever it
        chooses now: what was chosen then is not known any more. The answer is `repeated` then.

        Raises `BadArgument` if Spark does not understand *where*, before anything is published; `Unavailable` if another process is at the
        same run, `Conflict`, `DataLost`, and `PipelineFailed` for what Spark says.
        """
        if self._checkpoint is None:
            return self._run(spark, report)
        make_folder(self._checkpoint)
        with only_one(os.path.join(self._checkpoint, "lock"), f"the replay in {self._checkpoint}"):
            return self._run(spark, report)

    def _run(self, spark: SparkSession, report: Report) -> Replayed:
        began = time.monotonic()
        run = self._begin()
        already = run.messages
        history = self._history(run)
        if self._where is not None:
            self._chosen(spark, run, history)  # so that a bad condition is told before anything happens
        progress = Progress(lag=history.messages)
        published = False
        starts, ends = self._part(run, run.done)
        while run.done == 0 or starts != ends:
            turn = time.monotonic()
            done = self._committed(run, run.done)
            if done is not None:
                already += done.messages
            else:
                self._publish(spark, run, history.between(starts, ends))
                published = True
                done = self._committed(run, run.done)
                assert done is not None
            run = run._replace(done=run.done + 1, messages=run.messages + done.messages)
            self._save(run)
            starts, ends = ends, self._following(run, ends)
            left = sum(end - starts[number] for number, end in run.offsets.topics[self._source].items())
            progress = progress.after(done.messages, time.monotonic() - turn, left)
            if report(progress) and left:
                break
            if self._rate is not None and left:
                due = began + (run.messages - already) / self._rate
                if wait(due - time.monotonic(), progress, report):
                    break
        left = sum(end - starts[number] for number, end in run.offsets.topics[self._source].items())
        # Without a checkpoint those dead letters are known that were there when this process began, and not those that were replayed.
        knows = published or self._path is not None
        discarded = self._throw_away(spark, run) if self._discard and not left and knows else 0
        seconds = time.monotonic() - began
        return Replayed(
            self._topic, self._to, run.run, sum(run.offsets.topics[self._source].values()) - sum(run.starts.values()), run.messages,
            already, left, run.done, seconds, (run.messages - already) / max(seconds, 1e-6), discarded,
            not left and not published,
        )  # fmt: skip

    def _chosen(self, spark: SparkSession, run: _Run, history: History) -> DataFrame:
        """The messages of *history* that are wanted. Raises `BadArgument`."""
        from pyspark.errors import PySparkException

        frame = history.frame(spark)
        for name, place in (("start", self._start), ("end", self._end)):
            if isinstance(place, dt.datetime):
                micros = (place - _EPOCH) // _US
                frame = frame.where(f"unix_micros(timestamp) {'>=' if name == 'start' else '<'} {micros}L")
        if run.letters is not None:
            ranges = [(number, first, end) for number, found in run.letters.items() for first, end in found]
            there = spark.createDataFrame(ranges, "number int, first long, behind long")
            frame = frame.join(there.hint("broadcast"), on=_is_in(), how="left_semi")
        if self._where is None:
            return frame
        columns = frame.columns
        try:
            frame = frame.selectExpr("*", "cast(value as string) as text", f"{_HEADER_MAP} as header").where(self._where)
            return frame.select(*columns)
        except PySparkException as error:
            reason = str(error).strip().splitlines()[0]
            raise BadArgument("where", self._where, f"Spark does not understand it: {reason}") from None

    def _publish(self, spark: SparkSession, run: _Run, part: History) -> None:
        """One part as one transaction."""
        with told_as_ours(lost=LOST):
            frame = self._chosen(spark, run, part)
            if part.archive is not None:
                # Files are read in any order; messages of a key must stay in theirs.
                frame = frame.repartition("partition").sortWithinPartitions("partition", "offset")
            headers = "headers"
            if self._is_dead:
                kept = f"filter(headers, h -> not startswith(h.key, '{HEADER_PREFIX}'))"
                headers = f"case when size({kept}) > 0 then {kept} end as headers"
            writer = frame.selectExpr("key", "value", headers, "timestamp").write.format("penstock").mode("append")
            writer = writer.options(**self._store).option("topic", self._to)
            writer.option("txnAppId", f"replay.{run.run}").option("txnVersion", str(run.done)).save()

    def _throw_away(self, spark: SparkSession, run: _Run) -> int:
        """Take the dead letters out that were replayed; those that are out already do not count."""
        whole = plan(self._store, self._source).between(run.starts, run.offsets.topics[self._source])
        with told_as_ours(lost=LOST):
            offsets = [row.offset for row in self._chosen(spark, run, whole).select("offset").collect()]
        with changing(self._place) as store:
            count: int = store.dead_letters(self._topic).discard(offsets=offsets)
            return count


def _is_in() -> Any:
    from pyspark.sql import functions as f

    within = (f.col("partition") == f.col("number")) & (f.col("offset") >= f.col("first"))
    return within & (f.col("offset") < f.col("behind"))


def _has_topic(place: Any, topic: str) -> bool:
    try:
        positions(place, topic)
    except NotFound:
        return False
    return True


def _checked_place(name: str, place: Place) -> Place:
    if isinstance(place, dt.datetime):
        if place.tzinfo is None:
            raise BadArgument(name, str(place), "needs a time zone")
        return place
    if isinstance(place, str):
        if place not in ("earliest", "latest"):
            raise BadArgument(name, place, "use earliest, latest, an offset or a time")
    elif type(place) is not int or place < 0:
        raise BadArgument(name, str(place), "use earliest, latest, an offset or a time")
    return place


def _offset(place: Place, first: int, end: int, otherwise: int) -> int:
    """What a place means in a partition; a time is looked at in each message, so it means *otherwise* here."""
    if isinstance(place, dt.datetime):
        return otherwise
    if isinstance(place, str):
        return first if place == "earliest" else end
    return min(max(place, first), end)


def _text(place: Place) -> str:
    return place.isoformat() if isinstance(place, dt.datetime) else str(place)


def _encode(run: _Run) -> dict[str, Any]:
    letters = None if run.letters is None else {str(number): ranges for number, ranges in run.letters.items()}
    starts = {str(number): start for number, start in run.starts.items()}
    return {"format": FORMAT, **run._asdict(), "offsets": run.offsets.to_json(), "starts": starts, "letters": letters}


def _decode(document: dict[str, Any]) -> _Run:
    if document.pop("format", None) != FORMAT:
        raise Conflict("the checkpoint was written by another version of Penstock; use another folder")
    letters = document.pop("letters")
    return _Run(
        document["run"], document["asked"], Offsets.from_json(document["offsets"]),
        {int(number): start for number, start in document["starts"].items()}, document["part_rows"],
        None if letters is None else {int(number): ranges for number, ranges in letters.items()}, document["done"],
        document["messages"],
    )  # fmt: skip


def replay(
    spark: SparkSession, store: str | os.PathLike[str] | Mapping[str, str], topic: str, to: str, *, report: Report = quiet, **options: Any
) -> Replayed:  # fmt: skip
    """Publish messages of *topic* again, to the topic *to*. *options* are those of `Replay`."""
    return Replay(store, topic, to, **options).run(spark, report)
