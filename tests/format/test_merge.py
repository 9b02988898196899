"""Cutting and merging: the messages stay as they were, with offsets, times, keys and who published them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadColumn
from penstock.format import columns as c
from penstock.format.batch import Batch, EncodedBatch, encode_batch, encode_single
from penstock.format.batch_header import Producer, Transaction
from penstock.format.compression import Codec
from penstock.format.merge import cut, merge
from tests.format.strategies import Columns, columns, message, messages, stamped

if TYPE_CHECKING:
    from collections.abc import Callable


@st.composite
def logs(draw: Callable[[st.SearchStrategy[Any]], Any], *, most: int = 4) -> list[Batch]:
    """Batches that follow each other in one log, of one schema, as coalescing finds them."""
    batches: list[Batch] = []
    offset = 1000
    time_us = 1_700_000_000_000_000
    # Half of the logs have no producers, transactions or message times: merging treats those in another way.
    plain = {"producer": None, "transaction": None, "times_us": None} if draw(st.booleans()) else {}
    for _ in range(draw(st.integers(1, most))):
        given_columns: Columns = draw(columns())
        arguments = {**given_columns.arguments, **plain, "schema_id": 7}
        # Compaction leaves gaps between batches too.
        offset += draw(st.integers(0, 2))
        batches.append(stamped(Columns(arguments, offset, time_us).encode(), offset, time_us))
        offset = batches[-1].end_offset
        time_us += 1000
    return batches


def merged(batches: list[Batch]) -> Batch:
    """The batches merged and stamped as coalescing does it."""
    first, last = batches[0].header, batches[-1].header
    encoded = merge(batches)
    encoded.stamp(first.first_offset, first.append_time_us, last.max_time_us, 5, 0, 1)
    return Batch(encoded.data)


@given(logs())
def test_a_merged_batch_reads_like_its_sources(batches: list[Batch]) -> None:
    """Every message with everything it had; the range of offsets is that of all sources together."""
    one = merged(batches)
    one.check()
    assert messages(one) == [message for batch in batches for message in messages(batch)]
    assert (one.first_offset, one.end_offset) == (batches[0].first_offset, batches[-1].end_offset)
    assert one.schema_id == 7
    assert one.producer is None
    sources = [batch for batch in batches for _ in range(len(batch))]
    assert [one.append_time_us(index) for index in range(len(one))] == [batch.header.append_time_us for batch in sources]


class Origin(NamedTuple):
    """Where a message came from."""

    append_time_us: int
    producer: Producer | None
    transaction: Transaction | None


def origins(batch: Batch) -> list[Origin]:
    """Of each message of a batch when it was appended and by whom."""
    found = []
    for index in range(len(batch)):
        producer, transaction = batch.producer, batch.transaction
        if batch.runs():
            run = c.run_of(batch.runs(), index)
            producer = Producer(run.producer_id, run.producer_incarnation, run.producer_sequence)
            transaction = Transaction(run.transaction_number, run.transaction_part)
            producer = producer if run.flags & c.RUN_PRODUCER else None
            transaction = transaction if run.flags & c.RUN_TRANSACTION else None
        found.append(Origin(batch.append_time_us(index), producer, transaction))
    return found


@given(logs())
def test_a_merged_batch_remembers_who_published_what(batches: list[Batch]) -> None:
    """Each message knows when it was appended, by which producer and in which transaction."""
    assert origins(merged(batches)) == [origin for batch in batches for origin in origins(batch)]


@given(logs())
def test_a_run_is_a_source(batches: list[Batch]) -> None:
    """Where a merged batch has runs, there is one for each source, with its first offset and its times."""
    runs = merged(batches).runs()
    if runs:
        assert [run.first_offset for run in runs] == [batch.first_offset for batch in batches]
        assert [run.max_time_us for run in runs] == [batch.header.max_time_us for batch in batches]
        assert runs[-1].end_index == sum(map(len, batches))
    else:
        assert not any(batch.producer or batch.transaction for batch in batches)


@given(logs(most=3), logs(most=3))
def test_merging_what_was_merged_loses_nothing(first: list[Batch], second: list[Batch]) -> None:
    """
    A segment may be rewritten more than once: every message keeps what it had.

    Found by this test: beside a batch with a producer, all messages of a merged batch without one got the same append time.
    """
    shift = first[-1].end_offset - second[0].first_offset
    moved = [stamped(_encoded(batch), batch.first_offset + shift, batch.header.append_time_us + 10_000) for batch in second]
    twice, once = merged([merged(first), merged(moved)]), merged([*first, *moved])
    twice.check()
    assert messages(twice) == messages(once)
    assert origins(twice) == origins(once)


def _encoded(batch: Batch) -> EncodedBatch:
    header = batch.header
    return EncodedBatch(bytearray(batch.buffer), header.header_bytes, header.count, header.offset_span)


@given(st.data(), columns())
def test_a_cut_is_the_slice(data: st.DataObject, given_columns: Columns) -> None:
    """As a batch of its own, with the offsets that its messages had."""
    batch = given_columns.stored()
    start = data.draw(st.integers(0, len(batch) - 1))
    stop = data.draw(st.integers(start + 1, len(batch)))
    part = batch.slice(start, stop)
    encoded = part.encode()
    alone = stamped(encoded, batch.offset(start), batch.header.append_time_us)
    alone.check()
    assert messages(alone) == [message(batch, index) for index in range(start, stop)]
    assert (alone.transaction, alone.schema_id) == (batch.transaction, batch.schema_id)
    assert alone.end_offset == batch.offset(stop - 1) + 1


@given(st.data(), logs())
def test_a_cut_of_a_merged_batch_keeps_where_its_messages_came_from(data: st.DataObject, batches: list[Batch]) -> None:
    """
    Each message still knows when it was appended and by whom.

    Found by this test: a cut forgot that the time column of a merged batch tells when each message was appended.
    """
    whole = merged(batches)
    start = data.draw(st.integers(0, len(whole) - 1))
    stop = data.draw(st.integers(start + 1, len(whole)))
    part = stamped(cut(whole, start, stop), whole.offset(start), whole.header.append_time_us)
    part.check()
    assert messages(part) == messages(whole)[start:stop]
    assert origins(part) == origins(whole)[start:stop]


@given(columns(dense=True))
def test_pieces_of_a_batch_merge_to_its_messages(given_columns: Columns) -> None:
    """Cut into single messages and put together again."""
    batch = given_columns.stored()
    pieces = [stamped(cut(batch, at, at + 1), batch.offset(at), batch.header.append_time_us) for at in range(len(batch))]
    assert messages(merged(pieces)) == messages(batch)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD, Codec.LZ4])
def test_merging_small_batches_compresses_what_was_too_small_alone(codec: Codec) -> None:
    """If one source is compressed the merged batch is, as a whole."""
    small = [stamped(encode_single(b"text " * 20), index) for index in range(20)]
    large = stamped(encode_batch([b"text " * 1000], codec=codec), 20)
    batch = merged([*small, large])
    entry = batch.entry(c.VALUE)
    assert entry is not None
    assert entry.codec == codec
    assert messages(batch) == [message for one in [*small, large] for message in messages(one)]
    plain = merged(small).entry(c.VALUE)
    assert plain is not None
    assert plain.codec == Codec.NONE


def test_a_column_that_some_sources_lack_is_null_there() -> None:
    """Keys, headers, expiry and priority of one batch do not spread to its neighbours."""
    batch = merged(
        [
            stamped(encode_single(b"a"), 0, 10),
            stamped(
                encode_batch(
                    [None], keys=[b""], headers=[[("n", b"v")]], expires_us=[5], expires_relative=True, priorities=[9]
                ),
                1,
                20,
            ),
            stamped(encode_single(b"c"), 2, 30),
        ]
    )
    assert [None if (key := batch.key(index)) is None else bytes(key) for index in range(3)] == [None, b"", None]
    assert [batch.headers(index) for index in range(3)] == [[], [("n", b"v")], []]
    assert [batch.expires_us(index) for index in range(3)] == [None, 25, None]
    assert [batch.priority(index) for index in range(3)] == [0, 9, 0]
    assert [batch.time_us(index) for index in range(3)] == [10, 20, 30]


@pytest.mark.parametrize("expires", [[(1 << 63) - 1, 1], [(1 << 63) - 1, None], [None, (1 << 63) - 1]])
def test_a_relative_time_as_late_as_can_be_can_be_merged(expires: list[int | None]) -> None:
    """
    Merging makes times absolute, and the sum must stay a time.

    Found by the fuzzer: coalescing such a batch raised `OverflowError`, which ended the maintenance thread.
    """
    batch = stamped(encode_batch([b"a", b"b"], expires_us=expires, expires_relative=True))
    one = merged([batch])
    assert [one.expires_us(index) for index in range(2)] == [batch.expires_us(index) for index in range(2)]


def test_an_empty_slice_is_no_batch() -> None:
    """A batch has at least one message, so there is nothing to encode."""
    batches = [stamped(encode_batch([b"a", b"b"])), stamped(encode_batch([b"a", b"b"], offset_deltas=[0, 3], offset_span=4))]
    for batch in batches:
        for at in range(3):
            assert len(batch.slice(at, at)) == 0
            with pytest.raises(BadColumn):
                batch.slice(at, at).encode()


@given(logs())
def test_a_merged_batch_as_arrow_tells_when_each_message_was_appended(batches: list[Batch]) -> None:
    """Also where its publisher gave it a time of its own."""
    one = merged(batches)
    sources = [batch for batch in batches for _ in range(len(batch))]
    for batch, expected in (
        (one, [source.header.append_time_us for source in sources]),
        (batches[0], [batches[0].header.append_time_us] * len(batches[0])),
    ):
        assert batch.to_arrow(["appended_at"]).column(0).cast("int64").to_pylist() == expected
