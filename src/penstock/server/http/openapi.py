"""The OpenAPI document, made of the same descriptions that the router is made of."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from penstock.server.http.operations import JSON, OCTETS, PATH_PARAMETERS, RAW_HEADER
from penstock.server.http.problems import PROBLEM_TYPE
from penstock.server.http.schemas import COMPONENTS, ref

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.server.http.operations import Operation, Parameter
    from penstock.server.http.settings import HttpSettings

API_VERSION = "1"
_EXPLAINED = {
    400: "The request is wrong; nothing was changed.",
    401: "The token is missing, wrong or expired.",
    403: "The token does not give the right, or the request comes from a page of another site.",
    404: "What the path names is not there, or the path is not written in its plain form.",
    406: "The client does not accept what this path gives.",
    408: "The body did not arrive in time.",
    409: "Somebody else has taken over, or it exists with other settings.",
    413: "The body, a message or a batch is over its limit.",
    415: "The body's Content-Type or Content-Encoding is not one that this path takes.",
    421: "The Host header does not name this server.",
    431: "The headers are over their limit.",
    500: "The server has failed; its log says how.",
    503: "Not now; nothing was changed, try again later.",
    507: "The disk is full; nothing was stored.",
}


def document(operations: Sequence[Operation], settings: HttpSettings, *, tokens: bool) -> dict[str, Any]:
    """The whole document, for a server that asks for tokens or one that does not."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        entry = paths.setdefault(operation.path, {})
        names = re.findall(r"{(\w+)}", operation.path)
        if names:
            entry["parameters"] = [_path_parameter(name) for name in names]
        entry[operation.method.lower()] = _operation(operation, settings, tokens=tokens)
    _link(paths["/v1/topics"]["post"], operations)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Penstock",
            "version": API_VERSION,
            "summary": "A durable message queue.",
            "description": (
                "Errors are RFC 9457 problem documents with a `code` that never changes. Unknown fields and parameters are refused. "
                f"The request line and headers of a request may have {settings.header_bytes_max:,} bytes; a JSON body may be nested "
                f"{settings.json_depth_max} levels deep and hold {settings.json_items_max:,} values."
            ),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": COMPONENTS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}} if tokens else {},
        },
        "tags": [{"name": tag} for tag in dict.fromkeys(operation.tag for operation in operations)],
    }


def _link(create: dict[str, Any], operations: Sequence[Operation]) -> None:
    """A topic that was created is what the other paths are about."""
    links = {
        operation.name: {"operationId": operation.name, "parameters": {"topic": "$response.body#/name"}}
        for operation in operations
        if operation.path.startswith("/v1/topics/{topic}")
    }
    for status in ("200", "201"):
        create["responses"][status]["links"] = links


def _path_parameter(name: str) -> dict[str, Any]:
    schema, description = PATH_PARAMETERS[name]
    return {"name": name, "in": "path", "required": True, "description": description, "schema": schema}


def _operation(operation: Operation, settings: HttpSettings, *, tokens: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": [_parameter(one) for one in operation.parameters if one.place != RAW_HEADER],
        "responses": _responses(operation),
        "security": [{"token": []}] if tokens and not operation.public else [],
    }
    if operation.right is not None:
        place = "the topic" if "{topic}" in operation.path else "all topics (*)"
        if operation.dead_letters:
            place += "'s dead letters"
        found["description"] = f"Needs the right `{operation.right}` on {place}."
    if operation.body is not None:
        limit = settings.publish_bytes_max if operation.publishes else settings.body_bytes_max
        content: dict[str, Any] = {JSON: {"schema": operation.body}}
        if operation.raw_body:
            content[OCTETS] = {"schema": {"type": "string", "format": "binary"}}
        description = f"At most {limit:,} bytes. {operation.raw_body}".strip()
        found["requestBody"] = {"required": not operation.body_optional, "content": content, "description": description}
    return found


def _parameter(parameter: Parameter) -> dict[str, Any]:
    schema = parameter.schema if parameter.default is None else {**parameter.schema, "default": parameter.default}
    return {"name": parameter.name, "in": parameter.place, "required": False, "schema": schema}


def _responses(operation: Operation) -> dict[str, Any]:
    statuses = {400, 403, 421, 431, 500, 503, *operation.problems}
    if not operation.public:
        statuses.add(401)
    if "{" in operation.path:
        statuses.add(404)  # a name that is not written in its plain form leads nowhere
    if operation.body is not None:
        statuses |= {408, 413, 415}
    found: dict[str, Any] = {}
    for status, schema in operation.answers.items():
        found[str(status)] = {"description": "Done."}
        if schema is not None:
            media_type, shape = schema if isinstance(schema, tuple) else (JSON, schema)
            found[str(status)]["content"] = {media_type: {"schema": shape}}
    for status in sorted(statuses):
        found[str(status)] = {"description": _EXPLAINED[status], "content": {PROBLEM_TYPE: {"schema": ref("Problem")}}}
    return found
