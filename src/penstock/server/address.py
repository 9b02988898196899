"""Where a listener listens: host and port, or a Unix socket. Whether others can reach it, and then whether it may be open."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import stat
from dataclasses import dataclass

from penstock.client.address import keep_alive
from penstock.errors import BadSetting

UNIX_PREFIX = "unix:"
UNIX_PATH_BYTES_MAX = 107
BACKLOG = 1_024


@dataclass(frozen=True, slots=True)
class Address:
    """A place to listen at; *path* for a Unix socket, else *host* and *port*. Port 0 means any that is free."""

    host: str = ""
    port: int = 0
    path: str = ""

    @classmethod
    def parse(cls, name: str, text: str) -> Address:
        """Read ``host:port``, ``[ipv6]:port`` or ``unix:/path``; *name* is the setting. Raises `BadSetting`."""
        if not isinstance(text, str):
            raise BadSetting(name, text, "must be text: host:port or unix:/path")
        if text.startswith(UNIX_PREFIX):
            path = text[len(UNIX_PREFIX) :]
            if not path or "\0" in path or len(os.fsencode(path)) > UNIX_PATH_BYTES_MAX:
                raise BadSetting(name, text, f"the path of a Unix socket has 1 to {UNIX_PATH_BYTES_MAX} bytes")
            return cls(path=path)
        host, colon, port = text.rpartition(":")
        if not colon or not port.isascii() or not port.isdigit() or int(port[:6]) > 65_535:
            raise BadSetting(name, text, "must be host:port or unix:/path, as in 127.0.0.1:7422")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise BadSetting(name, text, "an IPv6 address stands in brackets, as in [::1]:7422")
        if not host:
            raise BadSetting(name, text, "name the host; 0.0.0.0 means every address of this machine")
        return cls(host, int(port))

    @property
    def is_public(self) -> bool:
        """Whether other machines, or other users' programs without this user's rights, may reach it."""
        if self.path:
            return False
        return not all(ipaddress.ip_address(found.partition("%")[0]).is_loopback for found in self._resolved())

    def _resolved(self) -> list[str]:
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise BadSetting("listen", str(self), f"the host is not known: {error}") from None
        return sorted({str(entry[4][0]) for entry in found}, key=lambda host: (":" in host, host))

    def check_safe(self, name: str, *, authenticated: bool, encrypted: bool) -> None:
        """Raise `BadSetting` if others can reach it and it asks for no token, or is not encrypted."""
        missing = [what for what, there in (("a file of tokens", authenticated), ("a TLS certificate", encrypted)) if not there]
        if missing and self.is_public:
            raise BadSetting(
                name,
                str(self),
                f"other machines can reach this address, and {' and '.join(missing)} is not set; "
                "set both, listen on 127.0.0.1 or unix:/path, or allow it with allow_insecure",
            )

    def open(self, name: str) -> socket.socket:
        """A socket that listens there. Raises `BadSetting`."""
        try:
            return self._open_unix() if self.path else self._open_tcp()
        except OSError as error:
            raise BadSetting(name, str(self), f"cannot listen there: {error.strerror or error}") from None

    def resolve(self) -> str:
        """The address that the host name means, the first if there are several. Raises `BadSetting`."""
        return self._resolved()[0]

    def make_way(self, name: str) -> None:
        """Before somebody else binds a Unix socket there: remove one that nobody listens on. Raises `BadSetting` if something is there."""
        self._remove_stale()
        if os.path.lexists(self.path):
            raise BadSetting(name, str(self), "cannot listen there: Address already in use")

    def _open_tcp(self) -> socket.socket:
        host = self.resolve()
        # Named as TCP: asyncio turns Nagle's delay off only for sockets that say so.
        found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # What it accepts inherits this, whoever accepts it.
            keep_alive(found)
            found.bind((host, self.port))
            found.listen(BACKLOG)
        except BaseException:
            found.close()
            raise
        return found

    def _open_unix(self) -> socket.socket:
        found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # Its name appears with the final rights: nobody gets in between.
            before = os.umask(0o177)
            try:
                self._remove_stale()
                found.bind(self.path)
            finally:
                os.umask(before)
            found.listen(BACKLOG)
        except BaseException:
            found.close()
            raise
        return found

    def _remove_stale(self) -> None:
        """A socket that nobody listens on any more is left of a process that died; anything else stays."""
        try:
            if not stat.S_ISSOCK(os.lstat(self.path).st_mode):
                return
        except FileNotFoundError:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.settimeout(1)
                probe.connect(self.path)
            except OSError as error:
                if error.errno == errno.ECONNREFUSED:
                    os.unlink(self.path)

    def remove(self) -> None:
        """Take the name of a Unix socket away."""
        if self.path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)

    def __str__(self) -> str:
        if self.path:
            return UNIX_PREFIX + self.path
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
