"""Which dead letters are meant: by what became of them, where they come from, and what they carry."""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING

from penstock.arguments import check_moment_us, check_whole_number, shown
from penstock.errors import BadArgument
from penstock.groups.dead_letters import HEADER_PREFIX
from penstock.store.reading import OFFSET_MAX
from penstock.topics import publication

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping

    from penstock.topics.message import Message

_WILD = "*?["


class DeadLetterFilter:
    """
    Says of a dead letter whether all that is given fits it; for `list`, `replay` and `discard` of `DeadLetters`, on any store.

    *reason* is a part of the reason, or a pattern for all of it if it has ``*``, ``?`` or ``[``. *partition*, *start* and *end* are of the
    topic that it comes from, half-open. *since* and *until* are about when it was dead-lettered, half-open. *headers* maps names to values;
    a value of None means any.
    """

    def __init__(
        self,
        *,
        reason: str | None = None,
        group: str | None = None,
        partition: int | None = None,
        start: int | None = None,
        end: int | None = None,
        since: dt.datetime | float | None = None,
        until: dt.datetime | float | None = None,
        key: bytes | str | None = None,
        headers: Mapping[str, bytes | None] | None = None,
    ) -> None:
        for name, text in (("reason", reason), ("group", group)):
            if text is not None and not isinstance(text, str):
                raise BadArgument(name, shown(text), "must be a text")
        for name, number in (("partition", partition), ("start", start), ("end", end)):
            if number is not None:
                check_whole_number(name, number, 0, OFFSET_MAX)
        self._reason = reason
        self._group = group
        self._partition = partition
        self._start, self._end = start, end
        self._since_us = None if since is None else check_moment_us("since", since)
        self._until_us = None if until is None else check_moment_us("until", until)
        self._key = publication.key_bytes(key)
        self._headers = _headers(headers)

    def __call__(self, letter: Message) -> bool:
        """Whether *letter* is meant."""
        if self._key is not None and letter.key != self._key:
            return False
        appended = letter.append_time_us
        if self._since_us is not None and appended < self._since_us:
            return False
        if self._until_us is not None and appended >= self._until_us:
            return False
        headers = letter.headers
        for name, value in self._headers.items():
            values = headers.get_all(name)
            if not values or (value is not None and value not in values):
                return False
        if self._group is not None and _told(headers, "group") != self._group:
            return False
        if self._reason is not None and not _fits(self._reason, _told(headers, "reason")):
            return False
        if self._partition is not None and _told(headers, "source-partition") != str(self._partition):
            return False
        if self._start is None and self._end is None:
            return True
        offset = _told(headers, "source-offset")
        if not offset.isdecimal():
            return False
        return (self._start is None or int(offset) >= self._start) and (self._end is None or int(offset) < self._end)


def _headers(given: object) -> dict[str, bytes | None]:
    if given is None:
        return {}
    if not hasattr(given, "items"):
        raise BadArgument("headers", shown(given), "must be a mapping of names to bytes, or to None for any value")
    found: dict[str, bytes | None] = {}
    for name, value in given.items():
        if not isinstance(name, str) or not (value is None or isinstance(value, publication.BYTES_LIKE)):
            raise BadArgument("headers", shown(given), "must be a mapping of names to bytes, or to None for any value")
        found[name] = None if value is None else bytes(value)
    return found


def _told(headers: object, name: str) -> str:
    """What dead-lettering noted: the last of that name, since it adds its headers behind the message's own."""
    values = [value for one, value in headers if one == HEADER_PREFIX + name]  # type: ignore[attr-defined]
    return values[-1].decode(errors="replace") if values else ""


def _fits(pattern: str, reason: str) -> bool:
    if any(character in pattern for character in _WILD):
        return fnmatch.fnmatchcase(reason, pattern)
    return pattern in reason
