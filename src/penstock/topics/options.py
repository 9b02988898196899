"""
What a publisher may ask for beside the message itself: how long it lives, when it is due, how urgent it is, how it is compressed.

A message without any of these costs nothing: its batch has no column for them. A ttl, and a delay in seconds, count from when the
owner of the log appends the message; a delay that is a datetime is that moment. A column has either kind, so where one batch has both
the seconds are counted from now.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.arguments import US_PER_SECOND, check_moment_us, check_one_of, check_seconds, shown
from penstock.errors import BadArgument
from penstock.format.compression import check_writable, parse_compression

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.format.compression import Codec

PRIORITIES = ("low", "medium", "high")
"""By their numbers in a batch; the first is the default."""
SECONDS_MAX = 1e9
"""The longest ttl or delay, about 31 years."""
US_MAX = round(SECONDS_MAX * US_PER_SECOND)


class Options(NamedTuple):
    """As a caller gave them, not checked; of several messages each is a list with an entry for each, or one for all."""

    ttl: object = None
    delay: object = None
    priority: object = None
    compression: object = None


def options(ttl: object, delay: object, priority: object, compression: object) -> Options | None:
    """The options of a publish, None where nothing is asked for."""
    if ttl is None and delay is None and priority is None and compression is None:
        return None
    return Options(ttl, delay, priority, compression)


class Moment(int):
    """Microseconds since 1970, where a plain number of them counts from the appending."""

    __slots__ = ()


class Wishes(NamedTuple):
    """The options of one message, checked."""

    ttl_us: int | None = None
    due: int | Moment | None = None
    priority: int = 0


def ttl_us(value: object) -> int | None:
    """How long a message lives: seconds or a timedelta. Raises `BadArgument`."""
    return None if value is None else round(check_seconds("ttl", value, 1e-6, SECONDS_MAX) * US_PER_SECOND)


def due(value: object) -> int | Moment | None:
    """When a message is due: seconds or a timedelta from its appending, or a datetime. Raises `BadArgument`."""
    if value is None:
        return None
    if isinstance(value, dt.datetime):
        return Moment(check_moment_us("delay", value))
    if isinstance(value, bool) or not isinstance(value, (int, float, dt.timedelta)):
        raise BadArgument("delay", shown(value), "must be a number of seconds, a timedelta or a datetime")
    return round(check_seconds("delay", value, 0, SECONDS_MAX) * US_PER_SECOND) or None


def priority_number(value: object) -> int:
    """The number of a priority. Raises `BadArgument`."""
    return 0 if value is None else PRIORITIES.index(check_one_of("priority", value, PRIORITIES))


def packing(compression: object) -> tuple[Codec, int | None]:
    """The codec and level of a publish. Raises `BadSetting`."""
    codec, level = parse_compression(compression)  # type: ignore[arg-type]  # it checks
    check_writable(codec)
    return codec, level


def compression_of(codec: Codec, level: int | None) -> str:
    """The text of a codec and level, as `packing` takes it."""
    return codec.name.lower() if level is None else f"{codec.name.lower()}:{level}"


def column(name: str, given: object, count: int, convert: Callable[[object], Any]) -> list[Any] | None:
    """An option of *count* messages: one entry for each, or the same for all; None where none of them has it."""
    if given is None:
        return None
    if isinstance(given, (str, bytes, dict)) or not hasattr(given, "__iter__"):
        one = convert(given)
        return [one] * count if one else None
    found = [convert(entry) for entry in given]
    if len(found) != count:
        raise BadArgument(name, f"a list of {len(found)}", f"must have {count} entries, one for each value, or be one for all")
    return found if any(found) else None


def deliver_column(dues: Sequence[int | Moment | None], now_us: Callable[[], int]) -> tuple[list[int | None], bool]:
    """The deliver column of a batch, and whether it counts from the appending."""
    moments = [isinstance(one, Moment) for one in dues if one is not None]
    if not any(moments):
        return list(dues), True
    if all(moments):
        return list(dues), False
    now = now_us()
    return [one if one is None or isinstance(one, Moment) else now + one for one in dues], False
