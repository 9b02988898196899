"""What the readers plan and read, called as Spark calls them, without a Spark."""

from __future__ import annotations

import datetime as dt
import json
import os
import pickle
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

import penstock
from penstock.errors import BadBytes, BadSetting, DamagedFile, DataLost, StoreNotFound, TopicNotFound, Unavailable
from penstock.spark import connections
from penstock.spark.planning import Range, admit, split
from penstock.spark.schema import read_schema
from penstock.spark.source import PenstockDataSource
from penstock.testing.fake_clock import FakeClock
from tests.cli.serving import Serving
from tests.spark.conftest import open_store

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

    from penstock.spark.reader import PenstockReader
    from penstock.spark.stream_reader import PenstockStreamReader

FULL = read_schema(include_headers=True, include_delivery=True)
VALUES = StructType([StructField("offset", LongType()), StructField("value", BinaryType())])
ALL = ReadAllAvailable()


def batch(path: str, schema: StructType = VALUES, **options: str) -> PenstockReader:
    chosen = {"store": path, **options}
    if not {"subscribe", "subscribePattern", "assign"} & set(chosen):
        chosen["subscribe"] = "t"
    reader: Any = PenstockDataSource(chosen).reader(schema)
    return pickle.loads(pickle.dumps(reader))  # type: ignore[no-any-return]


def stream(path: str, schema: StructType = VALUES, **options: str) -> PenstockStreamReader:
    chosen = {"store": path, "startingOffsets": "earliest", **options}
    if not {"subscribe", "subscribePattern", "assign"} & set(chosen):
        chosen["subscribe"] = "t"
    reader: Any = PenstockDataSource(chosen).streamReader(schema)
    return reader  # type: ignore[no-any-return]


def ranges(reader: PenstockReader) -> list[tuple[str, int, int, int]]:
    found: list[Any] = reader.partitions()
    return [(one.topic, one.partition, one.start, one.end) for one in found]


def rows(reader: Any, partitions: Any = None) -> list[dict[str, Any]]:
    planned = reader.partitions() if partitions is None else partitions
    return [row for one in planned for table in reader.read(pickle.loads(pickle.dumps(one))) for row in table.to_pylist()]


def values(reader: Any, partitions: Any = None) -> list[bytes]:
    return [row["value"] for row in rows(reader, partitions)]


def numbered(start: int, stop: int | None = None) -> list[bytes]:
    return [b"%d" % n for n in (range(start) if stop is None else range(start, stop))]


@pytest.fixture
def filled(path: str) -> str:
    """Topic t with two partitions, of 100 and 50 messages, published ten at a time."""
    with open_store(path) as store:
        store.create_topic("t", partitions=2)
        for at in range(0, 100, 10):
            store.publish_many("t", numbered(at, at + 10), partition=0)
        store.publish_many("t", numbered(50), partition=1)
    return path


# -- batch ------------------------------------------------------------------------------------------------------------


def test_a_batch_reads_every_partition_once(filled: str) -> None:
    """From the earliest to the latest message."""
    reader = batch(filled)
    assert ranges(reader) == [("t", 0, 0, 100), ("t", 1, 0, 50)]
    assert values(reader) == numbered(100) + numbered(50)


def test_columns_are_those_of_the_kafka_connector(path: str) -> None:
    """With their types, and null where a message has nothing; a time of its own is told from the time of appending."""
    moment = dt.datetime(2024, 1, 2, 3, 4, 5, 678901, tzinfo=dt.UTC)
    with open_store(path) as store:
        store.create_topic("t", partitions=3)
        store.publish("t", b"v", key="k", headers=[("h", b"1"), ("h", b"2")], timestamp=moment, partition=2)
        store.publish("t", None, partition=2)
    first, second = rows(batch(path, FULL))
    assert first == {
        "key": b"k", "value": b"v", "topic": "t", "partition": 2, "offset": 0, "timestamp": moment, "timestampType": 0,
        "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": b"2"}], "priority": 0, "expires_at": None, "deliver_at": None,
    }  # fmt: skip
    assert (second["key"], second["value"], second["headers"], second["timestampType"]) == (None, None, None, 1)


def test_messages_without_headers_among_those_with_have_null(path: str) -> None:
    """In one batch; also where a range begins in the middle of it."""
    with open_store(path) as store:
        store.publish_many("t", numbered(4), headers=[{"a": b"0"}, None, {"c": b"2", "d": b"3"}, None])
    found = rows(batch(path, FULL, startingOffsets='{"t": {"0": 1}}'))
    assert [one["headers"] for one in found] == [None, [{"key": "c", "value": b"2"}, {"key": "d", "value": b"3"}], None]


def test_only_the_asked_columns_are_built_in_the_asked_order(filled: str) -> None:
    """A schema leaves columns out."""
    reader = batch(filled, StructType([StructField("value", BinaryType()), StructField("offset", LongType())]))
    [table, *_] = reader.read(reader.partitions()[0])
    assert table.schema == pa.schema([("value", pa.binary()), ("offset", pa.int64())])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": '{"t": {"0": 95, "1": -2}}'}, [(95, 100), (0, 50)]),
        ({"endingOffsets": '{"t": {"0": 7, "1": -1}}'}, [(0, 7), (0, 50)]),
        ({"startingOffsets": '{"t": {"0": 7, "1": 49}}', "endingOffsets": '{"t": {"0": 7, "1": 50}}'}, [(49, 50)]),
    ],
)
def test_offsets_choose_a_range(filled: str, options: dict[str, Any], expected: list[tuple[int, int]]) -> None:
    """Half-open, -2 is the earliest and -1 the latest; an empty range makes no task."""
    reader = batch(filled, **options)
    assert [(start, end) for _, _, start, end in ranges(reader)] == expected
    assert len(values(reader)) == sum(end - start for start, end in expected)


@pytest.mark.parametrize(
    "offsets",
    ['{"t": {"0": 5}}', '{"t": {"0": 5, "1": 5, "2": 5}}', '{"t": {"0": 5, "1": 5}, "u": {"0": 1}}', '{"u": {"0": 1}}'],
)
def test_offsets_must_name_the_partitions_that_are_read(filled: str, offsets: str) -> None:
    """Each of them, and no other."""
    with pytest.raises(BadSetting, match="each partition"):
        batch(filled, startingOffsets=offsets).partitions()
    with pytest.raises(BadSetting, match="each partition"):
        batch(filled, endingOffsets=offsets).partitions()


def test_times_choose_a_range(path: str) -> None:
    """By the time of appending."""
    with open_store(path) as store:
        store.publish_many("t", numbered(3))
        [last] = list(store.read("t", start=2))
        middle_ms = int(last.timestamp.timestamp() * 1000) + 1
        while (now := dt.datetime.now(tz=dt.UTC)).timestamp() * 1000 < middle_ms + 1:
            pass
        store.publish_many("t", numbered(3, 5))
    assert values(batch(path, startingTimestamp=str(middle_ms))) == numbered(3, 5)
    assert values(batch(path, endingTimestamp=str(middle_ms))) == numbered(3)
    late = str(int(now.timestamp() * 1000) + 3_600_000)
    with pytest.raises(BadSetting, match="no message from then on"):
        batch(path, startingTimestamp=late).partitions()
    assert values(batch(path, startingTimestamp=late, startingOffsetsByTimestampStrategy="latest")) == []
    assert values(batch(path, endingTimestamp=late)) == numbered(5)


def test_a_topic_that_is_not_there_is_told(path: str) -> None:
    """Reading makes no topics; a pattern that matches nothing has nothing to read."""
    with pytest.raises(TopicNotFound):
        batch(path).partitions()
    with pytest.raises(TopicNotFound):
        batch(path, assign='{"t": [0]}').partitions()
    assert batch(path, subscribePattern="t.*").partitions() == []


def test_a_store_that_is_not_there_is_told(tmp_path: Any) -> None:
    """Reading makes no stores."""
    with pytest.raises(StoreNotFound):
        batch(str(tmp_path / "nothing")).partitions()
    assert not os.path.exists(tmp_path / "nothing")


def test_a_relative_folder_is_that_of_the_driver(filled: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Whatever folder the processes work in to which Spark sends the parts."""
    monkeypatch.chdir(os.path.dirname(filled))
    name = os.path.basename(filled)
    reader = batch(name)
    sink: Any = PenstockDataSource({"store": name, "topic": "t"}).streamWriter(StructType([VALUES["value"]]), False)
    sent = pickle.dumps([stream(name), sink])
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert len(values(reader)) == 150
    streaming, writer = pickle.loads(sent)
    end = streaming.latestOffset(pinned(streaming), ALL)
    assert end["t"] == {"0": 100, "1": 50}
    assert writer._options.place.path == filled


def test_partitions_are_assigned_and_patterns_match_whole_names(filled: str) -> None:
    """A partition that is not there is told."""
    with open_store(filled) as store:
        for name in ("t1", "t2", "xt"):
            store.publish(name, name.encode())
    assert ranges(batch(filled, assign='{"t": [1]}')) == [("t", 1, 0, 50)]
    assert values(batch(filled, subscribePattern="t[0-9]")) == [b"t1", b"t2"]
    assert values(batch(filled, subscribe="xt,t2")) == [b"t2", b"xt"]
    with pytest.raises(TopicNotFound):
        batch(filled, assign='{"t": [2]}').partitions()


def test_an_empty_topic_has_no_rows(path: str) -> None:
    """Spark makes up a partition then, which has none either."""
    from pyspark.sql.datasource import InputPartition

    with open_store(path) as store:
        store.create_topic("t", partitions=2)
    reader = batch(path)
    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []


def test_ranges_are_split_for_more_tasks(filled: str) -> None:
    """In proportion to their length, without a gap or an overlap; the rows stay the same."""
    reader = batch(filled, minPartitions="9")
    found = ranges(reader)
    assert len(found) == 9
    assert [one for one in found if one[1] == 1] == [("t", 1, 0, 16), ("t", 1, 16, 33), ("t", 1, 33, 50)]
    assert values(reader) == numbered(100) + numbered(50)
    assert len(ranges(batch(filled, minPartitions="1"))) == 2
    tiny = Range("t", 0, 0, 2, "", 0)
    assert [(one.start, one.end) for one in split([tiny], 50)] == [(0, 1), (1, 2)]


def test_small_batches_are_joined_and_large_ones_cut(path: str) -> None:
    """Spark pays for each batch."""
    with open_store(path) as store:
        store.create_topic("t", sync="os")
        for n in range(200):
            store.publish("t", b"%d" % n)
        store.publish_many("t", [b"x"] * 100_000)
    reader = batch(path)
    sizes = [table.num_rows for table in reader.read(reader.partitions()[0])]
    assert sizes == [200, 65_536, 34_464]


def test_only_the_segments_of_a_range_are_read(path: str) -> None:
    """The others may even be unreadable."""
    with open_store(path) as store:
        store.create_topic("t", segment_bytes=1024 * 1024)
        for n in range(40):
            store.publish_many("t", [bytes(100_000) + b"%d" % n])
    folder = os.path.join(path, "topics", "t", "0")
    firsts = sorted(name for name in os.listdir(folder) if name.endswith(".log"))
    assert len(firsts) >= 4
    start, end = int(firsts[1][:-4]), int(firsts[2][:-4])
    for name in firsts:
        if name != firsts[1]:
            with open(os.path.join(folder, name), "r+b") as file:
                file.write(bytes(4096))
    reader = batch(path, startingOffsets=json.dumps({"t": {"0": start}}), endingOffsets=json.dumps({"t": {"0": end}}))
    assert [one[100_000:] for one in values(reader)] == numbered(start, end)


def test_only_the_segments_of_a_time_are_read(path: str) -> None:
    """The messages of the others may even be unreadable: where a time begins is found by what is known of each segment."""
    clock = FakeClock(now_us=1_700_000_000_000_000)
    with open_store(path, clock=clock) as store:
        store.create_topic("t", segment_bytes=1024 * 1024)
        for n in range(40):
            store.publish_many("t", [bytes(100_000) + b"%d" % n])
            clock.advance(60)
    folder = os.path.join(path, "topics", "t", "0")
    firsts = sorted(name for name in os.listdir(folder) if name.endswith(".log"))
    assert len(firsts) >= 4
    start, end = int(firsts[1][:-4]), int(firsts[2][:-4])
    for name in firsts:
        if name != firsts[1]:
            with open(os.path.join(folder, name), "r+b") as file:
                file.seek(50_000)  # in its first message
                file.write(b"x" * 4096)
    first_ms, last_ms = (1_700_000_000_000 + 60_000 * at for at in (start, end))
    reader = batch(path, startingTimestamp=str(first_ms), endingTimestamp=str(last_ms))
    assert ranges(reader) == [("t", 0, start, end)]
    assert [one[100_000:] for one in values(reader)] == numbered(start, end)
    with pytest.raises(DamagedFile):
        values(batch(path))


@pytest.fixture
def retained(path: str) -> str:
    """Topic t, of whose 40 messages retention has removed the first ones."""
    with open_store(path) as store:
        store.create_topic("t", segment_bytes=1024 * 1024, retention_bytes=1_500_000)
        for n in range(40):
            store.publish_many("t", [bytes(100_000) + b"%d" % n])
        store.retain("t")
    return path


def test_what_retention_removed_is_told_or_left_out(retained: str) -> None:
    """The earliest message is where the log begins now; an offset before it is a loss."""
    with open_store(retained) as store:
        first = store.stats().topics["t"].starts[0]
    assert first > 0
    assert ranges(batch(retained)) == [("t", 0, first, 40)]
    with pytest.raises(DataLost, match=f"from offset 0 to {first} were removed by retention.*failOnDataLoss"):
        batch(retained, startingOffsets='{"t": {"0": 0}}').partitions()
    lenient = batch(retained, startingOffsets='{"t": {"0": 0}}', failOnDataLoss="false")
    assert ranges(lenient) == [("t", 0, first, 40)]
    with pytest.raises(DataLost, match=r"it ends at .* that offset never was"):
        batch(retained, startingOffsets='{"t": {"0": 999}}').partitions()
    with pytest.raises(DataLost, match="beyond its end"):
        batch(retained, endingOffsets='{"t": {"0": 41}}').partitions()


def test_what_retention_removes_after_planning_is_told_or_left_out(path: str) -> None:
    """A task finds less than was planned."""
    with open_store(path) as store:
        store.create_topic("t", segment_bytes=1024 * 1024, retention_bytes=1_500_000)
        for n in range(40):
            store.publish_many("t", [bytes(100_000) + b"%d" % n])
        strict, lenient = batch(path), batch(path, failOnDataLoss="false")
        planned = strict.partitions()
        store.retain("t")
        first = store.stats().topics["t"].starts[0]
    with pytest.raises(DataLost, match="retention"):
        values(strict, planned)
    assert [one[100_000:] for one in values(lenient, planned)] == numbered(first, 40)


def test_a_live_owner_is_read_beside(filled: str) -> None:
    """Each load sees what is committed by then."""
    with open_store(filled) as store:
        before = batch(filled)
        planned = before.partitions()
        store.publish("t", b"new", partition=1)
        assert len(values(before, planned)) == 150
        assert len(values(batch(filled))) == 151


def test_a_reader_goes_on_where_it_was_when_its_server_comes_back(tmp_path: Any) -> None:
    """A task notices nothing but the time."""
    address = f"penstock+unix://{tmp_path}/s"
    arguments = ("--data", str(tmp_path / "data"), "--native", f"unix:{tmp_path}/s", "--no-http")
    server = Serving(*arguments)
    try:
        with penstock.open(address) as store:
            for at in range(0, 40, 5):
                store.publish_many("t", [b"%d " % n + bytes(900_000) for n in range(at, at + 5)])
        reader = batch(address)
        found: list[bytes] = []
        for number, table in enumerate(reader.read(reader.partitions()[0])):
            if number == 0:
                server.process.kill()
                server.process.communicate()
                server = Serving(*arguments)
            found += [value.split(b" ")[0] for value in table["value"].to_pylist()]
        for place in [one for one in connections._open if one[1].is_server]:
            connections._open.pop(place).close()
    finally:
        server.process.kill()
        server.process.communicate()
    assert number > 0
    assert found == numbered(40)


LARGE = 900_000
"""Of such messages Spark is given about twenty at a time."""


def large(start: int, stop: int, name: bytes = b"") -> Iterator[list[bytes]]:
    """Messages in batches that a topic takes."""
    for at in range(start, stop, 5):
        yield [name + b"%d " % n + bytes(LARGE) for n in range(at, at + 5)]


def small(tables: Any) -> list[bytes]:
    """What `large` made, without its zeros."""
    return [value.split(b" ")[0] for table in tables for value in table["value"].to_pylist()]


@pytest.fixture
def served(path: str) -> Iterator[Callable[[], str]]:
    """Starts a server of the store at *path*, or kills it and starts another one; returns its address."""
    servers: list[Serving] = []

    def stop() -> None:
        for server in servers:
            server.process.kill()
            server.process.communicate()
        servers.clear()

    def start() -> str:
        stop()
        servers.append(Serving("--data", path, "--native", f"unix:{path}.s", "--no-http"))
        return f"penstock+unix://{path}.s"

    yield start
    for place in [one for one in connections._open if one[1].is_server]:
        connections._open.pop(place).close()
    stop()


@pytest.mark.parametrize("again", [True, False])
def test_a_topic_that_goes_while_a_task_reads_it_from_a_server_is_told_or_left_out(
    path: str, served: Callable[[], str], again: bool
) -> None:
    """A server is asked for a name and an offset, which another topic may have by now: no message of that one is a row."""
    address = served()
    with penstock.open(address) as store:
        for values_ in large(0, 60):
            store.publish_many("t", values_)
        strict, lenient = batch(address), batch(address, failOnDataLoss="false")
        tasks = [reader.read(reader.partitions()[0]) for reader in (strict, lenient)]
        firsts = [next(task) for task in tasks]
        store.delete_topic("t")
        if again:
            for values_ in large(0, 60, b"other "):
                store.publish_many("t", values_)
        with pytest.raises(DataLost, match="made again" if again else "gone"):
            list(tasks[0])
        rest = list(tasks[1])
    assert 0 < len(small(firsts)) // 2 < 60
    found = small([firsts[1], *rest])
    assert found == numbered(len(found))


def test_a_tail_that_a_server_lost_while_a_task_reads_is_told_or_left_out(path: str, served: Callable[[], str]) -> None:
    """Whoever comes back with other messages at these offsets says so by its log epoch."""
    with open_store(path) as store:
        store.create_topic("t", sync="os")
        for values_ in large(0, 10):
            store.publish_many("t", values_)
        store._volume.checkpoint()
        shutil.copytree(path, path + ".before", ignore=shutil.ignore_patterns("*.socket"))
        for values_ in large(10, 60):
            store.publish_many("t", values_)
    address = served()
    strict, lenient = batch(address), batch(address, failOnDataLoss="false")
    tasks = [reader.read(reader.partitions()[0]) for reader in (strict, lenient)]
    firsts = [next(task) for task in tasks]
    shutil.rmtree(path)
    os.rename(path + ".before", path)
    with penstock.open(served()) as store:
        for values_ in large(10, 60, b"other "):
            store.publish_many("t", values_)
        with pytest.raises(DataLost, match="others have their offsets"):
            list(tasks[0])
        rest = list(tasks[1])
    found = small([firsts[1], *rest])
    assert 10 < len(found) < 60
    assert found == numbered(len(found))


def test_a_topic_that_goes_while_a_task_reads_its_folder_is_told_or_left_out(path: str) -> None:
    """As through a server."""
    with open_store(path) as store:
        for values_ in large(0, 60):
            store.publish_many("t", values_)
        strict, lenient = batch(path), batch(path, failOnDataLoss="false")
        tasks = [reader.read(reader.partitions()[0]) for reader in (strict, lenient)]
        firsts = [next(task) for task in tasks]
        store.delete_topic("t")
        with pytest.raises(DataLost, match="gone"):
            list(tasks[0])
        found = small([firsts[1], *tasks[1]])
    assert found == numbered(len(found))


def test_a_server_that_does_not_come_back_is_told(tmp_path: Any) -> None:
    """After `retryTimeoutMs`, by planning and by a task."""
    address = f"penstock+unix://{tmp_path}/s"
    with pytest.raises(Unavailable):
        batch(address, retryTimeoutMs="200").partitions()
    with pytest.raises(Unavailable):
        values(batch(address, retryTimeoutMs="200"), [Range("t", 0, 0, 1, "", 0)])


# -- streams ----------------------------------------------------------------------------------------------------------


def pinned(reader: PenstockStreamReader) -> dict[str, Any]:
    return reader.latestOffset(reader.initialOffset(), ALL)


def test_the_first_batch_fixes_where_a_stream_starts(filled: str) -> None:
    """It is empty; what comes later is planned from its offsets alone."""
    reader = stream(filled, startingOffsets="latest")
    symbol = reader.initialOffset()
    start = reader.latestOffset(symbol, ALL)
    assert start["t"] == {"0": 100, "1": 50}
    assert reader.partitions(symbol, start) == []
    with open_store(filled) as store:
        store.publish("t", b"new", partition=1)
    again = stream(filled, startingOffsets="latest")
    assert again.initialOffset() == symbol
    end = again.latestOffset(start, ALL)
    assert values(again, again.partitions(start, end)) == [b"new"]


def test_an_offset_is_canonical_json(filled: str) -> None:
    """The same text for the same offsets: Spark compares it."""
    with open_store(filled) as store:
        store.create_topic("s", partitions=12)
        topic_id = store.topic("t").topic_id.hex()
    found = json.dumps(pinned(stream(filled, subscribe="t,s")))
    assert found == json.dumps(pinned(stream(filled, subscribe="s,t")))
    document = json.loads(found)
    assert list(document) == ["_epoch", "_ids", "s", "t"]
    assert list(document["s"]) == [str(n) for n in range(12)]
    assert document["_ids"]["t"] == topic_id


def test_nothing_new_is_the_same_offset(filled: str) -> None:
    """Also after the store was opened again by a crash's rules."""
    reader = stream(filled)
    end = reader.latestOffset(pinned(reader), ALL)
    assert reader.latestOffset(end, ALL) == end
    assert reader.partitions(end, end) == []
    assert reader.reportLatestOffset() == end


def test_a_range_is_the_same_rows_every_time(filled: str) -> None:
    """For fixed offsets, whoever asks (I39)."""
    reader = stream(filled)
    start = pinned(reader)
    end = reader.latestOffset(start, ReadMaxRows(33))
    with open_store(filled) as store:
        store.publish_many("t", numbered(10), partition=0)
    first = values(reader, reader.partitions(start, end))
    assert len(first) == 33
    assert values(stream(filled), stream(filled).partitions(start, end)) == first


def test_a_limit_is_shared_in_proportion(filled: str) -> None:
    """So that partitions with more waiting go faster, until all is read."""
    reader = stream(filled, maxOffsetsPerTrigger="30")
    assert reader.getDefaultReadLimit() == ReadMaxRows(30)
    offset = pinned(reader)
    seen = []
    while (following := reader.latestOffset(offset, reader.getDefaultReadLimit())) != offset:
        seen.append(len(values(reader, reader.partitions(offset, following))))
        offset = following
    assert seen == [30] * 5
    assert admit({"a": {0: 0, 1: 0}}, {"a": {0: 20, 1: 10}}, 6) == {"a": {0: 4, 1: 2}}
    assert admit({"a": {0: 0, 1: 0, 2: 0}}, {"a": {0: 1, 1: 1, 2: 1}}, 2) == {"a": {0: 1, 1: 1, 2: 1}}
    assert reader.latestOffset(pinned(reader), ALL)["t"] == {"0": 100, "1": 50}


def test_a_short_backlog_beside_one_that_never_ends_has_its_turn(rng: random.Random) -> None:
    begin, end = {"a": {0: 0, 1: 0}}, {"a": {0: 1_000_000, 1: 3}}
    for _ in range(3):
        begin = admit(begin, end, 10)
        end["a"][0] += 10
    assert begin == {"a": {0: 27, 1: 3}}
    for _ in range(200):
        first = {number: rng.randrange(9) for number in range(rng.randrange(1, 6))}
        waiting = {number: rng.choice([0, 0, 1, 2, rng.randrange(1_000)]) for number in first}
        most = rng.randrange(1, 1_200)
        found = admit({"a": first}, {"a": {number: first[number] + count for number, count in waiting.items()}}, most)["a"]
        given = {number: found[number] - first[number] for number in first}
        assert all(min(count, 1) <= given[number] <= count for number, count in waiting.items())
        assert sum(given.values()) <= max(most, sum(count > 0 for count in waiting.values()))
        assert sum(given.values()) >= min(most, sum(waiting.values()))


def test_available_now_reads_what_was_there_when_it_began(filled: str) -> None:
    """And then says that there is nothing new."""
    reader = stream(filled)
    reader.prepareForTriggerAvailableNow()
    with open_store(filled) as store:
        store.publish("t", b"later", partition=0)
        store.publish("later", b"x")
    start = pinned(reader)
    end = reader.latestOffset(start, ReadMaxRows(1_000))
    assert end["t"] == {"0": 100, "1": 50}
    assert reader.latestOffset(end, ReadMaxRows(1_000)) == end


def test_topics_that_appear_later_are_read_from_their_beginning(filled: str) -> None:
    """Under a pattern; a stream that began at the latest offset too."""
    reader = stream(filled, subscribePattern="[tu]", startingOffsets="latest")
    start = pinned(reader)
    with open_store(filled) as store:
        store.create_topic("u", partitions=2)
        store.publish("u", b"first", partition=1)
    end = reader.latestOffset(start, ALL)
    assert end["u"] == {"0": 0, "1": 1}
    assert values(reader, reader.partitions(start, end)) == [b"first"]
    assert values(stream(filled, subscribePattern="[tu]"), stream(filled, subscribePattern="[tu]").partitions(start, end)) == [
        b"first"
    ]


def test_partitions_that_a_checkpoint_does_not_know_begin_at_their_first_message(filled: str) -> None:
    """As if the topic had grown."""
    reader = stream(filled)
    start = pinned(reader)
    start["t"] = {"0": 90}
    end = reader.latestOffset(start, ALL)
    assert values(reader, reader.partitions(start, end)) == numbered(90, 100) + numbered(50)


def test_a_gap_by_retention_is_told_or_left_out(retained: str) -> None:
    """Before anything is read behind it."""
    reader, lenient = stream(retained), stream(retained, failOnDataLoss="false")
    start = pinned(reader)
    start["t"] = {"0": 3}
    with pytest.raises(DataLost, match=r"offset 3 to .* removed by retention"):
        reader.latestOffset(start, ALL)
    with open_store(retained) as store:
        first = store.stats().topics["t"].starts[0]
    end = lenient.latestOffset(start, ALL)
    assert [one[100_000:] for one in values(lenient, lenient.partitions(start, end))] == numbered(first, 40)
    with pytest.raises(DataLost):
        reader.partitions(start, end)


def test_a_topic_that_was_made_again_is_told(filled: str) -> None:
    """By its id: the offsets of the old one would skip messages of the new one."""
    reader = stream(filled)
    end = reader.latestOffset(pinned(reader), ALL)
    shutil.rmtree(filled)
    with open_store(filled) as store:
        store.create_topic("t", partitions=2)
        store.publish_many("t", numbered(200), partition=0)
    with pytest.raises(DataLost, match="made again"):
        stream(filled).latestOffset(end, ALL)
    lenient = stream(filled, failOnDataLoss="false")
    assert values(lenient, lenient.partitions(end, lenient.latestOffset(end, ALL))) == numbered(200)


def test_a_topic_that_was_made_again_and_is_as_long_as_the_old_one_is_read_if_told_so(path: str) -> None:
    """Its offsets look as if there were nothing new."""
    with open_store(path) as store:
        store.publish_many("t", numbered(7))
    lenient = stream(path, failOnDataLoss="false")
    end = lenient.latestOffset(pinned(lenient), ALL)
    shutil.rmtree(path)
    with open_store(path) as store:
        store.publish_many("t", numbered(10, 17))
    lenient.prepareForTriggerAvailableNow()
    following = lenient.latestOffset(end, ALL)
    assert values(lenient, lenient.partitions(end, following)) == numbered(10, 17)
    assert lenient.latestOffset(following, ALL) == following


def test_a_topic_with_another_number_of_partitions_is_another_topic(filled: str) -> None:
    """The number is fixed for the life of a topic: more or fewer of them mean that it was made again."""
    reader = stream(filled)
    end = reader.latestOffset(pinned(reader), ALL)
    for count in (1, 3):
        shutil.rmtree(filled)
        with open_store(filled) as store:
            store.create_topic("t", partitions=count)
            store.publish("t", b"new", partition=count - 1)
        for ask in (lambda: stream(filled).latestOffset(end, ALL), lambda: stream(filled).partitions(end, end)):
            with pytest.raises(DataLost, match="made again"):
                ask()
        lenient = stream(filled, failOnDataLoss="false")
        following = lenient.latestOffset(end, ALL)
        assert following["t"] == {**{str(n): 0 for n in range(count)}, str(count - 1): 1}
        assert values(lenient, lenient.partitions(end, following)) == [b"new"]


def test_a_topic_that_is_gone_is_told(filled: str) -> None:
    """Or left out."""
    reader = stream(filled)
    end = reader.latestOffset(pinned(reader), ALL)
    shutil.rmtree(filled)
    open_store(filled).close()
    with pytest.raises(DataLost, match="the topic is gone"):
        stream(filled).latestOffset(end, ALL)
    lenient = stream(filled, failOnDataLoss="false")
    after = lenient.latestOffset(end, ALL)
    assert "t" not in after
    assert lenient.partitions(end, after) == []


@pytest.mark.parametrize("written", [0, 3, 20])
def test_a_lost_tail_is_told(path: str, written: int) -> None:
    """A weaker mode lost messages that were read, and other messages may have their offsets: by length, or by log epoch."""
    with open_store(path) as store:
        store.create_topic("t", sync="os")
        store.publish_many("t", numbered(10))
        store.flush()
        store._volume.checkpoint()
        shutil.copytree(path, path + ".before")
        store.publish_many("t", numbered(10, 20))
        reader = stream(path)
        start = pinned(reader)
        end = reader.latestOffset(start, ALL)
        assert end["t"] == {"0": 20}
    shutil.rmtree(path)
    os.rename(path + ".before", path)
    with open_store(path) as store:  # it was not closed in order
        if written:
            store.publish_many("t", [b"other %d" % n for n in range(written)])
    strict, lenient = stream(path), stream(path, failOnDataLoss="false")
    with pytest.raises(DataLost, match="lost when the store died"):
        strict.latestOffset(end, ALL)
    with pytest.raises(DataLost, match="lost when the store died"):
        strict.partitions(start, end)
    following = lenient.latestOffset(end, ALL)
    assert following["t"] == {"0": 10 + written}
    assert values(lenient, lenient.partitions(end, following)) == [b"other %d" % n for n in range(written)]
    assert lenient.latestOffset(following, ALL) == following


def test_a_crash_that_lost_nothing_is_no_loss(path: str) -> None:
    """The epoch has grown, and the messages are the same."""
    store = open_store(path)
    store.publish_many("t", numbered(10))
    reader = stream(path)
    end = reader.latestOffset(pinned(reader), ALL)
    shutil.copytree(path, path + ".killed")
    store.close()
    shutil.rmtree(path)
    os.rename(path + ".killed", path)
    with open_store(path) as store:
        assert store.positions(["t"])["t"].log_epoch > end["_epoch"]
        store.publish_many("t", numbered(10, 15))
    again = stream(path)
    following = again.latestOffset(end, ALL)
    assert values(again, again.partitions(end, following)) == numbered(10, 15)


ENDING = """
import io
from pyspark.serializers import read_int
from penstock.spark.stream_reader import PenstockStreamReader
try:
    {work}
finally:
    PenstockStreamReader({{}}, None).stop()
"""


@pytest.mark.parametrize(("work", "code"), [("read_int(io.BytesIO())", 0), ("raise EOFError('ours')", 1), ("pass", 0)])
def test_a_process_that_spark_has_left_ends_without_a_word(work: str, code: int) -> None:
    """As Spark's runner calls it when a query ends; an error that is no such end is raised as ever."""
    done = subprocess.run([sys.executable, "-c", ENDING.format(work=work)], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert ("EOFError: ours" in done.stderr) == bool(code)
    assert code or not done.stderr


def test_a_foreign_checkpoint_is_told(filled: str) -> None:
    """Such as one of the Kafka connector."""
    for foreign in ({"t": {"0": 5}}, {"_epoch": 1, "_ids": {}, "t": {"0": -1}}, {"_epoch": 1, "_ids": [], "t": 5}):
        with pytest.raises(BadBytes, match="checkpoint"):
            stream(filled).latestOffset(foreign, ALL)
