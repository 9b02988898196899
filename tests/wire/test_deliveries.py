"""Messages with their tags, attempts and offsets: what is handed out comes out, and lots that lie are found out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Store
from penstock.errors import BadBytes
from penstock.format.batch import Batch, encode_batch
from penstock.wire.deliveries import WHOLE_BYTES_MAX, decode_deliveries, encode_deliveries, split_batches

FIRST = 1_000


class Handed:
    """What a group hands out, as far as the wire looks at it."""

    def __init__(self, batch: Batch, index: int, partition: int, attempt: int) -> None:
        self._batch = batch
        self._index = index
        self.partition = partition
        self.offset = batch.offset(index)
        self.attempt = attempt


def batch_of(count: int, size: int = 10, deltas: list[int] | None = None, first: int = FIRST) -> Batch:
    """A stored batch; *deltas* are those of one that was compacted."""
    encoded = encode_batch(
        [b"%d " % number + bytes(size) for number in range(count)],
        keys=[b"k%d" % number for number in range(count)],
        headers=[[("n", b"%d" % number)] for number in range(count)],
        times_us=[number * 3 for number in range(count)],
        offset_deltas=deltas,
        offset_span=None if deltas is None else deltas[-1] + 1,
    )
    encoded.stamp(first, 1_700_000_000_000_000, 0, 1, 0, 1)
    return Batch(bytes(encoded.data))


def handed(batch: Batch, indices: Any, attempts: Any = None, partition: int = 2) -> list[Any]:
    return [Handed(batch, index, partition, 1 if attempts is None else attempts[at]) for at, index in enumerate(indices)]


def over_the_wire(deliveries: list[Any], first_tag: int = 50) -> list[Any]:
    lots, payload = encode_deliveries(deliveries, first_tag)
    return decode_deliveries(json.loads(json.dumps(lots)), memoryview(b"".join(payload)))


def told(one: Any) -> tuple[Any, ...]:
    """All that a message says."""
    batch, index = one.batch, one.index
    return (one.partition, one.offset, one.attempt, *content(batch, index))


def content(batch: Batch, index: int) -> tuple[Any, ...]:
    value, key = batch.value(index), batch.key(index)
    return (bytes(value or b""), bytes(key or b""), batch.headers(index), batch.time_us(index), batch.append_time_us(index))


def check(deliveries: list[Any]) -> None:
    found = over_the_wire(deliveries)
    assert [one.tag for one in found] == list(range(50, 50 + len(deliveries)))
    assert [told(one) for one in found] == [
        (one.partition, one.offset, one.attempt, *content(one._batch, one._index)) for one in deliveries
    ]


def test_a_whole_batch_travels_as_it_is() -> None:
    """Its bytes are those on disk."""
    batch = batch_of(50, 200)
    deliveries = handed(batch, range(50))
    _, payload = encode_deliveries(deliveries, 1)
    assert [bytes(one) for one in payload] == [bytes(batch.buffer)]
    check(deliveries)


def test_a_small_part_of_a_large_batch_is_cut_out() -> None:
    """The rest does not travel with it."""
    batch = batch_of(100, 1_000)
    assert len(batch.buffer) > WHOLE_BYTES_MAX
    deliveries = handed(batch, range(40, 50))
    _, payload = encode_deliveries(deliveries, 1)
    assert sum(map(len, payload)) < len(batch.buffer) / 5
    check(deliveries)


def test_a_part_of_a_small_batch_is_not_cut() -> None:
    """It costs more than it saves."""
    batch = batch_of(10, 10)
    deliveries = handed(batch, [3])
    _, payload = encode_deliveries(deliveries, 1)
    assert [bytes(one) for one in payload] == [bytes(batch.buffer)]
    check(deliveries)


@pytest.mark.parametrize("size", [5, 1_000])
def test_offsets_with_holes_arrive(size: int) -> None:
    """Of a batch that lost messages to compaction, whole and in part."""
    batch = batch_of(12, size, deltas=[0, 1, 2, 5, 9, 10, 11, 40, 41, 42, 43, 60])
    check(handed(batch, range(12)))
    check(handed(batch, range(3, 8)))
    check(handed(batch, [7, 8, 9]))
    check(handed(batch, [0, 4, 11]))


def test_attempts_that_differ_arrive() -> None:
    """Each message has its own."""
    batch = batch_of(10)
    check(handed(batch, range(10), attempts=[1, 1, 2, 3, 1, 1, 1, 9, 1, 4]))
    check(handed(batch, range(10), attempts=[7] * 10))


def test_several_batches_and_partitions_arrive() -> None:
    """In the order in which they were handed out, also back and forth."""
    one, other = batch_of(10, 1_000), batch_of(5, 10, first=7)
    check([*handed(one, [1, 2]), *handed(other, range(5), partition=0), *handed(one, [8, 3, 4])])


def test_nothing_is_nothing() -> None:
    """An answer without messages."""
    assert encode_deliveries([], 1) == ([], [])
    assert decode_deliveries([], memoryview(b"")) == []


@given(st.data())
def test_any_choice_of_messages_arrives(data: st.DataObject) -> None:
    """Of batches of any size."""
    chosen: list[Any] = []
    for number in range(data.draw(st.integers(1, 3))):
        count = data.draw(st.integers(1, 12))
        deltas = (
            sorted(data.draw(st.sets(st.integers(0, 40), min_size=count, max_size=count))) if data.draw(st.booleans()) else None
        )
        batch = batch_of(count, data.draw(st.sampled_from([0, 100, 2_000])), deltas, first=FIRST * number)
        indices = data.draw(st.lists(st.integers(0, count - 1), unique=True, max_size=count))
        attempts = [data.draw(st.integers(1, 3)) for _ in indices]
        chosen += handed(batch, indices, attempts, partition=number)
    check(chosen)


def test_real_deliveries_arrive() -> None:
    """Those of a group, with what was nacked among them."""
    with Store.open("memory:") as store:
        store.create_topic("orders")
        store.publish_many("orders", [b"%d" % number for number in range(20)])
        consumer = store.subscribe("orders", "workers", backoff=0.001, backoff_max=0.001)
        first = consumer.get_many(20, timeout=1)
        consumer.nack(first[3:6], delay=0)
        again = consumer.get_many(20, timeout=1)
        found = over_the_wire(again)
        assert [bytes(one.batch.value(one.index) or b"") for one in found] == [one.value for one in again]
        assert {one.attempt for one in found} == {2}


# -- lies -----------------------------------------------------------------------------------------------------------

BATCH = batch_of(4)
PAYLOAD = bytes(BATCH.buffer)
RIGHT: list[Any] = [0, 2, 1, [50, 3], [1, 2, 1], [1_001, 1_002, 1_003]]


def test_the_lot_that_the_lies_are_made_of_is_right() -> None:
    """Else they would be refused for another reason."""
    assert [one.offset for one in decode_deliveries([RIGHT], memoryview(PAYLOAD))] == [1_001, 1_002, 1_003]


LIES: dict[int, list[Any]] = {
    0: [1, -1, True, None, 0.0, "0", [], {}],
    2: [2, 4, -1, -2, 1 << 70, None, "1", [], {}],
    3: [50, [], [50], [50, 3, 1], [50, 4], [50, -1], [50, 1 << 40], [50, None], [None, 3], ["a", 3], {}, None, "ab"],
    4: [None, [], [1, 2], "ab", 1.5],
    5: [None, [], [1_001, 1_002], "ab", 1.5],
}
"""By their place in a lot."""


@pytest.mark.parametrize(("place", "lie"), [(place, lie) for place, lies in LIES.items() for lie in lies])
def test_lots_that_lie_are_refused(place: int, lie: Any) -> None:
    """Indices outside the batch, counts that do not fit, and what is of another type."""
    lot = [*RIGHT]
    lot[place] = lie
    with pytest.raises(BadBytes):
        decode_deliveries([lot], memoryview(PAYLOAD))


@pytest.mark.parametrize(
    ("place", "lie"),
    [
        (1, "2"), (1, None), (1, []), (2, 0.5), (3, [0.5, 3]), (4, ["a", "b", "c"]), (4, [None, 1, 1]), (4, {}), (4, {"0": 1}),
        (5, ["a", "b", "c"]), (5, [{}, 1, 2]), (5, {}), (5, {"0": 1}),
    ],
)  # fmt: skip
def test_numbers_that_are_none_are_refused(place: int, lie: Any) -> None:
    """They would come out as the partition, the tag, the attempt or the offset of a message."""
    lot = [*RIGHT]
    lot[place] = lie
    with pytest.raises(BadBytes):
        decode_deliveries([lot], memoryview(PAYLOAD))


@pytest.mark.parametrize("lots", [None, 5, "x", {"a": 1}, [None], [[]], [5], ["abcdef"], [RIGHT[:5]], [[*RIGHT, 1]]])
def test_lots_that_are_no_lots_are_refused(lots: Any) -> None:
    """Whatever they are."""
    with pytest.raises(BadBytes):
        decode_deliveries(lots, memoryview(PAYLOAD))


@pytest.mark.parametrize(
    "payload", [PAYLOAD[:-1], PAYLOAD[:50], PAYLOAD + b"x", PAYLOAD + PAYLOAD[:-1], b"", b"x" * 300, bytes(300)]
)
def test_payloads_that_are_no_batches_are_refused(payload: bytes) -> None:
    """Cut off, too long, or none at all."""
    with pytest.raises(BadBytes):
        decode_deliveries([RIGHT], memoryview(payload))


def test_batches_are_split_as_they_were_joined() -> None:
    """One behind the other."""
    batches = [batch_of(number + 1, first=number) for number in range(5)]
    found = split_batches(memoryview(b"".join(bytes(one.buffer) for one in batches)))
    assert [bytes(one.buffer) for one in found] == [bytes(one.buffer) for one in batches]
    assert split_batches(memoryview(b"")) == []
