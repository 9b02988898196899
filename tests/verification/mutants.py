"""
Planted bugs in verify and in repair, each one a mistake that was made or could be. The judge is worth something only if it finds them all.

A mutant replaces one function while it is active; nothing in the product knows of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest import mock

from penstock.files import NotRegular
from penstock.journal import salvage
from penstock.journal.checkpoints import Checkpoints
from penstock.overlay_files import OverlayFile, OverlayFileSystem
from penstock.volume import identity
from penstock.volume import repair as repairing
from penstock.volume.log_repair import LogRepair
from penstock.volume.repair import Repairer
from penstock.volume.verification import Verifier
from tests.verification import directed

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.errors import Corrupt
    from penstock.format.checkpoint import LogRow
    from penstock.log.partition_log import PartitionLog
    from tests.verification.judge import Subject


def verify_does_not_open() -> Any:
    """Verify takes a store that does not open for sound."""
    original = Verifier._open_and_read

    def open_and_read(self: Verifier) -> None:
        original(self)
        if not self.is_open:
            self.errors.clear()
            self._findings.clear()

    return mock.patch.object(Verifier, "_open_and_read", open_and_read)


def verify_does_not_read() -> Any:
    """Verify opens the store and reads nothing."""

    def read_log(self: Verifier, files: object, log: PartitionLog) -> None:
        del files, log

    return mock.patch.object(Verifier, "_read_log", read_log)


def verify_changes_the_disk() -> Any:
    """What recovery writes goes to the disk."""

    def pass_through(below: Any, **_: Any) -> Any:
        return below

    return mock.patch("penstock.volume.verification.OverlayFileSystem", pass_through)


def a_cut_is_forgotten_by_the_overlay() -> Any:
    """A file that recovery cuts keeps its length in the overlay."""

    def truncate(self: OverlayFile, size: int) -> None:
        del self, size

    return mock.patch.object(OverlayFile, "truncate", truncate)


def a_removed_file_is_still_listed_by_the_overlay() -> Any:
    """Names that recovery removed come back."""
    original = OverlayFileSystem.list_directory

    def list_directory(self: OverlayFileSystem, path: str) -> list[str]:
        removed, self._removed = self._removed, set()
        try:
            return original(self, path)
        finally:
            self._removed = removed

    return mock.patch.object(OverlayFileSystem, "list_directory", list_directory)


def verify_tells_what_opening_recovers_as_damage() -> Any:
    """A torn tail behind the committed end is called damage."""
    original = Verifier._open_and_read

    def open_and_read(self: Verifier) -> None:
        original(self)
        sizes = {path: len(data) for path, data in self._files.files().items() if path.endswith(".log")}  # type: ignore[attr-defined]
        if any(size % 8 or not size for size in sizes.values()) and not self.errors:
            from penstock.errors import MissingData

            self._damage(MissingData(self._path, "a segment ends in the middle of a batch"))

    return mock.patch.object(Verifier, "_open_and_read", open_and_read)


def repair_cuts_at_the_first_bad_batch() -> Any:
    """What lies behind damage in a segment is given up with it."""
    original = LogRepair._walk

    def walk(self: LogRepair, first: int, *, last: bool) -> None:
        original(self, first, last=last)
        bad = [one.offset for one in self._found[first].walk.bad if one.offset is not None]
        if bad:
            self._pieces = [piece for piece in self._pieces if piece.segment != first or piece.first_offset < min(bad)]

    return mock.patch.object(LogRepair, "_walk", walk)


def repair_gives_lost_offsets_to_others() -> Any:
    """The log ends where its last good batch ends, whatever was committed."""
    original = LogRepair.run

    def run(self: LogRepair, **options: Any) -> LogRow:
        self._evidence.row = None
        return original(self, **options)

    return mock.patch.object(LogRepair, "run", run)


def repair_forgets_the_journal() -> Any:
    """Batches that only the journal has are not looked for."""
    return mock.patch.object(repairing, "whole_frames", return_value=[])


def repair_stops_at_the_first_bad_frame() -> Any:
    """Frames behind a bad one are given up."""
    original = salvage.whole_frames

    def whole_frames(*arguments: Any) -> list[Any]:
        frames = original(*arguments)
        kept: list[Any] = []
        for frame in frames:
            if kept and frame.number != kept[-1].number + 1:
                break
            kept.append(frame)
        return kept

    return mock.patch.object(repairing, "whole_frames", whole_frames)


def repair_mends_a_sound_store() -> Any:
    """Repair writes new checkpoints though nothing is wrong."""
    original = Repairer._mend_all

    def mend_all(self: Repairer) -> None:
        original(self)
        self._store_id = identity.read_identity(self._files, self._path)
        self._store_checkpoints(self._load())

    return mock.patch.object(Repairer, "_mend_all", mend_all)


def repair_says_nothing() -> Any:
    """What was given up is not told."""
    original = Repairer._mend

    def mend(self: Repairer, errors: list[Corrupt]) -> None:
        original(self, errors)
        self._lost.clear()

    return mock.patch.object(Repairer, "_mend", mend)


def repair_writes_one_checkpoint() -> Any:
    """The other one still names what is not there any more, and is newer."""
    original, store = Repairer._store_checkpoints, Checkpoints.store

    def store_checkpoints(self: Repairer, checkpoint: Any) -> None:
        def store_before(self: Checkpoints, one: Any) -> None:
            store(self, one._replace(generation=checkpoint.generation - 1))

        with mock.patch.object(Checkpoints, "store", store_before):
            original(self, checkpoint)

    return mock.patch.object(Repairer, "_store_checkpoints", store_checkpoints)


def repair_leaves_strays() -> Any:
    """A segment under the name of another is not put back."""

    def put_back(self: Repairer) -> None:
        del self

    return mock.patch.object(Repairer, "_put_back", put_back)


def repair_drops_what_was_written_ahead() -> Any:
    """Though frames are lost, batches that they may have committed are cut."""
    original = LogRepair.run

    def run(self: LogRepair, *, keeps_uncommitted: bool = False) -> LogRow:
        del keeps_uncommitted
        return original(self)

    return mock.patch.object(LogRepair, "run", run)


def the_overlay_cannot_move_folders() -> Any:
    """A plan for what is no file raises, though the repair would succeed."""

    def rename_closed(self: OverlayFileSystem, source: str, target: str) -> None:
        del self, target
        raise NotRegular(source)

    return mock.patch.object(OverlayFileSystem, "_rename_closed", rename_closed)


def repair_lets_opening_cut() -> Any:
    """A tail that opening takes for torn is left to it, though the store is damaged."""
    return mock.patch.object(Repairer, "_keep_what_opening_cuts", return_value=False)


def repair_reads_what_it_wrote_over() -> Any:
    """Batches of a segment that was written again are looked for where they were before."""
    original = LogRepair._rewrite

    def rewrite(self: LogRepair, *arguments: Any) -> LogRow:
        pieces = self._pieces
        row = original(self, *arguments)
        self._pieces = pieces
        return row

    return mock.patch.object(LogRepair, "_rewrite", rewrite)


def repair_believes_a_foreign_topic() -> Any:
    """A `topic.json` of another store makes strangers of the topic's segments."""
    return mock.patch.object(Repairer, "_foreign_topics", return_value=set())


def repair_believes_a_foreign_identity() -> Any:
    """A `store.json` of another store makes strangers of all files."""
    return mock.patch.object(Repairer, "_is_identity_foreign", return_value=False)


def repair_does_not_ask_the_journal_whose_a_log_is() -> Any:
    """The logs of two topics without `topic.json` cannot be told apart then."""
    return mock.patch.object(repairing, "_segment_uid", return_value=None)


def repair_writes_over_a_segment_without_a_header() -> Any:
    """The one that belongs there is put back, and the messages that lay there are given up."""
    return mock.patch.object(Repairer, "_give_place", return_value=[])


def repair_wants_all_logs_of_a_topic_named() -> Any:
    """Numbers of logs that fit a topic in one way only are not given to it."""
    return mock.patch.object(repairing, "_only_run", return_value=None)


def repair_gives_the_logs_of_a_displaced_topic_to_another() -> Any:
    """A `topic.json` in the folder of another topic does not keep the numbers that it names."""
    original = Repairer._first_log_id

    def first_log_id(self: Repairer, *arguments: Any) -> tuple[int, int]:
        self._displaced.clear()
        return original(self, *arguments)

    return mock.patch.object(Repairer, "_first_log_id", first_log_id)


def repair_takes_the_topics_that_it_sees_for_all() -> Any:
    """A file in the place of a topic's folder is passed over."""
    return mock.patch.object(Repairer, "_lacks_folders", return_value=False)


def repair_leaves_what_does_not_look_like_a_store() -> Any:
    """Once what is no file and no folder is moved away, there is no store to be mended."""
    original = Repairer._clear_places

    def clear_places(self: Repairer) -> bool:
        with mock.patch.object(Repairer, "_mend_identity"):
            return original(self)

    return mock.patch.object(Repairer, "_clear_places", clear_places)


FOUND_BY: tuple[tuple[Callable[[], Any], Callable[[], Subject]], ...] = (
    (verify_does_not_open, directed.no_checkpoint),
    (verify_does_not_read, directed.bad_first_batch),
    (verify_changes_the_disk, directed.torn_tail),
    (a_cut_is_forgotten_by_the_overlay, directed.torn_tail),
    (a_removed_file_is_still_listed_by_the_overlay, directed.bad_frame),
    (verify_tells_what_opening_recovers_as_damage, directed.torn_tail),
    (repair_cuts_at_the_first_bad_batch, directed.bad_first_batch),
    (repair_gives_lost_offsets_to_others, directed.lost_end),
    (repair_forgets_the_journal, directed.bad_reference),
    (repair_stops_at_the_first_bad_frame, directed.bad_frame),
    (repair_mends_a_sound_store, directed.sound),
    (repair_says_nothing, directed.bad_first_batch),
    (repair_writes_one_checkpoint, directed.lost_end),
    (repair_leaves_strays, directed.stray_segments),
    (repair_drops_what_was_written_ahead, directed.lost_journal),
    (the_overlay_cannot_move_folders, directed.folder_for_file),
    (repair_lets_opening_cut, directed.weak_tail),
    (repair_reads_what_it_wrote_over, directed.bad_segments),
    (repair_believes_a_foreign_topic, directed.foreign_topic),
    (repair_believes_a_foreign_identity, directed.foreign_identity),
    (repair_does_not_ask_the_journal_whose_a_log_is, directed.lost_topics),
    (repair_does_not_ask_the_journal_whose_a_log_is, directed.lost_topics_with_partitions),
    (repair_writes_over_a_segment_without_a_header, directed.nameless_stray),
    (repair_wants_all_logs_of_a_topic_named, directed.silent_partitions),
    (repair_gives_the_logs_of_a_displaced_topic_to_another, directed.displaced_topic),
    (repair_takes_the_topics_that_it_sees_for_all, directed.file_for_topic),
    (repair_leaves_what_does_not_look_like_a_store, directed.nothing_in_shape),
)
"""Each with a store that is enough to find it."""
