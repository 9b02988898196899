"""Messages as a command prints them, and as `publish` reads them back."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from penstock.cli import output
from penstock.cli.escapes import escape, from_json, json_line, to_json
from penstock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.topics.message import Message
    from penstock.topics.receipt import Receipt


class NewMessage(NamedTuple):
    """A message that is to be published."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] | None = None
    dedup_key: bytes | None = None
    timestamp: dt.datetime | None = None
    ttl: float | None = None
    delay: float | dt.datetime | None = None
    priority: str | None = None


# -- printing -------------------------------------------------------------------------------------------------------


def moment(time: dt.datetime) -> str:
    """A time as text that `datetime.fromisoformat` reads back."""
    return time.isoformat(timespec="microseconds").replace("+00:00", "Z")


def fields(message: Message) -> dict[str, Any]:
    """A message for JSON; nothing is lost."""
    found: dict[str, Any] = {
        "topic": message.topic, "partition": message.partition, "offset": message.offset, "timestamp": moment(message.timestamp),
        **to_json("key", message.key), **to_json("value", message.value),
        "headers": [{"name": name, **to_json("value", value)} for name, value in message.headers],
    }  # fmt: skip
    if message.dedup_key is not None:
        found |= to_json("dedup_key", message.dedup_key)
    found |= {name: moment(when) for name, when in _moments(message)}
    if message.priority != "low":
        found["priority"] = message.priority
    attempt = getattr(message, "attempt", None)
    return found if attempt is None else found | {"attempt": attempt}


def _moments(message: Message) -> list[tuple[str, dt.datetime]]:
    """When it expires and when it is due, where it says so."""
    both = (("expires_at", message.expires_at), ("deliver_at", message.deliver_at))
    return [(name, when) for name, when in both if when is not None]


def receipt_fields(receipt: Receipt) -> dict[str, Any]:
    """A receipt for JSON."""
    return receipt._asdict()


def _json(message: Message) -> bytes:
    return json_line(fields(message))


def _value(message: Message) -> bytes:
    return message.value or b""


def _escaped(message: Message) -> bytes:
    return escape(message.value).encode()


def _text(message: Message) -> bytes:
    place, time = f"{message.partition}/{message.offset}", moment(message.timestamp)
    if output.has_colour():
        place, time = click.style(place, fg="cyan"), click.style(time, dim=True)
    parts = [place, time]
    if message.key is not None:
        parts.append(f"key={escape(message.key)}")
    parts += [f"{escape(name.encode())}={escape(value)}" for name, value in message.headers]
    if message.priority != "low":
        parts.append(f"({message.priority})")
    parts += [f"({name.partition('_')[0]} {moment(when)})" for name, when in _moments(message)]
    attempt = getattr(message, "attempt", 1)
    if attempt > 1:
        parts.append(f"(delivery {attempt})")
    return "\t".join([*parts, escape(message.value)]).encode()


_FORMS: dict[str, Callable[[Message], bytes]] = {"text": _text, "json": _json, "value": _value, "escaped": _escaped}


def write_messages(messages: Iterable[Message], form: str) -> None:
    """Print messages, each as one line (or, with *form* value, as its bytes and a newline)."""
    encode = _FORMS[form]
    output.write(b"".join([encode(message) + b"\n" for message in messages]))


# -- reading back ---------------------------------------------------------------------------------------------------


def parse(line: bytes) -> NewMessage:
    """What a line of JSON says, as `fields` wrote it; its place in the topic it came from does not count. Raises `UsageError`."""
    try:
        found = json.loads(line)
    except ValueError as error:
        raise UsageError(f"it is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise UsageError('it is no JSON object like {"value": "text", "key": "text"}')
    if "value" not in found and "value_base64" not in found:
        raise UsageError("it has neither value nor value_base64; for a tombstone value is null")
    return NewMessage(
        from_json("value", found),
        from_json("key", found),
        _headers(found.get("headers") or []) or None,
        from_json("dedup_key", found),
        _moment("timestamp", found.get("timestamp")),
        found.get("ttl"),
        found.get("delay") if found.get("deliver_at") is None else _moment("deliver_at", found["deliver_at"]),
        found.get("priority"),
    )


def _headers(found: object) -> tuple[tuple[str, bytes], ...]:
    if isinstance(found, dict):
        found = [{"name": name, "value": value} for name, value in found.items()]
    if not isinstance(found, list):
        raise UsageError('headers must be a list like [{"name": "source", "value": "web"}]')
    headers: list[tuple[str, bytes]] = []
    for one in found:
        if not isinstance(one, dict) or not isinstance(one.get("name"), str):
            raise UsageError('a header must be an object like {"name": "source", "value": "web"}')
        value = from_json("value", one)
        if value is None:
            raise UsageError(f"the header {one['name']!r} has neither value nor value_base64")
        headers.append((one["name"], value))
    return tuple(headers)


def _moment(name: str, found: object) -> dt.datetime | None:
    if found is None:
        return None
    try:
        time = dt.datetime.fromisoformat(found) if isinstance(found, str) else None
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise UsageError(f"{name} must be a time with its zone, like 2026-01-31T08:00:00Z")
    return time
