"""The operations of groups in the journal: there and back, of any number, and whatever is cut off, too long or unknown is refused."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.clock import SystemClock
from penstock.errors import BadBytes, UnsupportedFormat
from penstock.groups import operations as ops
from penstock.groups.registry import Groups
from penstock.offset_set import OffsetSet
from tests.groups.sim import Sim, offsets

if TYPE_CHECKING:
    from collections.abc import Callable

u16 = st.integers(0, (1 << 16) - 1)
u32 = st.integers(0, (1 << 32) - 1)
u63 = st.integers(0, (1 << 63) - 1)
offset_numbers = st.integers(0, ops.OFFSET_MAX)
offset_sets = st.sets(st.one_of(st.integers(0, 200), st.integers(1 << 32, (1 << 32) + 70_000), offset_numbers), max_size=30)
reasons = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
heads = st.tuples(u16, u32, u32)
ranges = st.lists(
    st.tuples(st.integers(0, ops.OFFSET_MAX - ops.SPAN_MAX), st.integers(1, ops.SPAN_MAX)).map(
        lambda pair: (pair[0], sum(pair))
    ),
    min_size=1,
    max_size=5,
)
documents = st.dictionaries(st.text(max_size=5), st.one_of(st.integers(), st.text(max_size=5), st.booleans()), max_size=4)


def single(data: bytes) -> ops.Operation:
    found = list(ops.operations(data))
    assert len(found) == 1
    return found[0]


def head(operation: ops.Operation) -> tuple[int, int, int]:
    return operation.partition, operation.group_id, operation.generation


@given(st.sampled_from([ops.MADE, ops.CONFIGURED, ops.DELETED]), u32, documents)
def test_documents(kind: int, group_id: int, values: dict[str, Any]) -> None:
    operation = single(ops.encode_document(kind, group_id, values))
    assert (operation.kind, operation.group_id) == (kind, group_id)
    assert ops.decode_document(operation) == values


@given(st.sampled_from([ops.LEASED, ops.RETURNED]), heads, u63, u32, ranges)
def test_ranges(kind: int, place: tuple[int, int, int], member: int, concurrency: int, given_ranges: list) -> None:
    operation = single(ops.encode_ranges(kind, *place, member, concurrency, given_ranges))
    assert (operation.kind, head(operation)) == (kind, place)
    assert ops.decode_ranges(operation) == (member, concurrency, given_ranges)


@given(heads, offset_numbers)
def test_one_finished_offset_is_stored_as_any_bitmap_is(place: tuple[int, int, int], offset: int) -> None:
    """It is written without making the bitmap."""
    operation = single(ops.encode_finished(*place, [offset])[0])
    assert (operation.kind, head(operation)) == (ops.FINISHED, place)
    assert bytes(operation.body) == OffsetSet([offset]).serialize()


def test_many_ranges_are_several_operations() -> None:
    """Each fits into any frame, and together they say the same."""
    many = [(at * 3, at * 3 + 2) for at in range(ops.RANGES_PER_OPERATION * 3 + 1)]
    found = list(ops.operations(ops.encode_ranges(ops.LEASED, 1, 2, 3, 4, 5, many)))
    assert len(found) == 4
    assert [one for operation in found for one in ops.decode_ranges(operation)[2]] == many
    assert {head(operation) for operation in found} == {(1, 2, 3)}


@given(heads, offset_sets)
def test_finished(place: tuple[int, int, int], offsets: set[int]) -> None:
    found = [operation for data in ops.encode_finished(*place, sorted(offsets)) for operation in ops.operations(data)]
    assert all(operation.kind == ops.FINISHED and head(operation) == place for operation in found)
    assert {offset for operation in found for offset in ops.decode_bitmap(operation.body)} == offsets


def test_many_finished_are_several_operations() -> None:
    many = range(0, ops.FINISHED_PER_OPERATION * 4 + 2, 2)
    parts = ops.encode_finished(1, 2, 3, many)
    assert len(parts) == 3
    assert sorted(offset for data in parts for offset in ops.decode_bitmap(single(data).body)) == list(many)


@given(heads, u63, st.integers(-(1 << 63), (1 << 63) - 1), u32, u32, u32, reasons)
def test_failed(place: tuple[int, int, int], offset: int, due: int, first: int, last: int, count: int, reason: str) -> None:
    failed = ops.Failed(offset, due, first, last, count, reason)
    operation = single(ops.encode_failed(*place, failed))
    assert (operation.kind, head(operation)) == (ops.FAILED, place)
    assert ops.decode_failed(operation) == failed


@given(heads, u63, u32, reasons, offset_sets)
def test_failed_all(place: tuple[int, int, int], due: int, count: int, reason: str, offsets: set[int]) -> None:
    failed = ops.Failed(0, due, 1, 2, count, reason)
    operation = single(ops.encode_failed_all(*place, failed, sorted(offsets)))
    assert (operation.kind, head(operation)) == (ops.FAILED_ALL, place)
    again, found = ops.decode_failed_all(operation)
    assert again == failed
    assert set(found) == offsets


@given(heads, offset_numbers, offset_sets)
def test_positions_and_suspects(place: tuple[int, int, int], scan: int, offsets: set[int]) -> None:
    bitmap = OffsetSet(offset for offset in offsets if offset < scan)
    assert ops.decode_position(single(ops.encode_position(*place, scan, bitmap))) == (scan, bitmap)
    assert ops.decode_bitmap(single(ops.encode_bitmap(ops.SUSPECTS, *place, bitmap)).body) == bitmap


@given(heads, u63, u63)
def test_numbers(place: tuple[int, int, int], member: int, offset: int) -> None:
    assert ops.decode_begun(single(ops.encode_begun(*place, member, offset))) == (member, offset)
    assert ops.decode_number(single(ops.encode_offset(ops.SOUGHT, *place, offset))) == offset
    assert ops.decode_number(single(ops.encode_left(place[1], member))) == member


@given(st.lists(offset_sets.filter(bool), max_size=4), u32)
def test_operations_follow_each_other(sets: list[set[int]], group_id: int) -> None:
    data = b"".join(ops.encode_bitmap(ops.SUSPECTS, 0, group_id, 0, OffsetSet(one)) for one in sets)
    assert [set(ops.decode_bitmap(operation.body)) for operation in ops.operations(data)] == sets


@given(offset_sets)
def test_ranges_of(offsets: set[int]) -> None:
    """They are rising, do not touch each other, and say the same."""
    found = ops.ranges_of(sorted(offsets))
    assert [offset for start, end in found for offset in range(start, end)] == sorted(offsets)
    assert all(end < start for (_, end), (start, _) in pairwise(found))


# -- bad bytes ------------------------------------------------------------------------------------------------------

SPREAD = OffsetSet([1, 2, 3, 70_000, 1 << 33, *range(200_000, 205_000), *range(300_000, 320_000, 2)])
DECODERS: dict[str, tuple[bytes, Callable[[ops.Operation], Any]]] = {
    "made": (ops.encode_document(ops.MADE, 1, {"name": "g"}), ops.decode_document),
    "leased": (ops.encode_ranges(ops.LEASED, 0, 1, 0, 7, 2, [(1, 5), (9, 12)]), ops.decode_ranges),
    "finished": (ops.encode_finished(0, 1, 0, [1, 2, 9, 1 << 40])[0], lambda one: ops.decode_bitmap(one.body)),
    "spread": (ops.encode_bitmap(ops.SUSPECTS, 0, 1, 0, SPREAD), lambda one: ops.decode_bitmap(one.body)),
    "begun": (ops.encode_begun(0, 1, 0, 7, 8), ops.decode_begun),
    "sought": (ops.encode_offset(ops.SOUGHT, 0, 1, 1, 8), ops.decode_number),
    "left": (ops.encode_left(1, 7), ops.decode_number),
    "position": (ops.encode_position(0, 1, 0, 50, OffsetSet([3, 40])), ops.decode_position),
    "failed all": (
        ops.encode_failed_all(0, 1, 0, ops.Failed(0, 1, 2, 3, 4, "no"), [3, 40]),
        ops.decode_failed_all,
    ),
}
_CUTS = {"spread": 97}
"""Not every one of thousands of lengths, but many."""


def _body(name: str) -> bytes:
    return bytes(single(DECODERS[name][0]).body)


def _with_body(name: str, body: bytes) -> ops.Operation:
    return single(DECODERS[name][0])._replace(body=memoryview(body))


@pytest.mark.parametrize("name", DECODERS)
def test_a_cut_entry_is_refused(name: str) -> None:
    """The length in the head tells, wherever it is cut."""
    data = DECODERS[name][0]
    for length in range(1, len(data), _CUTS.get(name, 1)):
        with pytest.raises(BadBytes):
            list(ops.operations(data[:length]))


@pytest.mark.parametrize("name", DECODERS)
def test_a_body_that_is_too_short_is_refused(name: str) -> None:
    body = _body(name)
    for length in range(0, len(body), _CUTS.get(name, 1)):
        with pytest.raises(BadBytes):
            DECODERS[name][1](_with_body(name, body[:length]))


@pytest.mark.parametrize("name", DECODERS)
def test_a_body_that_is_too_long_is_refused(name: str) -> None:
    body = _body(name)
    for extra in (b"\0", b"\xff", bytes(8), bytes(100)):
        with pytest.raises(BadBytes):
            DECODERS[name][1](_with_body(name, body + extra))


def test_a_failed_operation_that_is_cut_in_its_numbers_is_refused() -> None:
    """The reason takes what is left, so only the numbers can be cut."""
    operation = single(ops.encode_failed(0, 1, 0, ops.Failed(1, 2, 3, 4, 5, "")))
    for length in range(len(operation.body)):
        with pytest.raises(BadBytes):
            ops.decode_failed(operation._replace(body=operation.body[:length]))


def test_a_range_that_ends_before_it_begins_is_refused() -> None:
    for pair in ((5, 5), (6, 5)):
        with pytest.raises(BadBytes):
            ops.decode_ranges(single(ops.encode_ranges(ops.LEASED, 0, 1, 0, 7, 2, [(1, 2), pair])))


@pytest.mark.parametrize("body", [b"", b"[]", b"1", b"{", b"\xff\xff"])
def test_a_document_that_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(BadBytes):
        ops.decode_document(_with_body("made", body))


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """Nothing else comes out, and the bitmap library is not trusted with it."""
    try:
        for operation in ops.operations(data):
            for decode in [one for _, one in DECODERS.values()] + [ops.decode_failed]:
                try:
                    decode(operation)
                except BadBytes:
                    continue
    except BadBytes:
        return


@given(st.sampled_from(sorted(DECODERS)), st.data())
def test_a_flipped_byte_is_read_or_refused(name: str, data: st.DataObject) -> None:
    body = bytearray(_body(name))
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] ^= data.draw(st.integers(1, 255))
    try:
        DECODERS[name][1](_with_body(name, bytes(body)))
    except BadBytes:
        return


def test_leasing_and_finishing_many_scattered_messages_fits_into_any_frame(sim: Sim) -> None:
    """A journal file of 64 KiB has room for 4,000 ranges: there are more here, in one call each."""
    count = 20_000
    sim.store.publish_many("t", [b""] * count)
    consumer = sim.store.subscribe("t", "g", prefetch=count)
    consumer.ack(consumer.get_many(count, timeout=0)[::2])
    consumer.close()
    again = sim.store.subscribe("t", "g", prefetch=count)
    odd = again.get_many(count, timeout=0)
    assert offsets(odd) == [*range(1, count, 2)]
    again.flush()
    again.ack(odd[:-1], wait=True)
    left = sim.kill().subscribe("t", "g", prefetch=count)
    assert offsets(left.get_many(count, timeout=0)) == [count - 1]


def test_passing_over_many_scattered_messages_that_are_not_due_fits_into_any_frame(sim: Sim) -> None:
    count = 12_000
    sim.store.publish_many("t", [b""] * count, delays=[3600 if number % 2 else None for number in range(count)])
    consumer = sim.store.subscribe("t", "g", prefetch=count)
    due = consumer.get_many(count, timeout=0)
    assert offsets(due) == [*range(0, count, 2)]
    consumer.ack(due, wait=True)
    consumer = sim.kill().subscribe("t", "g", prefetch=count)
    assert consumer.get_many(count, timeout=0) == []
    sim.clock.advance(3601)
    assert offsets(consumer.get_many(count, timeout=0)) == [*range(1, count, 2)]


@pytest.mark.parametrize("kind", [0, 17, 255])
def test_an_operation_of_a_group_that_is_not_known_is_refused(kind: int) -> None:
    """It was written by a newer version, and passing it over could lose what it says."""
    groups = Groups(SystemClock())
    document = {"topic_id": "00" * 16, "topic": "t", "name": "g", "settings": {}, "starts": [0]}
    groups.restore(ops.encode_document(ops.MADE, 1, document))
    with pytest.raises(UnsupportedFormat):
        groups.replay(ops._encode(kind, 0, 1, 0, b""))
