"""The calls of the native protocol. A number is never given to another call."""

from __future__ import annotations

from enum import IntEnum

PROTOCOL_VERSION = 1
FIELDS_BYTES_MAX = 64 * 1024
LONG_FIELDS_BYTES_MAX = 1024 * 1024
"""What the fields of a request may have, and of one that names many things: `fields_bytes_max`."""


class Call(IntEnum):
    """What a request asks for; docs/protocol.md has the fields of each."""

    HELLO = 1
    PING = 2
    TOPICS = 3
    TOPIC = 4
    CREATE_TOPIC = 5
    TOPIC_TO_PUBLISH = 6
    STATS = 7
    RETAIN = 8
    FLUSH = 9
    VACUUM = 10
    COMPACT = 11
    DELETE_TOPIC = 12
    METRICS = 13
    STOPPING = 14
    """Only pushed, with correlation 0: the server is stopping."""

    PUBLISH = 16
    PUBLISH_ONCE = 17
    OPEN_PRODUCER = 18
    TRANSACT = 19
    PUBLISH_MANY = 20

    STAGE = 24
    STAGE_ADD = 25
    STAGE_FINISH = 26
    STAGE_ABANDON = 27
    COMMIT = 28
    ABORT = 29
    COMMITTED = 30

    SUBSCRIBE = 32
    FETCH = 33
    CREDIT = 34
    ACK = 35
    NACK = 36
    EXTEND = 37
    RETURN = 38
    COMMIT_POSITION = 39
    UNSUBSCRIBE = 40
    PAUSE = 41
    CANCEL = 42
    CONSUMER = 43
    HEARTBEAT = 44

    GROUPS = 48
    DELETE_GROUP = 49
    SEEK = 50
    MEMBERS = 51
    EVICT_MEMBER = 52

    POSITIONS = 56
    READ = 57
    OFFSET_OF_TIME = 58

    DEAD_LETTERS = 64
    REPLAY_DEAD_LETTERS = 65
    DISCARD_DEAD_LETTERS = 66


_LONG = frozenset(
    {
        Call.PUBLISH_ONCE, Call.TRANSACT, Call.PUBLISH_MANY, Call.STAGE_ADD, Call.COMMIT, Call.ABORT, Call.ACK, Call.NACK, Call.RETURN,
        Call.SEEK, Call.POSITIONS, Call.REPLAY_DEAD_LETTERS, Call.DISCARD_DEAD_LETTERS,
    }
)  # fmt: skip


def fields_bytes_max(call: int) -> int:
    """
    The most bytes that the fields of a request may have.

    Fields are small, and the bulk of a call is its payload: 64 KiB of JSON take a server some milliseconds. Only calls that name many
    things (deliveries, parts of a transaction, topics, offsets) may have more: a mebibyte, for 40,000 of them and more.
    """
    return LONG_FIELDS_BYTES_MAX if call in _LONG else FIELDS_BYTES_MAX
