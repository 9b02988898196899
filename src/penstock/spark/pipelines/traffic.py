"""
How much goes through topics: messages, bytes, how long publishing and waiting took, dead letters, for each topic and window of time.

Theory of operation. A message belongs to the window in which it was appended to the log; that never changes, so a window that is over can
be counted once and for all. A run counts the windows that are over and have not been written yet, and writes them: as one more file
of the table, and as one transaction into the topic. Each says itself how far it is (the file's name; the last messages), so there is no
third place that could disagree, and a run that is killed is made up for by the next one. Of two runs at the same time one writes: a
table has a lock, and a transaction into the topic is numbered by where the topic ended when the run began.

The log knows when a publisher says it made a message (if it says so) and when the owner appended it: that is the latency of publishing.
When a consumer got it the log does not know, but a topic that was made with `record_deliveries` tells how long its messages waited,
in records that are added up here (`traffic_deliveries.py`). They belong to the window of the delivery, not to that of the appending.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import hashlib
import json
import os
import re
import uuid
from typing import TYPE_CHECKING, Any

from penstock.clock import SystemClock
from penstock.errors import BadArgument, BadName, Conflict, PenstockError, TopicNotFound, Unavailable
from penstock.groups.dead_letters import HEADER_PREFIX, SUFFIX
from penstock.groups.delivery_times import WINDOW_US
from penstock.spark import connections
from penstock.spark.pipelines import durable
from penstock.spark.pipelines.failures import told_as_ours
from penstock.spark.pipelines.place import place_of, source_options
from penstock.spark.pipelines.progress import Progress, quiet
from penstock.spark.pipelines.traffic_chart import traffic_chart
from penstock.spark.pipelines.traffic_deliveries import SCHEMA as RECORDS_SCHEMA
from penstock.spark.pipelines.traffic_deliveries import Deliveries, counted, deliveries_of
from penstock.spark.staging import make_topic
from penstock.topics.catalog import DELIVERIES_SUFFIX, OWN_SUFFIXES, check_publishable
from penstock.values import is_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from penstock.clock import Clock
    from penstock.spark.pipelines.progress import Report
    from penstock.store.reading import TopicPositions

ROWS_MAX = 200_000
"""Rows of one run; they are gathered in the driver."""
REASONS_MAX = 20
"""Reasons of dead letters that a row tells apart."""
OTHER_REASONS = "(others)"
SETTLE_S = 5.0
"""A window is counted when it has been over for so long: appending stamps a message a moment before readers see it."""
CHART_WINDOWS_MAX = 240
PERCENTILES = {"publish_ms_p50": 0.5, "publish_ms_p95": 0.95, "publish_ms_p99": 0.99}
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_FILE = re.compile(r"traffic-([0-9]{1,18})\.parquet")
_READ = "topic string, key binary, value binary, timestamp timestamp, timestampType int, appended_at timestamp"


@dataclasses.dataclass(frozen=True, slots=True)
class TrafficRow:
    """What happened in one topic in the window [window_start, window_end)."""

    topic: str
    window_start: dt.datetime
    window_end: dt.datetime
    messages: int
    bytes: int
    """Of keys and values."""
    timed: int
    """Messages whose publisher gave a time that is not after that of appending; the latencies are theirs."""
    publish_ms_p50: float | None
    publish_ms_p95: float | None
    publish_ms_p99: float | None
    publish_ms_max: float | None
    dead_letters: int
    dead_letter_reasons: dict[str, int]
    delivered: int | None = None
    """First deliveries, by all groups; like what follows None where nothing was recorded. Tables of before have none of it."""
    redelivered: int | None = None
    deliver_ms_p50: float | None = None
    deliver_ms_p95: float | None = None
    deliver_ms_p99: float | None = None
    deliver_ms_max: float | None = None
    deliveries_by_group: dict[str, Deliveries] | None = None

    def as_json(self, of: str, until: dt.datetime) -> str:
        """As a message of the topic. *of* says which topics were asked for, *until* up to when they were counted."""
        fields = {
            **dataclasses.asdict(self), "window_start": self.window_start.isoformat(), "window_end": self.window_end.isoformat(), "of": of,
            "counted_until": until.isoformat(),
        }  # fmt: skip
        return json.dumps(fields)


class Traffic:
    """
    What is wanted: which topics, windows of what length, and where the numbers go. Making it checks that, without Spark.

    *topics*: none means all but dead letters and records of deliveries, whose numbers are with the topics that they come from. *table*: a
    folder for Parquet files. *topic*: one in the same store. *chart*: an SVG file, made anew each time. *since*, *until*: only for who
    wants neither table nor topic, which know where to go on. Raises `BadArgument`, `BadName`, `ReservedName`, `BadSetting`.
    """

    unrecorded: tuple[str, ...] = ()
    """Those of the topics of the last run that were made without `record_deliveries`."""

    def __init__(
        self,
        store: str | os.PathLike[str] | Mapping[str, str],
        topics: Sequence[str] = (),
        *,
        window_s: float = 60.0,
        table: str | os.PathLike[str] | None = None,
        topic: str | None = None,
        chart: str | os.PathLike[str] | None = None,
        since: dt.datetime | None = None,
        until: dt.datetime | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._options = source_options(store)
        self._place = place_of(store)
        for name in (*topics, *([topic] if topic is not None else [])):
            if not is_name(name):
                raise BadName("topic", name)
        for name in topics:
            if name.endswith(DELIVERIES_SUFFIX):
                raise BadArgument(
                    "topic", name, f"it tells of deliveries; name the topic itself: {name.removesuffix(DELIVERIES_SUFFIX)}"
                )
        if topic is not None:
            check_publishable(topic)
        if not 1 <= window_s <= 86_400 or window_s != int(window_s):
            raise BadArgument("window", f"{window_s:g} s", "use whole seconds, from 1 s to 1 day")
        if topic in topics:
            raise BadArgument("topic", str(topic), "its own traffic is not counted; write to another one")
        if (since is not None or until is not None) and (table is not None or topic is not None):
            raise BadArgument(
                "since", str(since or until), "a table and a topic know how far they are; leave since and until out"
            )
        for name, moment in (("since", since), ("until", until)):
            if moment is not None and moment.tzinfo is None:
                raise BadArgument(name, str(moment), "needs a time zone")
        self._topics = tuple(dict.fromkeys(topics))
        self._window_us = int(window_s) * 1_000_000
        self._table = None if table is None else os.path.abspath(table)
        self._topic = topic
        self._chart = None if chart is None else os.path.abspath(chart)
        self._since, self._until = since, until
        self._clock = SystemClock() if clock is None else clock
        self._of = f"{int(window_s)} s of {', '.join(sorted(self._topics)) or 'all topics'}"

    def run(self, spark: SparkSession, report: Report = quiet) -> list[TrafficRow]:
        """
        Count the windows that are over, write what is new, draw the chart, and return the new rows, by window and topic.

        Raises `TopicNotFound`, `Conflict` if the table or the topic holds numbers of other topics or windows, `BadArgument` if there
        are more than 200,000 rows, `Unavailable` if another run writes to the same place, `PipelineFailed`. What was written stays.
        """
        if self._table is None:
            return self._run(spark, report)
        durable.make_folder(self._table)
        with durable.only_one(os.path.join(self._table, "_lock"), f"the table in {self._table}"):
            return self._run(spark, report)

    def _run(self, spark: SparkSession, report: Report) -> list[TrafficRow]:
        names, letters, records = self._names()
        end_us = self._floor(self._clock.now_us() - int(SETTLE_S * 1e6) if self._until is None else _micros(self._until))
        before = self._topic_positions()
        in_table, in_topic = self._table_end(), self._topic_end(before)
        ends = [one for wanted, one in ((self._table, in_table), (self._topic, in_topic)) if wanted is not None]
        begin_us = min(ends) if ends else 0 if self._since is None else self._floor(_micros(self._since))
        rows: list[TrafficRow] = []
        if begin_us < end_us and names:
            began_us = self._clock.now_us()
            with told_as_ours():
                rows = self._count(spark, names, letters, records, begin_us, end_us)
                if self._topic is not None:
                    self._publish(spark, [row for row in rows if _micros(row.window_start) >= in_topic], end_us, before)
            report(Progress().after(sum(row.messages for row in rows), (self._clock.now_us() - began_us) / 1e6, 0))
            if self._table is not None:
                self._append([row for row in rows if _micros(row.window_start) >= in_table], end_us)
        if self._chart is not None:
            shown = rows if self._table is None else self.read_table()
            _replace(self._chart, traffic_chart(shown, self._window_us // 1_000_000, CHART_WINDOWS_MAX).encode())
        return rows

    def _floor(self, moment_us: int) -> int:
        return moment_us // self._window_us * self._window_us

    def _names(self) -> tuple[list[str], list[str], list[str]]:
        """(topics, those of their dead letters, those of their deliveries) to read."""
        found = connections.patiently(self._place, lambda: connections.reader(self._place).topics())
        there = {one.name: one.settings.record_deliveries for one in found}
        for name in self._topics:
            if name not in there:
                raise TopicNotFound(name)
        chosen = self._topics or sorted(name for name in there if not name.endswith(OWN_SUFFIXES) and name != self._topic)
        self.unrecorded = tuple(name for name in chosen if not there[name])
        of_letters = [name + SUFFIX for name in chosen if name + SUFFIX in there]
        # Made by the first record; a topic of that name that belongs to no such topic holds something else.
        of_records = [name + DELIVERIES_SUFFIX for name in chosen if there[name] and name + DELIVERIES_SUFFIX in there]
        return list(chosen), of_letters, of_records

    # -- counting ---------------------------------------------------------------------------------------------------

    def _count(
        self, spark: SparkSession, names: list[str], letters: list[str], records: list[str], begin_us: int, end_us: int
    ) -> list[TrafficRow]:
        messages = self._read(spark, names, begin_us, end_us, _READ).selectExpr(
            "topic", "at", "coalesce(length(key), 0) + coalesce(length(value), 0) as size",
            "if(timestampType = 0, unix_micros(appended_at) - unix_micros(timestamp), null) as took",
        ).selectExpr("topic", "at", "size", "if(took >= 0, took, null) as took").groupBy("topic", "at").agg(
            *_columns("count(*) as messages", "sum(size) as bytes", "count(took) as timed", "max(took) as longest",
                      f"percentile_approx(took, array({', '.join(map(str, PERCENTILES.values()))}), 10000) as percentiles")
        ).limit(ROWS_MAX + 1).collect()  # fmt: skip
        reasons: dict[tuple[str, int], dict[str, int]] = {}
        if letters:
            for row in self._letters(spark, letters, begin_us, end_us).collect():
                reasons.setdefault((row.topic, row.at), {})[row.reason] = row.messages
        delivered: dict[tuple[str, int], dict[str | None, Deliveries]] = {}
        of_groups = self._deliveries(spark, records, begin_us, end_us) if records else []
        for row in of_groups:
            delivered.setdefault((row.topic, row.at), {})[row.reader] = deliveries_of(row)
        if max(len(messages), len(of_groups)) > ROWS_MAX:
            raise BadArgument(
                "window", f"{self._window_us // 1_000_000} s", f"gives more than {ROWS_MAX:,} rows; use a longer one"
            )
        found = {(row.topic, row.at): row for row in messages}
        keys = sorted(found.keys() | reasons.keys() | delivered.keys(), key=lambda one: (one[1], one[0]))
        return [
            self._row(topic, at, found.get((topic, at)), reasons.get((topic, at), {}), delivered.get((topic, at)))
            for topic, at in keys
        ]

    def _row(
        self, topic: str, at: int, found: Any, reasons: dict[str, int], delivered: dict[str | None, Deliveries] | None
    ) -> TrafficRow:
        start, end = _moment(at), _moment(at + self._window_us)
        letters = sum(reasons.values()), dict(sorted(reasons.items()))
        told: dict[str, Any] = {}
        if delivered is not None:
            by_group = {group: one for group, one in delivered.items() if group is not None}
            told = {**dataclasses.asdict(delivered[None]), "deliveries_by_group": dict(sorted(by_group.items()))}
        if found is None:
            return TrafficRow(topic, start, end, 0, 0, 0, None, None, None, None, *letters, **told)
        half, most, nearly_all, longest = (
            (None,) * 4 if found.percentiles is None else [one / 1000 for one in (*found.percentiles, found.longest)]
        )
        return TrafficRow(
            topic, start, end, found.messages, found.bytes, found.timed, half, most, nearly_all, longest, *letters, **told
        )

    def _deliveries(self, spark: SparkSession, records: list[str], begin_us: int, end_us: int) -> list[Any]:
        """The rows of `traffic_deliveries.counted`. A record is written soon after its window, or before its end by closing the store."""
        settle_us = int(SETTLE_S * 1e6)
        first_us = max(0, begin_us + settle_us - WINDOW_US) if begin_us else 0
        frame = self._range(spark, records, first_us, end_us + settle_us, RECORDS_SCHEMA)
        return counted(frame, begin_us, end_us, settle_us, self._window_us).limit(ROWS_MAX + 1).collect()

    def _read(self, spark: SparkSession, names: list[str], begin_us: int, end_us: int, schema: str) -> DataFrame:
        """The messages that were appended in [begin, end), with the window of each as `at`."""
        frame = self._range(spark, names, begin_us, end_us, schema)
        # Ranges go by the running maximum of times: where a clock was set back, a message in the range tells a time before it.
        clamped = f"greatest(least(unix_micros(appended_at), {end_us - 1}), {begin_us})"
        return frame.selectExpr("*", f"{clamped} div {self._window_us} * {self._window_us} as at")

    def _range(self, spark: SparkSession, names: list[str], begin_us: int, end_us: int, schema: str) -> DataFrame:
        options = {**self._options, "subscribe": ",".join(names), "endingTimestamp": str(end_us // 1000)}
        if begin_us:
            options |= {"startingTimestamp": str(begin_us // 1000), "startingOffsetsByTimestampStrategy": "latest"}
        return spark.read.format("penstock").schema(schema).options(**options).load()

    def _letters(self, spark: SparkSession, letters: list[str], begin_us: int, end_us: int) -> DataFrame:
        """(topic, at, reason, messages) of dead letters: the commonest reasons of a row by name, the rest as one."""
        from pyspark.sql import Window
        from pyspark.sql.functions import col, row_number

        schema = "topic string, headers array<struct<key: string, value: binary>>, appended_at timestamp"
        reason = f"filter(headers, one -> one.key = '{HEADER_PREFIX}reason')[0].value"
        frame = self._read(spark, letters, begin_us, end_us, schema).selectExpr(
            f"left(topic, length(topic) - {len(SUFFIX)}) as topic", "at",
            f"coalesce(nullif(cast({reason} as string), ''), '(none)') as reason",
        )  # fmt: skip
        counted = frame.groupBy("topic", "at", "reason").agg(*_columns("count(*) as messages"))
        rank = row_number().over(Window.partitionBy("topic", "at").orderBy(col("messages").desc(), col("reason")))
        named = counted.withColumn("rank", rank).selectExpr(
            "topic", "at", f"if(rank <= {REASONS_MAX}, reason, '{OTHER_REASONS}') as reason", "messages"
        )
        return named.groupBy("topic", "at", "reason").agg(*_columns("sum(messages) as messages"))

    # -- the topic --------------------------------------------------------------------------------------------------

    def _topic_positions(self) -> TopicPositions | None:
        """Where the topic ends now. It is made if it is not there, so that two first runs find the same."""
        if self._topic is None:
            return None
        store = connections.reader(self._place)
        found: TopicPositions | None = store.positions([self._topic]).get(self._topic)
        if found is None:
            with contextlib.suppress(PenstockError):  # who may not make topics may publish to one that is not there
                make_topic(self._place, self._topic)
            found = store.positions([self._topic]).get(self._topic)
        return found

    def _topic_end(self, found: TopicPositions | None) -> int:
        """Up to when the topic has its numbers: what its last messages say, of which each partition has them in order."""
        if found is None:
            return 0
        store = connections.reader(self._place)
        end_us = 0
        for number, end in found.ends.items():
            for message in store.read(self._topic, number, start=max(end - 1, found.starts[number]), end=end):
                end_us = max(end_us, self._end_of(message.value))
        return end_us

    def _end_of(self, value: bytes | None) -> int:
        try:
            told = json.loads(value or b"")
            # Windows that were counted and had nothing may come behind the last row. Rows of before do not say so.
            of, end = told["of"], dt.datetime.fromisoformat(told.get("counted_until", told["window_end"]))
        except (ValueError, KeyError, TypeError):
            of, end = "something else", None
        if of != self._of or end is None:
            raise Conflict(f"topic {self._topic!r} holds {of}, and not {self._of}; give each its own topic")
        return _micros(end)

    def _publish(self, spark: SparkSession, rows: list[TrafficRow], end_us: int, before: TopicPositions | None) -> None:
        """All rows at once, behind what the topic held *before*. Raises `Unavailable` if there is more in it now."""
        if not rows:
            return
        assert self._topic is not None
        if _reach(self._topic_positions()) != _reach(before):
            raise Unavailable(f"another run has written to topic {self._topic!r} meanwhile; run it again")
        identity, version = _reach(before)
        name = hashlib.sha256(f"{self._topic} {identity} {self._of}".encode()).hexdigest()[:16]
        frame = spark.createDataFrame(
            [(row.topic, row.as_json(self._of, _moment(end_us))) for row in rows], "key string, value string"
        ).coalesce(1)
        frame.write.format("penstock").options(**self._options).option("topic", self._topic).option(
            "txnAppId", f"traffic.{name}"
        ).option("txnVersion", str(version)).mode("append").save()

    # -- the table --------------------------------------------------------------------------------------------------

    def _files(self) -> list[tuple[int, str]]:
        """(up to when, path) of the table's files, in order."""
        if self._table is None or not os.path.isdir(self._table):
            return []
        found = ((_FILE.fullmatch(name), name) for name in os.listdir(self._table))
        return sorted((int(match[1]) * 1_000_000, os.path.join(self._table, name)) for match, name in found if match)

    def _table_end(self) -> int:
        files = self._files()
        if not files:
            return 0
        import pyarrow.parquet as pq

        end_us, path = files[-1]
        of = (pq.read_schema(path).metadata or {}).get(b"penstock.traffic", b"something else").decode()
        if of != self._of:
            raise Conflict(f"{self._table} holds {of}, and not {self._of}; give each its own folder")
        return end_us

    def _append(self, rows: list[TrafficRow], end_us: int) -> None:
        """One more file, which is there as a whole or not at all. Without rows too: it says how far the table is."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        assert self._table is not None
        durable.make_folder(self._table)
        moment = pa.timestamp("us", tz="UTC")
        kinds = {
            "topic": pa.string(), "window_start": moment, "window_end": moment, "messages": pa.int64(), "bytes": pa.int64(),
            "timed": pa.int64(), **{name: pa.float64() for name in (*PERCENTILES, "publish_ms_max")}, "dead_letters": pa.int64(),
            "dead_letter_reasons": pa.map_(pa.string(), pa.int64()),
        }  # fmt: skip
        waits = {one.name: pa.float64() for one in dataclasses.fields(Deliveries)} | {
            "delivered": pa.int64(),
            "redelivered": pa.int64(),
        }
        kinds |= {**waits, "deliveries_by_group": pa.map_(pa.string(), pa.struct(list(waits.items())))}
        schema = pa.schema(list(kinds.items()), metadata={"penstock.traffic": self._of})
        plain = [dataclasses.asdict(row) for row in rows]
        columns = {
            name: [list(row[name].items()) if isinstance(row[name], dict) else row[name] for row in plain] for name in kinds
        }
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table(columns, schema=schema), sink)
        _replace(os.path.join(self._table, f"traffic-{end_us // 1_000_000}.parquet"), sink.getvalue().to_pybytes())

    def read_table(self) -> list[TrafficRow]:
        """The rows of the table's last windows, as many as a chart shows. Needs no Spark."""
        import pyarrow.parquet as pq

        rows: list[TrafficRow] = []
        for _, path in reversed(self._files()):
            part = pq.read_table(path).to_pylist()
            rows = [_row_of(row) for row in part] + rows
            if len({row.window_start for row in rows}) >= CHART_WINDOWS_MAX:
                break
        return rows


def _reach(positions: TopicPositions | None) -> tuple[str, int]:
    """Which topic it is, and how many messages it has had: two of that are the same only if nothing was published between."""
    return ("", 0) if positions is None else (positions.topic_id.hex(), sum(positions.ends.values()))


def _row_of(stored: dict[str, Any]) -> TrafficRow:
    """A row of a file; one that was written before deliveries were counted has none of them."""
    by_group = stored.get("deliveries_by_group")
    maps = {
        "dead_letter_reasons": dict(stored["dead_letter_reasons"]),
        "deliveries_by_group": None if by_group is None else {name: Deliveries(**one) for name, one in by_group},
    }
    return TrafficRow(**{**stored, **maps})


def _columns(*texts: str) -> list[Any]:
    from pyspark.sql.functions import expr

    return [expr(text) for text in texts]


def _micros(moment: dt.datetime) -> int:
    return (moment - _EPOCH) // dt.timedelta(microseconds=1)


def _moment(micros: int) -> dt.datetime:
    return _EPOCH + dt.timedelta(microseconds=micros)


def _replace(path: str, data: bytes) -> None:
    """Put *data* in the place of what the file held; durable when it returns."""
    durable.make_folder(os.path.dirname(path))
    temporary = f"{path}.{uuid.uuid4().hex}.tmp"
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
    durable.sync(os.path.dirname(path))
