"""Joining the small batches of a stage: the messages stay what they are, in their order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.format.batch import Batch, EncodedBatch, encode_batch, encode_single
from penstock.format.batch_header import Producer
from penstock.format.compression import Codec
from penstock.settings import TopicSettings
from penstock.topics.stage_batches import cut_first, join_small
from tests.format.strategies import Columns, columns, messages, stamped

if TYPE_CHECKING:
    from collections.abc import Iterable

PLAIN = TopicSettings()
TIME_US = 1_700_000_000_000_000


def _joined(batches: Iterable[EncodedBatch], settings: TopicSettings = PLAIN, bytes_least: int = 4_000) -> list[EncodedBatch]:
    done, rest = join_small(batches, settings, bytes_least, all_of_them=True)
    assert not rest
    return done


def _contents(batches: list[EncodedBatch]) -> list[tuple[Any, ...]]:
    """All messages as they are read when a commit has appended the batches, with what the batches say of them."""
    found = []
    offset = 1_000
    for encoded in batches:
        batch = stamped(encoded, offset, TIME_US)
        batch.check()
        found += [(one, batch.producer, batch.transaction, batch.schema_id) for one in messages(batch)]
        offset = batch.end_offset
    return found


@given(st.lists(columns(dense=True), max_size=12), st.sampled_from(["none", "gzip"]), st.sampled_from([0, 500, 100_000]))
def test_joined_batches_have_the_same_messages(given_columns: list[Columns], compression: str, bytes_least: int) -> None:
    """Whatever columns they have, whoever published them, relative times and absolute ones, nulls, and any compression."""
    settings = TopicSettings(compression=compression)
    expected = _contents([one.encode() for one in given_columns])
    assert _contents(_joined([one.encode() for one in given_columns], settings, bytes_least)) == expected


def test_single_values_become_one_batch() -> None:
    values = [b"%d" % number * 5 for number in range(20)]
    (batch,) = _joined(map(encode_single, values))
    assert bytes(batch.data) == bytes(encode_batch(values).data)


def test_batches_are_joined_until_they_are_long_and_what_is_left_waits_for_more() -> None:
    """One that is long itself is left as it is."""
    small = [encode_batch([bytes(100)] * 3) for _ in range(25)]
    size = len(small[0].data)
    done, rest = join_small(small, PLAIN, 10 * size, all_of_them=False)
    assert [batch.count for batch in done] == [30, 30]
    assert rest == small[20:]
    long = encode_batch([bytes(6 * size)])
    done, rest = join_small([*rest, long, *small[:2]], PLAIN, 10 * size, all_of_them=False)
    assert [batch.count for batch in done] == [15, 1]
    assert done[1] is long
    assert len(rest) == 2


def test_batches_whose_times_count_from_different_moments_are_not_joined() -> None:
    """Those that have no such times join either."""
    kinds = [{"expires_us": [5], "expires_relative": True}, {}, {"expires_us": [TIME_US]}]
    batches = [encode_batch([b"v"], **kind) for kind in kinds]  # type: ignore[arg-type]
    assert [batch.count for batch in _joined(batches)] == [2, 1]
    assert [batch.count for batch in _joined(batches[1:])] == [2]


def test_a_batch_of_a_producer_or_with_a_schema_stays_alone() -> None:
    marks: list[dict[str, Any]] = [{"producer": Producer(7, 1, 3)}, {"schema_id": 3}]
    for mark in marks:
        batches = [encode_batch([b"v"], **kind) for kind in ({}, {}, mark, mark, {}, {})]
        assert [batch.count for batch in _joined(batches)] == [2, 1, 1, 2]


@pytest.mark.parametrize("of_topic", ["none", "gzip"])
def test_joined_batches_are_compressed_as_the_topic_says_or_as_they_were(of_topic: str) -> None:
    settings = TopicSettings(compression=of_topic)
    codec = Codec.GZIP if of_topic == "none" else Codec.NONE
    (batch,) = _joined([encode_batch([bytes(2_000)], codec=codec) for _ in range(2)], settings, 10_000)
    assert Batch(stamped(batch).buffer).is_compressed


def test_what_is_compressed_and_cannot_be_here_is_left_as_it_is() -> None:
    """A client may have a library that this process lacks."""
    batches = [encode_batch([bytes(2_000)], codec=Codec.GZIP) for _ in range(3)]
    with mock.patch("penstock.topics.stage_batches.is_writable", return_value=False):
        assert _joined(batches) == batches


def test_well_compressed_batches_are_not_joined_beyond_what_their_messages_take() -> None:
    """Thirty of a megabyte each, of which hardly anything is left."""
    batches = [encode_batch([bytes(1 << 20)], codec=Codec.GZIP) for _ in range(30)]
    joined = _joined(batches, bytes_least=512 * 1024)
    assert max(batch.raw_bytes for batch in joined) < 3 << 20
    assert sum(batch.count for batch in joined) == 30


def test_bytes_that_do_not_inflate_are_left_as_they_are() -> None:
    """A commit, or whoever reads them, tells it; here they may not stop others."""
    bad = encode_batch([bytes(2_000)] * 2, codec=Codec.GZIP)
    at = bad.header_bytes + 40
    bad.data[at:] = bytes(len(bad.data) - at)
    batches = [encode_batch([b"v"] * 2), bad]
    assert _joined(batches) == batches


def test_the_first_message_is_cut_off() -> None:
    batch = encode_batch([b"a", b"b", None], keys=[b"1", None, b"3"], expires_us=[1, None, 3], expires_relative=True)
    expected = _contents([batch])
    cut = cut_first(batch)
    assert cut is not None
    assert [one.count for one in cut] == [1, 2]
    assert _contents(list(cut)) == expected
    assert cut_first(encode_batch([b"alone"])) is None
    assert cut_first(encode_batch([b"a", b"b"], producer=Producer(7, 1, 3))) is None
