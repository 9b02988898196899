"""What a client takes out of an answer: a server of another version, or none of ours, may have left it out or tell something else."""

from __future__ import annotations

from typing import Any

from penstock.errors import BadBytes

_TTL_MS_MAX = 1_000_000_000_000


def _wrong(name: str, what: str) -> BadBytes:
    return BadBytes(
        "answer", f"has no {what} {name!r}: this client does not understand the server; are their versions the same?"
    )


def whole(fields: dict[str, Any], name: str) -> int:
    """A whole number of an answer. Raises `BadBytes`."""
    value = fields.get(name)
    if type(value) is not int:
        raise _wrong(name, "number")
    return value


def text(fields: dict[str, Any], name: str) -> str:
    """A text of an answer. Raises `BadBytes`."""
    value = fields.get(name)
    if not isinstance(value, str):
        raise _wrong(name, "text")
    return value


def rows(fields: dict[str, Any], name: str) -> list[Any]:
    """A list of an answer. Raises `BadBytes`."""
    value = fields.get(name)
    if not isinstance(value, list):
        raise _wrong(name, "list")
    return value


def numbers(fields: dict[str, Any], name: str, count: int | None = None) -> list[int]:
    """A list of whole numbers of an answer, *count* of them. Raises `BadBytes`."""
    value = rows(fields, name)
    if any(type(one) is not int for one in value) or count not in (None, len(value)):
        raise _wrong(name, "list of numbers")
    return value


def number_rows(fields: dict[str, Any], name: str, width: int) -> list[list[int]]:
    """A list of rows of *width* whole numbers, or yes and no, each. Raises `BadBytes`."""
    value = rows(fields, name)
    for row in value:
        if not isinstance(row, list) or len(row) != width or not all(isinstance(one, int) for one in row):
            raise _wrong(name, "list of numbers")
    return value


def log_ends(fields: dict[str, Any]) -> list[tuple[int, int]]:
    """(start, end) of each partition, of the answer to `POSITIONS`. Raises `BadBytes`."""
    starts = numbers(fields, "starts")
    return list(zip(starts, numbers(fields, "ends", len(starts)), strict=True))


def topic_id(fields: dict[str, Any]) -> dict[str, str]:
    """What a call adds to be refused when another topic has the name by then; nothing of an older server, which does not tell."""
    value = fields.get("topic_id")
    return {"topic_id": value} if isinstance(value, str) else {}


def topic_ttl_us(fields: dict[str, Any]) -> int:
    """How long messages of a topic live that do not say it themselves, 0 for ever; an older server does not tell."""
    value = fields.get("ttl_ms")
    return value * 1000 if type(value) is int and 0 <= value <= _TTL_MS_MAX else 0
