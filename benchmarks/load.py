"""What the benchmarks write, and the raw files they are compared with."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from benchmarks.measure import MIB, Work
from penstock.format.batch import encode_batch, encode_single
from penstock.settings import TopicSettings
from penstock.values import SyncMode

if TYPE_CHECKING:
    from benchmarks.measure import Side
    from penstock.format.batch import EncodedBatch
    from penstock.log.partition_log import PartitionLog
    from penstock.volume.volume import Volume

MESSAGE_BYTES = 100
BATCH_MESSAGES = 1000
VALUE = bytes(range(MESSAGE_BYTES))
VALUES = [index.to_bytes(4, "little") * (MESSAGE_BYTES // 4) for index in range(BATCH_MESSAGES)]
KEYS = [index.to_bytes(16, "little") for index in range(BATCH_MESSAGES)]

# Without merging in the background: whether a segment is sealed in the middle of a repeat would decide about the figure.
OS = TopicSettings(sync=SyncMode.OS, coalesce_below_bytes=0)
ALWAYS = TopicSettings(sync=SyncMode.ALWAYS, coalesce_below_bytes=0)

SINGLE_BYTES = len(encode_single(VALUE).data)
BATCH_BYTES = len(encode_batch(VALUES).data)


def batches(count: int) -> list[EncodedBatch]:
    """Batches of 1000 messages."""
    return [encode_batch(VALUES) for _ in range(count)]


def fill(volume: Volume, log: PartitionLog, messages: int) -> None:
    """Append at least so many messages in batches of 1000."""
    pool = batches(8)
    for index in range((messages + BATCH_MESSAGES - 1) // BATCH_MESSAGES):
        volume.append(log, pool[index % len(pool)])


def touch_memory(directory: str, size: int) -> None:
    """
    Write a file of *size* and remove it again.

    A virtual machine pays for memory that it uses for the first time; without this, whoever comes first would pay for the page
    cache of both sides.
    """
    path = os.path.join(directory, "touch")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        piece = bytes(MIB)
        for _ in range(size // MIB):
            os.write(descriptor, piece)
    finally:
        os.close(descriptor)
        os.unlink(path)


class RawLog:
    """A file that takes the same bytes with bare calls."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)

    def write(self, pieces: list[bytearray]) -> Work:
        """One turn: one os.write for each piece."""
        write, descriptor = os.write, self.descriptor
        start = time.perf_counter()
        for piece in pieces:
            write(descriptor, piece)
        return Work(len(pieces), time.perf_counter() - start)

    def close(self) -> None:
        """Remove the file."""
        os.close(self.descriptor)
        os.unlink(self.path)


class SyncedFile:
    """A preallocated, already written file: the cheapest durable write is one into it, and fdatasync."""

    def __init__(self, path: str, size: int = 4 * MIB) -> None:
        self.path = path
        self.size = size
        self._position = 0
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        os.posix_fallocate(self.descriptor, 0, size)
        os.pwrite(self.descriptor, bytes(size), 0)
        os.fsync(self.descriptor)

    def side(self, data: bytes | bytearray, count: int) -> Side:
        """Write *data* and sync, so many times in one turn."""

        def turn() -> Work:
            descriptor, position, length = self.descriptor, self._position, len(data)
            if position + count * length > self.size:
                position = 0
            start = time.perf_counter()
            for _ in range(count):
                os.pwrite(descriptor, data, position)
                os.fdatasync(descriptor)
                position += length
            seconds = time.perf_counter() - start
            self._position = position
            return Work(count, seconds)

        return turn

    def close(self) -> None:
        """Remove the file."""
        os.close(self.descriptor)
        os.unlink(self.path)


def singles(volume: Volume, log: PartitionLog, count: int) -> Side:
    """Encode and append so many messages, one batch each."""

    def turn() -> Work:
        append = volume.append
        start = time.perf_counter()
        for _ in range(count):
            append(log, encode_single(VALUE))
        return Work(count, time.perf_counter() - start)

    return turn
