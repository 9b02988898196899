"""
Block compression of column data: gzip, zstd, lz4.

Data is cut into blocks of at most `BLOCK_BYTES` raw bytes, each compressed alone, so that reading one message inflates the
blocks it lies in and nothing else. Inflating is bounded while it runs: each block must yield exactly its share of the raw
length that the directory declares, never more than `BLOCK_BYTES`, whatever the compressed bytes claim.
"""

from __future__ import annotations

import enum
import zlib
from typing import Any

from penstock.errors import BadBytes, BadSetting, UnsupportedFormat
from penstock.values import compression_text

BLOCK_BYTES = 256 * 1024
COMPRESS_FROM_BYTES = 1024
"""A column smaller than this is never compressed."""
COMPRESS_GAIN = 0.95
"""A compressed column is kept only if it is at most this part of the raw one."""


class Codec(enum.IntEnum):
    """How the blocks of a column are compressed; the numbers are part of the format."""

    NONE = 0
    GZIP = 1
    ZSTD = 2
    LZ4 = 3


GZIP_LEVEL_DEFAULT = 6
ZSTD_LEVEL_DEFAULT = 3


def parse_compression(text: str | None) -> tuple[Codec, int | None]:
    """Turn a setting such as ``"zstd"`` or ``"gzip:9"`` into a codec and a level."""
    name, _, level = compression_text(text).partition(":")
    return Codec[name.upper()], int(level) if level else None


def is_writable(codec: Codec) -> bool:
    """Whether the library of *codec* is installed."""
    return not ((codec is Codec.ZSTD and _zstandard() is None) or (codec is Codec.LZ4 and _lz4_block() is None))


def check_writable(codec: Codec) -> None:
    """Raise `BadSetting` when the library of *codec* is not installed."""
    if not is_writable(codec):
        raise _missing_for_writing(codec)


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError:
        return None
    return zstandard


def _lz4_block() -> Any:
    try:
        import lz4.block
    except ImportError:
        return None
    return lz4.block


def _missing_for_writing(codec: Codec) -> BadSetting:
    return BadSetting("compression", codec.name.lower(), "its library is not installed: pip install 'penstock[compression]'")


def compress_block(codec: Codec, level: int | None, raw: bytes | memoryview) -> bytes:
    """Compress one block; raises `BadSetting` when the codec's library is not installed."""
    if codec is Codec.GZIP:
        packer = zlib.compressobj(level or GZIP_LEVEL_DEFAULT, zlib.DEFLATED, 31)
        return packer.compress(raw) + packer.flush()
    if codec is Codec.ZSTD:
        library = _zstandard()
        if library is None:
            raise _missing_for_writing(codec)
        packed: bytes = library.ZstdCompressor(level=level or ZSTD_LEVEL_DEFAULT).compress(raw)
        return packed
    if codec is Codec.LZ4:
        library = _lz4_block()
        if library is None:
            raise _missing_for_writing(codec)
        return bytes(library.compress(raw, store_size=False))
    raise AssertionError(codec)


def inflate_block(codec: int, stored: memoryview, raw_bytes: int) -> bytes:
    """
    Inflate one block, which must give exactly *raw_bytes*.

    Raises:
        BadBytes: it gives more, fewer or no bytes.
        UnsupportedFormat: the codec is unknown, or its library is not installed.
    """
    if not 0 < raw_bytes <= BLOCK_BYTES:
        raise BadBytes("compressed block", f"claims {raw_bytes} raw bytes, at most {BLOCK_BYTES} are allowed")
    if codec == Codec.GZIP:
        raw = _inflate_gzip(stored, raw_bytes)
    elif codec == Codec.ZSTD:
        raw = _inflate_zstd(stored, raw_bytes)
    elif codec == Codec.LZ4:
        raw = _inflate_lz4(stored, raw_bytes)
    else:
        raise UnsupportedFormat("a column", f"compression {codec}")
    if len(raw) != raw_bytes:
        raise BadBytes("compressed block", f"gave {len(raw)} bytes instead of {raw_bytes}")
    return raw


def _inflate_gzip(stored: memoryview, raw_bytes: int) -> bytes:
    unpacker = zlib.decompressobj(31)
    try:
        raw = unpacker.decompress(stored, raw_bytes + 1)
    except zlib.error as error:
        raise BadBytes("gzip block", str(error)) from None
    if not unpacker.eof or unpacker.unused_data:
        raise BadBytes("gzip block", "does not end where it should")
    return raw


def _inflate_zstd(stored: memoryview, raw_bytes: int) -> bytes:
    library = _zstandard()
    if library is None:
        raise UnsupportedFormat("a column", "zstd (pip install 'penstock[compression]')")
    try:
        # The library allocates what the frame claims, so the claim is checked first.
        if library.frame_content_size(stored) != raw_bytes:
            raise BadBytes("zstd block", f"does not claim {raw_bytes} bytes")
        raw: bytes = library.ZstdDecompressor(max_window_size=1 << 20).decompress(stored, max_output_size=raw_bytes)
    except library.ZstdError as error:
        raise BadBytes("zstd block", str(error)) from None
    return raw


def _inflate_lz4(stored: memoryview, raw_bytes: int) -> bytes:
    library = _lz4_block()
    if library is None:
        raise UnsupportedFormat("a column", "lz4 (pip install 'penstock[compression]')")
    try:
        raw: bytes = library.decompress(stored, uncompressed_size=raw_bytes)
    except (library.LZ4BlockError, ValueError) as error:
        raise BadBytes("lz4 block", str(error)) from None
    return raw
