"""
How much of the files that this process has mapped counts as its memory.

A page of a mapped file is in the page cache, and the process has only a pointer to it; but everybody who looks (`top`, a container's limit)
counts it as memory of the process until it is unmapped. Who reads a topic from end to end would seem to need as much memory as the topic
is long. So those who read maps say how much, and each time that this adds up to `RESIDENT_BYTES_MAX` all pages of all maps that were
read since the last time are let go of. They stay in the page cache, and what is still in use is pointed to again when it is touched: who
holds a view of a map notices nothing. That costs the same as the first reading of a map in memory, which is little beside checksums.
"""

from __future__ import annotations

import contextlib
import mmap
import weakref

RESIDENT_BYTES_MAX = 64 * 1024 * 1024
_AROUND_BYTES = 64 * 1024
"""The kernel maps so much around a page that is touched."""


class ResidentPages:
    """
    Counts what is read of maps and lets go of it. Safe to call from any thread.

    Without a lock, which a fork could leave locked: when two threads are here at once, the count of one of them may be lost. It is a
    bound on memory, not a balance.
    """

    def __init__(self, bytes_max: int = RESIDENT_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self._bytes = 0
        self._maps: dict[int, weakref.ref[mmap.mmap]] = {}

    def note_read(self, mapped: mmap.mmap, length: int) -> None:
        """*length* bytes of *mapped*, a shared map of a file, were read. Its pages may go from this process's memory now."""
        # By address: a map that is gone needs nothing more, and may leave its place to another one.
        self._maps[id(mapped)] = weakref.ref(mapped)
        self._bytes += length + _AROUND_BYTES
        if self._bytes < self.bytes_max:
            return
        maps, self._maps, self._bytes = self._maps, {}, 0
        for reference in list(maps.values()):
            if (one := reference()) is not None:
                # ValueError: its owner has just closed it.
                with contextlib.suppress(OSError, ValueError):
                    one.madvise(mmap.MADV_DONTNEED)


resident_pages = ResidentPages()
"""Of this process, whatever stores it has open."""
