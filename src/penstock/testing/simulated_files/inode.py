"""A regular file: its bytes as everybody sees them, and what of them the disk may lack."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, final

if TYPE_CHECKING:
    from collections.abc import Sequence

PAGE = 4096


class Write(NamedTuple):
    """An un-synced operation on data; without *data* a change of size. *old* is what stood at *position* before."""

    sequence: int
    position: int
    data: bytes | None
    old: bytes
    old_size: int
    new_size: int


@final
class Inode:
    """A regular file. Compared by identity; `content` is only ever replaced or changed under the file system's lock."""

    __slots__ = ("buffer", "content", "durable", "maps", "pending", "reserved", "stale")

    def __init__(self, content: bytes | bytearray | memoryview, reserved: int) -> None:
        # bytes: shared with copies; bytearray: written to; memoryview: a part of `buffer`, mapped.
        self.content = content
        self.pending: list[Write] = []
        self.reserved = reserved
        # What the disk holds in pages that a failed sync marked clean.
        self.stale: dict[int, bytes] = {}
        # For mapped files only, which have no pending list: the memory, its views, and what the disk holds.
        self.buffer: bytearray | None = None
        self.maps = 0
        self.durable = b""

    def freeze(self) -> bytes:
        """The content as bytes that can be shared, without a copy the second time."""
        content = self.content
        if type(content) is bytes:
            return content
        frozen = bytes(content)
        if self.buffer is None:
            self.content = frozen
        return frozen

    def thaw(self) -> bytearray:
        """The content as bytes that can be changed."""
        content = self.content
        if type(content) is not bytearray:
            self.content = content = bytearray(content)
        return content

    def unsynced(self) -> Sequence[Write]:
        """The operations that the disk may lack; for a mapped file one that stands for all."""
        if self.buffer is None:
            return self.pending
        current = bytes(self.content)
        if current == self.durable:
            return ()
        return (Write(0, 0, current, self.durable, len(self.durable), len(current)),)

    def disk(self) -> bytearray:
        """What the disk certainly holds."""
        if self.buffer is not None:
            return bytearray(self.durable)
        disk = bytearray(self.content)
        undo(disk, self.pending)
        overlay(disk, self.stale)
        return disk


def undo(buffer: bytearray, operations: Sequence[Write]) -> None:
    """Take the operations back, the last one first."""
    for operation in reversed(operations):
        old = operation.old
        if old:
            position = operation.position
            buffer[position : position + len(old)] = old
        del buffer[operation.old_size :]


def overlay(buffer: bytearray, stale: dict[int, bytes]) -> None:
    """Show in these pages what the disk holds."""
    for page, disk in stale.items():
        start = page * PAGE
        length = min(PAGE, len(buffer) - start)
        if length > 0:
            buffer[start : start + length] = disk[:length]
