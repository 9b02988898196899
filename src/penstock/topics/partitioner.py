"""
Which partition a message goes to.

The rule is part of the data's meaning, since messages of one key keep their order only while they share a partition: the same key gives the
same partition in every process and every version, and tests pin it. Python's own `hash` is salted for each process and never used.
"""

from __future__ import annotations

from penstock.format.checksum import crc32c

_SPREAD = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def partition_of_key(key: bytes | bytearray | memoryview, partitions: int) -> int:
    """The partition of *key*: its CRC-32C, spread over 64 bits, scaled to the number of partitions."""
    return ((crc32c(key) * _SPREAD & _MASK) >> 32) * partitions >> 32
