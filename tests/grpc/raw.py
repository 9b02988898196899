"""A gRPC client by hand, which can do what no library does: leave headers and requests unfinished, and read nothing."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import Self

DATA, HEADERS, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 4, 6, 7, 8, 9
END_STREAM, END_HEADERS, ACK = 1, 4, 1
PATIENCE = 60.0


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(name: bytes, value: bytes) -> bytes:
    """A header, neither indexed nor compressed; both shorter than 127 bytes."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


class RawGrpc:
    """One connection. *window* is what the server may send on each stream, all in all; *reads* says whether anything is taken."""

    def __init__(self, target: str, *, reads: bool = True, window: int = 2**31 - 1) -> None:
        host, _, port = target.rpartition(":")
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        self.socket.settimeout(PATIENCE)
        self.socket.connect((host, int(port)))
        self.next_stream = 1
        self.is_cut = False
        self.said = b""
        """What came in headers and goodbyes: the texts of refusals stand there as they are."""
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._windows: dict[int, int] = {0: 65_535}
        self._initial = 65_535
        settings = struct.pack(">HI", 4, window)  # the window of each stream
        self.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, settings))
        self.send(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**31 - 1 - 65_535)))
        if reads:
            threading.Thread(target=self._read_along, daemon=True).start()

    def send(self, data: bytes) -> None:
        """Whole frames: two threads send."""
        with self._sending:
            self.socket.sendall(data)

    def _read_along(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                head = self._take(9)
                size, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
                stream, payload = int.from_bytes(head[5:], "big"), self._take(size)
                with self._changed:
                    if kind == WINDOW_UPDATE:
                        self._windows[stream] = self._windows.get(stream, self._initial) + int.from_bytes(payload, "big")
                    elif kind == SETTINGS and not flags & ACK:
                        for at in range(0, size, 6):
                            name, value = struct.unpack_from(">HI", payload, at)
                            if name == 4:
                                self._initial = value
                        self.send(frame(SETTINGS, ACK, 0))
                    elif kind == PING and not flags & ACK:
                        self.send(frame(PING, ACK, 0, payload))
                    elif kind in (HEADERS, GOAWAY):
                        self.said += payload
                    self._changed.notify_all()
        self.is_cut = True
        with self._changed:
            self._changed.notify_all()

    def _take(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            part = self.socket.recv(size - len(found))
            if not part:
                raise EOFError
            found += part
        return found

    def begin(self, path: str, *more: bytes) -> int:
        """The headers of a call; returns its stream."""
        stream, self.next_stream = self.next_stream, self.next_stream + 2
        block = b"\x83\x86" + literal(b":path", path.encode()) + literal(b":authority", b"localhost")
        block += literal(b"content-type", b"application/grpc") + literal(b"te", b"trailers") + b"".join(more)
        self.send(frame(HEADERS, END_HEADERS, stream, block))
        return stream

    def request(self, stream: int, message: bytes, *, ends: bool = True) -> None:
        """A whole, small request; the last one unless *ends* says otherwise."""
        self.send(frame(DATA, END_STREAM if ends else 0, stream, b"\x00" + struct.pack(">I", len(message)) + message))

    def send_part(self, stream: int, claimed: int, count: int) -> int:
        """Begin a request of *claimed* bytes, and send *count* of it as the server gives windows; returns how much was taken."""
        data, sent = b"\x00" + struct.pack(">I", claimed) + bytes(count), 0
        while sent < len(data):
            with self._changed:
                room = min(self._windows[0], self._windows.get(stream, self._initial), 16_384, len(data) - sent)
                if room <= 0:
                    if self.is_cut or not self._changed.wait(3.0):
                        break
                    continue
                self._windows[0] -= room
                self._windows[stream] = self._windows.get(stream, self._initial) - room
            try:
                self.send(frame(DATA, 0, stream, data[sent : sent + room]))
            except OSError:
                break
            sent += room
        return sent

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
