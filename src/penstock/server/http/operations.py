"""
Operations: what a path and a method do, described once.

The router, the checks of requests, the rights and the OpenAPI document are all made of these descriptions, so none of them can say
something else than the others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from penstock.server.http import schemas

if TYPE_CHECKING:
    from starlette.datastructures import Headers

    from penstock.server.auth import Principal
    from penstock.server.http.body import Body
    from penstock.server.http.context import Context
    from penstock.server.http.schemas import Schema

JSON = "application/json"
OCTETS = "application/octet-stream"
EVENTS = "text/event-stream"
RAW_HEADER = "raw header"
"""The place of a parameter that has a meaning for some kinds of body only, which OpenAPI cannot say."""


@dataclass(slots=True)
class Call:
    """One request, checked, for the handler of its operation."""

    context: Context
    principal: Principal
    path: dict[str, Any]
    query: dict[str, Any]
    headers: Headers
    body: Any
    """What the JSON said, the bytes of a raw body, or None."""
    media_type: str
    stream: Body
    peer: str = ""
    """The address of the client."""

    @property
    def topic(self) -> str:
        """The topic in the path."""
        name: str = self.path["topic"]
        return name

    @property
    def group(self) -> str:
        """The group in the path."""
        name: str = self.path["group"]
        return name


Handler = Callable[[Call], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the query, or a header that an operation knows."""

    name: str
    schema: Schema
    default: Any = None
    place: str = "query"
    older: str | None = None
    """A name that it had, and that is still taken."""


@dataclass(frozen=True, slots=True)
class Operation:
    """
    What one method does with one path.

    *right* is needed on the topic in the path, with `.dlq` behind it where *dead_letters* is set, or on the whole store where the path
    names no topic. *public* operations ask for no token; *any_token* ones for any valid token, and look at rights themselves.
    """

    method: str
    path: str
    name: str
    summary: str
    handler: Handler
    tag: str
    right: str | None = None
    public: bool = False
    any_token: bool = False
    dead_letters: bool = False
    parameters: tuple[Parameter, ...] = ()
    body: Schema | None = None
    body_optional: bool = False
    raw_body: str = ""
    """What to know of a body that is no JSON, where that is taken."""
    publishes: bool = False
    while_draining: bool = True
    """Whether it is still done while the server stops: acks are, new work is not."""
    large: bool = False
    """Whether its answer may have `response_bytes_max`: it is made when there is room for it."""
    head: bool = True
    answers: dict[int, Any] = field(default_factory=dict)
    """Status -> schema of the JSON, or (media type, schema)."""
    problems: tuple[int, ...] = ()

    def right_on(self, path: dict[str, Any]) -> str | None:
        """The topic that the right is needed on; None for the whole store."""
        topic: str | None = path.get("topic")
        return f"{topic}.dlq" if topic is not None and self.dead_letters else topic


OPERATIONS: list[Operation] = []
"""All of them; the modules of handlers add theirs."""

PATH_PARAMETERS: dict[str, tuple[Schema, str]] = {
    "topic": (schemas.NAME, "The topic."),
    "group": (schemas.NAME, "The group."),
    "member": (schemas.text(32, pattern="^[0-9a-f]{1,32}$"), "The member: its id."),
    "consumer": (schemas.NAME, "The consumer: the name that a worker gives itself."),
    "partition": (schemas.PARTITION, "The partition, from 0 on."),
    "id": (schemas.OFFSET, "The dead letter: its offset in the topic's dead letters."),
}


def operation(method: str, path: str, summary: str, *, tag: str, **description: Any) -> Callable[[Handler], Handler]:
    """Add the decorated handler as an operation."""

    def add(handler: Handler) -> Handler:
        name = getattr(handler, "__name__", "")
        OPERATIONS.append(Operation(method, path, name, summary, handler, tag, **description))
        return handler

    return add
