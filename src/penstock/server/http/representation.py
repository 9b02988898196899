"""Messages, topics and groups as JSON, and messages from JSON. Text stays text; other bytes are base64 under the name with ``_base64``."""

from __future__ import annotations

import asyncio
import base64
import binascii
import datetime as dt
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.responses import Response

from penstock.arguments import shown
from penstock.errors import BadArgument
from penstock.topics.publication import message_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.store.stats import MemberInfo
    from penstock.store.store import GroupInfo, TopicInfo
    from penstock.topics.message import Message
    from penstock.topics.receipt import Receipt

INLINE_BYTES_MAX = 256 * 1024
"""More than this is made JSON, or read from it, in a thread: the others' requests go on meanwhile."""


class NewMessage(NamedTuple):
    """A message that is to be published."""

    value: bytes | None
    key: bytes | None = None
    headers: list[tuple[str, bytes]] | None = None
    partition: int | None = None
    timestamp: dt.datetime | None = None
    dedup_key: bytes | None = None
    ttl: float | None = None
    delay: float | dt.datetime | None = None
    priority: str | None = None
    compression: str | None = None
    sync: str | None = None

    def options(self) -> dict[str, Any]:
        """What it has besides its value, as `publish` takes it."""
        return {name: value for name, value in self._asdict().items() if name != "value" and value is not None}


def json_answer(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """An answer in JSON."""
    return Response(_dumps(value), status, headers, "application/json")


async def large_json_answer(value: object, size: int) -> Response:
    """The same; *size* is about how many bytes it has."""
    if size <= INLINE_BYTES_MAX:
        return json_answer(value)
    return Response(await asyncio.to_thread(_dumps, value), media_type="application/json")


def _dumps(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


# -- from JSON ------------------------------------------------------------------------------------------------------


def new_message(fields: dict[str, Any], where: str) -> NewMessage:
    """The message that checked JSON describes. Raises `BadArgument`."""
    timestamp = fields.get("timestamp")
    headers = fields.get("headers")
    deliver_at = fields.get("deliver_at")
    return NewMessage(
        _bytes_of("value", fields, where),
        _bytes_of("key", fields, where),
        None if headers is None else [_header(header, f"{where}.headers[{at}]") for at, header in enumerate(headers)],
        fields.get("partition"),
        None if timestamp is None else moment_of("timestamp", timestamp),
        _bytes_of("dedup_key", fields, where),
        fields.get("ttl"),
        fields.get("delay") if deliver_at is None else moment_of("deliver_at", deliver_at),
        fields.get("priority"),
        fields.get("compression"),
        fields.get("sync"),
    )


def _header(fields: dict[str, Any], where: str) -> tuple[str, bytes]:
    value = _bytes_of("value", fields, where)
    assert value is not None
    return fields["name"], value


def _bytes_of(name: str, fields: dict[str, Any], where: str) -> bytes | None:
    coded = fields.get(f"{name}_base64")
    if coded is not None:
        return bytes_of_base64(coded, f"{where}.{name}_base64")
    text = fields.get(name)
    try:
        return None if text is None else text.encode()
    except UnicodeEncodeError:
        raise BadArgument(f"{where}.{name}", shown(text), "holds half of a character (a lone surrogate)") from None


def bytes_of_base64(text: str, where: str) -> bytes:
    """Decode it. Raises `BadArgument`."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadArgument(where, shown(text), "is no base64") from None


def moment_of(name: str, text: str) -> dt.datetime:
    """The time that ISO 8601 text says. Raises `BadArgument`."""
    try:
        return dt.datetime.fromisoformat(text).astimezone(dt.UTC)
    except (ValueError, OverflowError):
        raise BadArgument(name, shown(text), "there is no such time") from None


def place_of(name: str, text: str | int) -> str | int | dt.datetime:
    """A place in a log: "earliest", "latest", an offset or a time. Raises `BadArgument`."""
    if isinstance(text, int) or text in ("earliest", "latest"):
        return text
    return int(text) if text.isdigit() else moment_of(name, text)


# -- to JSON --------------------------------------------------------------------------------------------------------


def message_fields(message: Message, *, as_base64: bool) -> dict[str, Any]:
    """A message for JSON; nothing is lost."""
    found: dict[str, Any] = {
        "topic": message.topic, "partition": message.partition, "offset": message.offset,
        "timestamp": _iso(message.timestamp),
        **_field("key", message.key, as_base64=as_base64), **_field("value", message.value, as_base64=as_base64),
        "headers": [{"name": name, **_field("value", value, as_base64=as_base64)} for name, value in message.headers],
    }  # fmt: skip
    if message.dedup_key is not None:
        found |= _field("dedup_key", message.dedup_key, as_base64=as_base64)
    for name, moment in (("expires_at", message.expires_at), ("deliver_at", message.deliver_at)):
        if moment is not None:
            found[name] = _iso(moment)
    if message.priority != "low":
        found["priority"] = message.priority
    return found


def _iso(moment: dt.datetime) -> str:
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _field(name: str, data: bytes | None, *, as_base64: bool) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    if not as_base64:
        try:
            return {name: data.decode()}
        except UnicodeDecodeError:
            pass
    return {f"{name}_base64": base64.b64encode(data).decode()}


def fitting(messages: Iterable[Message], bytes_max: int) -> tuple[list[Message], int]:
    """As many of the first messages as have *bytes_max* bytes together, at least one; and how many bytes they have."""
    found: list[Message] = []
    size = 0
    for message in messages:
        one = message_bytes(message.value, message.key, message.headers)
        if found and size + one > bytes_max:
            break
        found.append(message)
        size += one
    return found, size


def receipt_fields(receipt: Receipt) -> dict[str, Any]:
    """Where a message lies."""
    return receipt._asdict()


def topic_fields(info: TopicInfo) -> dict[str, Any]:
    """A topic."""
    return {"name": info.name, "uuid": info.topic_id.hex(), "partitions": info.partitions, "settings": info.settings.to_json()}


def group_fields(info: GroupInfo) -> dict[str, Any]:
    """A group."""
    return {"topic": info.topic, "name": info.name, "settings": info.settings.to_json()}


def member_fields(member: MemberInfo) -> dict[str, Any]:
    """A member of a group."""
    return {**asdict(member), "since": member.since.isoformat(), "last_heard": member.last_heard.isoformat()}
