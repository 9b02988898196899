"""
A file system in memory that can say what the disk may hold after a crash.

Theory of operation
-------------------

*The page cache is the truth, the disk is derived.* An inode holds its current bytes and the list of the data operations
since the last `sync_data`, each with what it overwrote. The durable content is the current content with that list undone,
so a sync costs nothing (the list is emptied) and only files with un-synced operations cost anything at a crash. The
namespace works alike: directories hold their current entries, and one list for the whole file system holds the un-synced
changes of entries, in order, each with the entries it replaced.

*What a power cut keeps of un-synced data.* An inode on a real disk is a size and sectors. Each sector of 512 bytes was last
written back at some moment, independently of the others, so it shows all operations on it up to that moment and none
after; and the size (with the truncations, which are changes of the size) shows some moment too. So a long write may be
torn in any pattern, a later write may be there without an earlier one, and a file may be longer than its data: the lost
sectors then read as zeros, or as what was there before. A single sector never mixes a later write with the absence of an
earlier one, because the cache has no such sector to write back.

*What a power cut keeps of un-synced names.* Any subset of the changes in which each kept change finds what it was built on:
a change needs the earlier changes of the same names, a rename into a folder needs that folder's creation, and a removal
of a folder needs the changes inside it. One rename is one change, also across folders, so a file is never under both
names or under neither; a link is a change too, which gives a file one name more or is lost. `sync_directory` makes durable the
changes that touch the folder, with what they need. It does not make the folder's own entry durable: that is in the parent, and
without it the folder and all in it are gone.

*A failed sync* does what Linux does. The pages are marked clean: reads still show the new bytes, the next `sync_data`
succeeds, and the disk still holds the old ones. They show again after `drop_cache` or a crash. Writing to such a page makes
it dirty as a whole (4096 bytes), so that the next sync does store it. The size, which is not in those pages, stays
un-synced until a sync succeeds.

*Cheap copies.* Content is `bytes` while nobody writes, shared with every copy of the file system, and becomes a `bytearray`
with the first write. Files mapped by `map_shared` are the exception: their memory is allocated once with room to grow,
because a `bytearray` cannot be resized while a view of it is out.

*Where it stands.* `inode.py` and `page_cache.py` hold the bytes, `names.py` the folders, `power_cut.py` says what a crash keeps,
`fault.py` what fails. `open_file.py` and `file_system.py` are what the engine sees: the protocols of `penstock.files`.

Simplifications: an unlinked file frees its space at once, even while open; a hole takes space like data does; a failed
`sync_directory` leaves the changes un-synced, and so does a failed `sync_data` of a mapped file.
"""

from __future__ import annotations

from penstock.testing.simulated_files.file_system import SimulatedFileSystem
from penstock.testing.simulated_files.inode import PAGE
from penstock.testing.simulated_files.open_file import SimulatedFile, SimulatedLock, SimulatedSharedMap
from penstock.testing.simulated_files.operation import Operation
from penstock.testing.simulated_files.page_cache import SHARED_CAPACITY
from penstock.testing.simulated_files.power_cut import SECTOR

__all__ = [
    "PAGE",
    "SECTOR",
    "SHARED_CAPACITY",
    "Operation",
    "SimulatedFile",
    "SimulatedFileSystem",
    "SimulatedLock",
    "SimulatedSharedMap",
]
