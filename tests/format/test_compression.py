"""Compression: when it is used, and that inflating stays within the length that was declared, whatever the bytes claim."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import struct
import sys
import tracemalloc
import zlib
from typing import TYPE_CHECKING

import lz4.block
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.fuzz import mend_batch
from penstock.errors import BadBytes, BadSetting, PenstockError, UnsupportedFormat
from penstock.format import columns as c
from penstock.format.batch import Batch, encode_batch
from penstock.format.compression import (
    BLOCK_BYTES,
    COMPRESS_FROM_BYTES,
    COMPRESS_GAIN,
    Codec,
    compress_block,
    inflate_block,
    parse_compression,
)
from penstock.values import MIB
from tests.format.strategies import messages, optional_bytes, stamped

if TYPE_CHECKING:
    from random import Random

CODECS = (Codec.GZIP, Codec.ZSTD, Codec.LZ4)


def codec_of(values: list[bytes], codec: Codec, **columns: object) -> int:
    """The codec that the value column was stored with."""
    entry = stamped(encode_batch(values, codec=codec, **columns)).entry(c.VALUE)  # type: ignore[arg-type]
    assert entry is not None
    return entry.codec


# When it is used


@pytest.mark.parametrize("codec", CODECS)
def test_a_column_below_a_kibibyte_is_not_compressed(codec: Codec) -> None:
    """1023 bytes are left alone, 1024 are compressed; what counts is the whole column and not one value."""
    assert codec_of([bytes(COMPRESS_FROM_BYTES - 1)], codec) == Codec.NONE
    assert codec_of([bytes(COMPRESS_FROM_BYTES)], codec) == codec
    assert codec_of([b"\0"] * (COMPRESS_FROM_BYTES - 1), codec) == Codec.NONE
    assert codec_of([b"\0"] * COMPRESS_FROM_BYTES, codec) == codec


@pytest.mark.parametrize("codec", CODECS)
def test_a_column_that_gains_less_than_five_percent_is_not_compressed(codec: Codec, rng: Random) -> None:
    """Noise is stored as it is; the limit is where the compressed column, with its table, is 95 % of the raw one."""
    noise = rng.randbytes(10_000)
    assert codec_of([noise], codec) == Codec.NONE
    for zeros in range(0, 2000, 50):
        data = noise + bytes(zeros)
        packed = len(compress_block(codec, None, data)) + 4
        assert codec_of([data], codec) == (codec if packed <= len(data) * COMPRESS_GAIN else Codec.NONE), zeros


@pytest.mark.parametrize("codec", CODECS)
def test_each_column_is_judged_by_itself(codec: Codec, rng: Random) -> None:
    """Values may be noise while keys repeat themselves."""
    batch = stamped(encode_batch([rng.randbytes(2000)], keys=[b"k" * 2000], headers=[[("h", b"v" * 2000)]], codec=codec))
    entries = [batch.entry(column) for column in (c.VALUE, c.KEY, c.HEADERS)]
    assert [entry.codec for entry in entries if entry] == [Codec.NONE, codec, codec]
    assert bytes(batch.key(0) or b"") == b"k" * 2000


def test_numbers_and_deduplication_keys_are_never_compressed() -> None:
    """They are looked at more often than they are sent."""
    batch = stamped(
        encode_batch([b""] * 500, times_us=[0] * 500, priorities=[0] * 500, dedup_keys=[b"d" * 20] * 500, codec=Codec.ZSTD)
    )
    entries = [batch.entry(column) for column in (c.TIME, c.PRIORITY, c.DEDUP_KEY)]
    assert [entry.codec for entry in entries if entry] == [0, 0, 0]


# Round trips


@pytest.mark.parametrize("codec", CODECS)
@given(raw=st.binary(min_size=1, max_size=3000), repeat=st.integers(1, 80))
def test_a_block_is_inflated_to_what_it_was(codec: Codec, raw: bytes, repeat: int) -> None:
    """And to nothing else: asking for one byte more or less is refused."""
    data = (raw * repeat)[:BLOCK_BYTES]
    packed = memoryview(compress_block(codec, None, data))
    assert inflate_block(codec, packed, len(data)) == data
    for wrong in (len(data) - 1, len(data) + 1):
        with pytest.raises(BadBytes):
            inflate_block(codec, packed, wrong)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("length", [BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES + 17])
def test_data_over_the_edges_of_blocks_is_read_back(codec: Codec, length: int) -> None:
    """Values inside a block, across two of them, across many, and empty ones at the edges."""
    text = (b"%d," * 60_000 % tuple(range(60_000)) * 4)[:length]
    cuts = [0, 0, 1, length // 2, length // 2, min(BLOCK_BYTES, length), length, length]
    values = [text[begin:end] for begin, end in itertools.pairwise(cuts)]
    batch = stamped(encode_batch([*values, None, text], codec=codec))
    batch.check()
    assert [optional_bytes(batch.value(index)) for index in range(len(batch))] == [*values, None, text]


def test_only_the_blocks_that_are_asked_for_are_inflated() -> None:
    """One message out of a large batch costs the blocks that it lies in."""
    values = [b"%06d" % index * 1000 for index in range(300)]
    batch = stamped(encode_batch(values, codec=Codec.ZSTD))
    assert optional_bytes(batch.value(150)) == values[150]
    assert len(batch._column(c.VALUE).data._blocks) <= 2


@pytest.mark.parametrize(("codec", "level"), [(Codec.GZIP, 1), (Codec.GZIP, 9), (Codec.ZSTD, 1), (Codec.ZSTD, 19)])
def test_a_level_changes_the_size_and_not_the_content(codec: Codec, level: int) -> None:
    """Any level is inflated by any reader."""
    values = [b"level %d " % (index * index) * 20 for index in range(200)]
    batch = stamped(encode_batch(values, codec=codec, level=level))
    assert messages(batch) == messages(stamped(encode_batch(values)))


# Bombs and lies


def peak_of(codec: Codec, packed: bytes, raw_bytes: int) -> int:
    """How much memory refusing a block takes."""
    tracemalloc.start()
    try:
        with pytest.raises(BadBytes):
            inflate_block(codec, memoryview(packed), raw_bytes)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_gzip_bomb_is_stopped_at_the_declared_length() -> None:
    """100 MiB of zeros in 100 KB: inflating ends one byte after what was declared."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = packer.compress(bytes(100 * MIB)) + packer.flush()
    assert len(bomb) < 200_000
    assert peak_of(Codec.GZIP, bomb, 1000) < 1 * MIB
    assert peak_of(Codec.GZIP, bomb, BLOCK_BYTES) < 2 * MIB


def test_a_zstd_frame_that_claims_a_huge_size_is_not_believed() -> None:
    """The library would allocate what the frame claims, so the claim is compared first."""
    bomb = zstandard.ZstdCompressor(level=1).compress(bytes(100 * MIB))
    assert zstandard.frame_content_size(bomb) == 100 * MIB
    assert peak_of(Codec.ZSTD, bomb, 1000) < 1 * MIB
    # A frame header with an eight-byte content size of nearly 2^64, and no content.
    forged = b"\x28\xb5\x2f\xfd" + b"\xe0" + struct.pack("<Q", (1 << 64) - 3)
    assert peak_of(Codec.ZSTD, forged, 1000) < 1 * MIB
    # One that tells the declared size and holds more.
    liar = bytearray(zstandard.ZstdCompressor().compress(bytes(5000)))
    size_at = liar.index(struct.pack("<H", 5000 - 256))
    liar[size_at : size_at + 2] = struct.pack("<H", 1000 - 256)
    assert zstandard.frame_content_size(bytes(liar)) == 1000
    assert peak_of(Codec.ZSTD, bytes(liar), 1000) < 1 * MIB


def test_a_zstd_frame_without_a_size_or_with_a_huge_window_is_refused() -> None:
    """This program always writes the size, and never needs a window larger than a block."""
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(b"x" * 2000)
    with pytest.raises(BadBytes):
        inflate_block(Codec.ZSTD, memoryview(unsized), 2000)
    window = b"\x28\xb5\x2f\xfd" + b"\x40" + b"\xf8" + struct.pack("<H", 2000 - 256) + b"\x01\x00\x00"
    assert peak_of(Codec.ZSTD, window, 2000) < 1 * MIB


def test_an_lz4_block_of_another_length_is_refused() -> None:
    """The length is not in the block, so it is inflated into exactly what was declared."""
    packed = lz4.block.compress(bytes(200_000), store_size=False)
    for declared in (1, 1000, 199_999, 200_001, BLOCK_BYTES):
        assert peak_of(Codec.LZ4, packed, declared) < 1 * MIB
    sized = lz4.block.compress(b"x" * 2000, store_size=True)
    with pytest.raises(BadBytes):
        inflate_block(Codec.LZ4, memoryview(sized), 2000)


@pytest.mark.parametrize("codec", CODECS)
def test_a_block_cut_at_any_byte_is_refused(codec: Codec) -> None:
    """The empty one too."""
    packed = compress_block(codec, None, b"some text, " * 100)
    for length in range(len(packed)):
        with pytest.raises(BadBytes):
            inflate_block(codec, memoryview(packed)[:length], 1100)


def test_a_gzip_block_with_something_behind_it_is_refused() -> None:
    """One block is one member."""
    packed = compress_block(Codec.GZIP, None, b"x" * 2000)
    for tail in (b"\0", packed, gzip.compress(b"")):
        with pytest.raises(BadBytes):
            inflate_block(Codec.GZIP, memoryview(packed + tail), 2000)


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.binary(max_size=200), raw_bytes=st.integers(1, BLOCK_BYTES))
def test_random_bytes_are_refused_or_inflated_to_the_declared_length(codec: Codec, data: bytes, raw_bytes: int) -> None:
    """No other error, and never another length."""
    with contextlib.suppress(BadBytes):
        assert len(inflate_block(codec, memoryview(data), raw_bytes)) == raw_bytes


@pytest.mark.parametrize("codec", CODECS)
def test_flipped_bits_in_a_block_give_a_typed_error_or_some_bytes(codec: Codec) -> None:
    """The checksum of the column is what finds them; inflating alone must only not break."""
    packed = bytearray(compress_block(codec, None, b"some text, " * 100))
    for bit in range(len(packed) * 8):
        packed[bit // 8] ^= 1 << bit % 8
        with contextlib.suppress(BadBytes):
            assert len(inflate_block(codec, memoryview(packed), 1100)) == 1100
        packed[bit // 8] ^= 1 << bit % 8


@pytest.mark.parametrize("raw_bytes", [0, -1, BLOCK_BYTES + 1, 1 << 40])
def test_a_block_never_claims_more_than_a_block(raw_bytes: int) -> None:
    """Nor nothing at all."""
    with pytest.raises(BadBytes):
        inflate_block(Codec.GZIP, memoryview(compress_block(Codec.GZIP, None, b"x")), raw_bytes)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("end", [0, 1, (1 << 31) - 1, (1 << 32) - 1])
def test_a_forged_block_table_is_refused(codec: Codec, end: int) -> None:
    """The ends of blocks are checked against what is stored."""
    batch = stamped(encode_batch([b"text " * 1000], codec=codec))
    entry = batch.entry(c.VALUE)
    assert entry is not None
    assert entry.codec == codec
    data = bytearray(batch.buffer)
    struct.pack_into("<I", data, entry.position + 8, end)
    mend_batch(data)
    with pytest.raises(BadBytes):
        Batch(data).check()


@pytest.mark.parametrize("codec", CODECS)
def test_a_column_that_says_another_raw_length_is_refused(codec: Codec) -> None:
    """One byte more or less, one block more, or the largest that a directory may claim."""
    batch = stamped(encode_batch([b"text " * 1000], codec=codec))
    for raw_bytes in (0, 1, 4999, 5001, BLOCK_BYTES, BLOCK_BYTES + 1, 64 * MIB):
        data = bytearray(batch.buffer)
        struct.pack_into("<I", data, batch.header.header_bytes - 40 + 16, raw_bytes)
        mend_batch(data)
        tracemalloc.start()
        try:
            with pytest.raises(PenstockError):
                Batch(data).check()
            assert tracemalloc.get_traced_memory()[1] < 2 * MIB
        finally:
            tracemalloc.stop()


# Settings and libraries


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, (Codec.NONE, None)),
        ("none", (Codec.NONE, None)),
        ("gzip", (Codec.GZIP, None)),
        ("GZIP:9", (Codec.GZIP, 9)),
        ("zstd:19", (Codec.ZSTD, 19)),
        ("lz4", (Codec.LZ4, None)),
    ],
)
def test_a_compression_setting_is_a_name_and_a_level(text: str | None, expected: tuple[Codec, int | None]) -> None:
    """The level may be left out."""
    assert parse_compression(text) == expected


@pytest.mark.parametrize(
    "text", ["", "zip", "gzip:0", "gzip:10", "gzip:x", "gzip:-1", "zstd:20", "lz4:1", "none:1", "gzip:\u0663:"]
)
def test_a_wrong_compression_setting_is_refused(text: str) -> None:
    """With the name of the setting in the error."""
    with pytest.raises(BadSetting):
        parse_compression(text)


@pytest.mark.parametrize(("codec", "module"), [(Codec.ZSTD, "zstandard"), (Codec.LZ4, "lz4.block")])
def test_a_missing_library_says_what_to_install(codec: Codec, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing is a wrong setting; reading is a format that this installation does not support."""
    packed = compress_block(codec, None, b"x" * 2000)
    monkeypatch.setitem(sys.modules, module, None)
    if module == "lz4.block":
        monkeypatch.delattr(lz4, "block")
    with pytest.raises(BadSetting, match="pip install"):
        compress_block(codec, None, b"x" * 2000)
    with pytest.raises(UnsupportedFormat, match="pip install"):
        inflate_block(codec, memoryview(packed), 2000)
