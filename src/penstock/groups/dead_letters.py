"""The dead letter of a message: the same key, value, time and priority, its headers, and what became of it."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, NamedTuple

from penstock.format.batch import encode_batch
from penstock.format.columns import EXPIRES
from penstock.format.compression import Codec

if TYPE_CHECKING:
    from penstock.format.batch import Batch, EncodedBatch
    from penstock.groups.cursor import Cursor
    from penstock.groups.failures import Failure
    from penstock.groups.group import Group

SUFFIX = ".dlq"
HEADER_PREFIX = "x-dlq-"
REASON_CHARACTERS = 256
TTL_HEADER = HEADER_PREFIX + "ttl-us"
"""How long the message was to live, of one that said so itself: the letter does not expire, and who sends it back needs it again."""
BOX_GROUP = ".box"
"""The group of a topic of dead letters that knows which of them are there. No user's group has this name: it begins with a dot."""
EXPIRED = "expired"
"""The reason of a message that nobody got in time."""


class Move(NamedTuple):
    """A message that is to become a dead letter."""

    group: Group
    cursor: Cursor
    generation: int
    offset: int
    failure: Failure
    batch: Batch
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody calls on it
    expired: bool = False
    """Whether it goes because it has expired."""


def is_dead_letter_topic(topic: str) -> bool:
    """Whether *topic* holds the dead letters of another one."""
    return topic.endswith(SUFFIX)


def reason_text(reason: object) -> str:
    """The first line of a reason, cut to what a header may hold: a text, or an exception with its kind."""
    if reason is None:
        return ""
    try:
        text = f"{type(reason).__name__}: {reason}" if isinstance(reason, BaseException) else str(reason)
    except Exception:  # noqa: BLE001 - a broken __str__ must not keep a message from being given back
        text = f"{type(reason).__name__}, which cannot be shown"
    line = next(iter(text.splitlines()), "")
    return "".join([character if character.isprintable() else " " for character in line])[:REASON_CHARACTERS]


def dead_letter(move: Move, codec: Codec = Codec.NONE, level: int | None = None) -> EncodedBatch:
    """The batch that goes to the dead-letter topic. It is due at once, never expires, and has no deduplication key."""
    batch, index, failure = move.batch, move.index, move.failure
    value, key = batch.value(index), batch.key(index)
    kept = [(name, text) for name, text in batch.headers(index) if not name.startswith(HEADER_PREFIX)]
    told = {
        "source-topic": move.group.topic,
        "source-partition": str(move.cursor.partition),
        "source-offset": str(move.offset),
        "group": move.group.name,
        "deliveries": str(failure.count),
        "reason": failure.reason,
        "first-failure": iso_time(failure.first_s),
        "last-failure": iso_time(failure.last_s),
    }
    headers = kept + [(HEADER_PREFIX + name, text.encode(errors="replace")) for name, text in told.items()]
    end_us = batch.moment(EXPIRES, index)
    if end_us is not None:
        headers.append((TTL_HEADER, b"%d" % max(1, end_us - batch.append_time_us(index))))
    priority = batch.priority(index)
    return encode_batch(
        [None if value is None else bytes(value)],
        keys=None if key is None else [bytes(key)],
        headers=[headers],
        times_us=[batch.time_us(index)],
        priorities=[priority] if priority else None,
        codec=codec,
        level=level,
    )


def iso_time(seconds: int) -> str:
    """Seconds since 1970 as ISO 8601 in UTC."""
    moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=seconds)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
