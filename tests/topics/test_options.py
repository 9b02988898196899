"""Options of a publish: what a plain message costs, and what a client may not smuggle in with a batch that it encoded itself."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import pytest

from penstock import Store
from penstock.broker.batches import adopt
from penstock.errors import BadArgument, BadBytes, BadSetting, BatchTooLarge, MessageTooLarge, PenstockError, UsageError
from penstock.format import columns as c
from penstock.format import compression
from penstock.format.batch import Batch, EncodedBatch, encode_batch, is_compressed
from penstock.format.compression import BLOCK_BYTES, Codec
from penstock.settings import TopicSettings
from penstock.topics.encoder import Columns, MessageEncoder
from penstock.topics.options import PRIORITIES, Moment, deliver_column, options
from penstock.values import MIB

if TYPE_CHECKING:
    from penstock.topics.topic import Topic

US = 1_000_000
PINNED = [(144, 662134724), (328, 1036646663), (232, 773797895)]


def plain(partitions: int = 1) -> MessageEncoder:
    return MessageEncoder("t", partitions, TopicSettings())


def stamped(batch: EncodedBatch) -> EncodedBatch:
    batch.stamp(0, 0, 0, 0, 0, 0)
    return batch


@pytest.fixture
def topic() -> Topic:
    store = Store.open("memory:", background=False)
    store.create_topic("t", priorities=True, max_message_bytes=100_000)
    return store._catalog.get("t")


# A message without options costs nothing


def test_plain_messages_are_encoded_as_they_always_were() -> None:
    """Byte by byte what the format's encoder makes of a value, a key, headers and a time: no column more."""
    encoder = plain()
    assert encoder.encode(b"x", None, None, None)[0].data == encode_batch([b"x"]).data
    assert encoder.encode(b"x" * 70_000, None, None, None)[0].data == encode_batch([b"x" * 70_000]).data
    assert encoder.encode(None, None, None, None)[0].data == encode_batch([None]).data
    whole = encode_batch([b"x"], keys=[b"k"], headers=[[("h", b"v")]], times_us=[5 * US])
    assert encoder.encode(b"x", b"k", {"h": b"v"}, 5)[0].data == whole.data
    several = Columns(encoder, [b"x", b"y" * 5000], [b"k", None], None, None, None)
    assert several.encode_all().data == encode_batch([b"x", b"y" * 5000], keys=[b"k", None]).data


def test_the_bytes_of_a_plain_batch_are_pinned() -> None:
    """They are those of before there were options: lengths and checksums of three batches, stamped alike."""
    encoder = plain()
    batches = [
        encoder.encode(b"plain", None, None, None)[0],
        encoder.encode(b"plain", b"key", {"h": b"v"}, 17)[0],
        Columns(encoder, [b"a", None, b"c"], None, None, [1, None, 3], None).encode_all(),
    ]
    assert [(len(batch.data), zlib.crc32(stamped(batch).data)) for batch in batches] == PINNED


def test_options_that_ask_for_nothing_add_nothing() -> None:
    encoder = MessageEncoder("t", 1, TopicSettings(priorities=True))
    nothing = options(None, 0, "low", "none")
    assert encoder.encode(b"x", None, None, None, None, nothing)[0].data == encode_batch([b"x"]).data
    many = Columns(encoder, [b"x", b"y"], None, None, None, None, options([None, None], 0, ["low", None], None))
    assert many.encode_all().data == encode_batch([b"x", b"y"]).data


def test_the_ttl_of_a_topic_takes_no_byte() -> None:
    assert MessageEncoder("t", 1, TopicSettings(ttl_ms=5)).encode(b"x", None, None, None)[0].data == encode_batch([b"x"]).data


def test_a_column_is_relative_or_not() -> None:
    assert deliver_column([5, None], lambda: 100) == ([5, None], True)
    assert deliver_column([Moment(5), None], lambda: 100) == ([5, None], False)
    assert deliver_column([5, None, Moment(7)], lambda: 100) == ([105, None, 7], False)


# Libraries that are not there


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_a_codec_without_its_library_is_refused_at_once(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "_zstandard", lambda: None)
    monkeypatch.setattr(compression, "_lz4_block", lambda: None)
    with Store.open("memory:", background=False) as store:
        with pytest.raises(BadSetting, match=r"pip install 'penstock\[compression\]'"):
            store.create_topic("t", compression=codec)
        with pytest.raises(BadSetting, match="pip install"):
            store.publish("t", b"x", compression=codec)
        assert store.topics() == []
        store.create_topic("t", compression="gzip")


# Batches that a client encoded


def take_in(topic: Topic, batch: EncodedBatch) -> EncodedBatch:
    """What the server does with the bytes of a publish."""
    return adopt(topic, bytes(stamped(batch).data))


@pytest.mark.parametrize(
    "given",
    [{"priorities": [3, 0]}, {"priorities": [255, 0]}, {"expires_us": [0, 1], "expires_relative": True},
     {"expires_us": [-1, None], "expires_relative": True}, {"expires_us": [1 << 62, 1], "expires_relative": True},
     {"deliver_us": [-1, 5], "deliver_relative": True}, {"deliver_us": [1 << 62, 5], "deliver_relative": True}],
    ids=str,
)  # fmt: skip
def test_numbers_that_no_publish_gives_are_refused(topic: Topic, given: dict[str, Any]) -> None:
    with pytest.raises(BadBytes):
        take_in(topic, encode_batch([b"x", b"y"], **given))


@pytest.mark.parametrize("column", [c.EXPIRES, c.DELIVER, c.PRIORITY])
def test_bounds_that_are_not_those_of_the_numbers_are_refused(topic: Topic, column: int) -> None:
    """Who skips a column by its bounds would otherwise deliver what is not due, or drop what has not expired."""
    batch = stamped(
        encode_batch(
            [b"x", b"y"],
            expires_us=[5, None],
            expires_relative=True,
            deliver_us=[5, 9],
            deliver_relative=True,
            priorities=[2, 1],
        )
    )
    take_in(topic, batch)
    order = Batch(batch.data).column_ids.index(column)
    at = batch.header_bytes - (4 - order) * c.ENTRY.size
    for bound in (24, 32):
        forged = EncodedBatch(bytearray(batch.data), batch.header_bytes, batch.count, batch.offset_span)
        forged.data[at + bound] ^= 3
        with pytest.raises(PenstockError):
            take_in(topic, forged)


def test_priorities_are_refused_where_the_topic_has_none() -> None:
    with Store.open("memory:", background=False) as store:
        store.create_topic("t")
        with pytest.raises(BadArgument):
            take_in(store._catalog.get("t"), encode_batch([b"x"], priorities=[1]))


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD, Codec.LZ4])
def test_a_compressed_batch_is_taken_in(topic: Topic, codec: Codec) -> None:
    batch = stamped(encode_batch([b"a" * 50_000, b"b" * 50_000], keys=[b"k" * 2000, None], codec=codec))
    assert is_compressed(batch.data)
    adopted = take_in(topic, batch)
    assert bytes(Batch(adopted.data).value(1) or b"") == b"b" * 50_000
    assert not is_compressed(stamped(encode_batch([b"a" * 50_000])).data)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD, Codec.LZ4])
def test_a_message_that_is_too_large_only_when_it_is_inflated_is_refused(topic: Topic, codec: Codec) -> None:
    """Also a bomb of many: what counts is how large they are, and that is told before anything is inflated."""
    with pytest.raises(MessageTooLarge):
        take_in(topic, encode_batch([bytes(100_001)], codec=codec))
    with pytest.raises(BatchTooLarge):
        take_in(topic, encode_batch([bytes(100_000)] * 300, codec=codec))


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD, Codec.LZ4])
def test_a_column_that_does_not_inflate_to_what_it_declares_is_refused(
    topic: Topic, codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than it declares, less, and noise; each with checksums that are right, as whoever forges them would make them."""
    honest = compression.compress_block
    for forge in (
        lambda _: honest(codec, None, bytes(BLOCK_BYTES * 200)),
        lambda _: honest(codec, None, bytes(10)),
        lambda _: b"\x1f\x8b no block at all",
    ):
        monkeypatch.setattr(c, "compress_block", lambda _codec, _level, raw, forge=forge: forge(raw))
        forged = encode_batch([bytes(90_000)], codec=codec)
        if not is_compressed(stamped(forged).data):
            continue  # lz4 of a bomb gains nothing
        with pytest.raises(BadBytes):
            take_in(topic, forged)


def test_a_local_batch_is_as_large_as_it_is_uncompressed(topic: Topic) -> None:
    with pytest.raises(BatchTooLarge):
        topic.publish_many([bytes(90_000)] * 100, None, None, None, None, None, None, options(None, None, None, "zstd"))
    with pytest.raises(UsageError):
        topic.publish(bytes(10 * MIB), None, None, None, None, None, None, options(None, None, None, "zstd"))
    assert topic.logs[0].committed_end == 0


def test_the_names_of_priorities_are_their_numbers() -> None:
    """They are part of the format."""
    assert PRIORITIES == ("low", "medium", "high")
