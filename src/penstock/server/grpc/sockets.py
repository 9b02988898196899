"""
The TCP connections of gRPC, as the kernel sees them.

gRPC shows calls, and nothing of a connection before its first call, nor the part of a request that has come. It has no setting for what
headers without an end (a flood of CONTINUATION frames) or unfinished requests may take. But its sockets are descriptors of this process:
the kernel says how many bytes each has received, and a connection that is reset makes gRPC drop all that it holds for it.

On Linux only; elsewhere, and for Unix sockets, nothing is found.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import ipaddress
import os
import socket
import stat
import struct
import termios
import time
from typing import NamedTuple
from urllib.parse import unquote

_DESCRIPTORS = "/proc/self/fd"
_TCP_INFO_BYTES = 136
_RECEIVED_AT = 128
"""Where `tcpi_bytes_received` stands in `struct tcp_info`."""

_LIBC = ctypes.CDLL(None)


class Place(NamedTuple):
    """The other side of a connection."""

    host: str
    port: int


def place_of(peer: str) -> Place | None:
    """What gRPC calls a peer (`ipv4:127.0.0.1:5000`, `ipv6:%5B::1%5D:5000`); None for one that is not at the end of TCP."""
    kind, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    return Place(_plain(host.strip("[]")), int(port)) if kind in ("ipv4", "ipv6") and port.isdecimal() else None


def _plain(host: str) -> str:
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host.partition("%")[0])
        mapped = getattr(address, "ipv4_mapped", None)
        return str(mapped or address)
    return host


class Sockets:
    """Those that were accepted on one port."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._known: dict[int, tuple[int, Place | None]] = {}
        """Descriptor -> inode, and where it leads if it is one of ours."""
        self.look_s = 0.0
        """The processor time of the last look."""

    def look(self) -> dict[Place, int]:
        """How many bytes gRPC has taken from each so far. Takes some microseconds for each descriptor: call it in a thread."""
        began = time.thread_time()
        try:
            numbers = [int(name) for name in os.listdir(_DESCRIPTORS)]
        except OSError:
            return {}
        known, self._known = self._known, {}
        found: dict[Place, int] = {}
        for number in numbers:
            try:
                status = os.fstat(number)
            except OSError:
                continue
            if not stat.S_ISSOCK(status.st_mode):
                continue
            entry = known.get(number)
            if entry is None or entry[0] != status.st_ino:
                entry = status.st_ino, self._place(number)
            self._known[number] = entry
            if entry[1] is not None and (received := self._received(number, entry[1])) is not None:
                found[entry[1]] = received
        self.look_s = time.thread_time() - began
        return found

    def shut(self, place: Place) -> bool:
        """Cut the connection to *place*; returns whether there was one."""
        for number, (_, there) in list(self._known.items()):
            if there == place:
                with contextlib.suppress(OSError), _borrowed(number) as connection:
                    if self._leads_to(connection) == place:
                        _disconnect(connection)
                        return True
        return False

    def _place(self, number: int) -> Place | None:
        try:
            with _borrowed(number) as connection:
                return self._leads_to(connection)
        except OSError:
            return None

    def _leads_to(self, connection: socket.socket) -> Place | None:
        if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
            return None
        try:
            if connection.getsockname()[1] != self._port:
                return None
            host, port = connection.getpeername()[:2]
        except OSError:  # it listens, or has ended
            return None
        return Place(_plain(host), port)

    def _received(self, number: int, place: Place) -> int | None:
        try:
            with _borrowed(number) as connection:
                if self._leads_to(connection) != place:
                    return None
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
                (waiting,) = struct.unpack("i", fcntl.ioctl(connection.fileno(), termios.FIONREAD, bytes(4)))
        except OSError:
            return None
        if len(info) < _TCP_INFO_BYTES:  # a kernel from before 4.2
            return None
        return int(struct.unpack_from("=Q", info, _RECEIVED_AT)[0]) - int(waiting)


def _disconnect(connection: socket.socket) -> None:
    """Reset a connection. After `shutdown` Linux would take what the other side goes on sending, and gRPC would read it."""
    nowhere = struct.pack("H14x", socket.AF_UNSPEC)
    if _LIBC.connect(connection.fileno(), nowhere, len(nowhere)):
        connection.shutdown(socket.SHUT_RDWR)


def _borrowed(number: int) -> socket.socket:
    """The socket of a descriptor that belongs to gRPC: a copy, which stays the same connection if gRPC closes its own meanwhile."""
    copy = os.dup(number)
    try:
        return socket.socket(fileno=copy)
    except BaseException:
        os.close(copy)
        raise
