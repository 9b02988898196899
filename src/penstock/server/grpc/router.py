"""
The table of all calls, and what happens before each: who calls is found out before anything of a request is read.

A refused call gets a handler that reads nothing: what its client sends stays in the window of its stream. Rights are looked at by the calls
themselves, when they know the topic, before anything else.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
from grpc.aio import EOF
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from penstock.errors import PenstockError, ServerStopping, Unauthenticated, Unavailable, UsageError
from penstock.server.auth import tell_refused
from penstock.server.grpc import administering, publishing, reading, subscribing
from penstock.server.grpc import health as health_service
from penstock.server.grpc.publishing import parse
from penstock.server.grpc.service import Call
from penstock.server.grpc.statuses import abort
from penstock.wire import penstock_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from grpc.aio import ServicerContext

    from penstock.server.auth import Principal
    from penstock.server.grpc.health import Health
    from penstock.server.grpc.service import Service

    Behaviour = Callable[..., Coroutine[Any, Any, Any]]

_BEARER = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] +([^ ]+)")
MESSAGES, ADMIN = "penstock.v1.Penstock", "penstock.v1.Admin"
REFLECTION = ("grpc.reflection.v1alpha.ServerReflection", "grpc.reflection.v1.ServerReflection")


class Method(NamedTuple):
    """A call that needs a token: what it does, and of what kind its request is; None for a stream, which reads by itself."""

    function: Callable[..., Coroutine[Any, Any, Any]]
    request: Any = None
    writes: bool = False
    """Whether it writes its responses by itself."""
    while_draining: bool = False
    """Whether it is still done while consumers finish what they hold: it finishes something, or only looks."""
    large: bool = False
    """Whether its answer may be large: it is made when there is room for it."""


async def _publish_stream(call: Call) -> None:
    await publishing.PublishStream(call).run()


METHODS: dict[str, Method] = {
    f"/{MESSAGES}/Publish": Method(publishing.publish, pb.PublishRequest),
    f"/{MESSAGES}/PublishStream": Method(_publish_stream, writes=True),
    f"/{MESSAGES}/Subscribe": Method(subscribing.subscribe, writes=True),
    f"/{MESSAGES}/Read": Method(reading.read, pb.ReadRequest, writes=True, while_draining=True),
    f"/{MESSAGES}/Commit": Method(reading.commit, pb.CommitRequest, while_draining=True),
    f"/{ADMIN}/CreateTopic": Method(administering.create_topic, pb.CreateTopicRequest),
    f"/{ADMIN}/ListTopics": Method(administering.list_topics, pb.ListTopicsRequest, while_draining=True, large=True),
    f"/{ADMIN}/GetTopic": Method(administering.get_topic, pb.GetTopicRequest, while_draining=True),
    f"/{ADMIN}/Retain": Method(administering.retain, pb.RetainRequest),
    f"/{ADMIN}/DeleteTopic": Method(administering.delete_topic, pb.DeleteTopicRequest),
    f"/{ADMIN}/Compact": Method(administering.compact, pb.RewriteRequest),
    f"/{ADMIN}/Vacuum": Method(administering.vacuum, pb.RewriteRequest),
    f"/{ADMIN}/ListGroups": Method(administering.list_groups, pb.ListGroupsRequest, while_draining=True, large=True),
    f"/{ADMIN}/DeleteGroup": Method(administering.delete_group, pb.DeleteGroupRequest),
    f"/{ADMIN}/Seek": Method(administering.seek, pb.SeekRequest),
    f"/{ADMIN}/ListMembers": Method(administering.list_members, pb.ListMembersRequest, while_draining=True, large=True),
    f"/{ADMIN}/EvictMember": Method(administering.evict_member, pb.EvictMemberRequest, while_draining=True),
    f"/{ADMIN}/GetStats": Method(administering.get_stats, pb.GetStatsRequest, while_draining=True, large=True),
    f"/{ADMIN}/GetMetrics": Method(administering.get_metrics, pb.GetMetricsRequest, while_draining=True, large=True),
    f"/{ADMIN}/ListDeadLetters": Method(
        administering.list_dead_letters, pb.ListDeadLettersRequest, while_draining=True, large=True
    ),
    f"/{ADMIN}/ReplayDeadLetters": Method(administering.replay_dead_letters, pb.ChooseDeadLettersRequest),
    f"/{ADMIN}/DiscardDeadLetters": Method(administering.discard_dead_letters, pb.ChooseDeadLettersRequest),
}
PUBLIC = (
    f"/{health_service.SERVICE}/Check",
    f"/{health_service.SERVICE}/Watch",
    *(f"/{name}/ServerReflectionInfo" for name in REFLECTION),
)
"""Calls that anybody may make, as HTTP's /healthz and /openapi.json: they tell nothing of what is stored."""


class Router(grpc.GenericRpcHandler):  # type: ignore[misc]  # it comes without types
    """Finds the handler of each call."""

    def __init__(self, service: Service, health: Health) -> None:
        self._service = service
        names = [MESSAGES, ADMIN, health_service.SERVICE, *REFLECTION]
        self._reflection = reflection.aio.ReflectionServicer(names)
        checked = grpc.unary_unary_rpc_method_handler(
            self._public(health.check), health_pb2.HealthCheckRequest.FromString, _serialize
        )
        watched = grpc.unary_stream_rpc_method_handler(self._public(health.watch), health_pb2.HealthCheckRequest.FromString)
        reflected = grpc.stream_stream_rpc_method_handler(
            self._reflect, reflection_pb2.ServerReflectionRequest.FromString, _serialize
        )
        self._handlers = dict(zip(PUBLIC, (checked, watched, reflected, reflected), strict=True))

    def service(self, handler_call_details: Any) -> Any:
        """The handler of one call; None if there is no such call."""
        name = handler_call_details.method
        if name in self._handlers:
            if self._service.public_calls >= self._service.settings.public_calls_max:
                return self._refusal(Unavailable("as many calls without a token run as may; try again later"))
            return self._handlers[name]
        method = METHODS.get(name)
        if method is None:
            return None
        try:
            principal = self._principal(handler_call_details.invocation_metadata)
            if self._service.is_stopping or (self._service.is_draining and not method.while_draining):
                raise ServerStopping
            if self._service.calls >= self._service.settings.calls_max:
                raise Unavailable("the server has as many calls as it may; nothing was changed, try again later")
        except PenstockError as error:
            tell_refused("grpc", "", error)
            return self._refusal(error)
        return self._handler(method, principal)

    def _principal(self, metadata: Any) -> Principal:
        auth = self._service.auth
        texts = [value for key, value in metadata if key == "authorization"]
        if not texts:
            return auth.authenticate(None)
        found = _BEARER.fullmatch(texts[0]) if isinstance(texts[0], str) else None
        if auth.checks_tokens and (len(texts) > 1 or found is None):
            raise Unauthenticated("one entry of metadata is needed: authorization: Bearer TOKEN")
        return auth.authenticate(None if found is None else found[1])

    def _handler(self, method: Method, principal: Principal) -> Any:
        service = self._service

        is_single = method.request is not None and not method.writes

        async def behave(_: Any, context: ServicerContext) -> bytes | None:
            peer = context.peer()
            service.calls += 1
            try:
                if is_single:
                    async with service.connections.call(peer, principal.name) as connection:
                        data = await _read_request(context)
                        with connection.carrying_out(data):
                            call, request = Call(service, principal, context, connection), parse(method.request, data)
                            if not method.large:
                                answer = _serialize(await method.function(call, request))
                                connection.until_done(context, len(answer))
                                return answer
                            async with call.making():
                                answer = _serialize(await method.function(call, request))
                                connection.until_done(context, len(answer))
                                return answer
                with service.connections.stream(peer, principal.name) as connection:
                    call = Call(service, principal, context, connection)
                    if method.request is None:
                        await method.function(call)
                    else:
                        data = await _read_request(context)
                        connection.has_read(len(data))
                        await method.function(call, parse(method.request, data))
                    return None
            except asyncio.CancelledError:
                raise
            except Exception as error:  # noqa: BLE001 - the client gets a status, and the log the error
                failure = error
            finally:
                service.calls -= 1
            await abort(context, failure)
            return None

        # All requests are streams here, also those that the proto has as single ones, which looks the same to a client: so a request is not
        # read before it is the call's turn, and what cannot be read is told like any other wrong request.
        return (grpc.stream_unary_rpc_method_handler if is_single else grpc.stream_stream_rpc_method_handler)(behave)

    def _refusal(self, error: PenstockError) -> Any:
        """A handler that reads nothing; wire and kind of the call do not matter to it."""

        async def refuse(_: Any, context: ServicerContext) -> None:
            with self._service.connections.public(context.peer()):
                await abort(context, error)

        return grpc.stream_stream_rpc_method_handler(refuse)

    def _public(self, function: Behaviour) -> Behaviour:
        async def behave(request: Any, context: ServicerContext) -> Any:
            self._service.public_calls += 1
            try:
                with self._service.connections.public(context.peer()):
                    return await function(request, context)
            finally:
                self._service.public_calls -= 1

        return behave

    async def _reflect(self, requests: AsyncIterator[Any], context: ServicerContext) -> AsyncIterator[Any]:
        self._service.public_calls += 1
        try:
            with self._service.connections.public(context.peer()):
                async for response in self._reflection.ServerReflectionInfo(requests, context):
                    yield response
        finally:
            self._service.public_calls -= 1


async def _read_request(context: ServicerContext) -> bytes:
    """The one request of a call. Raises `UsageError`."""
    data = await context.read()
    if data is EOF:
        raise UsageError("the call has no request")
    return bytes(data)


def _serialize(message: Any) -> bytes:
    return bytes(message.SerializeToString())
