"""
Disks of our own: file system images in loop devices, and power that can be cut.

`LoopDisk.cut_power` shuts the mounted file system down with FS_IOC_SHUTDOWN and without flushing its log: all that was not synced
is gone, un-synced renames and removals are undone, and everything later fails with EIO until it is mounted again. Needs root.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import os
import secrets
import shutil
import socket
import struct
import subprocess
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

FS_IOC_SHUTDOWN = 0x8004587D
_NO_LOG_FLUSH = 2
_MEMORY_FILE_SYSTEMS = {0x01021994: "tmpfs", 0x858458F6: "ramfs"}
_TOOLS = ("mount", "umount", "losetup", "mkfs.ext4", "e2fsck", "mkfs.xfs", "strace")

# A loop device keeps what was written to it, so flushes of the device change nothing here but the time.
KINDS: dict[str, tuple[list[str], str, int]] = {
    "ext4": (["mkfs.ext4", "-q", "-F", "-m", "0"], "loop,barrier=0", 64),
    "ext4-nojournal": (["mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal"], "loop,barrier=0", 64),
    "xfs": (["mkfs.xfs", "-q", "-f"], "loop", 300),
}
"""Kind of file system -> (how to make it, mount options, megabytes of an image)."""


class MemoryFileSystem(RuntimeError):
    """The folder lies in memory: a crash test there proves nothing."""


@functools.cache
def missing_for_crash_tests() -> str | None:
    """What this machine lacks for the tests of this folder, None if it has everything."""
    if os.geteuid() != 0:
        return "needs root, to mount file systems in loop devices"
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    missing = [tool for tool in _TOOLS if shutil.which(tool, path=path) is None]
    if missing:
        return f"needs {', '.join(missing)}: run scripts/install-crash-tools"
    if not os.path.exists("/dev/loop-control"):
        return "needs loop devices, and this machine has no /dev/loop-control"
    try:
        run("strace", "-o", "/dev/null", "true")
    except RuntimeError as error:
        return f"needs to trace processes: {error}"
    return None


_missing_kinds: dict[str, str | None] = {}


def missing_for_kind(kind: str, folder: str) -> str | None:
    """Why a disk of this kind cannot be mounted here, None if it can; tried once, in *folder*."""
    if kind not in _missing_kinds:
        try:
            with loop_disk(kind, folder):
                _missing_kinds[kind] = None
        except (RuntimeError, OSError) as error:
            _missing_kinds[kind] = f"needs to mount {kind} in a loop device: {error}"
    return _missing_kinds[kind]


def refuse_memory(folder: str) -> None:
    """Raise `MemoryFileSystem` if *folder* lies on tmpfs or ramfs: there fsync means nothing."""
    # struct statfs begins with f_type, a long; the rest is of no interest.
    buffer = ctypes.create_string_buffer(512)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.statfs(os.fsencode(folder), buffer) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), folder)
    kind = ctypes.c_long.from_buffer(buffer).value
    if kind in _MEMORY_FILE_SYSTEMS:
        raise MemoryFileSystem(f"{folder} lies on {_MEMORY_FILE_SYSTEMS[kind]}; crash tests need a real disk below them")


def run(*command: str) -> str:
    """Run a command of the system and return what it printed; its errors become part of the exception."""
    environment = {**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


class LoopDisk:
    """A file system in an image file, mounted at `path`. Made by `loop_disk`."""

    def __init__(self, kind: str, image: str, path: str, options: str) -> None:
        self.kind = kind
        self.image = image
        self.path = path
        self._options = options
        self._mounted = False
        self.boot_id = secrets.token_bytes(16)
        """Stands for the machine's boot: another one after each loss of power."""
        self.power_losses = 0

    def mount(self) -> None:
        """Mount it; does nothing if it is mounted."""
        if not self._mounted:
            run("mount", "-o", self._options, self.image, self.path)
            self._mounted = True

    def unmount(self) -> None:
        """Unmount it in order; does nothing if it is not mounted."""
        if not self._mounted:
            return
        deadline = time.monotonic() + 30
        while True:
            try:
                run("umount", self.path)
                break
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
                # Somebody who was killed may not be gone entirely yet.
                time.sleep(0.02)
        self._mounted = False

    def shut_down(self) -> None:
        """From this moment on nothing reaches the disk any more."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(descriptor, FS_IOC_SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(descriptor)

    def cut_power(self, kill: Callable[[], object] = lambda: None) -> None:
        """Lose all that was not synced; *kill* must end every process that uses the disk. Mounted again afterwards."""
        try:
            self.shut_down()
        finally:
            kill()
        self.unmount()
        if self.kind == "ext4-nojournal":
            # Without a journal only a check makes the block bitmaps fit the files again, as it would at boot.
            self._check_ext4()
        self.mount()
        self.boot_id = secrets.token_bytes(16)
        self.power_losses += 1

    def _check_ext4(self) -> None:
        environment = {**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"}
        done = subprocess.run(["e2fsck", "-f", "-y", self.image], capture_output=True, text=True, check=False, env=environment)
        # 1: errors were found and mended, which is what it is for.
        if done.returncode not in {0, 1}:
            raise RuntimeError(f"e2fsck ended with {done.returncode}: {done.stdout}{done.stderr}")

    def free_bytes(self) -> int:
        """What can still be written."""
        status = os.statvfs(self.path)
        return status.f_bavail * status.f_frsize

    def fill(self, leave: int = 0) -> None:
        """Let a file of ballast grow or shrink until *leave* bytes are free, or a little more."""
        descriptor = os.open(self._ballast, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            missing = leave - self.free_bytes()
            if missing > 0:
                os.ftruncate(descriptor, max(size - missing, 0))
                return
            step = 1 << 20
            while step >= 1024:
                if self.free_bytes() - leave < step:
                    step //= 2
                    continue
                try:
                    os.posix_fallocate(descriptor, size, step)
                    size += step
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    step //= 2
        finally:
            os.close(descriptor)

    def make_room(self) -> None:
        """Remove the ballast."""
        os.truncate(self._ballast, 0)

    @property
    def _ballast(self) -> str:
        return os.path.join(self.path, "ballast")


class FailingDisk(LoopDisk):
    """A disk whose device can be told to refuse writes: then the pages that a failed sync was for are lost, and look clean."""

    def __init__(self, kind: str, image: str, path: str, options: str, trigger: str) -> None:
        super().__init__(kind, image, path, options)
        self._trigger = trigger

    def fail(self) -> None:
        """From now on the device answers every write with EIO."""
        with open(self._trigger, "wb"):
            pass

    def mend(self) -> None:
        """The device takes writes again."""
        _remove(self._trigger)

    def is_read_only(self) -> bool:
        """Whether the file system gave up because of the errors, and must be mounted again."""
        try:
            descriptor = os.open(os.path.join(self.path, "is-writable"), os.O_WRONLY | os.O_CREAT, 0o600)
        except OSError:
            return True
        os.close(descriptor)
        return False

    def mount_again(self) -> None:
        """Forget everything that is cached and not on the device."""
        self.unmount()
        if self.kind.startswith("ext4"):
            self._check_ext4()
        self.mount()


def missing_for_failing_disks() -> str | None:
    """What this machine lacks for `failing_disk`, None if it has everything."""
    missing = [tool for tool in ("nbdkit", "nbdfuse", "fusermount3") if shutil.which(tool) is None]
    if missing:
        return f"needs {', '.join(missing)}: run scripts/install-crash-tools"
    return None if os.path.exists("/dev/fuse") else "needs /dev/fuse"


@contextlib.contextmanager
def failing_disk(kind: str, folder: str) -> Iterator[FailingDisk]:
    """
    A new, mounted disk whose device can fail: nbdkit keeps it in memory, nbdfuse shows it as a file, a loop device mounts that.

    The memory of nbdkit stands for the platters; nothing is cached between it and the kernel's block layer.
    """
    refuse_memory(folder)
    command, mount_options, megabytes = KINDS[kind]
    name = f"{kind}-failing-{secrets.token_hex(4)}"
    path, image, trigger = (os.path.join(folder, name + suffix) for suffix in ("", ".img", ".fail"))
    # The path of a socket may have 107 bytes only, and folders of tests are longer.
    address = f"/tmp/{name}.socket"
    os.mkdir(path)
    with open(image, "wb"):
        pass
    with contextlib.ExitStack() as stack:
        error = ["error-pwrite=EIO", "error-pwrite-rate=100%", f"error-file={trigger}"]
        server = subprocess.Popen(
            ["nbdkit", "--foreground", "--unix", address, "--filter=error", "memory", f"{megabytes}M", *error],
            stderr=subprocess.DEVNULL,
        )
        stack.callback(_end, server)
        for left in (image, trigger, address):
            stack.callback(_remove, left)
        _wait_until(lambda: _listens(address), server)
        shown = subprocess.Popen(["nbdfuse", image, "--unix", address], stderr=subprocess.DEVNULL)
        stack.callback(_end, shown)
        _wait_until(lambda: os.stat(image).st_size > 0, shown)
        stack.callback(run, "fusermount3", "-u", "-z", image)
        run(*command, image)
        disk = FailingDisk(kind, image, path, mount_options, trigger)
        disk.mount()
        stack.callback(lambda: run("umount", "--lazy", path) if os.path.ismount(path) else None)
        try:
            yield disk
        finally:
            disk.mend()
            disk.unmount()


def _listens(address: str) -> bool:
    """Whether somebody answers there; the name alone is there a moment before."""
    with socket.socket(socket.AF_UNIX) as asking:
        try:
            asking.connect(address)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        return True


def _wait_until(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{process.args!r} did not start")
        time.sleep(0.01)


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
    process.wait(60)


@contextlib.contextmanager
def loop_disk(kind: str, folder: str, *, megabytes: int | None = None, options: Sequence[str] = ()) -> Iterator[LoopDisk]:
    """A new, mounted disk of this kind (see `KINDS`), its image in *folder*; unmounted and removed at the end, however it ends."""
    refuse_memory(folder)
    command, mount_options, default_megabytes = KINDS[kind]
    name = f"{kind}-{secrets.token_hex(4)}"
    image, path = os.path.join(folder, name + ".img"), os.path.join(folder, name)
    os.mkdir(path)
    try:
        with open(image, "wb") as file:
            file.truncate((megabytes or default_megabytes) << 20)
        run(*command, *options, image)
        disk = LoopDisk(kind, image, path, mount_options)
        disk.mount()
        try:
            yield disk
        finally:
            try:
                disk.unmount()
            except RuntimeError:
                run("umount", "--lazy", path)
                raise
    finally:
        _remove(image)
        with contextlib.suppress(OSError):
            os.rmdir(path)
