"""Consuming: long polls, streams, and finishing what they gave."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from penstock.errors import BadArgument, Closed, ConsumerEvicted, LeaseExpired, PenstockError, TopicNotFound, Unavailable
from penstock.server.http import representation as show
from penstock.server.http import schemas
from penstock.server.http.body import ClientGone
from penstock.server.http.consumers import ClientConsumer, Place, give_back
from penstock.server.http.operations import EVENTS, Call, Parameter, operation
from penstock.server.http.problems import HttpProblem, document, problem
from penstock.server.http.publishing import BASE64, check_may_create
from penstock.server.http.schemas import ref
from penstock.topics.catalog import OWN_SUFFIXES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import Receive, Scope, Send

    from penstock.aio import AsyncDelivery

HEARTBEAT_S = 15.0
FINISH_LOOK_S = 0.05
LOOK_S = 1.0
"""How often a stream looks whether its token still holds."""
_CONSUMER = schemas.text(
    196,
    "a name for this worker; in an ordered group each worker needs one of its own",
    pattern="^([A-Za-z0-9][A-Za-z0-9._-]{0,195})?$",
)
_LEASE = schemas.seconds(
    0.001, schemas.SECONDS_MAX, "how long the messages are kept for this client; default: the group's lease"
)
_RECEIPTS = schemas.list_of(schemas.text(64, minLength=1), schemas.RECEIPTS_MAX, least=1)
_REASON = schemas.text(schemas.REASON_CHARACTERS_MAX, "why; its first line goes into the dead letter, up to 256 characters")
CREATE = {
    "type": "boolean",
    "description": "a topic that is not there is made, as by publishing, if the token may make it; false: it is an error. Default true",
}
_GROUP = "/v1/topics/{topic}/groups/{group}"


def _place(call: Call, consumer: str = "") -> Place:
    return Place(call.topic, call.group, call.principal.name, consumer)


def check_may_make_group(call: Call) -> None:
    """
    Raise unless the group is there, or there is room for one more.

    Raises `TopicNotFound` too, unless the topic will be made for whoever asks: as by publishing, only for who may make topics.
    """
    try:
        groups = call.context.store.groups(call.topic)
    except TopicNotFound:
        if (call.body or {}).get("create") is False:
            raise
        source = call.topic
        for suffix in OWN_SUFFIXES:
            source = source.removesuffix(suffix)
        check_may_create(call, source)
        return
    most = call.context.settings.groups_max
    if len(groups) >= most and not any(info.name == call.group for info in groups):
        raise Unavailable(f"topic {call.topic!r} has {most:,} groups, as many as may be made; nothing was changed")


@operation(
    "POST",
    f"{_GROUP}/receive",
    "Take messages; wait for the first if there are none. The group is made if it is not there.",
    tag="consuming",
    right="consume",
    while_draining=False,
    body=schemas.record(
        {
            "max_messages": schemas.whole(1, schemas.RECEIVE_MAX, "the most messages; default 1"),
            "max": schemas.whole(1, schemas.RECEIVE_MAX, "the older name of max_messages"),
            "wait": schemas.seconds(
                0, 3_600, "seconds to wait for the first message, at most the server's wait_max_s; default 0"
            ),
            "lease": _LEASE,
            "consumer": _CONSUMER,
            "create": CREATE,
            "base64": BASE64.schema,
        }
    )
    | {"not": {"required": ["max", "max_messages"]}},
    body_optional=True,
    answers={200: ref("Deliveries")},
    problems=(404,),
)
async def receive(call: Call) -> Response:
    """Long poll."""
    context, asked = call.context, call.body or {}
    wait_s = min(asked.get("wait", 0), context.settings.wait_max_s)
    if "max" in asked and "max_messages" in asked:
        raise BadArgument("max", asked["max"], "is the older name of max_messages: give one of them")
    most = asked.get("max_messages", asked.get("max", 1))
    place = _place(call, asked.get("consumer", ""))
    is_new = not context.consumers.has(place)
    if is_new:
        check_may_make_group(call)
    with contextlib.ExitStack() as stack:
        if wait_s > 0:
            stack.enter_context(context.may_wait())
        for last in (False, True):
            client = await context.consumers.get(place, create=is_new and not last, peer=call.peer)
            try:
                with context.consumers.waiting(client):
                    found = await context.unless_gone(client.consumer.get_many(most, wait_s), call.stream, give_back)
                break
            except ConsumerEvicted:
                await context.consumers.close(client)  # it is told once; its next request opens a new one
                raise
            except Closed:
                # The group was deleted, or the consumer was idle for too long, between two lines.
                await context.consumers.close(client)
                if client.has_left:
                    break
                if last:
                    raise
    if client.has_left:
        found = []  # what was taken for it meanwhile went back with the rest
    try:
        # The token may have been revoked while this waited.
        call.principal.require("consume", call.topic)
    except PenstockError:
        give_back(found or [])
        raise
    deliveries, size = _fitting(found or [], context.settings.response_bytes_max)
    handed = context.consumers.hand(client, deliveries, asked.get("lease"))
    fields = [_fields(delivery, receipt, as_base64=asked.get("base64", False)) for delivery, receipt in handed]
    return await show.large_json_answer({"messages": fields}, size)


def _fitting(deliveries: list[AsyncDelivery], bytes_max: int) -> tuple[list[AsyncDelivery], int]:
    kept, size = show.fitting([delivery._delivery for delivery in deliveries], bytes_max)  # noqa: SLF001
    give_back(deliveries[len(kept) :])
    return deliveries[: len(kept)], size


def _fields(delivery: AsyncDelivery, receipt: str, *, as_base64: bool) -> dict[str, Any]:
    fields = show.message_fields(delivery._delivery, as_base64=as_base64)  # noqa: SLF001
    return fields | {"attempt": delivery.attempt, "receipt": receipt}


# -- joining and leaving ---------------------------------------------------------------------------------------------


@operation(
    "PUT", f"{_GROUP}/consumers/{{consumer}}",
    "A worker joins before it takes messages: in an ordered group it gets its share. One that is there stays as it is. The group is made "
    "if it is not there.",
    tag="consuming", right="consume", while_draining=False,
    body=schemas.record(
        {
            "in_flight": schemas.whole(1, 1_000_000, "messages that it may hold; default, and at most, the server's in_flight_max"),
            "create": CREATE,
        }
    ),
    body_optional=True, answers={204: None}, problems=(404,),
)  # fmt: skip
async def join(call: Call) -> Response:
    """Join."""
    place = _place(call, call.path["consumer"])
    if not call.context.consumers.has(place):
        check_may_make_group(call)
    await call.context.consumers.get(place, (call.body or {}).get("in_flight"), create=True, peer=call.peer)
    return Response(status_code=204)


@operation(
    "DELETE", f"{_GROUP}/consumers/{{consumer}}",
    "A worker leaves: what it holds is ready for others at once, uncounted, its receipts are void, and its requests that wait end. One "
    "that is not there has left.",
    tag="consuming", right="consume", answers={204: None},
)  # fmt: skip
async def leave(call: Call) -> Response:
    """Leave."""
    await call.context.consumers.leave(_place(call, call.path["consumer"]))
    return Response(status_code=204)


# -- finishing ------------------------------------------------------------------------------------------------------


async def _finish(call: Call, finish: Callable[[AsyncDelivery], Awaitable[None]], *, used: bool = True) -> Response:
    """*finish* each delivery of the receipts in the body; those that are late change nothing, and are told."""
    consumers, place = call.context.consumers, _place(call)
    late: list[str] = []
    error: LeaseExpired | None = None
    done = 0
    for receipt in call.body["receipts"]:
        held = consumers.find(place, receipt)
        if held is None:
            late.append(receipt)
            continue
        number, delivery = held
        try:
            await finish(delivery)
        except LeaseExpired as expired:
            consumers.finished(number)
            late.append(receipt)
            error = error or expired
            continue
        if used:
            consumers.finished(number)
        else:
            consumers.extended(number, call.body.get("lease"))
        done += 1
    if call.body.get("wait"):
        await call.context.store.flush()
    if late:
        return problem(error or _Unknown(call.topic, -1, -1, len(late)), {"late": late, "done": done})
    return show.json_answer({"done": done})


class _Unknown(LeaseExpired):
    """The message is not this consumer's any more: its lease ended, or its group was moved."""

    def __str__(self) -> str:
        return f"{self.messages:,} of the receipts are not known for this topic, group and token; they changed nothing"


@operation(
    "POST", f"{_GROUP}/ack", "Messages are done.", tag="consuming", right="consume",
    body=schemas.record(
        {"receipts": _RECEIPTS, "wait": {"type": "boolean", "description": "answer when it is durable; default false"}}, ("receipts",)
    ),
    answers={200: ref("Finished")}, problems=(404, 409),
)  # fmt: skip
async def ack(call: Call) -> Response:
    """Ack."""
    return await _finish(call, lambda delivery: delivery.ack())


@operation(
    "POST", f"{_GROUP}/nack", "Messages failed: deliver them again later, or dead-letter them.", tag="consuming", right="consume",
    body=schemas.record(
        {
            "receipts": _RECEIPTS,
            "delay": schemas.seconds(0, 3_650 * 86_400, "seconds until the next delivery; default: growing with each failure"),
            "reason": _REASON,
        },
        ("receipts",),
    ),
    answers={200: ref("Finished")}, problems=(404, 409),
)  # fmt: skip
async def nack(call: Call) -> Response:
    """Nack."""
    return await _finish(call, lambda delivery: delivery.nack(delay=call.body.get("delay"), reason=call.body.get("reason")))


@operation(
    "POST", f"{_GROUP}/reject", "Messages can never be handled: dead-letter them now.", tag="consuming", right="consume",
    body=schemas.record({"receipts": _RECEIPTS, "reason": _REASON}, ("receipts",)),
    answers={200: ref("Finished")}, problems=(404, 409),
)  # fmt: skip
async def reject(call: Call) -> Response:
    """Reject."""
    return await _finish(call, lambda delivery: delivery.reject(call.body.get("reason")))


@operation(
    "POST", f"{_GROUP}/extend", "Keep messages longer, from now on.", tag="consuming", right="consume",
    body=schemas.record({"receipts": _RECEIPTS, "lease": _LEASE}, ("receipts",)),
    answers={200: ref("Finished")}, problems=(404, 409),
)  # fmt: skip
async def extend(call: Call) -> Response:
    """Extend."""
    return await _finish(call, lambda delivery: delivery.extend(call.body.get("lease")), used=False)


# -- streams --------------------------------------------------------------------------------------------------------


@operation(
    "GET",
    f"{_GROUP}/stream",
    "Take messages as they come, as server-sent events; finish them by their receipts. When the stream ends, however it does, what was "
    "not finished is ready for others at once.",
    tag="consuming",
    right="consume",
    while_draining=False,
    head=False,
    parameters=(
        Parameter(
            "in_flight",
            schemas.whole(
                1,
                1_000,
                "messages that may be sent and not finished; default: what the client finishes in a while, 100 at most",
            ),
        ),
        Parameter("concurrency", schemas.whole(1, 1_000, "messages that the client handles at once"), 1),
        Parameter("seconds", schemas.seconds(0, 86_400, "how long, at most the server's stream_max_s"), 86_400.0),
        Parameter("lease", _LEASE),
        BASE64,
    ),
    answers={200: (EVENTS, {"type": "string", "description": "events `message` (a Delivery), `error` (a Problem) and `end`"})},
    problems=(404, 406),
)
async def stream(call: Call) -> Response:
    """Server-sent events."""
    accepted = call.headers.get("accept", "")
    if EVENTS not in accepted.lower():
        # A page of another site can make a browser ask for this path, but not with this header.
        raise HttpProblem("NOT_ACCEPTABLE", f"ask with Accept: {EVENTS}")
    check_may_make_group(call)
    with contextlib.ExitStack() as stack:
        stack.enter_context(call.context.may_wait())
        query = call.query
        client = await call.context.consumers.open_stream(
            _place(call), query["in_flight"], query["concurrency"], query["lease"], call.peer
        )
        return EventStream(call, client, stack.pop_all())


class EventStream(Response):
    """Sends messages until the client goes, the time is over, the token is not valid any more, or the server stops."""

    media_type = EVENTS

    def __init__(self, call: Call, client: ClientConsumer, place: contextlib.ExitStack) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._place = place
        self._call = call
        self._client = client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        context = self._call.context
        try:
            with self._place, contextlib.suppress(ClientGone):
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                event = await self._messages(send)
                await send({"type": "http.response.body", "body": event})
        finally:
            await context.consumers.close(self._client)

    async def _messages(self, send: Send) -> bytes:
        """Send messages; returns the last event."""
        call, context, loop = self._call, self._call.context, asyncio.get_running_loop()
        most = self._client.consumer.sync._member.prefetch  # noqa: SLF001
        end = loop.time() + min(call.query["seconds"], context.settings.stream_max_s)
        heartbeat = 0.0
        while not context.stopping.is_set() and not context.draining and loop.time() < end:
            try:
                call.principal.require("consume", call.topic)
                found = await context.unless_gone(
                    self._client.consumer.get_many(most, min(LOOK_S, max(0.0, end - loop.time()))),
                    call.stream,
                    give_back,
                )
            except PenstockError as error:
                return _event("error", document(error))
            if found:
                await self._send(found, send)
                heartbeat = loop.time() + HEARTBEAT_S
            elif loop.time() >= heartbeat:
                heartbeat = loop.time() + HEARTBEAT_S
                await send({"type": "http.response.body", "body": b": still here\n\n", "more_body": True})
        await self._let_finish()
        return _event("end", {})

    async def _let_finish(self) -> None:
        """While the server stops: no more messages come, and what was sent may be finished as long as the stream lasts."""
        context = self._call.context
        if not context.draining:
            return
        gone = asyncio.ensure_future(self._call.stream.gone())
        try:
            while context.consumers.holds_any(self._client) and not context.ending.is_set() and not gone.done():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(FINISH_LOOK_S):
                        await context.ending.wait()
        finally:
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)

    async def _send(self, deliveries: list[AsyncDelivery], send: Send) -> None:
        call = self._call
        for delivery, receipt in call.context.consumers.hand(self._client, deliveries, call.query["lease"]):
            fields = _fields(delivery, receipt, as_base64=call.query["base64"])
            event = _event("message", fields, f"{delivery.partition}-{delivery.offset}")
            await send({"type": "http.response.body", "body": event, "more_body": True})


def _event(kind: str, fields: dict[str, Any], identity: str = "") -> bytes:
    line = f"id: {identity}\n" if identity else ""
    return f"{line}event: {kind}\ndata: {json.dumps(fields)}\n\n".encode()
