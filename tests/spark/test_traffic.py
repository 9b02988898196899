"""Traffic on real Spark: every message is counted once, in the window in which it was appended."""

from __future__ import annotations

import datetime as dt
import json
import os
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

import penstock
from penstock.errors import BadArgument, BadName, Conflict, PipelineFailed, ReservedName, TopicNotFound, Unavailable
from penstock.spark.pipelines.durable import only_one
from penstock.spark.pipelines.traffic import OTHER_REASONS, REASONS_MAX, Traffic, TrafficRow
from penstock.testing.fake_clock import FakeClock
from tests.cli.conftest import Commands
from tests.spark.conftest import open_store
from tests.spark.interrupting import interrupted_at

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from penstock import Delivery, Store

START_US = 1_700_000_040_000_000
"""A full minute: 2023-11-14 22:14:00."""


def moment(seconds: float) -> dt.datetime:
    return dt.datetime(2023, 11, 14, 22, 14, tzinfo=dt.UTC) + dt.timedelta(seconds=seconds)


def publish(path: str, clock: FakeClock, topic: str, count: int, *, late_ms: list[int] | None = None) -> None:
    """Messages of 5 bytes with keys of 2; with *late_ms* their publisher says they are so old."""
    with open_store(path, clock=clock) as store:
        now_s = clock.now_us() / 1e6
        times = None if late_ms is None else [now_s - late / 1000 for late in late_ms]
        store.publish_many(topic, [b"12345"] * count, keys=[b"k%d" % (n % 10) for n in range(count)], timestamps=times)


def reject(path: str, clock: FakeClock, topic: str, *reasons: str) -> None:
    with open_store(path, clock=clock) as store, store.subscribe(topic, "billing") as consumer:
        for reason in reasons:
            message = consumer.get(timeout=0)
            assert message is not None
            consumer.reject(message, reason)


def told(rows: list[Any]) -> list[tuple[Any, ...]]:
    """What counts, with times in UTC; Spark gives them without a zone."""
    return [
        (row.topic, row.window_start.replace(tzinfo=dt.UTC), row.messages, row.bytes, row.timed, row.dead_letters)
        for row in rows
    ]


def written(path: str, topic: str) -> list[dict[str, Any]]:
    with penstock.open(path, read_only=True) as store:
        return [json.loads(message.value or b"") for message in store.read(topic)]


def test_every_window_is_counted_once_into_a_table_a_topic_and_a_chart(spark: SparkSession, path: str, tmp_path: Path) -> None:
    """Run again it adds what has come; a topic that was killed before it got its windows gets them from the next run."""
    clock = FakeClock(now_us=START_US)
    publish(path, clock, "orders", 10, late_ms=[100 * n for n in range(10)])
    publish(path, clock, "quiet", 1)
    clock.advance(70)
    publish(path, clock, "orders", 5, late_ms=[-50, 0, 10, 20, 30])
    reject(path, clock, "orders", "no such item", "no such item", "no stock")
    clock.advance(60)
    publish(path, clock, "orders", 3)  # its window is not over
    table, chart = tmp_path / "table", tmp_path / "chart.svg"
    rows = Traffic(path, table=table, chart=chart, clock=clock).run(spark)
    assert told(rows) == [
        ("orders", moment(0), 10, 70, 10, 0),
        ("quiet", moment(0), 1, 7, 0, 0),
        ("orders", moment(60), 5, 35, 4, 3),
    ]
    assert (rows[0].publish_ms_p50, rows[0].publish_ms_p95, rows[0].publish_ms_max) == (400, 900, 900)
    assert (rows[1].publish_ms_p50, rows[1].publish_ms_max) == (None, None)
    assert rows[2].dead_letter_reasons == {"no stock": 1, "no such item": 2}
    assert Traffic(path, table=table, clock=clock).run(spark) == []
    clock.advance(60)
    both = Traffic(path, table=table, topic="traffic", chart=chart, clock=clock)
    assert told(both.run(spark)) == [*told(rows), ("orders", moment(120), 3, 21, 0, 0)]
    found = spark.read.parquet(str(table)).orderBy("window_start", "topic").collect()
    assert told(found) == [*told(rows), ("orders", moment(120), 3, 21, 0, 0)]
    assert found[2].dead_letter_reasons == {"no stock": 1, "no such item": 2}
    assert [(one["topic"], one["window_start"], one["messages"]) for one in written(path, "traffic")] == [
        (row.topic, row.window_start.isoformat() + "+00:00", row.messages) for row in found
    ]
    assert both.run(spark) == []
    assert len(written(path, "traffic")) == 4
    texts = [one.text for one in ET.parse(chart).iter("{http://www.w3.org/2000/svg}text")]
    assert {
        "Messages (each minute)",
        "From the publisher's time until it was appended (ms)",
        "orders: no such item",
        "quiet",
    } <= set(texts)
    assert sorted(os.listdir(table)) == ["_lock", "traffic-1700000160.parquet", "traffic-1700000220.parquet"]
    with pytest.raises(Conflict, match=r"holds 60 s of all topics, and not 60 s of orders"):
        Traffic(path, ["orders"], table=table, clock=clock).run(spark)
    with pytest.raises(Conflict, match=r"'orders' holds something else"):
        Traffic(path, ["quiet"], topic="orders", clock=clock).run(spark)
    with pytest.raises(TopicNotFound):
        Traffic(path, ["nothing"], clock=clock).run(spark)


def test_of_two_runs_at_the_same_time_one_writes(spark: SparkSession, path: str, tmp_path: Path) -> None:
    """One is at work, and another one, whose clock is a minute behind, begins and ends while it counts."""
    clock = FakeClock(now_us=START_US)
    publish(path, clock, "orders", 2)
    clock.advance(70)
    publish(path, clock, "orders", 3)
    quick, slow = (
        Traffic(path, ["orders"], topic="traffic", clock=FakeClock(now_us=clock.now_us() + minutes * 60_000_000))
        for minutes in (0, 1)
    )
    count = slow._count

    def count_slowly(*arguments: Any) -> Any:
        quick.run(spark)
        return count(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slow, "_count", count_slowly)
        with pytest.raises(Unavailable, match="another run has written"):
            slow.run(spark)
    slow.run(spark)
    found = [(one["window_start"], one["messages"]) for one in written(path, "traffic")]
    assert found == [(moment(0).isoformat(), 2), (moment(60).isoformat(), 3)]
    table = tmp_path / "table"
    table.mkdir()
    with only_one(str(table / "_lock"), "it"), pytest.raises(Unavailable, match="another process is at work"):
        Traffic(path, ["orders"], table=table, clock=clock).run(spark)


def test_a_topic_says_up_to_when_was_counted_though_the_last_windows_were_empty(path: str) -> None:
    """Else a record of deliveries that came late, and was counted, would be counted again."""
    wanted = Traffic(path, ["orders"], topic="traffic")
    row = TrafficRow("orders", moment(0), moment(60), 4, 4, 0, None, None, None, None, 0, {})
    old = json.loads(row.as_json(wanted._of, moment(60)))
    del old["counted_until"]
    for text, end in ((json.dumps(old), moment(60)), (row.as_json(wanted._of, moment(180)), moment(180))):
        with open_store(path) as store:
            store.publish("traffic", text.encode(), key="orders")
        assert wanted._topic_end(wanted._topic_positions()) == end.timestamp() * 1_000_000


def consume(store: Store, clock: FakeClock, topic: str, group: str, *steps: tuple[float, int]) -> list[Delivery]:
    """Of each (seconds, count): wait so long, and be handed so many."""
    consumer = store.subscribe(topic, group, prefetch=1_000, backoff=0)
    found: list[Delivery] = []
    for seconds, count in steps:
        clock.advance(seconds)
        wanted = len(found) + count
        while len(found) < wanted:
            messages = consumer.get_many(wanted - len(found), 0)
            assert messages
            found += messages
    return found


def near(seconds: float) -> Any:
    """Milliseconds as they are told: up to 3.2 % too high."""
    return pytest.approx(seconds * 1015.7, rel=0.0158)


def test_how_long_messages_waited_is_told_for_all_groups_and_for_each(spark: SparkSession, path: str, tmp_path: Path) -> None:
    """By when they were delivered. A record that came late is counted late; a table of before gets the new columns."""
    clock = FakeClock(now_us=START_US)
    with open_store(path, clock=clock, background=False) as store:
        store.create_topic("orders", record_deliveries=True, partitions=2)
        store.publish_many("orders", [b"12345"] * 100, partition=0)
        store.publish("quiet", b"x")
        consume(store, clock, "quiet", "fast", (0, 1))
        for message in consume(store, clock, "orders", "fast", (1, 100)):
            message.ack()
        for message in consume(store, clock, "orders", "slow", (2, 50), (9, 50))[:10]:
            message.nack(delay=0)
        consume(store, clock, "orders", "slow", (0, 10))
    clock.advance(70)
    table, chart = tmp_path / "table", tmp_path / "chart.svg"
    rows = Traffic(path, table=table, chart=chart, clock=clock).run(spark)
    assert [(row.topic, row.window_start, row.messages, row.delivered, row.redelivered) for row in rows] == [
        ("orders", moment(0), 100, 200, 10),
        ("quiet", moment(0), 1, None, None),
    ]
    both, quiet = rows
    assert (both.deliver_ms_p50, both.deliver_ms_p95, both.deliver_ms_p99) == (near(1), 12_000, 12_000)
    assert both.deliver_ms_max == 12_000
    assert both.deliveries_by_group is not None
    fast, slow = both.deliveries_by_group["fast"], both.deliveries_by_group["slow"]
    assert (fast.delivered, fast.redelivered, fast.deliver_ms_p50, fast.deliver_ms_max) == (100, 0, 1_000, 1_000)
    assert (slow.delivered, slow.redelivered, slow.deliver_ms_p50, slow.deliver_ms_p95) == (100, 10, near(3), 12_000)
    assert (quiet.deliver_ms_p50, quiet.deliveries_by_group) == (None, None)
    assert "From appended until it was handed to a consumer (ms)" in chart.read_text()
    make_old(table)
    with open_store(path, clock=clock, background=False) as store:
        clock.advance(60 - clock.now_us() / 1e6 % 60 - 1)
        store.publish_many("orders", [b"12345"] * 4, partition=1)
        consume(store, clock, "orders", "fast", (0.5, 4))
        clock.advance(7)
        again = Traffic(path, table=table, topic=None, chart=chart, clock=clock)
        assert [(row.messages, row.delivered) for row in again.run(spark)] == [(4, None)]
        assert store._deliveries.write() == 1
    clock.advance(60)
    late = Traffic(path, table=table, clock=clock)
    assert [(row.window_start, row.messages, row.delivered, row.deliver_ms_p99) for row in late.run(spark)] == [
        (moment(120), 0, 4, 500.0)
    ]
    assert late.unrecorded == ("quiet",)
    assert [(row.topic, row.delivered) for row in late.read_table()] == [
        ("orders", None), ("quiet", None), ("orders", None), ("orders", 4),
    ]  # fmt: skip
    found = spark.read.option("mergeSchema", "true").parquet(str(table)).orderBy("window_start", "topic").collect()
    assert [row.delivered for row in found] == [None, None, None, 4]
    assert found[-1].deliveries_by_group["fast"].deliver_ms_max == 500
    with open_store(path, clock=clock, background=False) as store:
        store._catalog.get("orders.deliveries").publish(b'{"version":2}', None, None, None, None, None, None)
    with pytest.raises(PipelineFailed, match="a record of deliveries of topic orders was written by another version"):
        Traffic(path, until=moment(600), clock=clock).run(spark)


def make_old(table: Path) -> None:
    """Leave of the table's files what versions wrote that did not count deliveries."""
    for file in table.glob("*.parquet"):
        stored = pq.read_table(file)
        pq.write_table(
            stored.drop_columns([name for name in stored.column_names if name.startswith(("deliver", "redeliver"))]), file
        )


def test_a_time_can_be_asked_for_and_a_clock_that_was_set_back_loses_nothing(spark: SparkSession, path: str) -> None:
    """A message that tells a time before the range it stands in is in the first window of that; rare reasons are one."""
    clock = FakeClock(now_us=START_US)
    publish(path, clock, "orders", 4)
    clock.advance(60)
    publish(path, clock, "orders", 1)
    clock.jump_wall(-55)
    publish(path, clock, "orders", 30)
    clock.jump_wall(55)
    reject(path, clock, "orders", "often", "often", *[f"reason {n}" for n in range(REASONS_MAX + 2)])
    clock.advance(600)
    rows = Traffic(path, ["orders"], window_s=30, since=moment(60), until=moment(119), clock=clock).run(spark)
    assert told(rows) == [("orders", moment(60), 31, 217, 0, REASONS_MAX + 4)]
    reasons = rows[0].dead_letter_reasons
    assert (len(reasons), reasons["often"], reasons[OTHER_REASONS]) == (REASONS_MAX + 1, 2, 3)


def test_what_cannot_be_counted_is_refused_before_spark_is_asked(path: str) -> None:
    """Windows of no length, names, and a range where tables know their own."""
    for options in (
        {"window_s": 0},
        {"window_s": 1.5},
        {"window_s": 100_000},
        {"topic": "a"},
        {"topics": ["a.deliveries"]},
        {"table": "t", "since": moment(0)},
        {"since": moment(0).replace(tzinfo=None)},
        {"until": moment(0).replace(tzinfo=None)},
    ):
        with pytest.raises(BadArgument):
            Traffic(path, **({"topics": ["a"]} | options))
    with pytest.raises(BadName):
        Traffic(path, ["../a"])
    with pytest.raises(ReservedName):
        Traffic(path, ["a"], topic="a.deliveries")


def test_the_command_counts_and_draws(spark: SparkSession, path: str, tmp_path: Path) -> None:
    """As JSON a line for each topic and window, else a line for each topic; a bad time is told before Spark is asked."""
    clock = FakeClock(now_us=START_US)
    publish(path, clock, "orders", 4, late_ms=[5, 5, 5, 5])
    clock.advance(3600)
    publish(path, clock, "orders", 6)
    run = Commands()
    chart = tmp_path / "chart.svg"
    found = run.json("pipeline", "traffic", path, "--window", "5m", "--since", "2023-11-14T22:10Z", "--chart", chart)
    assert [(one["window_start"], one["messages"], one["publish_ms_p99"]) for one in found] == [
        ("2023-11-14T22:10:00+00:00", 4, 5.0),
        ("2023-11-14T23:10:00+00:00", 6, None),
    ]
    assert ET.parse(chart).getroot().tag.endswith("svg")
    header, line = run.text("pipeline", "traffic", path, "--topic", "traffic").splitlines()
    assert header.split()[:4] == ["TOPIC", "WINDOWS", "MESSAGES", "BYTES"]
    assert line.split() == ["orders", "2", "10", "70", "5.0", "5.0", "-", "-", "-", "0", "-"]
    note = "how long messages waited for consumers is not known of orders: made without --record-deliveries"
    assert note in run("pipeline", "traffic", path).stderr
    with interrupted_at(10):
        stopped = run("pipeline", "traffic", path, "--to", tmp_path / "table")
    assert stopped.exit_code == 130
    assert stopped.stdout.splitlines()[1].split()[:3] == ["orders", "2", "10"], "it is counted, and told"
    assert "no window that is over has not been counted" in run("pipeline", "traffic", path, "--to", tmp_path / "table").stderr
    assert "is no time" in run.fails(2, "pipeline", "traffic", path, "--since", "earliest")
    assert "know how far they are" in run.fails(2, "pipeline", "traffic", path, "--since", "1h", "--topic", "traffic")
