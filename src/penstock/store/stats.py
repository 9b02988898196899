"""What a store tells about itself: numbers of one moment."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class GroupStats:
    """A group. Counts are since the store was opened; the rest is as it is now."""

    lag: int
    """Messages that are not finished."""
    in_flight: int
    """Messages that consumers were handed and have not finished."""
    retrying: int
    """Messages that failed and wait for their next delivery."""
    members: int
    positions: dict[int, int]
    """The first offset of each partition that is not finished."""
    delivered: int
    redelivered: int
    acked: int
    nacked: int
    expired_leases: int
    dead_lettered: int
    skipped: int
    """Messages that retention took before the group had finished them."""
    lost: int
    """Messages that the group had seen and that a log with a weak sync mode lost."""
    expired: int = 0
    """Messages that expired before anybody got them."""


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
