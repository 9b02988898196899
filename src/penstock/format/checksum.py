"""CRC-32C, the one checksum of every format: the `crc32c` package uses the processor's instruction (20 GB/s)."""

from __future__ import annotations

from crc32c import crc32c

__all__ = ["crc32c"]
