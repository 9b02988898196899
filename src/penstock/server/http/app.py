"""
The ASGI application: every request goes through the same steps, in this order.

Host and Origin, then path and method, then the token, then the right, then whether the server is stopping, then the parameters, then
the body, then the handler. Nothing of a body is read for somebody who may not send it.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, urlsplit

from starlette.datastructures import Headers
from starlette.routing import Route, Router

from penstock.arguments import shown
from penstock.errors import BadArgument, ServerStopping, Unauthenticated, Unavailable
from penstock.server.auth import tell_refused
from penstock.server.http import administering, consuming, json_body, observing, publishing
from penstock.server.http.answers import MAKING, send_in_pieces
from penstock.server.http.body import DROP_BYTES_MAX, LINGER_BYTES_MAX, Body, ClientGone
from penstock.server.http.console import files as console
from penstock.server.http.operations import JSON, OCTETS, OPERATIONS, PATH_PARAMETERS, Call, Operation
from penstock.server.http.problems import HttpProblem, problem
from penstock.server.http.representation import INLINE_BYTES_MAX
from penstock.server.http.schemas import check, check_parameter

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from penstock.server.auth import Principal
    from penstock.server.http.context import Context
    from penstock.server.http.protocol import Connection

HANDLERS = (administering, consuming, observing, publishing)
"""Importing them has filled `OPERATIONS`."""

SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")
QUERY_FIELDS_MAX = 50
_PLAIN = "/:@!$&'()*+,;=-._~"
"""What stands in a path as it is, beside letters and digits."""
_ENCODED = re.compile(rb"%[0-9a-f]{2}", re.IGNORECASE)
_BEARER = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] +([^ ]+)")


def make_app(context: Context, guard: HostGuard) -> ASGIApp:
    """The application for one listener."""
    by_path: dict[str, dict[str, Operation]] = {}
    # Paths without parameters first: `dlq/replay-all` is no `dlq/{id}`.
    for operation in sorted(OPERATIONS, key=lambda one: [("{" in part, part) for part in one.path.split("/")]):
        by_path.setdefault(operation.path, {})[operation.method] = operation
    routes = [Route(path, Endpoint(context, path, operations), include_in_schema=False) for path, operations in by_path.items()]
    if context.settings.console:
        routes += console.routes()
    return Edge(Router(routes, redirect_slashes=False, default=_no_such_path), context, guard)


async def _no_such_path(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001
    raise HttpProblem("NO_SUCH_PATH", "there is nothing under this path; /openapi.json lists all paths")


class HostGuard:
    """Who a request may be meant for, and where it may come from."""

    def __init__(self, names: tuple[str, ...], *, any_name: bool) -> None:
        self._names = frozenset(name.lower() for name in names)
        self._any = any_name

    def check(self, headers: Headers, path: str) -> None:
        """
        Raise `HttpProblem` if a page of another site has sent it, unless somebody followed a link to a page of ours.

        Such a page reaches a server on loopback by a name of its own that leads there (DNS rebinding).
        """
        host = headers.get("host", "").lower()
        if not self._any and _host_name(host) not in LOOPBACK_NAMES | self._names:
            raise HttpProblem("UNKNOWN_HOST", f"{shown(host)} is not a name of this server; add it to the setting `hosts`")
        origin = headers.get("origin")
        if origin is not None and _origin_host(origin) != host:
            raise HttpProblem("FOREIGN_ORIGIN", f"pages of {shown(origin)} may not use this server")
        followed = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not (followed and path in console.PAGES):
            raise HttpProblem("FOREIGN_ORIGIN", "pages of other sites may not use this server")


def _origin_host(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _host_name(host: str) -> str:
    return host if host.endswith("]") else host.rpartition(":")[0] or host


class Edge:
    """The outermost layer: it guards, counts, and turns whatever is raised into a problem document with the right headers."""

    def __init__(self, app: ASGIApp, context: Context, guard: HostGuard) -> None:
        self._app = app
        self._context = context
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        began, status = time.monotonic(), 0
        headers = Headers(scope=scope)
        connection: Connection = scope["state"]["penstock.connection"]
        body = Body(receive, headers, connection)
        scope["penstock.body"] = body

        async def send_guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                given = [*message.get("headers", ())]
                names = {name for name, _ in given}
                message["headers"] = given + [pair for pair in SECURITY_HEADERS if pair[0] not in names]
                if not body.ended or self._context.stopping.is_set():
                    # What is left of the body would be read as the next request; and nothing new is begun while stopping.
                    message["headers"].append((b"connection", b"close"))
            await send_in_pieces(message, connection, send, self._context.settings.send_timeout_s)

        try:
            try:
                _check_head(scope, self._context.settings.header_bytes_max)
                self._guard.check(headers, scope["path"])
                await self._app(scope, receive, send_guarded)
            except (ClientGone, asyncio.CancelledError):
                raise
            except Exception as error:  # noqa: BLE001 - the client gets an answer, and the log the error
                if status == 0:
                    if "expect" not in headers:
                        await body.discard(DROP_BYTES_MAX if isinstance(error, Unavailable) else LINGER_BYTES_MAX)
                    await problem(error)(scope, receive, send_guarded)
                else:
                    problem(error)  # logged; the answer has begun
                    raise ClientGone from None
        except ClientGone:
            pass
        finally:
            method = scope["method"] if scope["method"] in METHODS else "other"
            self._context.metrics.count(method, scope.get("penstock.path", "other"), status or 499, time.monotonic() - began)


def _check_head(scope: Scope, bytes_max: int) -> None:
    """The parser bounds a head that is not complete yet; one that came in one piece is bounded here."""
    if scope["http_version"] not in ("1.0", "1.1"):
        raise HttpProblem("BAD_REQUEST", "the version of HTTP must be 1.1 or 1.0", {"connection": "close"})
    names = {name for name, _ in scope["headers"]}
    if {b"content-length", b"transfer-encoding"} <= names:
        # Which of the two counts is where proxies and servers differ, and requests are smuggled through.
        raise HttpProblem("BAD_REQUEST", "Content-Length and Transfer-Encoding exclude each other", {"connection": "close"})
    if not _is_canonical(scope["path"], scope["raw_path"]):
        # A proxy that allows some paths and not others must see the same path as this server.
        raise HttpProblem("NO_SUCH_PATH", "the path is not written in its plain form: encode nothing that need not be")
    size = (
        len(scope["raw_path"])
        + len(scope["query_string"])
        + sum([len(name) + len(text) + 4 for name, text in scope["headers"]])
    )
    if size > bytes_max:
        raise HttpProblem("HEADERS_TOO_LARGE", f"they are over the limit of {bytes_max:,} bytes", {"connection": "close"})


def _is_canonical(path: str, raw: bytes) -> bool:
    """Whether *raw* is the one way to write *path*."""
    return b"%" not in raw or quote(path, safe=_PLAIN).encode() == _ENCODED.sub(lambda found: found[0].upper(), raw)


class Endpoint:
    """All methods of one path."""

    def __init__(self, context: Context, path: str, operations: dict[str, Operation]) -> None:
        self._context = context
        self._path = path
        # HEAD is GET without the body; of a stream that would be nothing, for an hour.
        self._by_method = {**operations}
        if "GET" in operations and operations["GET"].head:
            self._by_method["HEAD"] = operations["GET"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["penstock.path"] = self._path
        operation = self._by_method.get(scope["method"])
        if operation is None:
            allowed = ", ".join(sorted(self._by_method))
            raise HttpProblem("METHOD_NOT_ALLOWED", f"the methods of this path are {allowed}", {"allow": allowed})
        headers = Headers(scope=scope)
        try:
            principal = self._principal(operation, headers)
        except Unauthenticated as error:
            tell_refused("http", _peer(scope), error)
            raise
        if not operation.public and not operation.any_token:
            assert operation.right is not None
            principal.require(operation.right, operation.right_on(scope["path_params"]))
        if self._context.draining and not operation.while_draining:
            raise ServerStopping
        connection: Connection = scope["state"]["penstock.connection"]
        connection.account.set_principal(principal.name)
        path = {name: check_parameter(text, PATH_PARAMETERS[name][0], name) for name, text in scope["path_params"].items()}
        query = _parameters(operation, scope["query_string"], headers)
        body: Body = scope["penstock.body"]
        media_type = _media_type(operation, headers, body)
        settings = self._context.settings
        limit = 0 if operation.body is None else settings.publish_bytes_max if operation.publishes else settings.body_bytes_max
        async with body.read(limit, settings.body_timeout_s) as data:
            content = await self._content(operation, media_type, data)
            call = Call(self._context, principal, path, query, headers, content, media_type, body, _peer(scope))
            if operation.large:
                async with self._context.memory.making(connection.account, MAKING * settings.response_bytes_max):
                    response = await operation.handler(call)
                    connection.count_unsent(len(response.body))
            else:
                response = await operation.handler(call)
        await response(scope, receive, send)

    def _principal(self, operation: Operation, headers: Headers) -> Principal:
        if operation.public:
            return self._context.anybody
        given = headers.getlist("authorization")
        if not given:
            return self._context.auth.authenticate(None)
        found = _BEARER.fullmatch(given[0])
        if self._context.auth.checks_tokens and (len(given) > 1 or found is None):
            raise Unauthenticated("one header is needed: Authorization: Bearer TOKEN")
        return self._context.auth.authenticate(None if found is None else found[1])

    async def _content(self, operation: Operation, media_type: str, data: bytes) -> Any:
        if operation.body is None or (operation.body_optional and not data):
            return None
        if media_type == OCTETS:
            return data
        settings = self._context.settings

        def parse() -> Any:
            found = json_body.parse(data, settings.json_depth_max, settings.json_items_max)
            assert operation.body is not None
            return check(found, operation.body, "body")

        return parse() if len(data) <= INLINE_BYTES_MAX else await asyncio.to_thread(parse)


def _peer(scope: Scope) -> str:
    client = scope.get("client")
    return f"{client[0]}:{client[1]}" if client else ""


def _media_type(operation: Operation, headers: Headers, body: Body) -> str:
    """The type of the body. Only types that a form of another site cannot send are taken."""
    if operation.body is None or (operation.body_optional and body.ended):
        return ""
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise HttpProblem("UNSUPPORTED_MEDIA_TYPE", "compressed bodies are not taken; send it without Content-Encoding")
    given = headers.get("content-type", "").partition(";")[0].strip().lower()
    taken = [JSON, OCTETS] if operation.raw_body else [JSON]
    if given not in taken:
        raise HttpProblem(
            "UNSUPPORTED_MEDIA_TYPE", f"send the body with Content-Type: {' or '.join(taken)}, not {shown(given)}"
        )
    return given


def _parameters(operation: Operation, query_string: bytes, headers: Headers) -> dict[str, Any]:
    found = {one.name: one.default for one in operation.parameters if one.place == "query"}
    known = {one.name: one for one in operation.parameters}
    older = {one.older: one.name for one in operation.parameters if one.older is not None}
    seen = set()
    try:
        pairs = parse_qsl(
            query_string.decode("ascii"), keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX, errors="strict"
        )
    except ValueError:
        raise BadArgument("query", shown(query_string), "cannot be read") from None
    for given, text in pairs:
        name = older.get(given, given)
        if name not in found:
            raise BadArgument("query", shown(name), f"there is no such parameter; known are {', '.join(found) or 'none'}")
        if name in seen:
            raise BadArgument(name, shown(text), "is given twice")
        seen.add(name)
        found[name] = check_parameter(text, known[name].schema, name)
    for one in operation.parameters:
        if one.place != "query" and (texts := headers.getlist(one.name)):
            if len(texts) > 1:
                raise BadArgument(one.name, shown(texts), "is given twice")
            found[one.name] = check_parameter(texts[0], one.schema, one.name)
    return found


__all__ = ["HANDLERS", "Edge", "HostGuard", "make_app"]
