"""Checks of what callers hand in: each returns the value in the engine's own unit, or raises `BadArgument` and names it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable

from penstock.errors import BadArgument

US_PER_SECOND = 1_000_000
_SECONDS_LEAST, _SECONDS_END = -62_135_596_800, 253_402_300_800
"""The years 1 to 9999, which is what a datetime can say."""


def shown(value: object) -> str:
    """A short text of any value, for an error message."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a broken __repr__ must not hide the error that is being reported
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 80 else text[:77] + "..."


def check_whole_number(name: str, value: object, least: int, most: int) -> int:
    """A whole number within [least, most]."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadArgument(name, shown(value), "must be a whole number")
    if not least <= value <= most:
        raise BadArgument(name, shown(value), f"must be from {least:,} to {most:,}")
    return value


def check_seconds(name: str, value: object, least: float, most: float) -> float:
    """A length of time in seconds, given as a number or a timedelta."""
    if isinstance(value, dt.timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadArgument(name, shown(value), "must be a number of seconds or a timedelta")
    # Not a number lies nowhere; a whole number may be too large for a float.
    if not least <= value <= most:
        raise BadArgument(name, shown(value), f"must be from {least:g} to {most:g} seconds")
    return float(value)


def check_wait(name: str, value: object) -> float | None:
    """How long to wait at most: None for ever, 0 not at all."""
    if value is None:
        return None
    if type(value) is int and 0 <= value < 1_000_000:
        return float(value)
    return min(check_seconds(name, value, 0, 1e12), 1e6)


def check_moment_us(name: str, value: object) -> int:
    """A moment in microseconds since 1970 UTC, given as an aware datetime or as seconds."""
    if isinstance(value, dt.datetime):
        if value.tzinfo is None:
            raise BadArgument(name, shown(value), "must have a time zone: datetime.now(tz=timezone.utc), for example")
        since = value - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
        return (since.days * 86_400 + since.seconds) * US_PER_SECOND + since.microseconds
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadArgument(name, shown(value), "must be an aware datetime or a number of seconds since 1970")
    if not _SECONDS_LEAST <= value < _SECONDS_END:
        raise BadArgument(name, shown(value), "is no moment in the years 1 to 9999")
    return min(round(value * US_PER_SECOND), _SECONDS_END * US_PER_SECOND - 1)


def check_texts(name: str, values: object, what: str) -> list[str]:
    """A list of texts, given as whatever can be gone through and is not one text itself; *what* they are, for the error."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise BadArgument(name, shown(values), f"must be a list of {what}")
    found = list(values)
    for value in found:
        if not isinstance(value, str):
            raise BadArgument(name, shown(value), f"must be a list of {what}, which are texts")
    return found


def check_one_of(name: str, value: object, choices: tuple[str, ...]) -> str:
    """One of a few words."""
    if not isinstance(value, str) or value not in choices:
        raise BadArgument(name, shown(value), f"use {', '.join(choices[:-1])} or {choices[-1]}")
    return value
