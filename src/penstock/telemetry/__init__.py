"""
OpenTelemetry: spans of publishing and consuming, and the trace context in the headers of messages. Needs the extra ``otel``.

    from penstock import telemetry

    telemetry.instrument(store)     # all of it: a folder, a server, asyncio

From then on everything that this store publishes carries its context, however it is published (`publish`, `publish_many`, producers,
transactions), and what its consumers and workers take makes spans that continue those traces. Names are those of the semantic conventions
for messaging, which are still in development.

Nothing else of Penstock knows of it: a store that is not instrumented runs the code that it always ran, and `opentelemetry` is imported
by these calls only. Spans go where the program has set up OpenTelemetry; where it has not, nothing is made. Whatever tracing raises is
logged once and changes nothing: the message is published, and the handler runs.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from penstock.errors import UsageError
from penstock.telemetry import spans
from penstock.telemetry.tracing import Tracing, is_traced

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.groups.delivery import Delivery


def instrument(store: Any, *, tracer_provider: Any = None) -> None:
    """
    Let *store*, an embedded one, one on a server, or one of `penstock.aio`, make spans and carry their context.

    It covers what is made of the store from now on: consumers, producers and workers that were made before go on without. Once for a
    store; `uninstrument` undoes it. Raises `UsageError`.
    """
    tracing = Tracing(spans.tracer_of(tracer_provider))
    if "_plain" in vars(store):
        raise UsageError("the store is instrumented already")
    replaced = tracing.replacements(store)
    store.__dict__["_plain"] = {name: vars(store).get(name) for name in replaced}
    store.__dict__.update(replaced)


def uninstrument(store: Any) -> None:
    """No more spans of *store*; consumers and producers that were made meanwhile go on until they are closed."""
    for name, before in vars(store).pop("_plain", {}).items():
        if before is None:
            vars(store).pop(name, None)
        else:
            store.__dict__[name] = before


@contextlib.contextmanager
def process(message: Delivery, *, tracer_provider: Any = None) -> Iterator[Delivery]:
    """
    A block that handles *message* as ``with message`` does, in a span that continues the trace which published it.

    For messages of `get_many`, and of stores that are not instrumented; others do it by themselves. What the block raises is noted in the
    span, and goes on.
    """
    if is_traced(message):
        with message:
            yield message
        return
    block = spans.enter(spans.begin_process(spans.quietly(spans.tracer_of, tracer_provider), message))
    failed: BaseException | None = None
    try:
        with message:
            yield message
    except BaseException as error:
        failed = error
        raise
    finally:
        spans.leave(block, failed)


__all__ = ["instrument", "process", "uninstrument"]
