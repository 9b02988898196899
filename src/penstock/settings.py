"""
Every setting of the storage core in one table: name, default, unit, smallest and largest value, help.

`docs/reference/settings.md` is checked against this table by a test.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from penstock.errors import HIDDEN, BadSetting
from penstock.values import BATCH_BYTES_MAX, KIB, MESSAGE_BYTES_DEFAULT, MESSAGE_BYTES_MAX, MIB, SyncMode, compression_text

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table."""

    name: str
    default: Any
    unit: str
    least: float | None
    most: float | None
    help: str


STORE_SETTINGS = (
    Setting("sync_interval_ms", 50, "ms", 1, 60_000, "how often topics with sync=interval are synced: the most they can lose"),
    Setting("journal_file_bytes", 32 * MIB, "bytes", 4 * KIB, 1024 * MIB, "size of one preallocated journal file"),
    Setting("frame_bytes", 4 * MIB, "bytes", 1 * KIB, 64 * MIB, "how much one commit cycle takes at most"),
    Setting(
        "reference_bytes", 256 * KIB, "bytes", 64, BATCH_BYTES_MAX, "batches from this size on go to the log before the journal"
    ),
    Setting(
        "checkpoint_bytes", 64 * MIB, "bytes", 1 * KIB, 4096 * MIB, "journal written since the last checkpoint that starts one"
    ),
    Setting(
        "checkpoint_interval_ms",
        5_000,
        "ms",
        10,
        3_600_000,
        "the longest time between a change and the checkpoint that covers it",
    ),
    Setting("free_bytes_floor", 100 * MIB, "bytes", 0, None, "publishing stops when the file system has less than this free"),
    Setting(
        "reserve_bytes",
        16 * MIB,
        "bytes",
        0,
        1024 * MIB,
        "kept aside on disk, and given up when the disk is full, to finish what was begun",
    ),
    Setting("retention_interval_ms", 10_000, "ms", 10, 86_400_000, "how often retention, vacuum and compaction look for work"),
    Setting(
        "drain_ms",
        15_000,
        "ms",
        0,
        3_600_000,
        "how long the owner of a shared folder, when it closes, lets others finish messages",
    ),
    Setting("topic_groups_max", 1_000, "groups", 1, 1_000_000, "groups of one topic; to make more is refused"),
    Setting(
        "producers_max",
        10_000,
        "names",
        1,
        1_000_000,
        "named producers of one token's name, or of all without; more are refused",
    ),
    Setting(
        "clock_jump_grace_ms",
        3_600_000,
        "ms",
        0,
        30 * 86_400_000,
        "after the clock jumped, how long it must go on evenly until what is too old by it is removed; 0 = not at all",
    ),
)

TOPIC_SETTINGS = (
    Setting("sync", "always", "", None, None, "when a publish counts as committed: always, interval or os"),
    Setting(
        "segment_bytes", 64 * MIB, "bytes", 512, 1024 * MIB, "a segment is sealed when the next batch would make it larger"
    ),
    Setting("segment_messages", 0, "messages", 0, None, "a segment is sealed at this many messages; 0 = no limit"),
    Setting(
        "segment_age_ms",
        0,
        "ms",
        0,
        None,
        "a segment is sealed when its first batch is this old, also if nothing more comes; 0 = no limit",
    ),
    Setting("index_interval_bytes", 4 * KIB, "bytes", 64, 16 * MIB, "distance between two entries of the sparse index"),
    Setting("coalesce_below_bytes", 64 * KIB, "bytes", 0, 16 * MIB, "sealing merges batches smaller than this; 0 = never"),
    Setting("coalesce_to_bytes", 1 * MIB, "bytes", 64, 16 * MIB, "about how large merged batches become"),
    Setting(
        "max_message_bytes", MESSAGE_BYTES_DEFAULT, "bytes", 1, MESSAGE_BYTES_MAX, "the largest message, with key and headers"
    ),
    Setting("dedup_window_ms", 120_000, "ms", 1, 7 * 86_400_000, "how long a dedup_key is remembered"),
    Setting(
        "retain",
        "until_acked",
        "",
        None,
        None,
        "until_acked: a segment stays until every group has finished it; always: it does not",
    ),
    Setting(
        "retention_age_ms",
        7 * 86_400_000,
        "ms",
        0,
        None,
        "segments whose newest message is older are removed; 0 = no limit",
    ),
    Setting(
        "retention_bytes", 0, "bytes", 0, None, "the oldest segments of a partition are removed above this size; 0 = no limit"
    ),
    Setting(
        "retention_messages", 0, "messages", 0, None, "the oldest segments beyond so many offsets are removed; 0 = no limit"
    ),
    Setting(
        "retention_bytes_hard",
        0,
        "bytes",
        0,
        None,
        "above this size the oldest segments of a partition go even if a group has not finished them; 0 = never",
    ),
    Setting(
        "group_expiry_ms",
        30 * 86_400_000,
        "ms",
        0,
        None,
        "a group without a member for so long holds nothing back; 0 = it always does",
    ),
    Setting("compaction", False, "", None, None, "of each key only the latest message stays, in sealed segments"),
    Setting(
        "tombstone_grace_ms",
        86_400_000,
        "ms",
        0,
        None,
        "how long a tombstone stays readable once compaction has left nothing else of its key",
    ),
    Setting("priorities", False, "", None, None, "messages may have a priority: low, medium or high"),
    Setting("aging_ms", 30_000, "ms", 0, 1_000_000_000_000, "what waits longer is served as one priority higher; 0 = never"),
    Setting("ttl_ms", 0, "ms", 0, 1_000_000_000_000, "a message without a ttl of its own expires after this; 0 = never"),
    Setting("expired", "drop", "", None, None, "what becomes of a message that expired undelivered: drop or dead_letter"),
    Setting(
        "compression", "none", "", None, None, "of values, keys and headers: none, gzip, zstd, lz4, or with a level gzip:9"
    ),
    Setting(
        "dead_letter_retention_ms",
        30 * 86_400_000,
        "ms",
        0,
        None,
        "dead letters of the topic that are older are discarded; 0 = never",
    ),
    Setting(
        "record_deliveries", False, "", None, None, "how long messages waited for their groups is written to TOPIC.deliveries"
    ),
)

GROUP_SETTINGS = (
    Setting("ordered", False, "", None, None, "each partition goes to one member at a time, in order"),
    Setting(
        "lease_ms", 30_000, "ms", 1, 86_400_000, "a message that was handed out and not finished by then is delivered again"
    ),
    Setting("max_deliveries", 5, "deliveries", 0, 1_000_000, "a message that failed this often is dead-lettered; 0 = never"),
    Setting("backoff_ms", 1_000, "ms", 0, 86_400_000, "delay before the second delivery; it doubles with each failure"),
    Setting("backoff_max_ms", 300_000, "ms", 0, 86_400_000, "the longest delay between two deliveries"),
    Setting(
        "reset", "earliest", "", None, None, "where to go on when retention took what comes next: earliest, latest or fail"
    ),
)


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """How a store works; not stored with the data, may differ at each opening."""

    sync_interval_ms: int = 50
    journal_file_bytes: int = 32 * MIB
    frame_bytes: int = 4 * MIB
    reference_bytes: int = 256 * KIB
    checkpoint_bytes: int = 64 * MIB
    checkpoint_interval_ms: int = 5_000
    free_bytes_floor: int = 100 * MIB
    reserve_bytes: int = 16 * MIB
    retention_interval_ms: int = 10_000
    drain_ms: int = 15_000
    topic_groups_max: int = 1_000
    producers_max: int = 10_000
    clock_jump_grace_ms: int = 3_600_000

    def __post_init__(self) -> None:
        _check(self, STORE_SETTINGS)
        if self.frame_bytes * 2 > self.journal_file_bytes:
            raise BadSetting("frame_bytes", self.frame_bytes, "must be at most half of journal_file_bytes")
        if self.reference_bytes > self.frame_bytes:
            raise BadSetting("reference_bytes", self.reference_bytes, "must be at most frame_bytes")


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """How a topic's logs are written; fixed when the topic is created and stored in its `topic.json`."""

    sync: SyncMode = SyncMode.ALWAYS
    segment_bytes: int = 64 * MIB
    segment_messages: int = 0
    segment_age_ms: int = 0
    index_interval_bytes: int = 4 * KIB
    coalesce_below_bytes: int = 64 * KIB
    coalesce_to_bytes: int = 1 * MIB
    max_message_bytes: int = MESSAGE_BYTES_DEFAULT
    dedup_window_ms: int = 120_000
    retain: str = "until_acked"
    retention_age_ms: int = 7 * 86_400_000
    retention_bytes: int = 0
    retention_messages: int = 0
    retention_bytes_hard: int = 0
    group_expiry_ms: int = 30 * 86_400_000
    compaction: bool = False
    tombstone_grace_ms: int = 86_400_000
    priorities: bool = False
    aging_ms: int = 30_000
    ttl_ms: int = 0
    expired: str = "drop"
    compression: str = "none"
    dead_letter_retention_ms: int = 30 * 86_400_000
    record_deliveries: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "sync", SyncMode.of(self.sync))
        object.__setattr__(self, "compression", compression_text(self.compression))
        _check(self, TOPIC_SETTINGS)
        if self.retain not in ("until_acked", "always"):
            raise BadSetting("retain", self.retain, "use until_acked or always")
        if not isinstance(self.compaction, bool):
            raise BadSetting("compaction", self.compaction, "must be True or False")
        if not isinstance(self.priorities, bool):
            raise BadSetting("priorities", self.priorities, "must be True or False")
        if not isinstance(self.record_deliveries, bool):
            raise BadSetting("record_deliveries", self.record_deliveries, "must be True or False")
        if self.expired not in ("drop", "dead_letter"):
            raise BadSetting("expired", self.expired, "use drop or dead_letter")

    def to_json(self) -> dict[str, Any]:
        """As stored in `topic.json`."""
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        values["sync"] = self.sync.value
        return values

    def differing(self, wanted: TopicSettings, names: Iterable[str] | None = None) -> str:
        """Each setting, or each of *names*, that is not as *wanted*, for people: ``ttl_ms=0, not 60000``."""
        have, want = self.to_json(), wanted.to_json()
        return ", ".join([f"{name}={have[name]}, not {want[name]}" for name in names or have if have[name] != want[name]])

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> TopicSettings:
        """Read back `to_json`; an unknown name is an error, since ignoring it could change what the topic promises."""
        known = {field.name for field in fields(cls)}
        for name, value in values.items():
            if name not in known:
                raise BadSetting(name, value, "this version knows no such topic setting")
        return replace(cls(), **values)


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """How a group delivers; stored with the group, and changed by subscribing with other values."""

    ordered: bool = False
    lease_ms: int = 30_000
    max_deliveries: int = 5
    backoff_ms: int = 1_000
    backoff_max_ms: int = 300_000
    reset: str = "earliest"

    def __post_init__(self) -> None:
        _check(self, GROUP_SETTINGS)
        if not isinstance(self.ordered, bool):
            raise BadSetting("ordered", self.ordered, "must be True or False")
        if self.reset not in ("earliest", "latest", "fail"):
            raise BadSetting("reset", self.reset, "use earliest, latest or fail")

    def to_json(self) -> dict[str, Any]:
        """As stored in the journal."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> GroupSettings:
        """Read back `to_json`; names that a newer version added are an error, since they change what the group promises."""
        known = {field.name for field in fields(cls)}
        for name, value in values.items():
            if name not in known:
                raise BadSetting(name, value, "this version knows no such group setting")
        return replace(cls(), **values)


def no_such_setting(name: str, value: object, kind: str, known: Iterable[str]) -> BadSetting:
    """The error for a setting that there is none of; names those that are much like it. A value that may be a secret is not shown."""
    like = difflib.get_close_matches(name, known, n=2, cutoff=0.6)
    hint = f"did you mean {' or '.join(like)}?" if like else "docs/reference/settings.md lists them"
    return BadSetting(name, value if isinstance(value, (int, float)) else HIDDEN, f"there is no such {kind} setting; {hint}")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"


def _check(settings: StoreSettings | TopicSettings | GroupSettings, table: tuple[Setting, ...]) -> None:
    for row in table:
        value = getattr(settings, row.name)
        if row.least is None and row.most is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise BadSetting(row.name, value, "must be a whole number")
        if row.least is not None and value < row.least:
            raise BadSetting(row.name, value, f"must be at least {_number(row.least)}")
        if row.most is not None and value > row.most:
            raise BadSetting(row.name, value, f"must be at most {_number(row.most)}")
