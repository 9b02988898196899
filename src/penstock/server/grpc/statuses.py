"""
Errors as a gRPC client sees them: a status, and the code that never changes in its metadata and its details.

One table says the status of every error of the tree; a test fails if one is missing. What a client cannot mend is logged with its text, and
the client gets the meaning only: such texts name files of the server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from grpc import StatusCode

from penstock import errors
from penstock.log_events import get_logger
from penstock.wire import penstock_pb2 as pb

if TYPE_CHECKING:
    from grpc.aio import ServicerContext

_log = get_logger("penstock.server")

CODE_METADATA = "penstock-code"
DETAILS_METADATA = "grpc-status-details-bin"
DOMAIN = "penstock"
INTERNAL_ERROR = "INTERNAL_ERROR"
"""The code of what is no error of the tree: a bug of ours."""
TOO_MANY_STREAMS = "TOO_MANY_STREAMS"
"""The code of what only gRPC refuses."""
TEXT_BYTES_MAX = 1_000
FIELD_BYTES_MAX = 600
"""Clients take 8 KiB of metadata, by default, and names that nobody has checked may stand in an error."""

STATUS_OF: dict[type[errors.PenstockError], StatusCode] = {
    errors.PenstockError: StatusCode.INTERNAL,
    errors.UsageError: StatusCode.INVALID_ARGUMENT,
    errors.BadSetting: StatusCode.INVALID_ARGUMENT,
    errors.BadName: StatusCode.INVALID_ARGUMENT,
    errors.MessageTooLarge: StatusCode.INVALID_ARGUMENT,
    errors.BatchTooLarge: StatusCode.INVALID_ARGUMENT,
    errors.CommitTooLarge: StatusCode.INVALID_ARGUMENT,
    errors.BadColumn: StatusCode.INVALID_ARGUMENT,
    errors.BadArgument: StatusCode.INVALID_ARGUMENT,
    errors.BadPipeline: StatusCode.INVALID_ARGUMENT,
    errors.ReservedName: StatusCode.INVALID_ARGUMENT,
    errors.ReadOnly: StatusCode.FAILED_PRECONDITION,
    errors.TopicExists: StatusCode.ALREADY_EXISTS,
    errors.NotFound: StatusCode.NOT_FOUND,
    errors.StoreNotFound: StatusCode.NOT_FOUND,
    errors.TopicNotFound: StatusCode.NOT_FOUND,
    errors.GroupNotFound: StatusCode.NOT_FOUND,
    errors.MemberNotFound: StatusCode.NOT_FOUND,
    errors.StageNotFound: StatusCode.NOT_FOUND,
    errors.OffsetOutOfRange: StatusCode.OUT_OF_RANGE,
    errors.DataLost: StatusCode.OUT_OF_RANGE,
    errors.PositionLost: StatusCode.OUT_OF_RANGE,
    errors.Unavailable: StatusCode.UNAVAILABLE,
    errors.StoreLocked: StatusCode.UNAVAILABLE,
    errors.ServerStopping: StatusCode.UNAVAILABLE,
    errors.StorageFull: StatusCode.RESOURCE_EXHAUSTED,
    errors.NoAccess: StatusCode.UNAVAILABLE,
    errors.ProducerFull: StatusCode.RESOURCE_EXHAUSTED,
    errors.WaitTimeout: StatusCode.DEADLINE_EXCEEDED,
    errors.Conflict: StatusCode.ABORTED,
    errors.LeaseExpired: StatusCode.ABORTED,
    errors.ConsumerEvicted: StatusCode.ABORTED,
    errors.ProducerFenced: StatusCode.FAILED_PRECONDITION,
    errors.SequenceGap: StatusCode.FAILED_PRECONDITION,
    errors.TransactionFenced: StatusCode.FAILED_PRECONDITION,
    errors.TransactionChanged: StatusCode.FAILED_PRECONDITION,
    errors.LimitReached: StatusCode.FAILED_PRECONDITION,
    errors.TakenOver: StatusCode.FAILED_PRECONDITION,
    errors.Unauthenticated: StatusCode.UNAUTHENTICATED,
    errors.PermissionDenied: StatusCode.PERMISSION_DENIED,
    errors.OutcomeUnknown: StatusCode.UNKNOWN,
    errors.PipelineFailed: StatusCode.INTERNAL,
    errors.StorageFailed: StatusCode.INTERNAL,
    errors.Corrupt: StatusCode.DATA_LOSS,
    errors.BadBytes: StatusCode.DATA_LOSS,
    errors.DamagedFile: StatusCode.DATA_LOSS,
    errors.MissingData: StatusCode.DATA_LOSS,
    errors.UnsupportedFormat: StatusCode.DATA_LOSS,
    errors.Closed: StatusCode.UNAVAILABLE,
}

_MENDABLE = frozenset(
    {
        StatusCode.INVALID_ARGUMENT, StatusCode.ALREADY_EXISTS, StatusCode.NOT_FOUND, StatusCode.OUT_OF_RANGE, StatusCode.ABORTED,
        StatusCode.FAILED_PRECONDITION, StatusCode.UNAUTHENTICATED, StatusCode.PERMISSION_DENIED,
    }
)  # fmt: skip
"""Statuses whose texts are for the client."""
_HIDDEN = (errors.StoreNotFound, errors.ReadOnly)
"""Their texts name files of the server, whatever their status is."""


class TooManyStreams(Exception):
    """A connection has as many streams as it may."""

    def __init__(self, most: int) -> None:
        super().__init__(f"this connection has {most:,} streams already; nothing was changed. End some, or use another channel")


class Told(NamedTuple):
    """What a client is told of an error."""

    status: StatusCode
    code: str
    text: str
    fields: dict[str, str]

    def to_message(self) -> pb.Error:
        """As a message, for streams that go on."""
        return pb.Error(code=self.code, text=self.text, status=self.status.value[0], fields=self.fields)

    def metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """The trailing metadata."""
        info = AnyMessage()
        info.Pack(ErrorInfo(reason=self.code, domain=DOMAIN, metadata=self.fields))
        status = Status(code=self.status.value[0], message=self.text, details=[info])
        return (CODE_METADATA, self.code), (DETAILS_METADATA, status.SerializeToString())


def status_of(error: errors.PenstockError) -> StatusCode:
    """The status of an error: its own, or that of the nearest error above it."""
    return next(STATUS_OF[kind] for kind in type(error).__mro__ if kind in STATUS_OF)


def tell(error: Exception) -> Told:
    """What the client is told of *error*. What it cannot mend is logged."""
    if isinstance(error, TooManyStreams):
        return Told(StatusCode.RESOURCE_EXHAUSTED, TOO_MANY_STREAMS, str(error), {})
    if not isinstance(error, errors.PenstockError):
        _log.error("a call failed", exc_info=error)
        return Told(StatusCode.INTERNAL, INTERNAL_ERROR, "The server has failed; its log says how.", {})
    status = status_of(error)
    if type(error) in (errors.Unavailable, errors.ServerStopping) or (status in _MENDABLE and not isinstance(error, _HIDDEN)):
        text = str(error)
        fields = {name: _cut(str(value), FIELD_BYTES_MAX) for name, value in vars(error).items() if value is not None}
    else:
        _log.warning("a call failed: %s [%s]", error, error.code)
        text, fields = (type(error).__doc__ or "").strip().splitlines()[0], {}
    return Told(status, error.code, _cut(text, TEXT_BYTES_MAX), fields)


def _cut(text: str, bytes_max: int) -> str:
    return text.encode(errors="replace")[:bytes_max].decode(errors="ignore")


async def abort(context: ServicerContext, error: Exception) -> None:
    """End the call with *error*. Raises always."""
    told = tell(error)
    await context.abort(told.status, told.text, told.metadata())
