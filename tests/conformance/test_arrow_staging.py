"""Messages that come as Arrow, staged and committed, and the positions that tell Spark where its offsets mean the same."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.errors import BadColumn, MessageTooLarge, TopicNotFound
from penstock.topics.partitioner import partition_of_key
from tests.conformance.backends import skip_unless
from tests.conformance.helpers import numbered, stored

if TYPE_CHECKING:
    from penstock import Store
    from tests.conformance.backends import Backend

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
MOMENT = dt.datetime(2022, 5, 1, 12, 30, tzinfo=dt.UTC)


def table(**columns: Any) -> Any:
    moment = pa.timestamp("us", "UTC")
    kinds = {
        "headers": HEADERS, "timestamp": moment, "expires_at": moment, "deliver_at": moment, "partition": pa.int32(), "priority": pa.int32()
    }  # fmt: skip
    arrays = [
        one if isinstance(one, pa.Array) else pa.array(one, kinds.get(name, pa.binary())) for name, one in columns.items()
    ]
    return pa.RecordBatch.from_arrays(arrays, list(columns))


def commit(store: Store, number: int, *tables: Any, topic: str = "t") -> None:
    with store.stage("p") as stage:
        for one in tables:
            stage.publish_arrow(topic, one)
    assert store.commit("p", number, [stage.identity]).messages == sum(one.num_rows for one in tables)


def test_rows_become_messages_with_all_that_they_have(store: Store) -> None:
    """Nulls stay nulls, an empty value is not a tombstone, repeated headers keep their order."""
    rows = table(
        value=[b"a", None, b"", b"d"],
        key=[b"k", None, b"", b"k"],
        headers=[[("x", b"1"), ("x", b"2")], None, [], [("y", b"")]],
        timestamp=[MOMENT, None, MOMENT + dt.timedelta(microseconds=1), None],
    )
    commit(store, 1, rows)
    found = list(store.read("t"))
    assert [one.value for one in found] == [b"a", None, b"", b"d"]
    assert [one.key for one in found] == [b"k", None, b"", b"k"]
    assert [list(one.headers) for one in found] == [[("x", b"1"), ("x", b"2")], [], [], [("y", b"")]]
    assert found[0].timestamp == MOMENT
    assert found[2].timestamp == MOMENT + dt.timedelta(microseconds=1)
    assert found[1].timestamp > MOMENT


def test_rows_keep_what_they_ask_of_their_delivery(store: Store) -> None:
    """Times that are far away; a message without a priority is low; slices begin in the middle."""
    store.create_topic("t", priorities=True)
    later = dt.datetime(2100, 1, 1, tzinfo=dt.UTC)
    rows = table(
        value=numbered(4), expires_at=[later, later, None, later], deliver_at=[None, None, later, MOMENT], priority=[2, 1, None, 0]
    )  # fmt: skip
    commit(store, 1, rows.slice(1))
    commit(store, 2, table(value=[b"x", b"y"], priority=[0, None]))
    [found] = (
        pa.Table.from_batches(store.read_arrow("t", columns=["expires_at", "deliver_at", "priority"]))
        .combine_chunks()
        .to_batches()
    )
    assert found["expires_at"].to_pylist() == [later, None, later, None, None]
    assert found["deliver_at"].to_pylist() == [None, later, MOMENT, None, None]
    assert found["priority"].to_pylist() == [1, 0, 0, 0, 0]


def test_a_slice_of_a_batch_is_as_good_as_a_batch(store: Store) -> None:
    """Its buffers begin before it does, in the middle of a byte of its bitmap."""
    whole = table(value=[b"%d" % n if n % 3 else None for n in range(50)], key=[b"k%d" % n for n in range(50)])
    commit(store, 1, whole.slice(11, 20))
    assert stored(store, "t") == [b"%d" % n if n % 3 else None for n in range(11, 31)]


def test_rows_go_to_the_partitions_that_publish_would_choose(store: Store) -> None:
    """By key; those without a key together; a given partition counts more than a key."""
    store.create_topic("t", partitions=4)
    keys = [b"%d" % (n % 7) for n in range(70)]
    commit(store, 1, table(value=numbered(70), key=keys))
    for number in range(4):
        expected = [value for value, key in zip(numbered(70), keys, strict=True) if partition_of_key(key, 4) == number]
        assert [one.value for one in store.read("t", number)] == expected
    before = store.ends("t")
    commit(store, 2, table(value=[b"x", b"y", b"z"], key=[b"1", None, b"1"], partition=[3, 2, None]))
    after = store.ends("t")
    assert after[3] - before[3] == 1 + (partition_of_key(b"1", 4) == 3)
    assert sum(after.values()) - sum(before.values()) == 3


def test_large_batches_are_cut(store: Store) -> None:
    """A batch of 12 MB becomes several, in order."""
    values = [bytes([n]) * 100_000 for n in range(120)]
    commit(store, 1, table(value=values))
    assert stored(store, "t") == values


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        (table(key=[b"k"]), BadColumn),
        (table(value=pa.array([1, 2])), BadColumn),
        (table(value=[b"v"], priority=[3]), BadColumn),
        (table(value=[b"v"], priority=[-1]), BadColumn),
        (table(value=[b"v"], priority=pa.array([1.5])), BadColumn),
        (table(value=[b"v"], expires_at=pa.array([5])), BadColumn),
        (table(value=[b"v"], color=[b"red"]), BadColumn),
        (table(value=[b"v"], headers=[[("name", None)]]), BadColumn),
        (table(value=[b"v"], timestamp=pa.array([1])), BadColumn),
        (table(value=[b"v"], partition=[9]), TopicNotFound),
        (table(value=[b"v"], key=[bytes(70_000)]), MessageTooLarge),
        (table(value=[bytes(1_100_000)]), MessageTooLarge),
        (table(value=[bytes(600_000)], headers=[[("n", bytes(600_000))]]), MessageTooLarge),
    ],
)
def test_rows_that_are_no_messages_are_refused(store: Store, rows: Any, error: type[Exception]) -> None:
    """With the column in the text; the stage is dropped."""
    store.create_topic("t")
    with pytest.raises(error), store.stage("p") as stage:
        stage.publish_arrow("t", rows)
    assert stored(store, "t") == []


def test_strings_are_utf8(store: Store) -> None:
    """Values and keys of type string, large or not."""
    commit(store, 1, table(value=pa.array(["é", "b"]), key=pa.array(["k", None], pa.large_string())))
    assert stored(store, "t") == ["é".encode(), b"b"]
    assert [one.key for one in store.read("t")] == [b"k", None]


def test_positions_tell_the_topics_that_are_there(store: Store) -> None:
    """All at one moment, with the topic's id."""
    store.create_topic("a", partitions=2)
    store.publish_many("a", numbered(3), partition=1)
    store.publish("b", b"x")
    found = store.positions(["a", "b", "c"])
    assert sorted(found) == ["a", "b"]
    assert found["a"].topic_id == store.topic("a").topic_id
    assert (found["a"].starts, found["a"].ends) == ({0: 0, 1: 0}, {0: 0, 1: 3})
    assert store.epoch_at("a", 1, 2) == found["a"].log_epoch
    assert store.epoch_at("a", 1, 3) is None
    assert store.offset_of_time("b", 0, MOMENT) == 0


def test_the_epoch_grows_when_a_store_dies(lasting: Backend) -> None:
    """So an offset that was seen before tells whether its message is still the same."""
    store = lasting.open()
    store.publish("t", b"old")
    before = store.positions(["t"])["t"]
    store = lasting.kill()
    store.publish("t", b"new")
    after = store.positions(["t"])["t"]
    assert after.topic_id == before.topic_id
    assert after.log_epoch > before.log_epoch
    assert store.epoch_at("t", 0, 0) == before.log_epoch
    assert store.epoch_at("t", 0, 1) == after.log_epoch


def test_a_reader_beside_the_owner_knows_the_same_positions(backend: Backend) -> None:
    """Those of the owner."""
    skip_unless(backend.has_readers, f"a {backend.name} store has one opener")
    store = backend.open()
    store.publish_many("t", numbered(3))
    reader = backend.reader()
    assert reader.positions(["t", "u"]) == store.positions(["t", "u"])
    assert reader.epoch_at("t", 0, 1) == store.epoch_at("t", 0, 1)
    assert reader.offset_of_time("t", 0, MOMENT) == 0
