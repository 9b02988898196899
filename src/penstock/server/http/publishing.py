"""Publishing and reading without a group."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

from penstock.arguments import shown
from penstock.errors import BadArgument, TopicNotFound, Unavailable
from penstock.server.http import representation as show
from penstock.server.http import schemas
from penstock.server.http.operations import OCTETS, Call, Parameter, operation
from penstock.server.http.schemas import ref

if TYPE_CHECKING:
    from starlette.responses import Response

    from penstock.server.http.context import Context
    from penstock.topics.receipt import Receipt

READ_MAX = 1_000
HEADER_PREFIX = "x-penstock-header-"
BASE64 = Parameter("base64", {"type": "boolean", "description": "give keys, values and headers as base64 always"}, False)
_RAW_HEADERS = (
    Parameter("Idempotency-Key", schemas.text(1_024, "the dedup_key of the message", minLength=1), place="header"),
    Parameter("X-Penstock-Key", schemas.text(8_192, "raw body: the key, as text"), place="header"),
    Parameter("X-Penstock-Key-Base64", schemas.text(8_192, "raw body: the key, any bytes"), place="header"),
    Parameter("X-Penstock-Partition", {**schemas.PARTITION, "description": "raw body: the partition"}, place="header"),
    Parameter("X-Penstock-Timestamp", {**schemas.TIME, "description": "raw body: its time"}, place="header"),
)


@operation(
    "POST",
    "/v1/topics/{topic}/messages",
    "Publish a message, or an array of messages: all of each partition or none of them. A raw body is the value of one message; "
    f"its headers are {HEADER_PREFIX.title()}NAME.",
    tag="messages",
    right="publish",
    publishes=True,
    raw_body=True,
    while_draining=False,
    parameters=_RAW_HEADERS,
    body={
        "oneOf": [ref("NewMessage"), schemas.list_of(ref("NewMessage"), schemas.PUBLISH_MESSAGES_MAX, least=1)],
    },
    answers={201: {"oneOf": [ref("Receipt"), ref("Receipts")]}, 200: ref("Receipt")},
    problems=(404, 409, 507),
)
async def publish(call: Call) -> Response:
    """Publish."""
    store = call.context.store
    check_may_create(call, call.topic)
    known = call.headers.get("idempotency-key")
    if isinstance(call.body, list):
        if known is not None:
            raise BadArgument("Idempotency-Key", shown(known), "is for one message; give each of an array its dedup_key")
        receipts = await _publish_many(call, [show.new_message(fields, f"[{at}]") for at, fields in enumerate(call.body)])
        return show.json_answer({"receipts": [show.receipt_fields(receipt) for receipt in receipts]}, 201)
    message = _raw_message(call) if call.media_type == OCTETS else show.new_message(call.body, "body")
    if known is not None:
        if message.dedup_key not in (None, known):
            raise BadArgument(
                "Idempotency-Key", shown(known), f"the dedup_key of the body is another one: {shown(message.dedup_key)}"
            )
        message = message._replace(dedup_key=known)
    receipt = await store.publish(call.topic, message.value, **message.options())
    return show.json_answer(show.receipt_fields(receipt), 200 if receipt.duplicate else 201)


async def _publish_many(call: Call, messages: list[show.NewMessage]) -> list[Receipt]:
    partitions = {message.partition for message in messages}
    if len(partitions) > 1:
        raise BadArgument("partition", shown(sorted(partitions, key=str)), "must be the same for all messages of an array")
    columns: dict[str, list[Any]] = {
        "keys": [message.key for message in messages],
        "headers": [message.headers for message in messages],
        "timestamps": [message.timestamp for message in messages],
        "dedup_keys": [message.dedup_key for message in messages],
    }
    given = {name: values for name, values in columns.items() if any(value is not None for value in values)}
    found = await call.context.store.publish_many(
        call.topic, [message.value for message in messages], partition=partitions.pop(), **given
    )
    return list(found)


def _raw_message(call: Call) -> show.NewMessage:
    headers = []
    for raw_name, raw_value in call.headers.raw:
        name = raw_name.decode("latin-1")
        if name.startswith(HEADER_PREFIX) and len(name) > len(HEADER_PREFIX):
            headers.append((name[len(HEADER_PREFIX) :], raw_value))
    key: bytes | None = None
    if "X-Penstock-Key" in call.query:
        key = call.query["X-Penstock-Key"].encode("latin-1")
    if "X-Penstock-Key-Base64" in call.query:
        if key is not None:
            raise BadArgument("X-Penstock-Key", shown(key), "and X-Penstock-Key-Base64 exclude each other")
        key = show.bytes_of_base64(call.query["X-Penstock-Key-Base64"], "X-Penstock-Key-Base64")
    timestamp = call.query.get("X-Penstock-Timestamp")
    return show.NewMessage(
        call.body,
        key,
        headers or None,
        call.query.get("X-Penstock-Partition"),
        None if timestamp is None else show.moment_of("X-Penstock-Timestamp", timestamp),
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
    parameters=(
        Parameter("start", schemas.PLACE, "earliest"),
        Parameter("limit", schemas.whole(1, READ_MAX, "the most messages"), 100),
        BASE64,
    ),
    answers={200: ref("Page")},
    problems=(404,),
)
async def read(call: Call) -> Response:
    """Read."""
    store, partition, limit = call.context.store.sync, call.path["partition"], call.query["limit"]
    start = show.place_of("start", call.query["start"])
    bytes_max = call.context.settings.response_bytes_max

    def some() -> tuple[list[dict[str, Any]], int, int, int]:
        # The range is fixed first: what comes later belongs to the next page.
        messages = store.read(call.topic, partition, start=start, max_messages=limit)
        end = store.ends(call.topic)[partition]
        found, size = show.fitting(itertools.islice(messages, limit), bytes_max)
        following = found[-1].offset + 1 if found else start if isinstance(start, int) else end
        return [show.message_fields(message, as_base64=call.query["base64"]) for message in found], following, end, size

    messages, following, end, size = await asyncio.to_thread(some)
    return await show.large_json_answer({"messages": messages, "next": following, "end": end}, size)
