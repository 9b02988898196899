"""
Who asks, and what they may do: bearer tokens from a TOML file. The same for every listener.

```toml
[[token]]
name = "billing"                        # what logs and errors say; tokens that replace each other may share it
sha256 = "9f86d081884c7d659a2feaa0..."  # of the token, in hexadecimal; the token itself stands nowhere
expires = 2027-01-01T00:00:00Z          # optional

[token.rights]                          # topics by name; * stands for any characters
consume = ["orders", "payments-*"]
publish = ["invoices"]
```

Rights are `publish`, `consume`, `read` and `admin`, which includes the others. What is not named is not allowed, and there is no rule that
takes a right away: no order of rules to get wrong. Dead letters of `orders` are the topic `orders.dlq` here, with rights of their own.

A token is checked again whenever its `Principal` is asked: what a reload takes away, or time, is gone for open streams too.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import os
import re
import secrets
import stat
import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from penstock.arguments import check_moment_us, shown
from penstock.clock import SystemClock
from penstock.errors import BadSetting, PenstockError, PermissionDenied, Unauthenticated
from penstock.log_events import Often, event, get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.clock import Clock

_log = get_logger("penstock")

RIGHTS = ("publish", "consume", "read", "admin")
TOKEN_CHARACTERS_MAX = 512
TOKENS_MAX = 10_000
FILE_BYTES_MAX = 16 * 1024 * 1024
PATTERN_CHARACTERS_MAX = 200
_NO_TOKEN = "no token was sent: set PENSTOCK_TOKEN for penstock.open and the commands, or send Authorization: Bearer TOKEN"  # noqa: S105
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_PATTERN = re.compile(r"[A-Za-z0-9._*-]+")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}")


class Principal(Protocol):
    """Somebody who asks."""

    @property
    def name(self) -> str:
        """Who it is, for logs and errors."""
        ...

    @property
    def scope(self) -> str:
        """Whose the names of its producers are: its own, or nobody's where there are no tokens."""
        ...

    def check_valid(self) -> None:
        """Raise `Unauthenticated` if its token was revoked or has expired."""
        ...

    def require(self, right: str, topic: str | None) -> None:
        """
        Return if it has *right* on *topic*, or with None on the whole store.

        Raises:
            Unauthenticated: its token is not valid any more.
            PermissionDenied: it has not that right.
        """
        ...

    def may(self, right: str, topic: str | None) -> bool:
        """Whether `require` would return."""
        ...

    def may_see(self, topic: str) -> bool:
        """Whether it has any right on *topic*, so that lists show it."""
        ...


class Authenticator(Protocol):
    """Finds out who asks."""

    @property
    def checks_tokens(self) -> bool:
        """Whether anybody is refused at all."""
        ...

    def authenticate(self, token: str | None) -> Principal:
        """Who sent *token*. Raises `Unauthenticated`."""
        ...


_REFUSED = Often(10, 10.0)
"""Who guesses tokens must not fill the disk with lines."""


def tell_refused(interface: str, peer: str, error: PenstockError) -> None:
    """Log that a client was not let in; never its token."""
    if not isinstance(error, Unauthenticated):
        return
    left_out = _REFUSED.let_through(interface)
    if left_out is not None:
        _log.warning(
            "a client of the %s listener was refused%s: %s%s", interface, f" ({peer})" if peer else "", error,
            f" ({left_out} more since the last such line)" if left_out else "",
            extra=event("token_refused", interface=interface, peer=peer, left_out=left_out),
        )  # fmt: skip


def tell_client(*, came: bool, interface: str, peer: str, principal: str) -> None:
    """Log that a client came, or went: a connection, a stream, or a consumer of a client that has neither."""
    about = {"interface": interface, "peer": peer, "principal": principal}
    place = peer or "-"
    if came:
        _log.debug("a client of %s came: %s, token %s", interface, place, principal, extra=event("connection_opened", **about))
    else:
        _log.debug("a client of %s went: %s, token %s", interface, place, principal, extra=event("connection_closed", **about))


class Everyone:
    """No tokens: whoever reaches the listener may do everything. Only for loopback and Unix sockets."""

    checks_tokens = False
    name = "anybody"
    scope = ""

    def authenticate(self, token: str | None) -> Principal:  # noqa: ARG002
        """Everybody is the same."""
        return self

    def check_valid(self) -> None:
        """There is no token."""

    def require(self, right: str, topic: str | None) -> None:
        """Everything is allowed."""

    def may(self, right: str, topic: str | None) -> bool:  # noqa: ARG002
        """Everything is allowed."""
        return True

    def may_see(self, topic: str) -> bool:  # noqa: ARG002
        """Everything is shown."""
        return True


@dataclass(frozen=True, slots=True)
class Entry:
    """One token of the file."""

    name: str
    digest: bytes = field(repr=False)
    expires_us: int | None
    rights: Mapping[str, tuple[str, ...]]

    def allows(self, right: str, topic: str | None) -> bool:
        """Whether one of its patterns gives *right*, or admin, on *topic*; the whole store is what only ``*`` names."""
        patterns = self.rights.get(right, ()) + self.rights.get("admin", ())
        return "*" in patterns or (topic is not None and any(matches(pattern, topic) for pattern in patterns))


class TokenAuth:
    """The tokens of a file. Safe to use from any thread. Raises `BadSetting` if the file is not good."""

    checks_tokens = True

    def __init__(self, path: str, *, clock: Clock | None = None) -> None:
        self._path = path
        self._clock = clock or SystemClock()
        self._table: dict[bytes, Entry] = {}
        self.reload()

    def reload(self) -> None:
        """Read the file again. Raises `BadSetting`: the file is not good, and what held before still holds."""
        self._table = read_tokens(self._path)

    def reload_or_keep(self) -> bool:
        """The same for a signal handler: a file that is not good is logged. Returns whether it was good."""
        try:
            self.reload()
        except PenstockError as error:
            _log.error("tokens were not reloaded, those of before still hold: %s", error)
            return False
        _log.info("reloaded %d tokens from %s", len(self._table), self._path)
        return True

    def authenticate(self, token: str | None) -> TokenPrincipal:
        """Who sent *token*. Takes as long for a wrong one as for a right one."""
        if token is None:
            raise Unauthenticated(_NO_TOKEN)
        if len(token) > TOKEN_CHARACTERS_MAX or _TOKEN.fullmatch(token) is None:
            raise Unauthenticated("the token is not valid")
        digest = hash_token(token)
        found: Entry | None = None
        for entry in self._table.values():
            if hmac.compare_digest(entry.digest, digest):
                found = entry
        if found is None:
            raise Unauthenticated("the token is not valid")
        principal = TokenPrincipal(found.name, found.digest, self)
        principal.entry()
        return principal

    def entry(self, digest: bytes) -> Entry:
        """What the token with that hash may do now. Raises `Unauthenticated`."""
        entry = self._table.get(digest)
        if entry is None:
            raise Unauthenticated("the token is not valid any more")
        if entry.expires_us is not None and self._clock.now_us() >= entry.expires_us:
            raise Unauthenticated("the token has expired")
        return entry


class TokenPrincipal:
    """Who sent a token; what it may do is looked up each time."""

    __slots__ = ("_auth", "_digest", "name")

    def __init__(self, name: str, digest: bytes, auth: TokenAuth) -> None:
        self.name = name
        self._digest = digest
        self._auth = auth

    @property
    def scope(self) -> str:
        """See `Principal.scope`."""
        return self.name

    def entry(self) -> Entry:
        """What it may do now. Raises `Unauthenticated`."""
        return self._auth.entry(self._digest)

    def check_valid(self) -> None:
        """See `Principal.check_valid`."""
        self._auth.entry(self._digest)

    def require(self, right: str, topic: str | None) -> None:
        """See `Principal.require`."""
        if not self.entry().allows(right, topic):
            raise PermissionDenied(self.name, right, topic)

    def may(self, right: str, topic: str | None) -> bool:
        """See `Principal.may`."""
        return self.entry().allows(right, topic)

    def may_see(self, topic: str) -> bool:
        """See `Principal.may_see`."""
        entry = self.entry()
        return any(entry.allows(right, topic) for right in RIGHTS)

    def __repr__(self) -> str:
        return f"<TokenPrincipal {self.name}>"


class NewToken(NamedTuple):
    """A token for its user, and its hash for the file."""

    token: str
    sha256: str


def new_token() -> NewToken:
    """A token that nobody can guess."""
    token = "pst_" + secrets.token_urlsafe(32)
    return NewToken(token, hash_token(token).hex())


def hash_token(token: str) -> bytes:
    """What is stored of a token. A plain hash is enough: there is nothing to guess in 256 random bits."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def matches(pattern: str, topic: str) -> bool:
    """Whether *topic* is named by *pattern*, in which ``*`` stands for any characters; no regular expression is made of either."""
    first, *rest = pattern.split("*")
    if not rest:
        return pattern == topic
    *middle, last = rest
    if len(topic) < len(first) + len(last) or not topic.startswith(first) or not topic.endswith(last):
        return False
    at, end = len(first), len(topic) - len(last)
    for part in middle:
        at = topic.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True


# -- the file -------------------------------------------------------------------------------------------------------


def read_tokens(path: str) -> dict[bytes, Entry]:
    """The tokens of a file by their hashes. Raises `BadSetting`: whatever is odd about it refuses the whole file."""
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_mode & stat.S_IWOTH:
                raise BadSetting("tokens", path, "must be a file that not everybody may write")
            if found.st_size > FILE_BYTES_MAX:
                raise BadSetting("tokens", path, f"is larger than {FILE_BYTES_MAX:,} bytes")
            document = tomllib.load(file)
    except OSError as error:
        raise BadSetting("tokens", path, f"cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadSetting("tokens", path, f"is no TOML: {error}") from None
    _only(path, document, {"token"}, "at the top")
    rows = document.get("token")
    if not isinstance(rows, list) or not rows:
        # A file without tokens is a mistake, and must not look like a server without security.
        raise BadSetting("tokens", path, "has no [[token]]")
    if len(rows) > TOKENS_MAX:
        raise BadSetting("tokens", path, f"has more than {TOKENS_MAX:,} tokens")
    table: dict[bytes, Entry] = {}
    for number, row in enumerate(rows, 1):
        entry = _entry(path, f"token {number}", row)
        if entry.digest in table:
            raise BadSetting("tokens", path, f"token {number} has the sha256 of another one")
        table[entry.digest] = entry
    return table


def _entry(path: str, where: str, row: Any) -> Entry:
    _only(path, row, {"name", "sha256", "expires", "rights"}, where)
    name, digest = row.get("name"), row.get("sha256")
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise BadSetting("tokens", path, f"{where}: name must be 1 to 100 of A-Z a-z 0-9 . _ @ -, not {shown(name)}")
    where = f"{where} ({name})"
    if not isinstance(digest, str) or _SHA256.fullmatch(digest) is None:
        # Not shown: it may be the token itself.
        raise BadSetting("tokens", path, f"{where}: sha256 must be the hash of the token, 64 characters of 0-9 a-f")
    rights = row.get("rights")
    _only(path, rights, set(RIGHTS), f"{where}: rights")
    if not rights:
        raise BadSetting("tokens", path, f"{where}: rights must name at least one of {', '.join(RIGHTS)}")
    return Entry(
        name,
        bytes.fromhex(digest),
        _expiry(path, where, row.get("expires")),
        {right: _patterns(path, f"{where}: {right}", patterns) for right, patterns in rights.items()},
    )


def _only(path: str, table: Any, known: set[str], where: str) -> None:
    if not isinstance(table, dict):
        raise BadSetting("tokens", path, f"{where} must be a table")
    for key in table:
        if key not in known:
            raise BadSetting("tokens", path, f"{where}: {shown(key)} is not known; use {', '.join(sorted(known))}")


def _expiry(path: str, where: str, value: object) -> int | None:
    if value is None:
        return None
    if not isinstance(value, dt.datetime) or value.tzinfo is None:
        raise BadSetting("tokens", path, f"{where}: expires must be a time with a zone, as in 2027-01-01T00:00:00Z")
    return check_moment_us("expires", value)


def _patterns(path: str, where: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise BadSetting("tokens", path, f'{where} must be a list of topics, as in ["orders", "payments-*"]')
    for pattern in value:
        if not isinstance(pattern, str) or len(pattern) > PATTERN_CHARACTERS_MAX or _PATTERN.fullmatch(pattern) is None:
            raise BadSetting("tokens", path, f"{where}: {shown(pattern)} is no topic name, nor one with *")
    return tuple(value)
