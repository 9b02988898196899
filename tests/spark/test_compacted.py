"""Topics whose offsets have holes, since they were compacted or vacuumed: what is left is read, and no hole is taken for a loss."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from penstock.errors import DataLost
from penstock.spark.pipelines.archive import archive
from penstock.spark.pipelines.history import history
from penstock.spark.pipelines.latest import Latest, latest, read_latest
from penstock.testing import FakeClock
from tests.spark.conftest import open_store
from tests.spark.test_reading import ALL, batch, numbered, pinned, rows, stream, values

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from pyspark.sql import SparkSession

    from penstock.store.store import Store

Place = tuple[int, int]
Published = dict[Place, tuple[bytes | None, bytes | None]]
"""By partition and offset, key and value."""


def make(path: str, **settings: Any) -> None:
    with open_store(path) as store:
        store.create_topic("t", partitions=2, segment_messages=20, compaction=True, **settings)


def publish(store: Store, rng: random.Random, count: int, published: Published, *, tombstones: bool = True) -> None:
    for _ in range(count):
        key = rng.choice([None] + [b"k%d" % number for number in range(6)]) if rng.random() < 0.3 else b"k%d" % rng.randrange(6)
        value = None if tombstones and rng.random() < 0.2 else rng.randbytes(6)
        receipt = store.publish("t", value, key=key)
        published[receipt.partition, receipt.offset] = (key, value)


def must_stay(published: Published) -> set[Place]:
    """What compaction never removes: the latest of each key, and what has no key."""
    last: dict[tuple[int, bytes], int] = {}
    for (partition, offset), (key, _) in published.items():
        if key is not None:
            last[partition, key] = max(offset, last.get((partition, key), 0))
    keyless = {place for place, (key, _) in published.items() if key is None}
    return keyless | {(partition, offset) for (partition, _), offset in last.items()}


def stored(store: Any) -> list[Place]:
    return sorted((message.partition, message.offset) for message in store.read("t"))


def kill(path: str, store: Store) -> None:
    """Leave the folder as if the owner had died now."""
    shutil.copytree(path, path + ".killed")
    store.close()
    shutil.rmtree(path)
    os.rename(path + ".killed", path)


# -- the readers, called as Spark calls them --------------------------------------------------------------------------


def test_any_range_of_a_compacted_topic_is_what_is_left_of_it(path: str, rng: random.Random) -> None:
    """In however many tasks, also where a range begins or ends in a hole, or is nothing but one."""
    make(path)
    published: Published = {}
    with open_store(path) as store:
        publish(store, rng, 300, published, tombstones=False)
        assert store.compact("t").messages > 100
        left, ends = stored(store), store.ends("t")
    for _ in range(60):
        first = {number: rng.randint(0, end) for number, end in ends.items()}
        last = {number: rng.randint(first[number], end) for number, end in ends.items()}
        reader = batch(
            path, assign='{"t": [0, 1]}', minPartitions=str(rng.choice([1, 2, 7, 40])),
            startingOffsets=f'{{"t": {{"0": {first[0]}, "1": {first[1]}}}}}', endingOffsets=f'{{"t": {{"0": {last[0]}, "1": {last[1]}}}}}',
        )  # fmt: skip
        found = []
        for one in reader.partitions():
            for row in rows(reader, [one]):
                found.append((one.partition, row["offset"]))  # type: ignore[attr-defined]
                assert row["value"] == published[found[-1]][1]
        assert found == [place for place in left if first[place[0]] <= place[1] < last[place[0]]]


def test_a_stream_that_is_compacted_between_batches_ends_and_misses_nothing_that_is_left(path: str, rng: random.Random) -> None:
    """Each row once and in order, the latest of each key among them; what was superseded may be missing."""
    make(path)
    published: Published = {}
    with open_store(path) as store:
        publish(store, rng, 400, published)
        reader = stream(path)
        at, seen = pinned(reader), list[Place]()
        for _ in range(200):
            following = reader.latestOffset(at, ReadMaxRows(rng.choice([1, 7, 30, 100])))
            if following == at:
                break
            planned = reader.partitions(at, following)
            if rng.random() < 0.3:  # between planning and reading too
                store.compact("t")
            for one in planned:
                seen += [(one.partition, row["offset"]) for row in rows(reader, [one])]  # type: ignore[attr-defined]
            at = following
            if rng.random() < 0.3:
                store.compact("t")
                publish(store, rng, rng.choice([0, 0, 20]), published)
        else:
            pytest.fail("it does not end")
        assert at["t"] == {str(number): end for number, end in store.ends("t").items()}
        left = set(stored(store))
    assert len(seen) == len(set(seen))
    assert all([offset for number, offset in seen if number == one] == sorted(o for n, o in seen if n == one) for one in (0, 1))
    assert must_stay(published) <= left <= set(seen) <= set(published)


def test_files_that_are_rewritten_under_a_reader_are_found_again(path: str, rng: random.Random) -> None:
    """It has read one batch when compaction takes the rest of its files away."""
    make(path)
    published: Published = {}
    with open_store(path) as store:
        publish(store, rng, 600, published)
        reader = batch(path, minPartitions="1")
        [first, *_] = reader.partitions()
        source = reader.read(first)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("penstock.spark.rows.ROWS_MIN", 1)
            found = next(source).to_pylist()
            store.compact("t")
            found += [row for table in source for row in table.to_pylist()]
        offsets = [row["offset"] for row in found]
        partition = first.partition  # type: ignore[attr-defined]
        left = [offset for number, offset in stored(store) if number == partition]
    assert offsets == sorted(set(offsets))
    assert set(left) <= set(offsets)


def test_a_hole_before_the_position_of_a_stream_is_no_loss(path: str) -> None:
    """The store died without loss, and what was read last was compacted away: what comes next is of a later epoch, and nothing is lost."""
    make(path)
    store = open_store(path)
    for number in range(20):
        store.publish("t", b"%d" % number, key=b"k", partition=0)
    reader = stream(path)
    end = reader.latestOffset(pinned(reader), ALL)
    kill(path, store)
    with open_store(path) as store:
        for number in range(20, 60):
            store.publish("t", b"%d" % number, key=b"k", partition=0)
        assert store.positions(["t"])["t"].log_epoch > end["_epoch"]
        store.compact("t")
        assert store.epoch_at("t", 0, 19) is None
        assert next(iter(store.read("t", 0))).offset > 20
    again = stream(path)
    following = again.latestOffset(end, ALL)
    assert values(again, again.partitions(end, following))[-1] == b"59"
    assert [row["offset"] for row in rows(again, again.partitions(pinned(stream(path)), following))][-1] == 59


def test_a_lost_tail_with_holes_in_what_replaced_it_is_told_or_read_from_its_first_message(path: str) -> None:
    """Where the new messages begin is found though some of them are gone again."""
    with open_store(path) as store:
        store.create_topic("t", sync="os", compaction=True, segment_messages=10)
        store.publish_many("t", numbered(30))
        store.flush()
        store._volume.checkpoint()
        shutil.copytree(path, path + ".before")
        store.publish_many("t", numbered(30, 90))
        reader = stream(path)
        end = reader.latestOffset(pinned(reader), ALL)
    shutil.rmtree(path)
    os.rename(path + ".before", path)
    with open_store(path) as store:
        # 35 stays, then a hole up to 70, then some without a key.
        store.publish_many("t", [b"other"] * 5)
        store.publish_many("t", [b"gone"] * 35, keys=[b"k"] * 35)
        store.publish_many("t", [b"other"] * 50, keys=[None] * 49 + [b"k"])
        store.publish_many("t", [b"other"] * 20)
        assert store.compact("t").messages > 20
        expected = [message.offset for message in store.read("t", 0, start=30)]
    with pytest.raises(DataLost, match="lost when the store died"):
        stream(path).latestOffset(end, ALL)
    lenient = stream(path, failOnDataLoss="false")
    following = lenient.latestOffset(end, ALL)
    assert [row["offset"] for row in rows(lenient, lenient.partitions(end, following))] == expected


def test_retention_in_a_compacted_topic_is_a_loss_as_ever(path: str, rng: random.Random) -> None:
    """Offsets below the start of the log are removed messages, not holes."""
    make(path, retention_messages=50)
    with open_store(path) as store:
        publish(store, rng, 300, {})
        reader = stream(path)
        start = pinned(reader)
        store.compact("t")
        assert store.retain("t").segments > 0
        following = stream(path, failOnDataLoss="false").latestOffset(start, ALL)
        with pytest.raises(DataLost, match="removed by retention"):
            reader.latestOffset(start, ALL)
        lenient = stream(path, failOnDataLoss="false")
        found = [(one.partition, row["offset"]) for one in lenient.partitions(start, following) for row in rows(lenient, [one])]  # type: ignore[attr-defined]
        assert found == stored(store)


def test_a_vacuumed_topic_is_read_around_its_holes(path: str) -> None:
    """A message that a group keeps stays, and what was finished behind it goes."""
    with open_store(path) as store:
        store.create_topic("t", segment_messages=10, retention_messages=1, dedup_window=0.001)
        with store.subscribe("t", "g", start="earliest", prefetch=100) as consumer:
            for number in range(100):
                store.publish("t", b"%d" % number)
            reader = stream(path)
            start = pinned(reader)
            middle = reader.latestOffset(start, ReadMaxRows(42))
            for message in consumer.get_many(100, timeout=0):
                if message.offset != 5:
                    consumer.ack(message)
            consumer.flush()
            for _ in range(2):  # files that a checkpoint points to stay as they are
                store._volume.checkpoint()
            assert store.vacuum("t").messages > 50
            left = [(message.offset, message.value) for message in store.read("t")]
            assert left[0] == (5, b"5")
            end = reader.latestOffset(middle, ALL)
            found = [*rows(reader, reader.partitions(start, middle)), *rows(reader, reader.partitions(middle, end))]
    assert [(row["offset"], row["value"]) for row in found] == left
    assert [(row["offset"], row["value"]) for row in rows(batch(path))] == left


def test_a_quiet_topic_that_time_sealed_expired_and_emptied_is_read_on(path: str) -> None:
    """No publish made its segments: what is left is read, a stream goes on behind it, and what retention took is a loss as ever."""
    clock = FakeClock()
    with open_store(path, clock=clock, background=False) as store:
        store.create_topic("t", segment_age=60.0, retention_age=3_600.0)
        store.publish_many("t", numbered(30), ttls=[10.0] * 20 + [None] * 10)
        reader = stream(path)
        start = pinned(reader)
        middle = reader.latestOffset(start, ReadMaxRows(5))
        clock.advance(120)
        store.retain("t")
        assert store._volume.log("t").segment_firsts == [0, 30]
        assert values(reader, reader.partitions(start, middle)) == values(batch(path))[:5] == numbered(5)
        assert store.vacuum("t").messages == 20
        end = reader.latestOffset(middle, ALL)
        assert values(reader, reader.partitions(middle, end)) == values(batch(path)) == numbered(20, 30)
        clock.advance(7_200)
        assert store.retain("t").segments == 1
        assert values(batch(path)) == []
        assert reader.latestOffset(end, ALL) == end
        assert reader.partitions(end, end) == []
        store.publish("t", b"later")
        last = reader.latestOffset(end, ALL)
        assert values(reader, reader.partitions(end, last)) == values(batch(path)) == [b"later"]
        with pytest.raises(DataLost, match="removed by retention"):
            stream(path).latestOffset(middle, ALL)
    assert values(batch(path)) == [b"later"], "also when the owner is gone"


# -- on Spark ---------------------------------------------------------------------------------------------------------


def table(spark: SparkSession, folder: str) -> dict[tuple[int, bytes], bytes]:
    return {(row.partition, bytes(row.key)): bytes(row.value) for row in read_latest(spark, folder).collect()}


def model(published: Published) -> dict[tuple[int, bytes], bytes]:
    """The latest values, by a loop."""
    found: dict[tuple[int, bytes], bytes] = {}
    for (partition, _), (key, value) in sorted(published.items()):
        if key is not None:
            found.pop((partition, key), None)
            if value is not None:
                found[partition, key] = value
    return found


@pytest.mark.long
def test_tables_and_histories_of_a_compacted_topic_are_right(
    spark: SparkSession, path: str, tmp_path: Path, rng: random.Random
) -> None:
    """
    One table is kept from run to run, with compaction between and in the middle of the batches; one is made at the end.

    The archive holds compaction back until it has a message, so that history has them all, though the log does not.
    """
    make(path, retention_messages=100)
    files, kept, fresh = (str(tmp_path / name) for name in ("archive", "kept", "fresh"))
    published: Published = {}
    archive(spark, path, "t", files)
    for _ in range(2):
        with open_store(path) as store:
            publish(store, rng, 120, published)
        latest(spark, path, "t", kept)
        assert table(spark, kept) == model(published)
        archive(spark, path, "t", files)
        with open_store(path) as store:
            assert store.compact("t").messages > 0
            publish(store, rng, 20, published)
    runs = Latest(path, "t", fresh, batch_rows=60)

    def compact(_progress: Any) -> None:
        with open_store(path) as store:
            publish(store, rng, 10, published)
            store.compact("t")

    assert runs.run(spark, compact).batches > 2
    assert latest(spark, path, "t", kept).keys == latest(spark, path, "t", fresh).keys == len(model(published))
    assert table(spark, kept) == table(spark, fresh) == model(published)
    with open_store(path) as store:
        assert store.retain("t").segments > 0
        left = set(stored(store))
    found = [(row.partition, row.offset, row.key, row.value) for row in history(spark, path, "t", files).collect()]
    expected = [(*place, *told) for place, told in published.items()]
    assert sorted((p, o, k and bytes(k), v and bytes(v)) for p, o, k, v in found) == sorted(expected)
    only_log = history(spark, path, "t").select("partition", "offset").collect()
    assert sorted((row.partition, row.offset) for row in only_log) == sorted(left)
    again = latest(spark, path, "t", str(tmp_path / "from-history"), archive=files)
    assert again.messages == len(published)
    assert table(spark, str(tmp_path / "from-history")) == model(published)
