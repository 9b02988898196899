"""DataFrame, topic, DataFrame: no type and no order is lost, whatever the rows are, in a folder and through a server."""

from __future__ import annotations

import contextlib
import datetime as dt
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from tests.cli.serving import serving
from tests.spark.conftest import open_store
from tests.spark.test_batches import HEADERS, load, save

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

PARTITIONS = 3
MESSAGE = (
    f"key binary, value binary, partition int, timestamp timestamp, headers {HEADERS}, priority int, expires_at timestamp, "
    "deliver_at timestamp"
)

binary = st.none() | st.binary(max_size=50)
times = st.none() | st.datetimes(dt.datetime(1971, 1, 1), dt.datetime(9000, 1, 1)).map(lambda one: one.replace(tzinfo=dt.UTC))
headers = st.none() | st.lists(
    st.tuples(st.text(max_size=10).filter(lambda one: one.isprintable()), st.binary(max_size=10)), max_size=3
)
priorities = st.none() | st.integers(0, 2)
messages = st.lists(
    st.tuples(binary, binary, st.integers(0, PARTITIONS - 1), times, headers, priorities, times, times), min_size=1, max_size=60
)


class Trip(NamedTuple):
    """What is written, by how many tasks, and by how many it is read."""

    rows: list[Any]
    writers: int
    readers: int


trips = st.builds(Trip, messages, st.integers(1, 3), st.integers(1, 7))


class Place:
    """A store, and a new topic in it for each trip."""

    def __init__(self, target: str) -> None:
        self.target = target
        self._topics = 0

    def new_topic(self) -> str:
        """An empty one."""
        self._topics += 1
        name = f"trip-{self._topics}"
        # One after the other: a folder belongs to Spark while it writes.
        with open_store(self.target) if "://" not in self.target else penstock.open(self.target) as store:
            store.create_topic(name, partitions=PARTITIONS, priorities=True)
        return name


@contextlib.contextmanager
def place_of(kind: str, folder: str) -> Iterator[Place]:
    """A folder, or a server with one."""
    if kind == "folder":
        open_store(folder).close()
        yield Place(folder)
        return
    with serving("--data", folder, "--native", "127.0.0.1:0", "--no-http") as server:
        yield Place(server.address("native"))


@pytest.fixture(params=["folder", "server"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Where the messages are."""
    with place_of(request.param, str(tmp_path_factory.mktemp("place") / "store")) as found:
        yield found


def utc(moment: dt.datetime | None) -> dt.datetime | None:
    return None if moment is None else moment.astimezone(dt.UTC)


def check_round_trip(spark: SparkSession, place: Place, trip: Trip) -> None:
    """The same values, and in each partition the same order."""
    topic = place.new_topic()
    frame = spark.createDataFrame(trip.rows, MESSAGE).coalesce(1)
    if trip.writers > 1:
        # All rows of a partition stay with one task, in their order; nobody orders what several tasks write.
        frame = frame.repartition(trip.writers, "partition")
    save(frame, place.target, topic=topic)
    read = load(spark, place.target, topic, includeHeaders="true", includeDelivery="true", minPartitions=str(trip.readers))
    taken = read.orderBy("partition", "offset").collect()
    for number in range(PARTITIONS):
        expected = [row for row in trip.rows if row[2] == number]
        found = [row for row in taken if row.partition == number]
        assert [row.offset for row in found] == list(range(len(expected)))
        for row, (key, value, _, time, pairs, priority, expires, due) in zip(found, expected, strict=True):
            assert (row.key, row.value) == (key, value)
            assert time is None or row.timestamp.astimezone(dt.UTC) == time
            assert row.timestampType == (1 if time is None else 0)
            assert [tuple(pair) for pair in row.headers or []] == (pairs or [])
            assert (row.priority, utc(row.expires_at), utc(row.deliver_at)) == (priority or 0, expires, due)


def explore(spark: SparkSession, place: Place, examples: int) -> None:
    """Take so many trips, or fewer to one that fails, which is made as small as it can be."""
    taken = 0

    @settings(max_examples=examples, suppress_health_check=list(HealthCheck), deadline=None)
    @given(trip=trips)
    def take(trip: Trip) -> None:
        nonlocal taken
        taken += 1
        check_round_trip(spark, place, trip)

    take()
    assert taken >= examples


def test_data_frames_keep_types_and_order(spark: SparkSession, place: Place) -> None:
    """A few."""
    explore(spark, place, 4)


@pytest.mark.long
def test_many_data_frames_keep_types_and_order(spark: SparkSession, place: Place) -> None:
    """The same, often."""
    explore(spark, place, 40)
