"""
TLS over a socket that one thread reads while another sends.

OpenSSL does not let two threads use one connection at once, so `ssl.SSLSocket` cannot be read and written at the same time. Here it works
on memory, under a lock that nobody holds while he waits for the network.
"""

from __future__ import annotations

import ssl
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

    from penstock.files import Buffer

_PIECE_BYTES = 256 * 1024
"""How much is encrypted at a time."""


class TlsSocket:
    """
    The client's end of a TLS connection, with the methods of a socket that `Connection` uses.

    One thread at a time may call `recv`, and one at a time `sendall`; any thread may call the others. Raises `OSError`, as a socket does.
    """

    def __init__(self, plain: socket.socket, context: ssl.SSLContext, host: str) -> None:
        """Greets the server; takes *plain* over when it returns."""
        self._plain = plain
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._lock = threading.Lock()
        """Over the three above; for work in memory only."""
        self._greet()

    def _greet(self) -> None:
        while True:
            try:
                self._object.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                data = self._plain.recv(_PIECE_BYTES)
                if not data:
                    raise OSError("it hung up during the TLS handshake") from None
                self._incoming.write(data)
            except ssl.SSLError:
                self._flush()  # tells the server what is wrong
                raise
            else:
                self._flush()
                return

    def _flush(self) -> None:
        """Send what TLS has to say. For who may send."""
        with self._lock:
            data = self._outgoing.read()
        if data:
            self._plain.sendall(data)

    def sendall(self, data: Buffer) -> None:
        """Send all of *data*."""
        view = memoryview(data)
        for at in range(0, len(view), _PIECE_BYTES):
            with self._lock:
                self._object.write(view[at : at + _PIECE_BYTES])
            # What TLS itself had to say meanwhile (new keys) goes with it, in its order.
            self._flush()

    def recv(self, size: int) -> bytes | None:
        """What has come; None: nothing that is for the caller yet. Empty when the server hung up."""
        data = self._plain.recv(size)
        if not data:
            return b""
        parts: list[bytes] = []
        with self._lock:
            self._incoming.write(data)
            try:
                while piece := self._object.read(_PIECE_BYTES):
                    parts.append(piece)
            except ssl.SSLWantReadError:
                return b"".join(parts) if parts else None
            except ssl.SSLZeroReturnError:
                pass
        return b"".join(parts)

    def fileno(self) -> int:
        """Of the socket below: when it can be read there may be something to receive."""
        return self._plain.fileno()

    def settimeout(self, seconds: float | None) -> None:
        """See `socket.settimeout`."""
        self._plain.settimeout(seconds)

    def setsockopt(self, level: int, option: int, value: int | bytes) -> None:
        """See `socket.setsockopt`."""
        self._plain.setsockopt(level, option, value)

    def shutdown(self, how: int) -> None:
        """Hang up, without a goodbye: the frames say where they end."""
        self._plain.shutdown(how)

    def close(self) -> None:
        """See `socket.close`."""
        self._plain.close()
