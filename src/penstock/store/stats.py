"""What a store tells about itself: numbers of one moment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import datetime as dt


@dataclass(frozen=True, slots=True)
class GroupStats:
    """A group. Counts are since the store was opened, but for `dead_lettered`; the rest is as it is now."""

    lag: int
    """Messages that are not finished."""
    in_flight: int
    """Messages that consumers were handed and have not finished."""
    retrying: int
    """Messages that failed and wait for their next delivery; those that are with a consumer again are `in_flight`."""
    members: int
    positions: dict[int, int]
    """The first offset of each partition that is not finished."""
    delivered: int
    redelivered: int
    acked: int
    nacked: int
    expired_leases: int
    dead_lettered: int
    """Messages that became dead letters, since the group was made: it survives restarts and crashes."""
    skipped: int
    """Messages that retention took before the group had finished them."""
    lost: int
    """Messages that the group had seen and that a log with a weak sync mode lost."""
    expired: int = 0
    """Messages that expired before anybody got them."""


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """A member of a group, and what it holds."""

    id: str
    """For `Store.evict_member`; never used again."""
    name: str | None
    """What its user calls it."""
    interface: str
    """embedded, native, folder (another process that shares the folder), grpc or http."""
    peer: str
    """The address of its client, or its process at a Unix socket; empty where it is in the owner's process."""
    principal: str
    """The name of its token; empty without tokens."""
    since: dt.datetime
    last_heard: dt.datetime
    """When its client was last heard; of one in the owner's process, when it last asked for messages."""
    in_flight: int
    """Messages that it was handed and has not finished."""
    buffered: int
    """Messages that are leased for it and were not handed out."""
    bytes: int
    """About what both take."""
    prefetch: int
    paused: bool
    partitions: list[int]
    """In an ordered group: the partitions that are its own."""


@dataclass(frozen=True, slots=True)
class TopicStats:
    """A topic."""

    partitions: int
    messages: int
    """Messages that can be read now (offsets, where some were compacted away)."""
    published: int
    """Messages since the store was opened."""
    starts: dict[int, int]
    ends: dict[int, int]
    dedup_evicted: int
    """Deduplication keys that were forgotten before their window ended."""
    groups: dict[str, GroupStats] = field(default_factory=dict)
    removed_segments: int = 0
    """Segments that retention removed since the store was opened."""
    removed_messages: int = 0
    """Messages that vacuum and compaction removed since then."""
    removed_unfinished: int = 0
    """Segments that `retention_bytes_hard` took from groups that had not finished them."""
    expired_groups: int = 0
    """Groups that hold nothing back now, since they had no member for too long."""
    bytes: int = 0
    """What its segments take on disk; indexes and what the journal has of it not counted."""


@dataclass(frozen=True, slots=True)
class StoreStats:
    """A store."""

    path: str
    topics: dict[str, TopicStats]
    commits: int
    """Commit cycles since the store was opened: each is one sync of the journal."""
    failure: str | None
    """Why the store takes no more writes, if the disk failed."""
    is_full: bool = False
    """Whether publishing is refused for want of disk space; consuming, acks and deleting go on. The owner knows it."""
    free_bytes: int | None = None
    """What is free on the store's file system; None where it cannot be told."""
    free_bytes_floor: int = 0
    """Of which publishing leaves so much; the owner knows it."""
    refused: int = 0
    """Publishes that were refused for want of disk space since the store was opened."""
