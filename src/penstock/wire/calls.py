"""The calls of the native protocol. A number is never given to another call."""

from __future__ import annotations

from enum import IntEnum

PROTOCOL_VERSION = 1


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

    PUBLISH = 16
    PUBLISH_ONCE = 17
    OPEN_PRODUCER = 18
    TRANSACT = 19

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

    GROUPS = 48
    DELETE_GROUP = 49
    SEEK = 50

    POSITIONS = 56
    READ = 57
    OFFSET_OF_TIME = 58

    DEAD_LETTERS = 64
    REPLAY_DEAD_LETTERS = 65
    DISCARD_DEAD_LETTERS = 66
