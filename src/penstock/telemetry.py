"""
OpenTelemetry: spans of publishing and processing, and the trace context in the headers of messages. Needs the extra ``otel``.

    from penstock import telemetry

    telemetry.instrument(store)                     # publish makes spans, and puts traceparent into headers
    with telemetry.process(message) as message:     # acks like `with message`, in a span of the trace that published it
        ...

Nothing else of Penstock knows of it: a store that is not instrumented runs the code that it always ran, and `opentelemetry` is imported
by these calls only. Spans go where the program has set up OpenTelemetry; where it has not, nothing is made. Whatever tracing raises is
logged once and changes nothing: the message is published, and the handler runs.

Names are those of the semantic conventions for messaging, which are still in development: ``publish orders`` of the kind PRODUCER and
``process orders`` of the kind CONSUMER.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

from penstock.errors import UsageError
from penstock.topics.publication import header_pairs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.groups.delivery import Delivery

_log = logging.getLogger("penstock.telemetry")
_NAME = "penstock"
_told: set[str] = set()
"""Errors of tracing that were logged."""


def instrument(store: Any, *, tracer_provider: Any = None) -> None:
    """Let `publish` and `publish_many` of *store* make spans and carry their context. Once for a store; `uninstrument` undoes it."""
    tracer = _tracer(tracer_provider)
    if "_plain" in vars(store):
        raise UsageError("the store is instrumented already")
    plain = {name: getattr(store, name) for name in ("publish", "publish_many")}
    store.__dict__["_plain"] = {name: vars(store).get(name) for name in plain}
    store.__dict__.update(
        publish=_publish(tracer, plain["publish"]),
        publish_many=_publish_many(tracer, plain["publish_many"]),
    )


def uninstrument(store: Any) -> None:
    """No more spans of *store*."""
    for name, before in vars(store).pop("_plain", {}).items():
        if before is None:
            vars(store).pop(name, None)
        else:
            store.__dict__[name] = before


@contextlib.contextmanager
def process(message: Delivery, *, tracer_provider: Any = None) -> Iterator[Delivery]:
    """
    A block that handles *message* as ``with message`` does, in a span that continues the trace which published it.

    What the block raises is noted in the span, and goes on.
    """
    span = _quietly(_begin_process, tracer_provider, message)
    active = None if span is None else _quietly(_activate, span)
    try:
        with message:
            yield message
    except BaseException as error:
        if span is not None:
            _quietly(_note_error, span, error)
        raise
    finally:
        if active is not None:
            _quietly(_deactivate, active)
        if span is not None:
            _quietly(_end, span)


def _tracer(provider: Any) -> Any:
    try:
        from opentelemetry import trace
    except ImportError:
        raise UsageError("OpenTelemetry is not installed: pip install 'penstock[otel]'") from None
    return trace.get_tracer(_NAME, tracer_provider=provider)


def _publish(tracer: Any, plain: Callable[..., Any]) -> Callable[..., Any]:
    def publish(topic: str, value: bytes | None, *, headers: Any = None, **options: Any) -> Any:
        span = _quietly(_begin_publish, tracer, topic, 1)
        try:
            carried = None if span is None else _quietly(_with_context, span, headers)
            receipt = plain(topic, value, headers=headers if carried is None else carried, **options)
        except BaseException as error:
            if span is not None:
                _quietly(_note_error, span, error)
                _quietly(_end, span)
            raise
        if span is not None:
            _quietly(_note_receipt, span, receipt)
            _quietly(_end, span)
        return receipt

    return publish


def _publish_many(tracer: Any, plain: Callable[..., Any]) -> Callable[..., Any]:
    def publish_many(topic: str, values: Any, *, headers: Any = None, **options: Any) -> Any:
        count = len(values) if hasattr(values, "__len__") else 0
        span = _quietly(_begin_publish, tracer, topic, count) if count else None
        try:
            carried = None if span is None else _quietly(_with_context_each, span, headers, count)
            return plain(topic, values, headers=headers if carried is None else carried, **options)
        except BaseException as error:
            if span is not None:
                _quietly(_note_error, span, error)
            raise
        finally:
            if span is not None:
                _quietly(_end, span)

    return publish_many


def _begin_publish(tracer: Any, topic: str, count: int) -> Any:
    from opentelemetry.trace import SpanKind

    attributes: dict[str, Any] = _attributes("publish", "send", topic)
    if count > 1:
        attributes["messaging.batch.message_count"] = count
    return tracer.start_span(f"publish {topic}", kind=SpanKind.PRODUCER, attributes=attributes)


def _begin_process(provider: Any, message: Delivery) -> Any:
    from opentelemetry import propagate
    from opentelemetry.trace import SpanKind

    carrier = {name: value.decode("latin-1") for name, value in reversed(message.headers)}
    attributes = _attributes("process", "process", message.topic) | {
        "messaging.consumer.group.name": message.group,
        "messaging.destination.partition.id": str(message.partition),
        "messaging.message.id": str(message.offset),
    }
    return _tracer(provider).start_span(
        f"process {message.topic}", context=propagate.extract(carrier), kind=SpanKind.CONSUMER, attributes=attributes
    )


def _attributes(name: str, kind: str, topic: str) -> dict[str, Any]:
    return {
        "messaging.system": _NAME, "messaging.operation.name": name, "messaging.operation.type": kind,
        "messaging.destination.name": topic,
    }  # fmt: skip


def _activate(span: Any) -> Any:
    from opentelemetry import trace

    active = trace.use_span(span, end_on_exit=False, record_exception=False, set_status_on_exception=False)
    active.__enter__()
    return active


def _deactivate(active: Any) -> None:
    active.__exit__(None, None, None)


def _end(span: Any) -> None:
    span.end()


def _context(span: Any) -> list[tuple[str, bytes]]:
    from opentelemetry import propagate, trace

    carrier: dict[str, str] = {}
    propagate.inject(carrier, context=trace.set_span_in_context(span))
    return [(name, value.encode()) for name, value in carrier.items()]


def _with_context(span: Any, headers: Any) -> list[tuple[str, bytes]]:
    """The *headers* and the context of *span*; a context that is there already stays the message's."""
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


def _quietly(call: Callable[..., Any], *arguments: Any) -> Any:
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
