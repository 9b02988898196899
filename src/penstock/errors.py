"""
Every error that Penstock raises, as one tree ordered by what the caller can do about it.

PenstockError
├── UsageError              fix the call; nothing was changed
│   ├── BadSetting          a setting has a wrong name, type or value
│   ├── BadName             a topic or store name breaks the naming rule
│   ├── MessageTooLarge     one message is over its limit
│   ├── BatchTooLarge       a batch is over the limit of bytes or messages
│   ├── CommitTooLarge      a two-phase commit has more than one commit can take
│   ├── BadColumn           columns given to an encoder do not fit together
│   ├── BadArgument         an argument has a wrong type or value
│   ├── BadPipeline         a file that declares a pipeline is wrong
│   ├── ReservedName        the name is kept for Penstock's own use
│   ├── ReadOnly            the store was opened for reading only
│   └── TopicExists         the topic exists already, with other settings
├── NotFound                what was asked for is not there
│   ├── StoreNotFound       the folder holds no store
│   ├── TopicNotFound       the topic or partition does not exist
│   ├── GroupNotFound       the topic has no such group
│   ├── MemberNotFound      the group has no such member now
│   ├── StageNotFound       the stage was never made, was aborted or has expired
│   ├── OffsetOutOfRange    the offset was removed by retention, or is not written yet
│   ├── DataLost            messages that a Spark query has yet to read, or had read, are gone
│   └── PositionLost        a position in a database does not fit the topic any more
├── Unavailable             try again later; nothing was changed
│   ├── StoreLocked         another process owns the store
│   ├── ServerStopping      the server is stopping, and begins nothing new
│   ├── StorageFull         the disk has no room for it
│   ├── NoAccess            a file or folder of the store cannot be opened, most often for want of a right
│   ├── ProducerFull        the producer holds as many messages as it may
│   └── WaitTimeout         the time to wait has passed
├── Conflict                somebody else has taken over; nothing was changed, drop the work
│   ├── LeaseExpired        the message went back to its group, or to another consumer
│   ├── ConsumerEvicted     somebody took the consumer out of its group
│   ├── ProducerFenced      a newer producer of the same name has begun
│   ├── SequenceGap         a batch of a producer is missing before this one
│   ├── TransactionFenced   a transaction with a higher number was committed
│   ├── TransactionChanged  a transaction with this number was committed, with other messages
│   ├── LimitReached        there are as many of these as may be
│   └── TakenOver           another process does this database's work now
├── Unauthenticated         nobody known asks: send a valid token; nothing was changed
├── PermissionDenied        the token does not allow it: ask for the right; nothing was changed
├── OutcomeUnknown          the change may or may not have been stored; retry idempotently
├── PipelineFailed          Spark ended a pipeline with an error
├── StorageFailed           the disk reported an error: the store takes no writes until it is reopened
├── Corrupt                 stored bytes are wrong: stop, look, repair by explicit order
│   ├── BadBytes            bytes do not decode (no file known yet)
│   ├── DamagedFile         a file is damaged at a known place
│   ├── MissingData         a file, or part of one, that must be there is not
│   └── UnsupportedFormat   written by a newer or a foreign program
└── Closed                  the object was closed

Each class has a ``code`` that is stable and never reused. The arguments of each error are its fields, so that every error
survives pickling: Spark and multiprocessing send errors between processes.
"""

from __future__ import annotations

from typing import ClassVar


class PenstockError(Exception):
    """The base of every error of this library."""

    code: ClassVar[str] = "PENSTOCK_ERROR"


class UsageError(PenstockError):
    """The call was wrong; nothing was changed."""

    code = "USAGE_ERROR"


HIDDEN = "(not shown)"
"""The value of a setting that nobody should read: of an unknown name it may be a key or a password under a mistyped one."""


class BadSetting(UsageError):
    """A setting has a wrong name, type or value."""

    code = "BAD_SETTING"

    def __init__(self, name: str, value: object, reason: str) -> None:
        super().__init__(name, value, reason)
        self.name, self.value, self.reason = name, value, reason

    def __str__(self) -> str:
        if self.value == HIDDEN:
            return f"setting {self.name}: {self.reason}"
        return f"setting {self.name}={self.value!r}: {self.reason}"


class BadName(UsageError):
    """A name breaks the naming rule."""

    code = "BAD_NAME"

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(kind, name)
        self.kind, self.name = kind, name

    def __str__(self) -> str:
        shown = self.name if len(self.name) <= 60 else self.name[:57] + "..."
        return (
            f"{self.kind} name {shown!r} is not allowed: "
            "use text (str) of 1 to 196 of A-Z a-z 0-9 . _ - that begins with a letter or a digit"
        )


class MessageTooLarge(UsageError):
    """One message, or one part of it, is over its limit."""

    code = "MESSAGE_TOO_LARGE"

    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__(what, size, limit)
        self.what, self.size, self.limit = what, size, limit

    def __str__(self) -> str:
        unit = "" if self.what.startswith("the number") else " bytes"
        return f"{self.what} is {self.size:,}{unit}, over the limit of {self.limit:,}; nothing was stored"


class BatchTooLarge(UsageError):
    """A batch is over the limit of bytes or messages."""

    code = "BATCH_TOO_LARGE"

    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__(what, size, limit)
        self.what, self.size, self.limit = what, size, limit

    def __str__(self) -> str:
        return f"a batch of {self.size:,} {self.what} is over the limit of {self.limit:,}; publish it in parts"


class CommitTooLarge(UsageError):
    """A two-phase commit has more than one commit can take; nothing was changed."""

    code = "COMMIT_TOO_LARGE"

    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__(what, size, limit)
        self.what, self.size, self.limit = what, size, limit

    def __str__(self) -> str:
        return (
            f"a commit of {self.size:,} {self.what} is over the limit of {self.limit:,}; nothing was changed: stage it anew "
            "from fewer tasks (in Spark: coalesce) or to fewer partitions, or commit less at once (in Spark: maxOffsetsPerTrigger)"
        )


class BadColumn(UsageError):
    """Columns given to an encoder do not fit together."""

    code = "BAD_COLUMN"

    def __init__(self, column: str, reason: str) -> None:
        super().__init__(column, reason)
        self.column, self.reason = column, reason

    def __str__(self) -> str:
        return f"column {self.column}: {self.reason}"


class BadArgument(UsageError):
    """An argument has a wrong type or value."""

    code = "BAD_ARGUMENT"

    def __init__(self, name: str, value: str, reason: str) -> None:
        super().__init__(name, value, reason)
        self.name, self.value, self.reason = name, value, reason

    def __str__(self) -> str:
        return f"argument {self.name}={self.value}: {self.reason}; nothing was changed"


class BadPipeline(UsageError):
    """A file that declares a Spark pipeline is wrong."""

    code = "BAD_PIPELINE"

    def __init__(self, path: str, problems: str) -> None:
        super().__init__(path, problems)
        self.path, self.problems = path, problems

    def __str__(self) -> str:
        """All that is wrong, one thing a line."""
        return "\n".join([f"{self.path}: {problem}" for problem in self.problems.splitlines()])


class ReservedName(UsageError):
    """The name is kept for Penstock's own use."""

    code = "RESERVED_NAME"

    def __init__(self, kind: str, name: str, reason: str) -> None:
        super().__init__(kind, name, reason)
        self.kind, self.name, self.reason = kind, name, reason

    def __str__(self) -> str:
        return f"{self.kind} name {self.name!r} is reserved: {self.reason}"


class ReadOnly(UsageError):
    """The store was opened for reading only."""

    code = "READ_ONLY"

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return f"{self.path} was opened with read_only=True; nothing was changed"


class TopicExists(UsageError):
    """The topic exists already, with other settings."""

    code = "TOPIC_EXISTS"

    def __init__(self, topic: str, difference: str) -> None:
        super().__init__(topic, difference)
        self.topic, self.difference = topic, difference

    def __str__(self) -> str:
        return f"topic {self.topic!r} exists already with other settings ({self.difference}); they are fixed at creation"


class NotFound(PenstockError):
    """What was asked for is not there."""

    code = "NOT_FOUND"


class StoreNotFound(NotFound):
    """The folder holds no store."""

    code = "STORE_NOT_FOUND"

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return f"{self.path} holds no Penstock store"


class TopicNotFound(NotFound):
    """The topic or the partition does not exist."""

    code = "TOPIC_NOT_FOUND"

    def __init__(self, topic: str, partition: int | None = None) -> None:
        super().__init__(topic, partition)
        self.topic, self.partition = topic, partition

    def __str__(self) -> str:
        if self.partition is None:
            return f"there is no topic {self.topic!r}; create it first"
        return f"topic {self.topic!r} has no partition {self.partition}; their numbers begin at 0"


class GroupNotFound(NotFound):
    """The topic has no such group."""

    code = "GROUP_NOT_FOUND"

    def __init__(self, topic: str, group: str) -> None:
        super().__init__(topic, group)
        self.topic, self.group = topic, group

    def __str__(self) -> str:
        return f"topic {self.topic!r} has no group {self.group!r}; subscribing makes one"


class MemberNotFound(NotFound):
    """The group has no such member now."""

    code = "MEMBER_NOT_FOUND"

    def __init__(self, topic: str, group: str, member: str) -> None:
        super().__init__(topic, group, member)
        self.topic, self.group, self.member = topic, group, member

    def __str__(self) -> str:
        return f"group {self.group!r} of {self.topic!r} has no member {self.member!r} now; it may have left"


class StageNotFound(NotFound):
    """The stage was never made, was aborted or has expired."""

    code = "STAGE_NOT_FOUND"

    def __init__(self, stage: str) -> None:
        super().__init__(stage)
        self.stage = stage

    def __str__(self) -> str:
        return f"there is no stage {self.stage!r}: it was never finished, was aborted, or has expired; stage it again"


class OffsetOutOfRange(NotFound):
    """The offset is before the first message kept or past the last one committed."""

    code = "OFFSET_OUT_OF_RANGE"

    def __init__(self, offset: int, first: int, end: int) -> None:
        super().__init__(offset, first, end)
        self.offset, self.first, self.end = offset, first, end

    def __str__(self) -> str:
        return f"offset {self.offset} is outside [{self.first}, {self.end}): from the first message kept to the end"


class DataLost(NotFound):
    """
    Messages that a Spark query has yet to read, or had read, are gone: by retention, with their topic, or by a lost tail.

    *advice* is what its reader can do, which a pipeline knows better than the data source.
    """

    code = "DATA_LOST"
    ADVICE = "to go on with what is there, set the option failOnDataLoss to false"

    def __init__(self, topic: str, partition: int | None, reason: str, advice: str = ADVICE) -> None:
        super().__init__(topic, partition, reason, advice)
        self.topic, self.partition, self.reason, self.advice = topic, partition, reason, advice

    def __str__(self) -> str:
        where = self.topic if self.partition is None else f"{self.topic}/{self.partition}"
        return f"{where}: {self.reason}; {self.advice}"


class PositionLost(NotFound):
    """A position in a database is not one of this topic, or messages that it stands for are gone; nothing was changed."""

    code = "POSITION_LOST"

    def __init__(self, topic: str, partition: int, group: str, reason: str) -> None:
        super().__init__(topic, partition, group, reason)
        self.topic, self.partition, self.group, self.reason = topic, partition, group, reason

    def __str__(self) -> str:
        return (
            f"{self.topic}/{self.partition} in group {self.group}: {self.reason}; look at what is missing, and to begin anew use "
            "penstock.database.forget_positions"
        )


class Unavailable(PenstockError):
    """It cannot be done now; nothing was changed, try again later."""

    code = "UNAVAILABLE"


class StoreLocked(Unavailable):
    """Another process owns the store."""

    code = "STORE_LOCKED"

    def __init__(self, path: str, owner_pid: int | None, owner_host: str | None, url: str | None = None) -> None:
        super().__init__(path, owner_pid, owner_host, *(() if url is None else (url,)))
        self.path, self.owner_pid, self.owner_host, self.url = path, owner_pid, owner_host, url

    def __str__(self) -> str:
        who = f"process {self.owner_pid} on {self.owner_host}" if self.owner_pid is not None else "another process"
        if self.url is not None:
            return f"{self.path} is owned by a server, {who}: reach it at {self.url}, or open the folder with read_only=True"
        return f"{self.path} is owned by {who}; stop it, share it (both without share=False), or open it with read_only=True"


class ServerStopping(Unavailable):
    """The server is stopping and begins nothing new; nothing was changed."""

    code = "SERVER_STOPPING"

    def __init__(self, reason: str = "the server is stopping, and begins nothing new; nothing was changed, try again") -> None:
        super().__init__(reason)


class StorageFull(Unavailable):
    """The disk has no room for it; nothing was stored, reading goes on."""

    code = "STORAGE_FULL"

    def __init__(
        self, path: str, free_bytes: int | None = None, floor_bytes: int | None = None, wanted_bytes: int | None = None
    ) -> None:
        """Without numbers the file system itself said that it is full; else it has room, which is not for publishing."""
        super().__init__(path, free_bytes, floor_bytes, wanted_bytes)
        self.path, self.free_bytes, self.floor_bytes, self.wanted_bytes = path, free_bytes, floor_bytes, wanted_bytes

    def __str__(self) -> str:
        if self.free_bytes is None or self.floor_bytes is None:
            return (
                f"no space left on the file system of {self.path}; nothing was stored. "
                "Consume and delete what is not needed, or free some space, and try again"
            )
        wanted = self.wanted_bytes or 0
        return (
            f"no room for {f'{wanted:,} more bytes' if wanted else 'more messages'} in {self.path}: {self.free_bytes:,} bytes are free "
            f"on its file system, and {self.floor_bytes:,} must stay free (free_bytes_floor and reserve); nothing was stored. "
            f"Free at least {max(self.floor_bytes + wanted - self.free_bytes, 0):,} bytes and try again"
        )


class NoAccess(Unavailable):
    """A file or folder of the store cannot be used by this process; nothing was changed, and what lies elsewhere works."""

    code = "NO_ACCESS"

    def __init__(self, path: str, reason: str, uid: int) -> None:
        super().__init__(path, reason, uid)
        self.path, self.reason, self.uid = path, reason, uid

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.reason}; nothing was changed. Give the user of this process (uid {self.uid}) the right to read and "
            "write there, or run it as the user that owns the store, and try again: a store that is open need not be reopened"
        )


class ProducerFull(Unavailable):
    """The producer holds as many messages as it may; nothing was taken."""

    code = "PRODUCER_FULL"

    def __init__(self, topic: str, pending: int) -> None:
        super().__init__(topic, pending)
        self.topic, self.pending = topic, pending

    def __str__(self) -> str:
        return f"the producer of {self.topic!r} holds {self.pending:,} messages that are not committed yet; try again later"


class WaitTimeout(Unavailable, TimeoutError):
    """The time to wait has passed; what was waited for goes on."""

    code = "WAIT_TIMEOUT"

    def __init__(self, what: str, seconds: float) -> None:
        super().__init__(what, seconds)
        self.what, self.seconds = what, seconds

    def __str__(self) -> str:
        return f"{self.what} did not finish within {self.seconds:g} s; it goes on"


class Conflict(PenstockError):
    """Somebody else has taken over; nothing was changed."""

    code = "CONFLICT"


class LeaseExpired(Conflict):
    """The message is not this consumer's any more: its lease ended, or its group was moved."""

    code = "LEASE_EXPIRED"

    def __init__(self, topic: str, partition: int, offset: int, messages: int = 1) -> None:
        super().__init__(topic, partition, offset, messages)
        self.topic, self.partition, self.offset, self.messages = topic, partition, offset, messages

    def __str__(self) -> str:
        what = f"{self.topic}/{self.partition} offset {self.offset}"
        if self.messages > 1:
            what += f" and {self.messages - 1} more"
        return (
            f"{what} is not this consumer's any more: "
            "it was finished, its lease has ended, its consumer was closed, or its group was moved; this changed nothing"
        )


class ConsumerEvicted(Conflict):
    """Somebody took the consumer out of its group."""

    code = "CONSUMER_EVICTED"

    def __init__(self, topic: str, group: str) -> None:
        super().__init__(topic, group)
        self.topic, self.group = topic, group

    def __str__(self) -> str:
        return (
            f"this consumer was evicted from group {self.group!r} of {self.topic!r}: what it held went back to the group, uncounted; "
            "subscribe again to go on"
        )


class ProducerFenced(Conflict):
    """A newer producer of the same name has begun."""

    code = "PRODUCER_FENCED"

    def __init__(self, producer: str, incarnation: int, newest: int) -> None:
        super().__init__(producer, incarnation, newest)
        self.producer, self.incarnation, self.newest = producer, incarnation, newest

    def __str__(self) -> str:
        return f"producer {self.producer} number {self.incarnation} was replaced by number {self.newest}; nothing was stored"


class SequenceGap(Conflict):
    """A batch of a producer is missing before this one."""

    code = "SEQUENCE_GAP"

    def __init__(self, producer: str, sequence: int, expected: int) -> None:
        super().__init__(producer, sequence, expected)
        self.producer, self.sequence, self.expected = producer, sequence, expected

    def __str__(self) -> str:
        return f"producer {self.producer} sent batch {self.sequence} where {self.expected} was due; nothing was stored"


class TransactionFenced(Conflict):
    """A transaction of the same producer with a higher number was committed."""

    code = "TRANSACTION_FENCED"

    def __init__(self, producer: str, number: int, newest: int) -> None:
        super().__init__(producer, number, newest)
        self.producer, self.number, self.newest = producer, number, newest

    def __str__(self) -> str:
        return f"transaction {self.number} of {self.producer} comes after {self.newest} was committed; nothing was stored"


class TransactionChanged(Conflict):
    """A transaction that was committed before is repeated, with other messages than then."""

    code = "TRANSACTION_CHANGED"
    ADVICE: ClassVar[str] = (
        "Repeat it with the messages of then, give these a number of their own, or commit them with keep_committed=True: "
        "then what was committed counts, and these are dropped"
    )

    def __init__(self, producer: str, number: int, committed: int, given: int, advice: str = ADVICE) -> None:
        super().__init__(producer, number, committed, given, advice)
        self.producer, self.number, self.committed, self.given, self.advice = producer, number, committed, given, advice

    def advising(self, advice: str) -> TransactionChanged:
        """The same with other advice."""
        return TransactionChanged(self.producer, self.number, self.committed, self.given, advice)

    def __str__(self) -> str:
        return (
            f"transaction {self.number} of {self.producer} was committed before with other messages: {self.committed:,} then, "
            f"{self.given:,} now; nothing was stored. {self.advice}"
        )


class LimitReached(Conflict):
    """There are as many of these as may be; nothing was changed."""

    code = "LIMIT_REACHED"

    def __init__(self, what: str, limit: int, setting: str) -> None:
        super().__init__(what, limit, setting)
        self.what, self.limit, self.setting = what, limit, setting

    def __str__(self) -> str:
        return f"there are {self.limit:,} {self.what} already, as many as {self.setting} allows; nothing was changed"


class TakenOver(Conflict):
    """Another process does this work in the same database; what this one did was rolled back."""

    code = "TAKEN_OVER"

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return f"{self.what} was taken over by another process; what this one did since was rolled back"


class Unauthenticated(PenstockError):
    """The server does not know who asks: the token is missing, wrong or expired."""

    code = "UNAUTHENTICATED"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.reason}; nothing was changed"


class PermissionDenied(PenstockError):
    """The token is valid and does not give this right."""

    code = "PERMISSION_DENIED"

    def __init__(self, principal: str, right: str, topic: str | None) -> None:
        super().__init__(principal, right, topic)
        self.principal, self.right, self.topic = principal, right, topic

    def __str__(self) -> str:
        what = "the whole store" if self.topic is None else f"topic {self.topic!r}"
        right = f"{self.right} right" if self.right else "right"
        return f"{self.principal!r} has no {right} on {what}; nothing was changed"


class OutcomeUnknown(PenstockError):
    """The change may or may not have been stored; only reopening the store tells."""

    code = "OUTCOME_UNKNOWN"

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(what, reason)
        self.what, self.reason = what, reason

    def __str__(self) -> str:
        return f"it is unknown whether {self.what} was stored: {self.reason}; reopen the store and check before a retry"


class PipelineFailed(PenstockError):
    """Spark ended a pipeline with an error. What was finished before it stays, and running the pipeline again goes on behind that."""

    code = "PIPELINE_FAILED"

    def __init__(self, cause: str, reason: str) -> None:
        super().__init__(cause, reason)
        self.cause, self.reason = cause, reason

    def __str__(self) -> str:
        return f"Spark ended the pipeline: {self.reason} ({self.cause})"


class StorageFailed(PenstockError):
    """The disk reported an error earlier, so the store takes no more writes until it is reopened."""

    code = "STORAGE_FAILED"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path} takes no writes since: {self.reason}; nothing was stored, check the disk and reopen the store"


class Corrupt(PenstockError):
    """Stored bytes are wrong."""

    code = "CORRUPT"


class BadBytes(Corrupt):
    """Bytes do not decode as what they should be."""

    code = "BAD_BYTES"

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(what, reason)
        self.what, self.reason = what, reason

    def __str__(self) -> str:
        return f"{self.what}: {self.reason}"


class DamagedFile(Corrupt):
    """A file is damaged at a known place; it was left as it is."""

    code = "DAMAGED_FILE"

    def __init__(self, path: str, position: int, offset: int | None, reason: str) -> None:
        super().__init__(path, position, offset, reason)
        self.path, self.position, self.offset, self.reason = path, position, offset, reason

    def __str__(self) -> str:
        at = f"byte {self.position}" if self.offset is None else f"byte {self.position} (offset {self.offset})"
        return (
            f"{self.path} is damaged at {at}: {self.reason}; nothing was changed. "
            "Copy the store, run `verify` to see the extent, then `repair` to set the damaged range aside"
        )


class MissingData(Corrupt):
    """A file, or a part of one, that must be there is not."""

    code = "MISSING_DATA"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}; nothing was changed. Bring the file back from a copy, or run `repair`"


class UnsupportedFormat(Corrupt):
    """It was written by a newer or a foreign program."""

    code = "UNSUPPORTED_FORMAT"

    def __init__(self, what: str, found: str) -> None:
        super().__init__(what, found)
        self.what, self.found = what, found

    def __str__(self) -> str:
        return f"{self.what} needs a newer Penstock: it uses {self.found}, which this version does not know"


class Closed(PenstockError):
    """The object was closed."""

    code = "CLOSED"

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return f"{self.what} is closed"
