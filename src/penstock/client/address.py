"""
Where a server is: the URL that `penstock.open` takes.

`penstock://host:port`, `penstocks://host:port` (TLS), `penstock+unix:///path/to/socket`. The port is 7420 if none is given. Options follow
behind a question mark: `token` (or the variable PENSTOCK_TOKEN), and for TLS `ca`, `cert` and `key`, paths of PEM files.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

from penstock.errors import BadArgument

if TYPE_CHECKING:
    import ssl

    from penstock.client.tls import TlsSocket

    Connected: TypeAlias = socket.socket | TlsSocket

DEFAULT_PORT = 7420
SCHEMES = ("penstock", "penstocks", "penstock+unix")
_OPTIONS = {"token", "ca", "cert", "key"}


class Place(Protocol):
    """Where a connection goes; an `Address`, or the owner of a shared folder."""

    @property
    def url(self) -> str:
        """What messages call it."""
        ...

    @property
    def token(self) -> str | None:
        """What tells the server who this is."""
        ...

    def connect(self, timeout_s: float) -> Connected:
        """A connected socket. Raises `OSError`, or a `PenstockError` that says more."""
        ...


class Address(NamedTuple):
    """A parsed URL. The token is kept out of what is printed."""

    scheme: str
    host: str
    port: int
    path: str
    options: dict[str, str]

    def __repr__(self) -> str:
        return self.url

    @property
    def url(self) -> str:
        """The URL without options: fit for messages."""
        if self.scheme == "penstock+unix":
            return f"{self.scheme}://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    @property
    def token(self) -> str | None:
        """What tells the server who this is."""
        return self.options.get("token") or os.environ.get("PENSTOCK_TOKEN")

    def connect(self, timeout_s: float) -> Connected:
        """A connected socket. Raises `OSError`, and `BadArgument` if a file of TLS cannot be used."""
        if self.scheme == "penstock+unix":
            connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connected.settimeout(timeout_s)
            try:
                connected.connect(self.path)
            except BaseException:
                connected.close()
                raise
            connected.settimeout(None)
            return connected
        plain = socket.create_connection((self.host, self.port), timeout_s)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(plain)
        try:
            made: Connected = plain
            if self.scheme == "penstocks":
                # Imported here: OpenSSL takes longer to load than this module, and every program that opens a store loads this one.
                from penstock.client.tls import TlsSocket

                made = TlsSocket(plain, self._context(), self.host)
        except BaseException:
            plain.close()
            raise
        made.settimeout(None)
        return made

    def _context(self) -> ssl.SSLContext:
        import ssl

        chosen = "ca"
        try:
            context = ssl.create_default_context(cafile=self.options.get("ca"))
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            chosen = "cert"
            if "cert" in self.options:
                # Without a password: asking for one would stop the program.
                context.load_cert_chain(self.options["cert"], self.options.get("key"), password="")
        except (OSError, ValueError) as error:
            raise BadArgument(chosen, repr(self.options.get(chosen)), f"cannot be used: {error}") from None
        return context


def peer_uid(connected: socket.socket) -> int:
    """The user of the process at the other end of a Unix socket, as the kernel saw it when that began to listen or connected."""
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


def peer_pid(connected: socket.socket) -> int:
    """The process at the other end of a Unix socket."""
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[0])


def keep_alive(connected: socket.socket) -> None:
    """Notice within half a minute that the other machine is gone, whether something is on its way or not."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4), ("TCP_USER_TIMEOUT", 30_000)):
        if hasattr(socket, option):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def is_url(path: str) -> bool:
    """Whether `penstock.open` is given a server and not a folder."""
    return "://" in path


def parse_address(url: str) -> Address:
    """Raises `BadArgument`; what it says never shows a token."""
    try:
        parts = urlsplit(url)
        # Without what stands before an @, and without the options: both may be secrets.
        plain = f"{parts.scheme}://{parts.netloc.rpartition('@')[2] or parts.path}"
    except ValueError as error:
        raise BadArgument("path", "a URL", f"cannot be read: {error}") from None
    if parts.scheme not in SCHEMES:
        raise BadArgument("path", repr(plain), f"the servers of this version are {', '.join(f'{one}://' for one in SCHEMES)}")
    if parts.username or parts.password:
        raise BadArgument("path", repr(plain), "give the token as ?token=... or in PENSTOCK_TOKEN")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(set(options) - _OPTIONS)
    if unknown or parts.fragment:
        raise BadArgument(
            "path", repr(plain), f"there is no option {', '.join(unknown) or '#...'}; there are token, ca, cert and key"
        )
    if parts.scheme == "penstock+unix":
        if not parts.path or parts.netloc:
            raise BadArgument("path", repr(plain), "a Unix socket is penstock+unix:///path/to/socket")
        return Address(parts.scheme, "", 0, unquote(parts.path), options)
    try:
        port = parts.port
    except ValueError as error:
        raise BadArgument("path", repr(plain), str(error)) from None
    if not parts.hostname or parts.path not in ("", "/"):
        raise BadArgument("path", repr(plain), "a server is penstock://host:port")
    return Address(parts.scheme, parts.hostname, DEFAULT_PORT if port is None else port, "", options)
