"""Compaction, vacuum, retention and topic deletion killed at every operation, and the bugs that this must find."""

from __future__ import annotations

import os
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from penstock.errors import PenstockError
from penstock.format.segment import FOOTER_BYTES
from penstock.journal.checkpoints import Checkpoints
from penstock.log import compaction
from penstock.log import vacuum as vacuum_module
from penstock.log.expiry import Expiry
from penstock.log.filtering import Protection
from penstock.log.log_reader import LogReader
from penstock.log.partition_log import PartitionLog
from penstock.log.recovery import LogRecovery
from penstock.log.segment import Segment
from penstock.volume import housekeeping as volume_housekeeping
from penstock.volume import volume as volumes
from penstock.volume.housekeeping import Housekeeping
from penstock.volume.tickets import MoveLogStart
from penstock.volume.volume import Volume
from tests.crash.housekeeping import (
    WEAK,
    Case,
    compaction_case,
    deletion_case,
    expiry_case,
    retention_case,
    sealing_case,
    vacuum_case,
)
from tests.crash.workload import Anomaly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

CASES: dict[str, Callable[..., int]] = {
    "compaction": compaction_case,
    "vacuum": vacuum_case,
    "retention": retention_case,
    "deletion": deletion_case,
    "sealing": sealing_case,
    "expiry": expiry_case,
}


@pytest.mark.parametrize("case", CASES)
def test_i37_a_crash_at_any_operation_leaves_the_old_or_the_new_state(case: str, seed: int) -> None:
    """I33, I35, I36, I37: in every state the store opens, serves what it must and nothing else, and the work can be done again."""
    checked = CASES[case](seed % 1_000_000, 0.3 if case in ("compaction", "vacuum", "expiry") else 1.0)
    print(f"{case}: {checked} crash states, seed {seed}")
    assert checked > 15


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_i37_for_more_seeds(case: str) -> None:
    """The same before every operation, for workloads that are the same in every run."""
    assert CASES[case](3) > 100


def test_i35_a_log_with_a_weak_mode_keeps_the_latest_that_is_durable() -> None:
    """sync=os: a message that power loss may take makes no other one go."""
    assert compaction_case(5, 0.3, settings=WEAK) > 15


def test_i37_a_log_with_a_weak_mode_is_sealed_without_losing_what_was_durable(seed: int) -> None:
    """sync=os: a crash takes the end of what was published last at most."""
    assert sealing_case(seed % 1_000_000, settings=WEAK) > 15


def test_i37_each_rewritten_segment_is_durable_before_the_next_one_is_begun() -> None:
    """File, name, folder, in this order: else a tombstone could be gone for good, and what it deleted come back."""
    case = Case()
    case.files.recording = True
    case.compact(case.volume)
    kinds = [one.kind for one in case.files.record if one.path.endswith((".log.tmp", "/0"))]
    words = [kind for kind in kinds if kind in ("create", "sync_data", "rename", "sync_directory")]
    assert words == ["create", "sync_data", "rename", "sync_directory"] * (len(words) // 4)
    assert len(words) >= 8


# -- planted bugs ---------------------------------------------------------------------------------------------------


@contextmanager
def _renamed_before_it_is_synced() -> Iterator[None]:
    original = Segment.sync

    def sync(self: Segment) -> None:
        if not self.path.endswith(".tmp"):
            original(self)
        self.synced_position = self.position + FOOTER_BYTES

    with mock.patch.object(Segment, "sync", sync):
        yield


@contextmanager
def _keyless_messages_share_the_empty_key() -> Iterator[None]:
    original = compaction._read_keys

    def read(segment: Segment, batch: Any) -> Any:
        found = original(segment, batch)
        return found and ([key or b"k" for key in found[0]], found[1])

    with mock.patch.object(compaction, "_read_keys", read):
        yield


@contextmanager
def _tombstones_go_with_the_first_sweep() -> Iterator[None]:
    """Segments are passed from the last to the first, and tombstones go at once: a crash in between brings the deleted back."""

    def ranges(log: Any, limit: int) -> list[tuple[int, int]]:
        return original(log, limit)[::-1]

    original = compaction.sealed_ranges
    with (
        mock.patch.object(compaction, "sealed_ranges", ranges),
        mock.patch.object(compaction._Sweep, "_expired", return_value=True),
    ):
        yield


@contextmanager
def _tombstones_go_within_their_grace_after_opening() -> Iterator[None]:
    """A volume that was just opened takes every grace for over: when it began is not looked up in the segment."""
    with mock.patch.object(compaction._Sweep, "_expired", _forgets_after_opening):
        yield


def _forgets_after_opening(sweep: Any, segment: Segment) -> bool:
    if sweep._log.log_epoch > 1:
        return bool(segment.header.compacted_us)
    return bool(segment.header.compacted_us) and sweep._now_us >= segment.header.compacted_us + sweep._grace_us


@contextmanager
def _below_the_start_there_is_nothing(of: type[PartitionLog | LogReader]) -> Iterator[None]:
    """Who reads there is not told that it is gone."""
    original = of.read

    def read(self: Any, offset: int, *rest: Any, **options: Any) -> Any:
        return [] if offset < self.log_start else original(self, offset, *rest, **options)

    with mock.patch.object(of, "read", read):
        yield


def _owners_find_nothing_below_the_start() -> Any:
    return _below_the_start_there_is_nothing(PartitionLog)


def _readers_find_nothing_below_the_start() -> Any:
    return _below_the_start_there_is_nothing(LogReader)


@contextmanager
def _the_active_segment_counts() -> Iterator[None]:
    """What is not durable yet makes others go."""

    def ranges(log: Any, limit: int) -> list[tuple[int, int]]:
        firsts = [*log.segment_firsts, log.committed_end]
        return list(pairwise(firsts))

    def compact(files: Any, log: Any, state: Any, limit: int, *rest: Any, **options: Any) -> Any:
        return original(files, log, state, log.committed_end, *rest, **options)

    original = compaction.compact
    with mock.patch.object(compaction, "sealed_ranges", ranges), mock.patch.object(volume_housekeeping, "compact", compact):
        yield


@contextmanager
def _vacuum_takes_the_unfinished() -> Iterator[None]:
    original = vacuum_module.vacuum

    def vacuum(files: Any, log: Any, limit: int, protection: Any, *rest: Any, **options: Any) -> Any:
        return original(files, log, limit, protection._replace(unfinished=type(protection.unfinished)()), *rest, **options)

    with mock.patch.object(volume_housekeeping, "vacuum", vacuum):
        yield


@contextmanager
def _files_go_before_the_start_is_durable() -> Iterator[None]:
    def retain(
        self: Housekeeping,
        log: Any,
        rules: Any,
        *,
        without: str | None = None,
        floors_hold: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> tuple[int, int]:
        with floors_hold():
            start = log.retention_start(**rules._asdict(), keep_from=self._volume.keep_from(log), without=without)
            removed: tuple[int, int] = log.drop_before(start)
            self._volume.commit_changes([MoveLogStart(log, start)])
            return removed

    with mock.patch.object(Housekeeping, "retain", retain):
        yield


@contextmanager
def _what_comes_back_is_served() -> Iterator[None]:
    """Recovery lists the segments and does not look where the log begins."""
    original = LogRecovery.run

    def run(self: LogRecovery, log: Any, log_start: int) -> Any:
        report = original(self, log, 0)
        log.log_start = log.segment_firsts[0] if log.segment_firsts else log_start
        return report

    with mock.patch.object(LogRecovery, "run", run):
        yield


@contextmanager
def _a_topic_is_removed_in_place() -> Iterator[None]:
    def set_aside(files: Any, directory: str, record: Any) -> None:
        path = os.path.join(directory, record.name)
        for name in files.list_directory(f"{path}/0"):
            files.unlink(f"{path}/0/{name}")
        files.remove_directory(f"{path}/0")
        files.unlink(f"{path}/topic.json")
        files.remove_directory(path)
        files.sync_directory(directory)

    with mock.patch.object(volumes, "set_aside", set_aside):
        yield


@contextmanager
def _files_of_a_topic_go_while_checkpoints_name_it() -> Iterator[None]:
    original = Volume.delete_topic

    def delete(self: Volume, name: str) -> Any:
        with mock.patch.object(self, "_checkpoint", return_value=None):
            return original(self, name)

    with mock.patch.object(Volume, "delete_topic", delete):
        yield


@contextmanager
def _log_ids_are_given_again() -> Iterator[None]:
    """The files of a deleted topic go at once, and the journal's messages for its logs are taken for those of the next one."""
    original = Volume.delete_topic

    def delete(self: Volume, name: str) -> Any:
        first = self.log(name).log_id
        with (
            mock.patch.object(self, "_checkpoint", return_value=None),
            mock.patch.object(Checkpoints, "store", return_value=None),
        ):
            record = original(self, name)
        self._next_log_id = first
        return record

    with mock.patch.object(Volume, "delete_topic", delete):
        yield


@contextmanager
def _a_checkpoint_names_a_segment_whose_name_is_not_durable() -> Iterator[None]:
    with mock.patch.object(PartitionLog, "sync_names", return_value=None):
        yield


@contextmanager
def _a_sealed_segment_is_not_synced() -> Iterator[None]:
    """The checkpoint knows the new segment alone."""

    def activate(self: PartitionLog, segment: Segment) -> None:
        original(self, segment)
        self._unsynced = []

    original = PartitionLog._activate
    with mock.patch.object(PartitionLog, "_activate", activate):
        yield


@contextmanager
def _the_next_segment_begins_where_the_active_one_does() -> Iterator[None]:
    """A log forgets what it had given out."""

    def roll(self: PartitionLog, now_us: int) -> None:
        original(self, now_us)
        self._end -= 1

    original = PartitionLog.roll
    with mock.patch.object(PartitionLog, "roll", roll):
        yield


@contextmanager
def _what_lives_goes_with_what_expired() -> Iterator[None]:
    def going(self: Expiry, batch: Any) -> list[int]:
        return [offset for offset in batch.offsets_of(range(len(batch))) if original(self, batch)]

    original = Expiry.going
    with mock.patch.object(Expiry, "going", going):
        yield


@contextmanager
def _what_a_consumer_has_goes_when_it_expires() -> Iterator[None]:
    with mock.patch.object(Protection, "kept", return_value=set()):
        yield


MUTANTS: list[tuple[str, Callable[[], Any]]] = [
    ("compaction", _renamed_before_it_is_synced),
    ("compaction", _keyless_messages_share_the_empty_key),
    ("compaction", _tombstones_go_with_the_first_sweep),
    ("compaction", _tombstones_go_within_their_grace_after_opening),
    ("weak", _the_active_segment_counts),
    ("vacuum", _renamed_before_it_is_synced),
    ("vacuum", _vacuum_takes_the_unfinished),
    ("retention", _files_go_before_the_start_is_durable),
    ("retention", _what_comes_back_is_served),
    ("retention", _owners_find_nothing_below_the_start),
    ("retention", _readers_find_nothing_below_the_start),
    ("sealing", _a_checkpoint_names_a_segment_whose_name_is_not_durable),
    ("sealing", _a_sealed_segment_is_not_synced),
    ("sealing", _the_next_segment_begins_where_the_active_one_does),
    ("sealing", _files_go_before_the_start_is_durable),
    ("expiry", _renamed_before_it_is_synced),
    ("expiry", _what_lives_goes_with_what_expired),
    ("expiry", _what_a_consumer_has_goes_when_it_expires),
    ("deletion", _a_topic_is_removed_in_place),
    ("deletion", _files_of_a_topic_go_while_checkpoints_name_it),
    ("deletion", _log_ids_are_given_again),
]


@pytest.mark.parametrize(("case", "mutant"), MUTANTS, ids=lambda one: getattr(one, "__name__", one))
def test_the_crash_states_find_the_planted_bug(case: str, mutant: Callable[[], Any]) -> None:
    """Each of these mistakes breaks a promise in some state."""
    run = (lambda seed, share: compaction_case(seed, share, settings=WEAK)) if case == "weak" else CASES[case]
    with mutant():
        for seed in range(12):
            try:
                run(seed, 0.5)
            except (Anomaly, PenstockError, OSError) as found:
                print(f"{mutant.__name__}: {found}")
                return
    pytest.fail(f"nobody noticed {mutant.__name__}")
