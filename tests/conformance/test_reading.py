"""Reading without a group: replay, as messages and as Arrow, beside the owner."""

from __future__ import annotations

import contextlib
import itertools
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import BadColumn, OffsetOutOfRange, ReadOnly, TopicNotFound
from tests.conformance.helpers import drain, numbered, offsets, position, state_of, stored, ten_apart, values

if TYPE_CHECKING:
    from penstock import Store
    from tests.conformance.backends import Backend


# -- read -----------------------------------------------------------------------------------------------------------


def test_reading_ends_at_the_end(store: Store) -> None:
    """It does not wait for more."""
    store.create_topic("t")
    assert list(store.read("t")) == []
    store.publish_many("t", numbered(3))
    assert values(store.read("t")) == numbered(3)


def test_reading_changes_nothing(store: Store) -> None:
    """As often as one likes, from the beginning each time."""
    store.publish_many("t", numbered(10))
    with store.subscribe("t", "g") as consumer:
        drain(consumer, 4)
        before = state_of(store)
        for _ in range(3):
            assert stored(store, "t") == numbered(10)
        assert state_of(store) == before


def test_who_reads_a_topic_that_is_made_again_does_not_get_the_messages_of_the_new_one(store: Store) -> None:
    """What was read is the old one's, and then it is told that this one is gone, unless all of it had been fetched before."""
    old = [b"old %d" % n + bytes(500_000) for n in range(18)]
    for at in range(0, 18, 3):
        store.publish_many("t", old[at : at + 3])
    reading = iter(store.read("t"))
    found = [next(reading).value]
    store.delete_topic("t")
    for _ in range(6):
        store.publish_many("t", [b"new" + bytes(500_000)] * 3)
    with contextlib.suppress(TopicNotFound):
        for message in reading:
            found.append(message.value)  # noqa: PERF401 - what came before it is told
        assert len(found) == 18
    assert found == old[: len(found)]


@pytest.mark.parametrize("start", range(0, 31, 3))
def test_reading_begins_anywhere(store: Store, start: int) -> None:
    """Whatever the sizes of batches and segments."""
    store.create_topic("t", segment_messages=7)
    for size in (1, 5, 2, 10, 1, 1, 6, 4):
        store.publish_many("t", [b"x"] * size)
    assert offsets(store.read("t", 0, start=start)) == list(range(start, 30))


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        ("earliest", None, range(20)),
        ("earliest", "latest", range(20)),
        (5, 9, range(5, 9)),
        (0, 0, []),
        (7, 7, []),
        (20, None, []),
        ("latest", None, []),
        (19, 20, [19]),
        (0, "earliest", []),
    ],
)
def test_a_range_is_half_open(store: Store, start: Any, end: Any, expected: Any) -> None:
    """With its start, without its end."""
    store.create_topic("t", segment_messages=6)
    for part in range(5):
        store.publish_many("t", numbered(4, part * 4))
    assert offsets(store.read("t", 0, start=start, end=end)) == list(expected)


def test_a_range_may_be_given_by_times(backend: Backend) -> None:
    """From the first message that is not older than the start to the first that is not older than the end."""
    store = backend.open()
    times = ten_apart(backend, store)
    assert offsets(store.read("t", 0, start=times[3])) == list(range(3, 10))
    assert offsets(store.read("t", 0, start=times[3] - timedelta(seconds=1), end=times[6])) == [3, 4, 5]
    assert offsets(store.read("t", 0, start=times[9] + timedelta(seconds=1))) == []
    assert offsets(store.read("t", 0, start=datetime(1999, 1, 1, tzinfo=UTC))) == list(range(10))


@pytest.mark.parametrize("most", [0, 1, 7, 20, 1_000])
def test_reading_may_stop_early(store: Store, most: int) -> None:
    """After so many messages, or because nobody asks for more."""
    store.publish_many("t", numbered(20))
    assert offsets(store.read("t", 0, max_messages=most)) == list(range(min(most, 20)))
    assert offsets(itertools.islice(store.read("t"), most)) == list(range(min(most, 20)))


def test_partitions_are_read_one_after_the_other(store: Store) -> None:
    """All of them, or one."""
    store.create_topic("t", partitions=3)
    for partition in range(3):
        store.publish_many("t", [b"%d.%d" % (partition, number) for number in range(4)], partition=partition)
    expected = [(partition, offset) for partition in range(3) for offset in range(4)]
    assert [(message.partition, message.offset) for message in store.read("t")] == expected
    assert [(message.partition, message.offset) for message in store.read("t", 1)] == expected[4:8]
    assert len(list(store.read("t", max_messages=6))) == 6


@pytest.mark.parametrize("start", [11, 1 << 40])
def test_reading_behind_the_end_is_out_of_range(store: Store, start: int) -> None:
    """The error says what there is; an empty result would look like the truth."""
    store.publish_many("t", numbered(10))
    with pytest.raises(OffsetOutOfRange) as caught:
        list(store.read("t", 0, start=start))
    assert (caught.value.offset, caught.value.first, caught.value.end) == (start, 0, 10)


def test_an_unknown_topic_or_partition_is_not_found(store: Store) -> None:
    """Told before the first message is asked for, or with it."""
    with pytest.raises(TopicNotFound):
        list(store.read("nope"))
    store.create_topic("t", partitions=2)
    with pytest.raises(TopicNotFound) as caught:
        list(store.read("t", 2))
    assert (caught.value.topic, caught.value.partition) == ("t", 2)


def test_messages_published_while_reading_do_no_harm(store: Store) -> None:
    """What was there at the beginning is read, in order, without a hole."""
    store.create_topic("t", segment_messages=5)
    store.publish_many("t", numbered(12))
    reading = store.read("t")
    seen = [next(reading).value for _ in range(6)]
    store.publish_many("t", numbered(8, 12))
    seen += values(reading)
    assert seen[:12] == numbered(12)
    assert seen == numbered(len(seen))


def test_a_message_stays_what_it_is(store: Store) -> None:
    """Also after the store is closed: its value belongs to it."""
    store.publish("t", b"x", key=b"k", headers={"h": b"1"})
    (message,) = store.read("t")
    before = (message.value, message.key, list(message.headers), message.timestamp)
    store.close()
    assert (message.value, message.key, list(message.headers), message.timestamp) == before


def test_segments_that_were_sealed_and_merged_read_the_same(backend: Backend, rng: Any, seed: int) -> None:
    """Many small batches over many segments, random sizes, with every kind of column."""
    print("seed", seed)
    store = backend.open()
    store.create_topic("t", segment_messages=20)
    expected = []
    for number in range(150):
        key = rng.choice([None, b"", b"key-%d" % (number % 7)])
        headers = rng.choice([[], [("a", b"%d" % number), ("b", b"")]])
        value = rng.choice([None, b"", rng.randbytes(30)])
        store.publish("t", value, key=key, headers=headers, timestamp=number)
        expected.append((number, value, key, headers, number * 1_000_000))

    def found(one: Store) -> list[Any]:
        return [(m.offset, m.value, m.key, list(m.headers), m.timestamp_us) for m in one.read("t")]

    assert found(store) == expected
    if backend.keeps_data:
        assert found(backend.reopen()) == expected


# -- read_arrow -----------------------------------------------------------------------------------------------------

pyarrow = pytest.importorskip("pyarrow")


def rows(batches: Any) -> list[dict[str, Any]]:
    """Arrow batches as rows."""
    return [row for batch in batches for row in batch.to_pylist()]


def test_arrow_has_the_same_messages(backend: Backend) -> None:
    """Column by column what `read` gives message by message."""
    store = backend.open()
    store.publish("t", b"a", key=b"k", headers=[("h", b"1"), ("h", b"2")], timestamp=5)
    store.publish("t", None)
    store.publish_many("t", [b"", bytes(range(256))], keys=[b"", None])
    batches = list(store.read_arrow("t", 0))
    assert all(isinstance(batch, pyarrow.RecordBatch) for batch in batches)
    found = rows(batches)
    messages = list(store.read("t"))
    assert [row["offset"] for row in found] == offsets(messages)
    assert [row["value"] for row in found] == values(messages)
    assert [row["key"] for row in found] == [message.key for message in messages]
    assert [row["timestamp"] for row in found] == [message.timestamp for message in messages]
    assert [[(one["key"], one["value"]) for one in row["headers"] or []] for row in found] == [
        list(message.headers) for message in messages
    ]


def test_arrow_batches_have_one_schema(store: Store) -> None:
    """Whatever the messages have, so that they can be joined."""
    store.publish("t", b"a")
    store.publish("t", b"a", key=b"k", headers={"h": b""})
    store.publish("t", None)
    batches = list(store.read_arrow("t"))
    assert len({str(batch.schema) for batch in batches}) == 1
    assert pyarrow.Table.from_batches(batches).num_rows == 3


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        ("earliest", None, range(20)),
        (5, 9, range(5, 9)),
        (3, 3, []),
        (20, None, []),
        ("latest", None, []),
        (6, "latest", range(6, 20)),
    ],
)
def test_arrow_keeps_to_the_range(store: Store, start: Any, end: Any, expected: Any) -> None:
    """Batches are cut where the range is."""
    for part in range(4):
        store.publish_many("t", numbered(5, part * 5))
    assert [row["offset"] for row in rows(store.read_arrow("t", 0, start=start, end=end))] == list(expected)


def test_arrow_can_be_asked_for_some_columns(store: Store) -> None:
    """In the order asked for."""
    store.publish_many("t", numbered(3), keys=["a", "b", "c"])
    (batch,) = store.read_arrow("t", 0, columns=["value", "offset"])
    assert batch.schema.names == ["value", "offset"]
    assert batch.to_pydict() == {"value": numbered(3), "offset": [0, 1, 2]}


def test_arrow_reads_every_partition(store: Store) -> None:
    """Each row once."""
    store.create_topic("t", partitions=3)
    for partition in range(3):
        store.publish_many("t", [b"%d.%d" % (partition, number) for number in range(4)], partition=partition)
    found = [row["value"] for row in rows(store.read_arrow("t"))]
    assert sorted(found) == [b"%d.%d" % (partition, number) for partition in range(3) for number in range(4)]


def test_arrow_is_out_of_range_where_reading_is(store: Store) -> None:
    """The same errors for the same reasons."""
    store.publish_many("t", numbered(3))
    with pytest.raises(OffsetOutOfRange):
        list(store.read_arrow("t", 0, start=4))
    with pytest.raises(TopicNotFound):
        list(store.read_arrow("nope"))
    with pytest.raises(TopicNotFound):
        list(store.read_arrow("t", 1))


def test_arrow_tells_the_partition(store: Store) -> None:
    """An offset means nothing without it: first by default, and wherever it is named."""
    store.create_topic("t", partitions=3)
    for number in range(9):
        store.publish("t", b"%d" % number, partition=number % 3)
    store.publish_many("t", [b"9", b"10"], partition=2)
    table = pyarrow.Table.from_batches(store.read_arrow("t"))
    assert table.schema.names == [
        "partition", "offset", "timestamp", "key", "value", "headers", "priority", "expires_at", "deliver_at"
    ]  # fmt: skip
    expected = sorted((message.partition, message.offset, message.value) for message in store.read("t"))
    assert sorted((row["partition"], row["offset"], row["value"]) for row in table.to_pylist()) == expected
    chosen = pyarrow.Table.from_batches(store.read_arrow("t", 2, columns=["value", "partition"]))
    assert chosen.to_pylist() == [{"value": b"%d" % number, "partition": 2} for number in (2, 5, 8, 9, 10)]
    alone = pyarrow.Table.from_batches(store.read_arrow("t", columns=["partition"]))
    assert alone.column(0).to_pylist() == [0] * 3 + [1] * 3 + [2] * 5
    with pytest.raises(BadColumn, match="partition, offset"):
        list(store.read_arrow("t", columns=["nothing"]))


@pytest.mark.parametrize("columns", [None, ["partition"], ["value", "offset"], ["appended_at", "partition", "headers"]])
def test_arrow_of_nothing_is_an_empty_table(store: Store, columns: list[str] | None) -> None:
    """With the same columns and types as if there were messages: of a topic without any, and of a range without any."""
    store.create_topic("t", partitions=2)
    empty = pyarrow.Table.from_batches(store.read_arrow("t", columns=columns))
    assert empty.num_rows == 0
    store.publish("t", b"x", partition=1)
    nothing = pyarrow.Table.from_batches(store.read_arrow("t", 1, start="latest", columns=columns))
    full = pyarrow.Table.from_batches(store.read_arrow("t", columns=columns))
    assert (nothing.num_rows, full.num_rows) == (0, 1)
    assert empty.schema == nothing.schema == full.schema


def test_an_empty_topic_has_no_rows(store: Store) -> None:
    """And that is no error."""
    store.create_topic("t")
    assert rows(store.read_arrow("t")) == []


# -- read_only ------------------------------------------------------------------------------------------------------


def test_a_reader_sees_what_the_owner_has_published(shared: Backend) -> None:
    """Beside it, and as it grows."""
    owner = shared.open()
    owner.create_topic("t", partitions=2)
    owner.publish_many("t", numbered(5), partition=0)
    reader = shared.reader()
    assert stored(reader, "t", 0) == numbered(5)
    assert [(info.name, info.partitions) for info in reader.topics()] == [("t", 2)]
    owner.publish_many("t", numbered(5, 5), partition=0)
    assert stored(reader, "t", 0) == numbered(10)
    assert [row["offset"] for row in rows(reader.read_arrow("t", 0))] == list(range(10))
    owner.publish("new", b"x")
    assert stored(reader, "new") == [b"x"]


def test_a_reader_can_change_nothing(shared: Backend) -> None:
    """Every call that would is refused with one error, and the owner goes on."""
    owner = shared.open()
    owner.publish_many("t", numbered(3))
    owner.subscribe("t", "g").close()
    before = state_of(owner)
    reader = shared.reader()
    for call in (
        lambda: reader.publish("t", b"x"),
        lambda: reader.publish_many("t", [b"x"]),
        lambda: reader.create_topic("new"),
        lambda: reader.producer("t"),
        lambda: reader.subscribe("t", "g"),
        lambda: reader.seek("t", "g", "earliest"),
        lambda: reader.delete_group("t", "g"),
        lambda: reader.dead_letters("t").replay(),
        lambda: reader.dead_letters("t").discard(),
        lambda: reader.retain("t"),
    ):
        with pytest.raises(ReadOnly):
            call()
    with pytest.raises(ReadOnly):
        reader.transaction()
    assert state_of(owner) == before
    assert owner.publish("t", b"next").offset == 3


def test_a_reader_outlives_its_owner(shared: Backend) -> None:
    """And a closed store can be read too."""
    owner = shared.open()
    owner.publish_many("t", numbered(3))
    reader = shared.reader()
    owner.close()
    assert stored(reader, "t") == numbered(3)
    assert stored(shared.reader(), "t") == numbered(3)


def test_reading_the_dead_letters_beside_the_owner(shared: Backend) -> None:
    """They are a topic like any."""
    owner = shared.open()
    owner.publish_many("t", numbered(3))
    with owner.subscribe("t", "g") as consumer:
        message = consumer.get(timeout=0)
        assert message is not None
        message.reject("bad")
    assert stored(shared.reader(), "t.dlq") == [b"0"]


def test_looking_moves_no_position(shared: Backend) -> None:
    """Inspection is no consumption."""
    owner = shared.open()
    owner.publish_many("t", numbered(5))
    with owner.subscribe("t", "g") as consumer:
        drain(consumer, 2)
    reader = shared.reader()
    list(reader.read("t"))
    reader.close()
    assert position(owner, "t", "g") == 2
