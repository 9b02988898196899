"""How the server is: health, metrics, numbers, and the description of all paths."""

from __future__ import annotations

import asyncio
import importlib.metadata
from dataclasses import asdict
from typing import TYPE_CHECKING

from starlette.responses import Response

from penstock.errors import ServerStopping, Unavailable
from penstock.server.http import representation as show
from penstock.server.http.context import trouble_of
from penstock.server.http.metrics import CONTENT_TYPE, Text
from penstock.server.http.metrics_json import TOPIC_BYTES, metrics_fields
from penstock.server.http.openapi import document
from penstock.server.http.operations import OPERATIONS, Call, operation
from penstock.server.http.schemas import ref

if TYPE_CHECKING:
    from penstock.server.http.context import Context

_OK = {"type": "object", "properties": {"status": {"type": "string"}}, "required": ["status"]}


@operation("GET", "/healthz", "The process answers.", tag="server", public=True, answers={200: _OK})
async def healthz(call: Call) -> Response:  # noqa: ARG001
    """Alive."""
    return show.json_answer({"status": "ok"})


@operation("GET", "/readyz", "The store takes work.", tag="server", public=True, answers={200: _OK}, problems=(503,))
async def readyz(call: Call) -> Response:
    """Ready."""
    if call.context.draining:
        raise ServerStopping("the server is stopping")
    trouble = await call.context.trouble()
    if trouble is not None:
        raise Unavailable(trouble)
    return show.json_answer({"status": "ready"})


@operation(
    "GET", "/metrics", "Numbers for Prometheus.", tag="server", right="read", answers={200: ("text/plain", {"type": "string"})}
)
async def metrics(call: Call) -> Response:
    """Prometheus text."""
    context, text = call.context, Text()
    async with context.metrics_lock:
        await asyncio.to_thread(context.store_metrics.write, text)
    _write_listener(context, text)
    return Response(str(text), media_type=CONTENT_TYPE)


def _write_listener(context: Context, text: Text) -> None:
    context.metrics.write(text)
    for name, explained, value in (
        ("penstock_http_connections", "Connections that are open.", context.connections()),
        ("penstock_http_waiting_requests", "Long polls and streams that wait now.", context.waiting),
        ("penstock_http_consumers", "Consumers of HTTP clients.", context.consumers.open),
        ("penstock_http_receipts", "Receipts that were given out and not used.", context.consumers.held),
    ):
        text.single(name, "gauge", explained, value)


@operation("GET", "/v1/stats", "Numbers of all topics and groups.", tag="server", right="read", answers={200: ref("Stats")})
async def stats(call: Call) -> Response:
    """Stats."""
    found = await asyncio.to_thread(call.context.store.stats)
    topics = await asyncio.to_thread(lambda: {name: asdict(topic) for name, topic in found.topics.items()})
    told = {
        "commits": found.commits,
        "failed": found.failure is not None,
        "is_full": found.is_full,
        "free_bytes": found.free_bytes,
        "free_bytes_floor": found.free_bytes_floor,
        "refused": found.refused,
        "topics": topics,
    }
    return show.json_answer(told)


@operation(
    "GET", "/v1/metrics", "Numbers of the topics that the token may read: counts, lag, dead letters and times.", tag="server",
    any_token=True, answers={200: ref("Metrics")},
)  # fmt: skip
async def metrics_as_json(call: Call) -> Response:
    """Metrics for programs, and for the console; at most a second old, so that any number of readers costs as much as one."""
    context = call.context
    now_us, found = await context.snapshot()
    fields = await asyncio.to_thread(metrics_fields, found, call.principal)
    ready = not context.draining and trouble_of(found.stats) is None
    told = {"now_us": now_us, "version": importlib.metadata.version("penstock"), "ready": ready} | fields
    return await show.large_json_answer(told, len(fields["topics"]) * TOPIC_BYTES)


@operation("GET", "/openapi.json", "This description.", tag="server", public=True, answers={200: {"type": "object"}})
async def openapi(call: Call) -> Response:
    """OpenAPI."""
    described = document(OPERATIONS, call.context.settings, tokens=call.context.auth.checks_tokens)
    return show.json_answer(described)
