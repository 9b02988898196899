"""
Spans: what a publish, a receive and a processing are in OpenTelemetry, and the guard that lets none of it disturb a message.

Everything that imports `opentelemetry` is here, inside functions: it is imported when tracing is asked for. What tracing raises is logged
once, and the caller gets None.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from penstock.errors import UsageError
from penstock.log_events import get_logger
from penstock.topics.publication import header_pairs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_log = get_logger("penstock.telemetry")
_NAME = "penstock"
_told: set[str] = set()
"""Errors of tracing that were logged."""
_LINKS_MAX = 128
"""A span of a batch links to so many of its messages; more are dropped by the SDK anyway."""


class Block:
    """A span that is current while a block runs; None instead of a span where tracing failed."""

    __slots__ = ("context", "span")

    def __init__(self, span: Any) -> None:
        self.span = span
        self.context: Any = None


_Blocks = tuple[Any, tuple[Block, ...]]
_blocks: ContextVar[_Blocks | None] = ContextVar("penstock_blocks", default=None)
"""The context before the first of the blocks that are open here, and the blocks, which may end in any order."""


def tracer_of(provider: Any) -> Any:
    """A tracer. Raises `UsageError` where OpenTelemetry is not installed."""
    try:
        from opentelemetry import trace
    except ImportError:
        raise UsageError("OpenTelemetry is not installed: pip install 'penstock[otel]'") from None
    return trace.get_tracer(_NAME, tracer_provider=provider)


def begin_send(tracer: Any, topic: str, count: int = 1) -> Any:
    """A span for messages on their way to the store."""
    return quietly(_start, tracer, "publish", "send", topic, "PRODUCER", count)


def begin_create(tracer: Any, topic: str, count: int = 1) -> Any:
    """A span for messages that are made now, and published by something later."""
    return quietly(_start, tracer, "create", "create", topic, "PRODUCER", count)


def begin_commit(tracer: Any, created: Sequence[Any]) -> Any:
    """A span for publishing what was *created*."""
    return quietly(_start_commit, tracer, created)


def _start(tracer: Any, name: str, kind: str, topic: str, role: str, count: int) -> Any:
    from opentelemetry.trace import SpanKind

    attributes = _attributes(name, kind, topic)
    if count > 1:
        attributes["messaging.batch.message_count"] = count
    return tracer.start_span(f"{name} {topic}", kind=SpanKind[role], attributes=attributes)


def _start_commit(tracer: Any, created: Sequence[Any]) -> Any:
    from opentelemetry.trace import Link, SpanKind

    attributes = {
        "messaging.system": _NAME, "messaging.operation.name": "commit", "messaging.operation.type": "send",
        "messaging.batch.message_count": len(created),
    }  # fmt: skip
    links = [Link(span.get_span_context()) for span in created[:_LINKS_MAX]]
    return tracer.start_span("commit transaction", kind=SpanKind.CLIENT, attributes=attributes, links=links)


def received(tracer: Any, messages: Sequence[Any], began_ns: int) -> None:
    """A span that is over: the call that began at *began_ns* has handed out *messages*."""
    span = quietly(_start_receive, tracer, messages, began_ns)
    if span is not None:
        quietly(_end, span)


def _start_receive(tracer: Any, messages: Sequence[Any], began_ns: int) -> Any:
    return tracer.start_span(start_time=began_ns, **_of_many("receive", messages, "CLIENT"))


def begin_process(tracer: Any, message: Any) -> Any:
    """A span that continues the trace which published *message*."""
    return quietly(_start_process, tracer, message)


def begin_process_many(tracer: Any, messages: Sequence[Any]) -> Any:
    """A span that is linked to the traces which published *messages*."""
    return quietly(lambda: tracer.start_span(**_of_many("process", messages, "CONSUMER")))


def _start_process(tracer: Any, message: Any) -> Any:
    from opentelemetry.trace import SpanKind

    attributes = _attributes("process", "process", message.topic) | _place(message)
    return tracer.start_span(
        f"process {message.topic}", context=_origin(message), kind=SpanKind.CONSUMER, attributes=attributes
    )


def _of_many(name: str, messages: Sequence[Any], role: str) -> dict[str, Any]:
    from opentelemetry.trace import Link, SpanKind, get_current_span

    topic = messages[0].topic
    attributes = _attributes(name, name, topic)
    if len(messages) == 1:
        attributes |= _place(messages[0])
    else:
        attributes["messaging.consumer.group.name"] = messages[0].group
        attributes["messaging.batch.message_count"] = len(messages)
    origins = (get_current_span(_origin(message)).get_span_context() for message in messages[:_LINKS_MAX])
    links = [Link(origin) for origin in origins if origin.is_valid]
    return {"name": f"{name} {topic}", "kind": SpanKind[role], "attributes": attributes, "links": links}


def _origin(message: Any) -> Any:
    """The context that *message* carries; an empty one if it has none."""
    from opentelemetry import propagate
    from opentelemetry.context import Context

    carrier = {name: value.decode("latin-1") for name, value in reversed(message.headers)}
    return propagate.extract(carrier, context=Context())


def _place(message: Any) -> dict[str, str]:
    return {
        "messaging.consumer.group.name": message.group, "messaging.destination.partition.id": str(message.partition),
        "messaging.message.id": str(message.offset),
    }  # fmt: skip


def enter(span: Any) -> Block:
    """Make *span* the current one, in this thread or task."""
    block = Block(span)
    if span is not None:
        quietly(_enter, block)
    return block


def _enter(block: Block) -> None:
    from opentelemetry import context, trace

    now = context.get_current()
    before, others = _blocks.get() or (now, ())
    block.context = trace.set_span_in_context(block.span, now)
    context.attach(block.context)
    _blocks.set((before, (*others, block)))


def leave(block: Block, error: BaseException | None) -> None:
    """End the span of *block*, and go back to what was current before it. Blocks of several messages may end in any order."""
    if block.span is not None:
        quietly(_leave, block)
        end(block.span, error)


def _leave(block: Block) -> None:
    from opentelemetry import context

    found = _blocks.get()
    if found is None or block not in found[1]:
        return  # it was entered in another thread or task
    before, blocks = found
    left = tuple(one for one in blocks if one is not block)
    if blocks[-1] is block:
        # Not by the token of `attach`: the block that was current then may have ended.
        context.attach(left[-1].context if left else before)
    _blocks.set((before, left) if left else None)


def end(span: Any, error: BaseException | None = None, receipt: Any = None) -> None:
    """End *span*; None, where tracing failed, is let pass."""
    if span is None:
        return
    if error is not None:
        quietly(_note_error, span, error)
    if receipt is not None:
        quietly(_note_receipt, span, receipt)
    quietly(_end, span)


def carried(span: Any, headers: Any) -> Any:
    """The *headers* and the context of *span*; a context that is there already stays the message's."""
    found = None if span is None else quietly(_with_context, span, headers)
    return headers if found is None else found


def carried_each(span: Any, headers: Sequence[Any] | None, count: int) -> Any:
    """The same for each of *count* messages."""
    found = None if span is None else quietly(_with_context_each, span, headers, count)
    return headers if found is None else found


def now_ns() -> int:
    """The time as spans have it."""
    return time.time_ns()


def count_of(values: Any) -> int:
    """How many *values* there are; 0 if that is not known, or they are no messages."""
    return len(values) if hasattr(values, "__len__") else 0


def _attributes(name: str, kind: str, topic: str) -> dict[str, Any]:
    return {
        "messaging.system": _NAME, "messaging.operation.name": name, "messaging.operation.type": kind,
        "messaging.destination.name": topic,
    }  # fmt: skip


def _end(span: Any) -> None:
    span.end()


def _context(span: Any) -> list[tuple[str, bytes]]:
    from opentelemetry import propagate, trace

    carrier: dict[str, str] = {}
    propagate.inject(carrier, context=trace.set_span_in_context(span))
    return [(name, value.encode()) for name, value in carrier.items()]


def _with_context(span: Any, headers: Any) -> list[tuple[str, bytes]]:
    own = header_pairs(headers) or []  # what is wrong with them is told now, as publishing would
    names = {name for name, _ in own}
    return own + [(name, value) for name, value in _context(span) if name not in names]


def _with_context_each(span: Any, headers: Sequence[Any] | None, count: int) -> list[list[tuple[str, bytes]]]:
    return [_with_context(span, one) for one in (headers if headers is not None else [None] * count)]


def _note_receipt(span: Any, receipt: Any) -> None:
    span.set_attribute("messaging.destination.partition.id", str(receipt.partition))
    span.set_attribute("messaging.message.id", str(receipt.offset))


def _note_error(span: Any, error: BaseException) -> None:
    from opentelemetry.trace import Status, StatusCode

    if isinstance(error, Exception):
        span.record_exception(error)
    span.set_attribute("error.type", type(error).__name__)
    span.set_status(Status(StatusCode.ERROR, type(error).__name__))


def quietly(call: Callable[..., Any], *arguments: Any) -> Any:
    """What *call* returns; None if it raises, which is logged once."""
    try:
        return call(*arguments)
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001 - tracing must not change what happens
        text = f"{type(error).__name__}: {error}"
        if text not in _told and len(_told) < 100:
            _told.add(text)
            _log.warning("tracing failed, and goes on without: %s", text)
        return None
