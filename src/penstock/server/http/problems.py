"""
Errors as a client sees them: RFC 9457 problem documents with the code that never changes.

One table says the status of every error of the tree; a test fails if one is missing. What a client cannot mend is logged with its text, and
the client gets the meaning only: such texts name files of the server.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from starlette.responses import Response

from penstock import errors
from penstock.log_events import get_logger

_log = get_logger("penstock")

PROBLEM_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:penstock:error:"

STATUS_OF: dict[type[errors.PenstockError], int] = {
    errors.PenstockError: 500,
    errors.UsageError: 400,
    errors.BadSetting: 400,
    errors.BadName: 400,
    errors.MessageTooLarge: 413,
    errors.BatchTooLarge: 413,
    errors.CommitTooLarge: 413,
    errors.BadColumn: 400,
    errors.BadArgument: 400,
    errors.BadPipeline: 400,
    errors.ReservedName: 403,
    errors.ReadOnly: 403,
    errors.TopicExists: 409,
    errors.NotFound: 404,
    errors.StoreNotFound: 404,
    errors.TopicNotFound: 404,
    errors.GroupNotFound: 404,
    errors.MemberNotFound: 404,
    errors.StageNotFound: 404,
    errors.OffsetOutOfRange: 404,
    errors.DataLost: 404,
    errors.PositionLost: 404,
    errors.Unavailable: 503,
    errors.StoreLocked: 503,
    errors.ServerStopping: 503,
    errors.StorageFull: 507,
    errors.NoAccess: 503,
    errors.ProducerFull: 503,
    errors.WaitTimeout: 504,
    errors.Conflict: 409,
    errors.LeaseExpired: 409,
    errors.ConsumerEvicted: 409,
    errors.ProducerFenced: 409,
    errors.SequenceGap: 409,
    errors.TransactionFenced: 409,
    errors.TransactionChanged: 409,
    errors.LimitReached: 409,
    errors.TakenOver: 409,
    errors.Unauthenticated: 401,
    errors.PermissionDenied: 403,
    errors.OutcomeUnknown: 500,
    errors.PipelineFailed: 500,
    errors.StorageFailed: 500,
    errors.Corrupt: 500,
    errors.BadBytes: 500,
    errors.DamagedFile: 500,
    errors.MissingData: 500,
    errors.UnsupportedFormat: 500,
    errors.Closed: 503,
}

_HIDDEN = (errors.StoreNotFound, errors.StoreLocked, errors.ReadOnly, errors.NoAccess)
"""Their texts name files of the server, whatever their status is."""


_PLAIN = (errors.Unavailable, errors.ServerStopping)
"""Their texts are ours, and name nothing of the server's."""


class HttpCode(NamedTuple):
    """A problem that only HTTP has."""

    status: int
    title: str


HTTP_CODES: dict[str, HttpCode] = {
    "BAD_REQUEST": HttpCode(400, "The bytes are no HTTP request."),
    "BAD_JSON": HttpCode(400, "The body is no JSON that this server reads."),
    "FOREIGN_ORIGIN": HttpCode(403, "The request comes from a page of another site."),
    "NO_SUCH_PATH": HttpCode(404, "There is nothing under this path."),
    "METHOD_NOT_ALLOWED": HttpCode(405, "The path does not have this method."),
    "NOT_ACCEPTABLE": HttpCode(406, "The client does not accept what this path gives."),
    "BODY_TIMEOUT": HttpCode(408, "The body did not arrive in time."),
    "BODY_TOO_LARGE": HttpCode(413, "The body is over its limit."),
    "UNSUPPORTED_MEDIA_TYPE": HttpCode(415, "The body's Content-Type or Content-Encoding is not one that this path takes."),
    "UNKNOWN_HOST": HttpCode(421, "The Host header does not name this server."),
    "HEADERS_TOO_LARGE": HttpCode(431, "The request line and the headers are over their limit."),
    "INTERNAL_ERROR": HttpCode(500, "The server has failed; its log says how."),
}
"""Codes beside those of the error tree."""


class HttpProblem(Exception):
    """A request that HTTP alone refuses."""

    def __init__(self, code: str, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(code, detail)
        self.code, self.detail = code, detail
        self.status, self.title = HTTP_CODES[code]
        self.headers = headers or {}


def status_of(error: errors.PenstockError) -> int:
    """The status of an error: its own, or that of the nearest error above it."""
    return next(STATUS_OF[kind] for kind in type(error).__mro__ if kind in STATUS_OF)


def document(error: Exception) -> dict[str, Any]:
    """The problem document of an error."""
    if isinstance(error, HttpProblem):
        code, title, status, detail = error.code, error.title, error.status, error.detail
    elif isinstance(error, errors.PenstockError):
        status = status_of(error)
        code, title = error.code, (type(error).__doc__ or "").strip().splitlines()[0]
        plain = type(error) in _PLAIN or (status < 500 and not isinstance(error, _HIDDEN))
        detail = str(error) if plain else title
    else:
        code = "INTERNAL_ERROR"
        status, title = HTTP_CODES[code]
        detail = title
    found = {"type": TYPE_PREFIX + code, "title": title, "status": status, "detail": detail, "code": code}
    if isinstance(error, errors.OffsetOutOfRange):
        found |= {"offset": error.offset, "first": error.first, "end": error.end}
    elif isinstance(error, (errors.MessageTooLarge, errors.BatchTooLarge, errors.CommitTooLarge)):
        found |= {"size": error.size, "limit": error.limit}
    return found


def problem(error: Exception, extra: dict[str, Any] | None = None) -> Response:
    """The answer that tells *error*, with more fields. What the client cannot mend is logged."""
    found = document(error) | (extra or {})
    status: int = found["status"]
    headers: dict[str, str] = {}
    if isinstance(error, HttpProblem):
        headers |= error.headers
    elif not isinstance(error, errors.PenstockError):
        _log.error("a request failed", exc_info=error)
    elif status >= 500 and type(error) not in _PLAIN:
        _log.warning("a request failed: %s [%s]", error, error.code)
    if status == 401:
        headers["www-authenticate"] = 'Bearer realm="penstock"'
    if isinstance(error, (errors.Unavailable, errors.Closed)):
        headers["retry-after"] = "1"
    return Response(json.dumps(found), status, headers, PROBLEM_TYPE)
