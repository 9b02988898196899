"""
The standard health service, grpc.health.v1: SERVING while the store takes writes and the server does not stop.

On a full disk the server as a whole, which probes ask for, is not serving, as `/readyz` says; its services, which clients ask for that
would hang up otherwise, are: consuming goes on.

Ours, because the packaged one holds a lock while it writes to a watcher, whom nobody has asked for a token: one who does not read would
keep the server from stopping.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from grpc import StatusCode
from grpc_health.v1 import health_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable

    from grpc.aio import ServicerContext


SERVICE = "grpc.health.v1.Health"
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class Health:
    """Answers for the server as a whole (the empty name) and each of *services*."""

    def __init__(self, services: Iterable[str]) -> None:
        self._services = frozenset({"", *services})
        self._is_serving = self._is_whole = True
        self._changed = asyncio.Event()

    def set(self, *, is_serving: bool, is_whole: bool = True) -> None:
        """Tell whoever watches: whether anything is served, and whether everything is."""
        if (is_serving, is_whole) != (self._is_serving, self._is_whole):
            self._is_serving, self._is_whole = is_serving, is_whole
            self._changed.set()
            self._changed = asyncio.Event()

    def _status(self, service: str) -> int:
        if service not in self._services:
            return int(_UNKNOWN)
        return int(_SERVING if self._is_serving and (service or self._is_whole) else _NOT_SERVING)

    async def check(self, request: health_pb2.HealthCheckRequest, context: ServicerContext) -> health_pb2.HealthCheckResponse:
        """How a service is."""
        status = self._status(request.service)
        if status == _UNKNOWN:
            await context.abort(StatusCode.NOT_FOUND, "there is no such service")
        return health_pb2.HealthCheckResponse(status=status)

    async def watch(self, request: health_pb2.HealthCheckRequest, context: ServicerContext) -> None:
        """How it is, and again whenever that changes."""
        told = None
        while True:
            changed, status = self._changed, self._status(request.service)
            if status != told:
                await context.write(health_pb2.HealthCheckResponse(status=status).SerializeToString())
                told = status
            await changed.wait()
