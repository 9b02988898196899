"""
All file I/O of the engine goes through the FileSystem protocol of this module.

There are two implementations: `RealFileSystem` here, and `penstock.testing.SimulatedFileSystem`, which records every
operation and can produce the states a disk may be in after a crash. Code above this module never calls `os.open`,
`os.replace` and the like itself; that is what makes every durable step of the engine visible to the crash tests.

Rules that callers keep:

- A write may be short: check the count that `pwrite` and `pwritev` return. `write_fully` does, and is what to call.
- Bytes are durable after `sync_data` returned on the same open file that wrote them, and not before. A sync that failed
  is never tried again: the kernel marks the pages clean, so the second call would succeed and mean nothing.
- A new, renamed or removed name is durable after `sync_directory` of its folder.
- Errors are plain `OSError`: the layer above knows what they mean for its data.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import mmap
import os
import resource
import socket
import stat
import struct
from typing import TYPE_CHECKING, Any, Protocol

from penstock.resident_pages import resident_pages

if TYPE_CHECKING:
    from collections.abc import Sequence

    Buffer = bytes | bytearray | memoryview

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700


class LockHeld(OSError):
    """Another process (or another opener in this one) holds the lock; `owner` is what it wrote into the file."""

    def __init__(self, path: str, owner: dict[str, Any]) -> None:
        super().__init__(errno.EAGAIN, "the lock is held", path)
        self.owner = owner


NOT_REGULAR = "this is no regular file but a folder, a link, a FIFO or a device; remove it"


class NotRegular(OSError):
    """Something else (a folder, a link, a FIFO, a device) has the name of a file."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.EINVAL, "not a regular file", path)


class File(Protocol):
    """An open regular file. Safe to use from many threads as long as writers do not overlap."""

    path: str

    def pread(self, length: int, position: int) -> bytes:
        """Read up to *length* bytes at *position*; fewer at the end of the file."""
        ...

    def pwrite(self, data: Buffer, position: int) -> int:
        """Write *data* at *position* and return how many bytes were taken, which may be fewer."""
        ...

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        """Write the *buffers* one behind the other at *position*; may be short like `pwrite`."""
        ...

    def size(self) -> int:
        """The length of the file now."""
        ...

    def links(self) -> int:
        """How many names the file has now."""
        ...

    def truncate(self, size: int) -> None:
        """Cut or extend (with zeros) the file to *size*, and free blocks reserved past it."""
        ...

    def reserve(self, position: int, length: int) -> bool:
        """Reserve disk blocks for a range without changing the size; False where the file system cannot."""
        ...

    def sync_data(self) -> None:
        """Make all bytes written so far, and the size, durable (fdatasync)."""
        ...

    def drop_cache(self) -> None:
        """Drop clean cached pages, so that the next read shows what the disk holds and not what the cache remembers."""
        ...

    def map(self) -> memoryview:
        """A read-only view of the whole file as it is now; valid after `close`."""
        ...

    def close(self) -> None:
        """Close the file; closing twice does nothing."""
        ...


class Lock(Protocol):
    """A held lock."""

    def release(self) -> None:
        """Give the lock up; releasing twice does nothing."""
        ...


class SharedMap(Protocol):
    """A small file mapped for writing, seen at once by other processes that map it."""

    view: memoryview

    def close(self) -> None:
        """Unmap; `view` must not be used afterwards."""
        ...


class FileSystem(Protocol):
    """The operations on names and files that the engine uses."""

    def open(self, path: str, *, write: bool = False) -> File:
        """Open an existing regular file; never follows a symbolic link."""
        ...

    def create(self, path: str) -> File:
        """Create a new file for reading and writing; `FileExistsError` if the name is taken."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename, replacing *target* if it exists; atomic."""
        ...

    def link(self, source: str, target: str) -> None:
        """Give a file one more name; `FileExistsError` if it is taken. An `OSError` where the file system cannot do that."""
        ...

    def unlink(self, path: str) -> None:
        """Remove a file's name; with the last one goes the file."""
        ...

    def make_directory(self, path: str) -> None:
        """Create a folder; `FileExistsError` if the name is taken."""
        ...

    def remove_directory(self, path: str) -> None:
        """Remove an empty folder."""
        ...

    def list_directory(self, path: str) -> list[str]:
        """The names in a folder, sorted."""
        ...

    def exists(self, path: str) -> bool:
        """Whether the name exists (a dangling link counts). Raises `PermissionError` if that cannot be told."""
        ...

    def sync_directory(self, path: str) -> None:
        """Make creations, renames and removals in this folder durable."""
        ...

    def free_bytes(self, path: str) -> int:
        """Bytes that an ordinary user can still write on the file system of *path*."""
        ...

    def lock(self, path: str, *, shares: bool = False) -> Lock:
        """
        Take the owner lock, or raise `LockHeld`. It goes with the process, however the process ends.

        Its file tells others who holds it, and whether the holder *shares* what it owns.
        """
        ...

    def lock_holder(self, path: str) -> dict[str, Any] | None:
        """What the holder of the lock on *path* says of itself; None if nobody holds it. Takes and changes nothing."""
        ...

    def map_shared(self, path: str, length: int, *, write: bool) -> SharedMap:
        """Map a small file; with *write* it is created or grown to *length* first, never shrunk."""
        ...

    def note_read(self, view: memoryview, length: int) -> None:
        """
        So many bytes of *view*, which `File.map` gave, were read: now and then such pages go from the process's memory.

        Nobody notices: they come back when they are touched.
        """
        ...

    def boot_id(self) -> bytes:
        """Sixteen bytes that change with every boot: the page cache outlives a process but not a boot."""
        ...


def is_full(error: OSError) -> bool:
    """Whether an error says that there is no room (blocks, inodes, quota, file size), and not that something broke."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_out_of_descriptors(error: OSError) -> bool:
    """Whether an error says that this process, or the machine, has as many files open as it may."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


def is_no_access(error: OSError) -> bool:
    """Whether an error says that a file or folder could not be reached, by its rights or because it is not there: nothing was changed."""
    return error.errno in (errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR)


def descriptors_max() -> int:
    """How many descriptors this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1_000_000 if soft == resource.RLIM_INFINITY else soft


def read_fully(file: File, length: int, position: int) -> Buffer:
    """Read *length* bytes, or all that there are, going on after short reads: Linux reads at most 2 GiB at once."""
    data: Buffer = file.pread(length, position)
    if len(data) < length:
        pieces = [data]
        size = len(data)
        while size < length and (more := file.pread(length - size, position + size)):
            pieces.append(more)
            size += len(more)
        data = b"".join(pieces)
    return data


def write_fully(file: File, data: Buffer, position: int) -> None:
    """
    Write all of *data*, going on after short writes.

    Raises:
        OSError: part of the data may be in the file; the caller cuts it off again.
    """
    written = file.pwrite(data, position)
    if written == len(data):
        return
    view = memoryview(data)
    while written < len(view):
        count = file.pwrite(view[written:], position + written)
        if count <= 0:
            raise OSError(errno.EIO, "a write took no bytes", file.path)
        written += count


def write_buffers_fully(file: File, buffers: Sequence[Buffer], position: int) -> None:
    """Like `write_fully`, for several buffers that follow each other."""
    total = sum(map(len, buffers))
    written = file.pwritev(buffers, position)
    if written != total:
        # Rare: the kernel took a part. Join the rest and go on, so that there is one loop to get right.
        write_fully(file, b"".join(buffers)[written:], position + written)


_FALLOC_FL_KEEP_SIZE = 1
_IOV_MAX = 1024
_libc = ctypes.CDLL(None, use_errno=True)
_fallocate = _libc.fallocate
_fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
_fallocate.restype = ctypes.c_int


class RealFile:
    """A file of the operating system."""

    __slots__ = ("_descriptor", "path")

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    def pread(self, length: int, position: int) -> bytes:
        return os.pread(self._descriptor, length, position)

    def pwrite(self, data: Buffer, position: int) -> int:
        return os.pwrite(self._descriptor, data, position)

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        if len(buffers) > _IOV_MAX:
            return os.pwrite(self._descriptor, b"".join(buffers), position)
        return os.pwritev(self._descriptor, buffers, position)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def links(self) -> int:
        return os.fstat(self._descriptor).st_nlink

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def reserve(self, position: int, length: int) -> bool:
        while _fallocate(self._descriptor, _FALLOC_FL_KEEP_SIZE, position, length) != 0:
            code = ctypes.get_errno()
            if code != errno.EINTR:
                break
        else:
            return True
        if code in (errno.EOPNOTSUPP, errno.ENOSYS):
            return False
        raise OSError(code, os.strerror(code), self.path)

    def sync_data(self) -> None:
        os.fdatasync(self._descriptor)

    def drop_cache(self) -> None:
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def map(self) -> memoryview:
        if self.size() == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(self._descriptor, 0, prot=mmap.PROT_READ))

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self.close()


def _open_regular(path: str, flags: int) -> int:
    """A descriptor of a regular file. Raises `NotRegular`, or another `OSError`; never waits."""
    try:
        # O_NONBLOCK: opening a FIFO that has the name of a segment must fail below, not wait for a writer.
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, FILE_MODE)
    except OSError as error:
        # A link; a folder; a socket, or a device without a driver.
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV):
            raise NotRegular(path) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotRegular(path)
    return descriptor


# struct flock: type, whence, start, length, pid (which must be 0)
_WHOLE_FILE = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
_UNLOCKED = struct.pack("hhqqi4x", fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0)


class RealLock:
    """
    An open-file-description lock on a file that names its owner.

    Such a lock belongs to the open file, not to the process, so that closing another descriptor of the same file does not
    drop it (as it would with POSIX locks), and the kernel releases it however the process ends.
    """

    __slots__ = ("_descriptor", "_owner", "_pid")

    def __init__(self, path: str, *, shares: bool = False) -> None:
        self._pid = os.getpid()
        descriptor = _open_regular(path, os.O_RDWR | os.O_CREAT)
        try:
            try:
                fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _WHOLE_FILE)
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.EACCES):
                    raise LockHeld(path, _read_owner(descriptor)) from None
                raise
            self._owner = {"pid": self._pid, "host": socket.gethostname(), **({"shares": True} if shares else {})}
            _write_owner(descriptor, self._owner)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    @property
    def descriptor(self) -> int:
        """The open file that the lock belongs to: a process that inherits it holds the lock too."""
        return self._descriptor

    def announce(self, url: str) -> None:
        """Tell those who look who the owner is that they reach what it owns at *url*."""
        if self._descriptor >= 0 and self._pid == os.getpid():
            self._owner["url"] = url
            _write_owner(self._descriptor, self._owner)

    def release(self) -> None:
        """Unlock and close. In a forked child only its copy is closed: the lock stays with the parent."""
        if self._descriptor >= 0 and self._pid == os.getpid():
            with contextlib.suppress(OSError):
                _write_owner(self._descriptor, {})  # so that nobody takes our name for that of the next holder
            # Closing alone would leave the lock, for a moment, to a program that another thread is just starting.
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, _UNLOCKED)
        self.leave()

    def leave(self) -> None:
        """Close our descriptor and leave the lock to whoever has inherited it."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def lock_owner(path: str) -> dict[str, Any] | None:
    """
    What the holder of the lock on *path* wrote into it; None if nobody holds it. Takes nothing.

    Empty, or what the holder before it wrote (if that one was killed), in the moment in which a new one has not written yet.
    """
    try:
        descriptor = _open_regular(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _WHOLE_FILE)
        if struct.unpack_from("h", answer)[0] == fcntl.F_UNLCK:
            return None
        return _read_owner(descriptor)
    finally:
        os.close(descriptor)


def let_go(descriptor: int) -> None:
    """
    In a forked child: let go of an open file or socket that is the parent's.

    Its number stays taken, by nothing, so that the object that has it may still close it.
    """
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.dup2(nothing, descriptor, inheritable=False)
    finally:
        os.close(nothing)


_OWNER_BYTES = 512


def _write_owner(descriptor: int, owner: dict[str, Any]) -> None:
    """
    Say who holds the lock, in the block that the file has: a full disk must not keep anybody from opening the store that lies on it.

    If it has none yet, and there is no room for one, the lock is held all the same, and nobody is told by whom.
    """
    data = json.dumps(owner).encode().ljust(_OWNER_BYTES)
    try:
        os.pwrite(descriptor, data, 0)
        if os.fstat(descriptor).st_size > len(data):
            os.ftruncate(descriptor, len(data))
    except OSError as error:
        if not is_full(error):
            raise


def _read_owner(descriptor: int) -> dict[str, Any]:
    try:
        owner = json.loads(os.pread(descriptor, 4096, 0))
    except (OSError, ValueError):
        return {}
    return owner if isinstance(owner, dict) else {}


class RealSharedMap:
    """A mapped file of the operating system."""

    __slots__ = ("_map", "view")

    def __init__(self, descriptor: int, length: int, *, write: bool) -> None:
        protection = mmap.PROT_READ | mmap.PROT_WRITE if write else mmap.PROT_READ
        self._map = mmap.mmap(descriptor, length, flags=mmap.MAP_SHARED, prot=protection)
        self.view = memoryview(self._map)

    def close(self) -> None:
        self.view.release()
        # A cast of the view may still be alive in a thread that is ending; the map then goes with it.
        with contextlib.suppress(BufferError):
            self._map.close()


class RealFileSystem:
    """The operating system's files: regular files only, never through a link, private to the user."""

    __slots__ = ()

    def open(self, path: str, *, write: bool = False) -> RealFile:
        flags = os.O_RDWR if write else os.O_RDONLY
        return RealFile(path, _open_regular(path, flags))

    def create(self, path: str) -> RealFile:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        return RealFile(path, os.open(path, flags, FILE_MODE))

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def link(self, source: str, target: str) -> None:
        os.link(source, target, follow_symlinks=False)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def make_directory(self, path: str) -> None:
        os.mkdir(path, DIRECTORY_MODE)

    def remove_directory(self, path: str) -> None:
        os.rmdir(path)

    def list_directory(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def exists(self, path: str) -> bool:
        try:
            os.lstat(path)
        except PermissionError:
            raise  # there may be one: "no" would be a guess
        except (OSError, ValueError):
            return False
        return True

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def free_bytes(self, path: str) -> int:
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def lock(self, path: str, *, shares: bool = False) -> RealLock:
        return RealLock(path, shares=shares)

    def lock_holder(self, path: str) -> dict[str, Any] | None:
        return lock_owner(path)

    def map_shared(self, path: str, length: int, *, write: bool) -> RealSharedMap:
        descriptor = _open_regular(path, (os.O_RDWR | os.O_CREAT) if write else os.O_RDONLY)
        try:
            if write:
                # Blocks, not holes: storing into a hole of a mapped file on a full disk is answered by SIGBUS. A copy may have holes where
                # the original has none. Where there are blocks this takes no room, so it succeeds on a full disk too.
                os.posix_fallocate(descriptor, 0, length)
            elif os.fstat(descriptor).st_size < length:
                raise OSError(errno.EINVAL, f"shorter than {length} bytes", path)
            return RealSharedMap(descriptor, length, write=write)
        finally:
            os.close(descriptor)

    def note_read(self, view: memoryview, length: int) -> None:
        if isinstance(view.obj, mmap.mmap):  # a file that was empty is not mapped
            resident_pages.note_read(view.obj, length)

    def boot_id(self) -> bytes:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return bytes.fromhex(file.read().strip().replace("-", ""))
