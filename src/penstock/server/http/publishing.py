"""Publishing and reading without a group."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

from penstock.arguments import shown
from penstock.errors import BadArgument, TopicNotFound, Unavailable
from penstock.server.http import representation as show
from penstock.server.http import schemas
from penstock.server.http.operations import OCTETS, RAW_HEADER, Call, Parameter, operation
from penstock.server.http.schemas import ref

if TYPE_CHECKING:
    from starlette.responses import Response

    from penstock.server.http.context import Context
    from penstock.topics.receipt import Receipt

READ_MAX = 1_000
HEADER_PREFIX = "x-penstock-header-"
BASE64 = Parameter("base64", {"type": "boolean", "description": "give keys, values and headers as base64 always"}, False)
_PARTITION = "X-Penstock-Partition"
_KEY, _KEY_BASE64, _TIMESTAMP = "X-Penstock-Key", "X-Penstock-Key-Base64", "X-Penstock-Timestamp"
_TTL, _DELAY, _DELIVER_AT = "X-Penstock-TTL", "X-Penstock-Delay", "X-Penstock-Deliver-At"
_PRIORITY, _COMPRESSION, _SYNC = "X-Penstock-Priority", "X-Penstock-Compression", "X-Penstock-Sync"
_RAW_HEADERS = (
    Parameter(_KEY, schemas.text(8_192, "the key, as text"), place=RAW_HEADER),
    Parameter(_KEY_BASE64, schemas.text(8_192, "the key, any bytes"), place=RAW_HEADER),
    Parameter(_PARTITION, {**schemas.PARTITION, "description": "the partition; also for an array"}, place=RAW_HEADER),
    Parameter(_TIMESTAMP, {**schemas.TIME, "description": "its time"}, place=RAW_HEADER),
    Parameter(_TTL, schemas.TTL, place=RAW_HEADER),
    Parameter(_DELAY, schemas.DELAY, place=RAW_HEADER),
    Parameter(_DELIVER_AT, {**schemas.TIME, "description": "not delivered to groups before"}, place=RAW_HEADER),
    Parameter(_PRIORITY, schemas.PRIORITY, place=RAW_HEADER),
    Parameter(
        _COMPRESSION, {**schemas.COMPRESSION, "description": "instead of the topic's; also for an array"}, place=RAW_HEADER
    ),
    Parameter(
        _SYNC, {**schemas.SYNC, "description": "where it is stricter than the topic's; also for an array"}, place=RAW_HEADER
    ),
)
_FOR_ALL = {"partition": _PARTITION, "compression": _COMPRESSION, "sync": _SYNC}
"""What is told of all messages of an array together, and by which header."""
_OF_ARRAYS = {header.lower() for header in _FOR_ALL.values()}


@operation(
    "POST",
    "/v1/topics/{topic}/messages",
    "Publish a message, or an array of messages: all of them or none. A raw body is the value of one message.",
    tag="messages",
    right="publish",
    publishes=True,
    raw_body=f"A raw body has the rest of its message in headers: {', '.join(one.name for one in _RAW_HEADERS)}, X-Penstock-Header-NAME.",
    while_draining=False,
    parameters=(
        Parameter(
            "Idempotency-Key",
            schemas.text(
                1_000, "the dedup_key, unless the message has one; in an array with / and its index behind it", minLength=1
            ),
            place="header",
        ),
        *_RAW_HEADERS,
    ),
    body={"oneOf": [ref("NewMessage"), schemas.list_of(ref("NewMessageOfMany"), schemas.PUBLISH_MESSAGES_MAX, least=1)]},
    answers={201: {"oneOf": [ref("Receipt"), ref("Receipts")]}, 200: ref("Receipt")},
    problems=(404, 409, 507),
)
async def publish(call: Call) -> Response:
    """Publish."""
    store = call.context.store
    headers = _message_headers(call)
    check_may_create(call, call.topic)
    text = call.query.get("Idempotency-Key")
    known = None if text is None else text.encode("latin-1")
    if isinstance(call.body, list):
        receipts = await _publish_many(call, known)
        return show.json_answer({"receipts": [show.receipt_fields(receipt) for receipt in receipts]}, 201)
    message = _raw_message(call, headers) if call.media_type == OCTETS else show.new_message(call.body, "body")
    if message.dedup_key is None:
        message = message._replace(dedup_key=known)
    receipt = await store.publish(call.topic, message.value, **message.options())
    return show.json_answer(show.receipt_fields(receipt), 200 if receipt.duplicate else 201)


def _message_headers(call: Call) -> list[tuple[str, bytes]]:
    """The message's headers among those of the request. Raises `BadArgument` if one would be passed over."""
    found = []
    used = {one.name.lower() for one in _RAW_HEADERS}
    if call.media_type != OCTETS:
        used = _OF_ARRAYS if isinstance(call.body, list) else set()
    for raw_name, raw_value in call.headers.raw:
        name = raw_name.decode("latin-1")
        if name.startswith(HEADER_PREFIX) and call.media_type == OCTETS:
            found.append((name[len(HEADER_PREFIX) :], raw_value))
        elif name.startswith("x-penstock-") and name not in used:
            raise BadArgument("header", shown(name), "has no meaning for this body")
    return found


async def _publish_many(call: Call, known: bytes | None) -> list[Receipt]:
    messages = [show.new_message(fields, f"[{at}]") for at, fields in enumerate(call.body)]
    dedup_keys = [message.dedup_key for message in messages]
    if known is not None:
        dedup_keys = [b"%s/%d" % (known, at) if key is None else key for at, key in enumerate(dedup_keys)]
    columns: dict[str, list[Any]] = {
        "keys": [message.key for message in messages],
        "headers": [message.headers for message in messages],
        "timestamps": [message.timestamp for message in messages],
        "dedup_keys": dedup_keys,
        "ttls": [message.ttl for message in messages],
        "delays": [message.delay for message in messages],
        "priorities": [message.priority for message in messages],
    }
    given: dict[str, Any] = {name: values for name, values in columns.items() if any(value is not None for value in values)}
    values = [message.value for message in messages]
    given |= {name: call.query.get(header) for name, header in _FOR_ALL.items()}
    return list(await call.context.store.publish_many(call.topic, values, **given))


def _raw_message(call: Call, headers: list[tuple[str, bytes]]) -> show.NewMessage:
    key: bytes | None = None
    if _KEY in call.query:
        key = call.query[_KEY].encode("latin-1")
    if _KEY_BASE64 in call.query:
        if key is not None:
            raise BadArgument(_KEY, shown(key), f"and {_KEY_BASE64} exclude each other")
        key = show.bytes_of_base64(call.query[_KEY_BASE64], _KEY_BASE64)
    timestamp, deliver_at = call.query.get(_TIMESTAMP), call.query.get(_DELIVER_AT)
    if deliver_at is not None and _DELAY in call.query:
        raise BadArgument(_DELAY, shown(call.query[_DELAY]), f"and {_DELIVER_AT} exclude each other")
    return show.NewMessage(
        call.body,
        key,
        headers or None,
        call.query.get(_PARTITION),
        None if timestamp is None else show.moment_of(_TIMESTAMP, timestamp),
        None,
        call.query.get(_TTL),
        call.query.get(_DELAY) if deliver_at is None else show.moment_of(_DELIVER_AT, deliver_at),
        call.query.get(_PRIORITY),
        call.query.get(_COMPRESSION),
        call.query.get(_SYNC),
    )


def check_may_create(call: Call, topic: str) -> None:
    """Raise unless the topic is there, or who asks may make it, and there is room for one more."""
    context = call.context
    try:
        context.store.topic(topic)
    except TopicNotFound:
        if not call.principal.may("admin", topic):
            raise
        check_topics_room(context)


def check_topics_room(context: Context) -> None:
    """Raise `Unavailable` if there are as many topics as may be made."""
    if len(context.store.topics()) >= context.settings.topics_max:
        raise Unavailable(f"the server has {context.settings.topics_max:,} topics, as many as may be made; nothing was stored")


@operation(
    "GET",
    "/v1/topics/{topic}/partitions/{partition}/messages",
    "Read messages without a group, from a place on.",
    tag="messages",
    right="read",
    large=True,
    parameters=(
        Parameter("start", schemas.PLACE, "earliest"),
        Parameter(
            "max_messages", schemas.whole(1, READ_MAX, "the most messages; `limit` is its older name"), 100, older="limit"
        ),
        Parameter("uuid", schemas.text(32, "that of the page before: 404 if another topic has the name by now")),
        BASE64,
    ),
    answers={200: ref("Page")},
    problems=(404,),
)
async def read(call: Call) -> Response:
    """Read."""
    store, partition, limit = call.context.store.sync, call.path["partition"], call.query["max_messages"]
    start = show.place_of("start", call.query["start"])
    bytes_max = call.context.settings.response_bytes_max

    def some() -> tuple[dict[str, Any], int]:
        uuid = store.topic(call.topic).topic_id.hex()
        if call.query["uuid"] not in {None, uuid}:
            raise TopicNotFound(call.topic)
        # The range is fixed first: what comes later belongs to the next page.
        messages = store.read(call.topic, partition, start=start, max_messages=limit)
        end = store.ends(call.topic)[partition]
        found, size = show.fitting(itertools.islice(messages, limit), bytes_max)
        following = found[-1].offset + 1 if found else start if isinstance(start, int) else end
        if store.topic(call.topic).topic_id.hex() != uuid:
            raise TopicNotFound(call.topic)
        shown = [show.message_fields(message, as_base64=call.query["base64"]) for message in found]
        return {"uuid": uuid, "messages": shown, "next": following, "end": end}, size

    page, size = await asyncio.to_thread(some)
    return await show.large_json_answer(page, size)
