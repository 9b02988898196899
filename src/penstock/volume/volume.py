"""
A volume: the part of a store below topics and groups. One journal, many partition logs, one owner.

Theory of operation
-------------------
`append` to a log with ``sync=always`` becomes a ticket of the commit cycle: `journal/committer.py` says when it is committed,
`commit_cycle.py` what is done to the logs then. Appends to logs with a weaker mode go to the segment directly.

A maintenance thread syncs interval logs, takes checkpoints, merges small batches, makes the next journal file, closes files that were
not used for longest, and holds a reserve of disk space. With ``background=False`` nothing happens unless it is called: that is how the
crash tests drive it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Self, cast

from penstock import threads as threading
from penstock.clock import SystemClock
from penstock.errors import (
    BadSetting,
    BatchTooLarge,
    Closed,
    Corrupt,
    OffsetOutOfRange,
    OutcomeUnknown,
    PenstockError,
    StorageFailed,
    StorageFull,
    StoreLocked,
    StoreNotFound,
    TopicExists,
    TopicNotFound,
    Unavailable,
)
from penstock.files import LockHeld, RealFileSystem, RealLock, is_full, is_no_access, is_out_of_descriptors
from penstock.format.batch import SINGLE_ADDED_BYTES_MAX, encode_single
from penstock.format.checkpoint import Checkpoint
from penstock.interrupts import Held
from penstock.journal.checkpoints import Checkpoints
from penstock.journal.committer import Committer
from penstock.journal.journal import Journal
from penstock.log.coalescing import coalesce, find_segment_to_coalesce
from penstock.log.identity import LogIdentity
from penstock.log.partition_log import PartitionLog, SyncWork, no_access, out_of_descriptors
from penstock.log.positions import Position, PositionsReader, PositionsWriter
from penstock.log_events import Troubles, event, get_logger
from penstock.settings import StoreSettings, TopicSettings
from penstock.values import SyncMode, check_name
from penstock.volume.access import check_folder, naming_refusals
from penstock.volume.checkpoint_due import CheckpointDue
from penstock.volume.commit_cycle import CommitCycle
from penstock.volume.housekeeping import Housekeeping, Rules
from penstock.volume.identity import JOURNAL, LOCK_NAME, POSITIONS_NAME, STORE_FILE, TOPICS, create_identity, read_identity
from penstock.volume.layer import Ended
from penstock.volume.open_files import BoundedFiles, OpenFiles
from penstock.volume.recovery import VolumeRecovery
from penstock.volume.space import Space, SpaceReport
from penstock.volume.tickets import (
    ENTRY_OVERHEAD_BYTES,
    Append,
    AppendTicket,
    Change,
    ChangesTicket,
    MoveLogStart,
    Other,
    TimedAppendTicket,
    TimedChangesTicket,
    TogetherTicket,
)
from penstock.volume.topic_files import (
    PARTITIONS_MAX,
    TopicRecord,
    create_topic_files,
    read_deleted,
    read_topics,
    remove_deleted,
    remove_unfinished,
    set_aside,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from penstock.clock import Clock
    from penstock.files import FileSystem, Lock
    from penstock.format.batch import EncodedBatch
    from penstock.journal.ticket import Ticket
    from penstock.log.recovery import TailReport
    from penstock.volume.door import Door
    from penstock.volume.layer import Layer

_INDEX_CACHE_EVERY_BYTES = 1024 * 1024
_INDEX_CACHE_LEAST_BYTES = 4 * 1024
"""A shorter segment is scanned sooner than its index is found."""


class Volume:
    """
    An open store, owned by this process. Safe to use from many threads.

    Open one with `Volume.open`; close it, or use it as a context manager.
    """

    def __init__(self, path: str, settings: StoreSettings, files: FileSystem, clock: Clock) -> None:
        self.path = path
        self.settings = settings
        self.open_files = OpenFiles()
        self._files = files = cast("FileSystem", BoundedFiles(files, self.open_files))
        self._clock = clock
        self._space = Space(files, path, settings.free_bytes_floor, settings.reserve_bytes, clock)
        self._closed = False
        self._lock: Lock | None = None
        self._door: Door | None = None
        self._topics: dict[str, TopicRecord] = {}
        self._logs: dict[int, PartitionLog] = {}
        self._topic_lock = threading.Lock()
        self._has_deleted = False
        """Whether files of deleted topics are left that should have gone."""
        self._wants_coalescing = False
        """Whether a checkpoint was taken since logs were looked at for small batches."""
        self._troubles = Troubles(get_logger("penstock"))
        self._checkpoint_lock = threading.Lock()
        self._rewrite_lock = threading.Lock()
        self.housekeeping = Housekeeping(self, files, self._rewrite_lock)
        self._close_lock = threading.Lock()
        self._interval_dirty: set[PartitionLog] = set()
        self._appliers: dict[int, Callable[[bytes], None]] = {}
        self._layers: Sequence[Layer] = ()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._interval_wake = threading.Event()
        self._due = CheckpointDue(settings, clock)
        self._append_ticket: Callable[[Committer, PartitionLog, EncodedBatch], AppendTicket] = AppendTicket
        self._several_ticket: Callable[[Committer, Sequence[Change]], ChangesTicket] = ChangesTicket
        self.reports: dict[int, TailReport] = {}
        self.was_closed_in_order = True
        """Whether the last owner closed the store, or there was none."""
        self._foreign_sections: dict[int, bytes] = {}
        self._problems: list[Corrupt] | None = None
        self.recovered_others: list[tuple[int, int, bytes]] = []
        """(frame number, owner, body) of entries of layers above that recovery found behind the checkpoint."""

    # -- opening and closing ----------------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        settings: StoreSettings | None = None,
        files: FileSystem | None = None,
        clock: Clock | None = None,
        create: bool = True,
        background: bool = True,
        layers: Sequence[Layer] = (),
        door: Door | None = None,
        problems: list[Corrupt] | None = None,
    ) -> Volume:
        """
        Open the store in the folder *path*, and make one there if the folder is empty or missing and *create* is set.

        Returns after recovery: what it serves is durable, and *layers* have their state back. The *door* for other processes is
        opened and closed under the lock. *problems*: see `VolumeRecovery`.

        Raises:
            StoreLocked: another process owns it.
            StoreNotFound: there is none, and *create* is not set.
            Corrupt: stored data is damaged; nothing was changed.
            OSError: the file system refused something.
        """
        with naming_refusals():
            volume = cls(
                os.path.abspath(os.fspath(path)), settings or StoreSettings(), files or RealFileSystem(), clock or SystemClock()
            )
        volume._layers = layers
        volume._door = door
        volume._problems = problems
        for layer in layers:
            volume.on_other(layer.owner, layer.apply)
        with naming_refusals():
            volume._open(create=create, background=background)
        return volume

    def _open(self, *, create: bool, background: bool) -> None:
        files, path = self._files, self.path
        check_folder(files, path)
        if not files.exists(path):
            if not create:
                raise StoreNotFound(path)
            files.make_directory(path)
        if create and not files.exists(os.path.join(path, STORE_FILE)):
            # Also where the folder is there: a process that was killed may have made it, and not its name durable.
            files.sync_directory(os.path.dirname(path))
        self._lock = self._take_lock()
        try:
            if self._door is not None:
                self._door.open(path)
            self._recover_with_reserve(create=create, background=background)
        except BaseException:
            for log in list(self._logs.values()):
                log.close()
            self._unlock()
            raise
        if background:
            self._start_thread("maintenance", self._maintain)
            self._start_thread("interval", self._sync_intervals)

    def _start_thread(self, name: str, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name=f"penstock-{name} {self.path}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _take_lock(self) -> Lock:
        path = os.path.join(self.path, LOCK_NAME)
        try:
            return self._files.lock(path, shares=self._door is not None)
        except LockHeld as held:
            raise StoreLocked(self.path, held.owner.get("pid"), held.owner.get("host"), held.owner.get("url")) from None

    def announce(self, url: str) -> None:
        """A server gives others access at *url*: whoever opens the folder is told."""
        if isinstance(self._lock, RealLock):
            self._lock.announce(url)

    def _recover_with_reserve(self, *, create: bool, background: bool) -> None:
        """
        Recover; on a full disk again, with ever more of the reserve that the last owner left.

        Recovery may be begun anew at any point. What it needs room for before a journal file is made is only what the journal has and the
        logs have lost, since a checkpoint, and every log has its blocks before the journal has its messages.
        """
        self._space.find_reserve()
        while True:
            try:
                self.open_files.leader = threading.get_ident()
                try:
                    self._recover(create=create, background=background)
                finally:
                    self.open_files.leader = 0
            except (OSError, StorageFull) as error:
                if not isinstance(error, StorageFull) and not is_full(error):
                    raise
                if not self._space.draw() and not self._drop_spare():
                    raise StorageFull(self.path) from None
            else:
                return

    def _drop_spare(self) -> bool:
        """The last thing that can be given up: a short journal file will do."""
        journal = os.path.join(self.path, JOURNAL)
        return self._files.exists(journal) and Journal(self._files, journal, b"", 0).drop_spare()

    def _recover(self, *, create: bool, background: bool) -> None:
        files, path, settings = self._files, self.path, self.settings
        is_new = False
        try:
            store_id = read_identity(files, path)
        except StoreNotFound:
            if not create:
                raise
            store_id = create_identity(files, path)
            is_new = True
        self.store_id = store_id
        self._checkpoints = Checkpoints(files, path, store_id)
        checkpoint = self._checkpoints.load()
        self._journal = Journal(files, os.path.join(path, JOURNAL), store_id, settings.journal_file_bytes)
        self._journal.check_names()
        topics_directory = os.path.join(path, TOPICS)
        remove_unfinished(files, topics_directory)
        topics = read_topics(files, topics_directory)
        deleted = read_deleted(files, topics_directory)
        deleted_ids = {record.first_log_id + partition for record in deleted for partition in range(record.partitions)}
        # A process that was killed may have left a topic under its name without making that durable; from now on it is used.
        files.sync_directory(topics_directory)
        known = self._known_positions(store_id)
        recovered = VolumeRecovery(
            files, topics_directory, store_id, checkpoint, self._journal, known, self.open_files.descriptors_max, deleted_ids,
            self.open_files,
            self._problems,
        ).run(topics)  # fmt: skip
        self._topics = {record.name: record for record in topics}
        self._logs = recovered.logs
        self.log_epoch = recovered.log_epoch
        self.was_closed_in_order = is_new or recovered.log_epoch == checkpoint.log_epoch
        self.reports = recovered.reports
        if not self.was_closed_in_order:
            self._tell_recovered(recovered.frame_number - checkpoint.frame_number)
        self.recovered_others = recovered.others
        self._restore_layers(checkpoint)
        self.owner_generation = checkpoint.owner_generation + 1
        self._next_log_id = max([checkpoint.next_log_id, *[one.first_log_id + one.partitions for one in [*topics, *deleted]]])
        self._start_journal(recovered.frame_number)
        # From here on the store is not clean: durably, before the first write.
        self._store_checkpoint(recovered.frame_number, self._journal.sequence, clean=False)
        assert self._checkpoints.previous is not None
        self._journal.free(self._checkpoints.previous.journal_sequence)
        self._positions = self._space.make(
            lambda: PositionsWriter(files, os.path.join(path, POSITIONS_NAME), store_id, self.owner_generation)
        )
        for log in list(self._logs.values()):
            self._add_slot(log)
        self._positions.publish(files.boot_id())
        for log in self._logs.values():
            log.remove_stale()
        if deleted:
            # Then neither checkpoint names them.
            self._store_checkpoint(recovered.frame_number, self._journal.sequence, clean=False)
        try:
            remove_deleted(files, topics_directory)
        except OSError as error:
            if not is_no_access(error):
                raise
            self._has_deleted = True  # later: it is no part of the store
            self._due.note_change()
        self._settle()
        self._space.hold_reserve()
        cycle = CommitCycle(
            path,
            settings,
            self._journal,
            self._positions,
            self._space,
            self._due,
            self._layers,
            self._appliers,
            self.open_files,
        )
        self._committer = Committer(self._journal, cycle, self._clock, path, settings.frame_bytes, background=background)
        self.open_files.hold = self._committer.try_quiesce
        self.open_files.on_failed_sync = self._fail

    def _start_journal(self, number: int) -> None:
        """
        Begin a new journal file; of one that is there if it need not be: so a store has two of them, however often its owner is killed.

        What the journal had is in the logs now. So a checkpoint that names its last file says all, and after another one neither names
        any before it.
        """
        sequences = self._journal.find_files(number)
        if len(sequences) > 1:
            # The last owner may have been killed between the name of its newest file and the sync of the folder.
            self._files.sync_directory(self._journal.directory)
            for _ in range(2):
                if self._journal.has_spare:
                    break
                self._store_checkpoint(number, sequences[-1], clean=False)
                previous = self._checkpoints.previous
                if previous is not None and previous.journal_sequence:
                    self._journal.free(previous.journal_sequence)
        self._space.make(lambda: self._journal.start(number))

    def _tell_recovered(self, frames: int) -> None:
        cut = sum(report.cut_bytes for report in self.reports.values())
        removed = sum(report.removed_segments for report in self.reports.values())
        get_logger("penstock").info(
            "the store %s was not closed in order, and is recovered: %d frames of the journal done again, %d bytes that were never "
            "committed cut off in %d of %d partitions, %d unfinished segments removed",
            self.path, frames, cut, sum(report.cut_bytes > 0 for report in self.reports.values()), len(self._logs), removed,
            extra=event("store_recovered", path=self.path, frames=frames, cut_bytes=cut, removed_segments=removed),
        )  # fmt: skip

    def _restore_layers(self, checkpoint: Checkpoint) -> None:
        """Give each layer above its state of the checkpoint and what was committed since, before anything is written anew."""
        sections = dict(checkpoint.sections)
        for layer in self._layers:
            layer.restore(sections.pop(layer.owner, b""))
        # Of a layer that is not open now: kept for the one who opens it again.
        self._foreign_sections = sections
        layers = {layer.owner: layer for layer in self._layers}
        for _, owner, body in self.recovered_others:
            if owner in layers:
                layers[owner].replay(body)
            elif owner in sections or not self._appliers.get(owner):
                sections[owner] = sections.get(owner, b"") + body
        ends = {
            record.topic_id: [
                self._logs[record.first_log_id + partition].committed_end for partition in range(record.partitions)
            ]
            for record in list(self._topics.values())
        }
        ended = Ended(self._files, self.path, self.store_id, checkpoint.owner_generation, self.was_closed_in_order)
        for layer in self._layers:
            layer.recovered(ends, ended)

    def _known_positions(self, store_id: bytes) -> dict[tuple[bytes, int], Position] | None:
        """The committed ends that the last owner left, if it ran in this boot and saw no disk error."""
        reader = PositionsReader(self._files, os.path.join(self.path, POSITIONS_NAME), store_id)
        try:
            if reader.failed:
                return None
            return reader.snapshot()
        except PenstockError:
            # The owner died while it was moving several ends: some are new and some old, and none is too high.
            return None
        finally:
            reader.close()

    def _add_slot(self, log: PartitionLog) -> None:
        rewrites = self.owner_generation << 32
        position = Position(log.committed_end, self.log_epoch, log.log_start, rewrites)
        log.slot = slot = self._positions.add(log.identity.topic_id, log.identity.partition, position)
        log.end_word = self._positions.end_word(slot)
        numbers = itertools.count(rewrites + 1)
        log.on_replaced = lambda: self._positions.set_rewrites(slot, next(numbers))

    def close(self) -> None:
        """
        Commit what waits, take a last checkpoint that marks the store as closed in order, and let go of it.

        Closing twice does nothing. If the disk had failed, nothing is written and the next opening recovers.
        """
        with self._close_lock:
            if self._closed:
                return
            self._stop.set()
            self._interval_wake.set()
            for thread in self._threads:
                thread.join()
            try:
                self._committer.close()
                self._closed = True
                if self._committer.failure is None:
                    self._close_orderly()
            finally:
                self._closed = True
                self._release()

    def forget(self) -> None:
        """In a forked child: the files are the parent's, so this copy never writes to them again, not even to close them."""
        # No line in the log: the parent's store is well, and other threads of the parent may have held the log's locks when it forked.
        self._committer.failure = "this process was forked from the store's owner: open the store in it anew"
        self._closed = True
        if self._lock is not None:
            # Only the child's copy: as long as it had one, nobody could follow a parent that died.
            self._lock.release()

    def abandon(self) -> None:
        """Let go of it and write nothing, as if the process had died: for who only wanted to know whether it opens."""
        self._closed = True
        self._release()

    def _close_orderly(self) -> None:
        for log in list(self._logs.values()):
            with log.lock:
                active = log.active
                if active is not None and not active.sealed and active.reserved_end:
                    active.give_back_reserved()
        with contextlib.suppress(OSError):
            self._journal.retire_next()
        try:
            self._checkpoint(clean=True)
        except Unavailable:
            return  # The next opening recovers from the journal.

    def _release(self) -> None:
        self._journal.close()
        for log in list(self._logs.values()):
            log.close()
        self._positions.close()
        self._unlock()

    def _unlock(self) -> None:
        if self._door is not None:
            self._door.close()
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- topics -----------------------------------------------------------------------------------------------------

    def create_topic(
        self, name: str, partitions: int = 1, settings: TopicSettings | None = None, *, essential: bool = False
    ) -> TopicRecord:
        """
        Create a topic; durable when it returns. Creating it again with the same settings does nothing.

        For one that is *essential* half of the reserve may be used on a full disk.

        Raises:
            BadName, BadSetting: nothing was changed.
            TopicExists: it is there with other settings.
        """
        check_name("topic", name)
        settings = settings or TopicSettings()
        if isinstance(partitions, bool) or not isinstance(partitions, int) or not 1 <= partitions <= PARTITIONS_MAX:
            raise BadSetting("partitions", partitions, f"must be a whole number from 1 to {PARTITIONS_MAX}")
        with Held(), self._topic_lock:
            self._check_usable()
            existing = self._topics.get(name)
            if existing is not None:
                if existing.partitions != partitions:
                    raise TopicExists(name, f"partitions={existing.partitions}, not {partitions}")
                if existing.settings != settings:
                    raise TopicExists(name, existing.settings.differing(settings))
                return existing
            record = TopicRecord(name, secrets.token_bytes(16), partitions, self._next_log_id, settings)
            # Given out even if this fails: the topic may turn out to be there after all.
            self._next_log_id += partitions
            topics_directory = os.path.join(self.path, TOPICS)

            def make() -> None:
                self._positions.make_room(partitions)
                create_topic_files(self._files, topics_directory, record)

            try:
                if essential:
                    self._space.make(make, keep=self._space.kept_from_letters)
                else:
                    make()
            except OSError as error:
                if not self._files.exists(os.path.join(topics_directory, name)):
                    if is_full(error):
                        refusal = StorageFull(topics_directory)
                        self._space.refuse(refusal)
                        raise refusal from None
                    if is_out_of_descriptors(error):
                        raise out_of_descriptors(topics_directory) from None
                self._fail(error)
                raise StorageFailed(self.path, str(error)) from None
            self._add_logs(record)
            self._topics[name] = record
            return record

    def delete_topic(self, name: str) -> TopicRecord:
        """
        Delete a topic and its messages; durable when it returns. One of the same name that is made later is another topic.

        Raises:
            TopicNotFound: there is none.
            StorageFailed: the disk failed; it may be there or not when the store is opened again.
        """
        topics_directory = os.path.join(self.path, TOPICS)
        with Held(), self._topic_lock:
            record = self._topics.get(name)
            if record is None:
                check_name("topic", name)
                raise TopicNotFound(name)
            logs = [self._logs[record.first_log_id + partition] for partition in range(record.partitions)]
            # No checkpoint, rewriting or commit is under way while the files change their place.
            with self._checkpoint_lock, self._rewrite_lock, self._committer.quiesce():
                self._check_usable()
                for log in logs:
                    with log.lock:
                        log.delete()
                try:
                    set_aside(self._files, topics_directory, record)
                except OSError as error:
                    if self._files.exists(os.path.join(topics_directory, name)):
                        for log in logs:
                            log.undelete()
                        raise self._refusal(error) from None
                    self._fail(error)
                    raise StorageFailed(self.path, str(error)) from None
                del self._topics[name]
                for log in logs:
                    del self._logs[log.log_id]
                    log.let_go_deleted()
                    self._positions.set_deleted(log.slot)
                    self.housekeeping.forget(log)
                    self._interval_dirty.discard(log)
                    self._troubles.end(log.log_id)
                    self.reports.pop(log.log_id, None)
            self._has_deleted = True
            with contextlib.suppress(Unavailable):  # a full disk, or no descriptors: it is deleted all the same
                self._remove_deleted()
            return record

    def _remove_deleted(self) -> None:
        """
        Remove the files of deleted topics; the caller holds the lock of topics.

        Raises `Unavailable`: there is no room, or no descriptor, for that now; the maintenance thread tries again when the next checkpoint
        is due, and so does the next opening.
        """
        # They stay until neither checkpoint names their logs: what names them and is not there would be damage.
        for _ in range(2):
            try:
                self._checkpoint(clean=False)
            except StorageFull:
                self._checkpoint(clean=False)  # what the first one left half-made is gone
        try:
            remove_deleted(self._files, os.path.join(self.path, TOPICS))
        except OSError as error:
            self._due.note_change()
            raise self._refusal(error) from None
        self._has_deleted = False

    def _add_logs(self, record: TopicRecord) -> None:
        for partition in range(record.partitions):
            identity = LogIdentity(self.store_id, record.topic_id, record.name, partition, record.first_log_id + partition)
            directory = os.path.join(self.path, TOPICS, record.name, str(partition))
            log = PartitionLog(self._files, directory, identity, record.settings, self.log_epoch)
            log.open_logs = self.open_files
            self._add_slot(log)
            self._logs[identity.log_id] = log

    def time_syncs(self, observe: Callable[[float], None] | None) -> None:
        """Tell *observe* how many seconds each sync of the journal takes; None: no more."""
        journal = self._journal
        journal.__dict__.pop("sync", None)
        if observe is None:
            return
        plain, told = journal.sync, observe

        def timed_sync() -> None:
            began = time.perf_counter()
            plain()
            told(time.perf_counter() - began)

        journal.__dict__["sync"] = timed_sync

    def time_appends(self, observe: Callable[[str, float], None] | None) -> None:
        """Tell *observe* the topic of each batch, and the seconds until it was committed as its topic's mode says; None: no more."""
        self.__dict__.pop("append", None)
        self._append_ticket, self._several_ticket = AppendTicket, ChangesTicket
        if observe is None:
            return
        told, plain = observe, self.append

        def several(leader: Committer, changes: Sequence[Change]) -> ChangesTicket:
            if changes and all(type(change) is Append for change in changes):
                return TimedChangesTicket(told, leader, changes)
            return ChangesTicket(leader, changes)

        def timed_append(log: PartitionLog, batch: EncodedBatch, *, sync: SyncMode | None = None) -> int:
            if log.always or sync is SyncMode.ALWAYS:
                return plain(log, batch, sync=sync)  # its ticket takes the time
            began = time.perf_counter()
            offset = plain(log, batch, sync=sync)
            told(log.identity.topic, time.perf_counter() - began)
            return offset

        self._append_ticket = partial(TimedAppendTicket, told)
        self._several_ticket = several
        self.__dict__["append"] = timed_append

    @property
    def commits(self) -> int:
        """Commit cycles since the store was opened."""
        return self._committer.cycles

    @property
    def failure(self) -> str | None:
        """Why no more writes are taken, once the disk failed."""
        return self._committer.failure

    @property
    def is_full(self) -> bool:
        """Whether publishing is refused for want of room, as of the last look."""
        return self._space.is_full

    @property
    def topics(self) -> list[TopicRecord]:
        """All topics, by name."""
        return sorted(self._topics.values(), key=lambda record: record.name)

    @property
    def logs(self) -> list[PartitionLog]:
        """All logs."""
        return list(self._logs.values())

    def log(self, topic: str, partition: int = 0) -> PartitionLog:
        """The log of a partition. Raises `TopicNotFound`."""
        record = self._topics.get(topic)
        if record is None:
            raise TopicNotFound(topic)
        if not 0 <= partition < record.partitions:
            raise TopicNotFound(topic, partition)
        return self._logs[record.first_log_id + partition]

    # -- appending --------------------------------------------------------------------------------------------------

    def append(self, log: PartitionLog, batch: EncodedBatch, *, sync: SyncMode | None = None) -> int:
        """
        Append *batch* to *log* and return its first offset, committed as the topic's mode says, or as *sync* where that is stricter.

        Raises:
            StorageFull, BatchTooLarge: nothing was stored.
            OutcomeUnknown: the disk failed meanwhile; it may or may not be stored.
            StorageFailed, Closed: nothing was stored.
        """
        if log.always or sync is SyncMode.ALWAYS:
            ticket = self._ticket(log, batch)
            self._committer.commit(ticket)
            assert ticket.first_offset is not None
            return ticket.first_offset
        data = batch.data
        if self._committer.failure is not None or self._closed:
            self._check_usable()
        if len(data) > log.batch_bytes_max:
            raise BatchTooLarge("bytes", len(data), log.batch_bytes_max)
        space = self._space
        space.left -= len(data)
        if space.left < 0:
            space.ask(len(data))
        with log.lock:
            if self._committer.failure is not None or self._closed:
                # A cycle that held the log failed while this thread waited: what lies behind its batch would be lost.
                self._check_usable()
            now_us = self._clock.now_us()
            try:
                first = log.append(batch, now_us)
            except OSError as error:
                self._fail(error)
                raise OutcomeUnknown("the batch", str(error)) from None
            except PenstockError as error:
                if isinstance(error, StorageFull):
                    self._space.refuse(error)
                raise  # refused, and nothing was changed
            except BaseException as error:
                # A signal between the write and the book-keeping: the next append would get the same offset.
                with Held():
                    if log.settle(batch, now_us):
                        self._positions.words[log.end_word] = log.committed_end
                    else:
                        self._fail(error)
                raise
            self._positions.words[log.end_word] = log.committed_end
        if self._due.changed_since is None:
            self._due.note_change()
        if (log.interval or sync is SyncMode.INTERVAL) and log not in self._interval_dirty:
            self._interval_dirty.add(log)
            self._interval_wake.set()
        return first

    def append_all(
        self, logs: Sequence[PartitionLog], batches: Sequence[EncodedBatch], firsts: list[int], *, sync: SyncMode | None = None
    ) -> None:
        """
        Append one batch to each of *logs*, none of them twice; *firsts* gets where each begins. If it is refused nothing is stored.

        Where the journal commits them, by their topics' mode or by *sync*, a crash cannot part them either, and readers see all at once.
        Raises what `append` raises; with `OutcomeUnknown` those in *firsts* are stored.
        """
        if len(logs) == 1:
            firsts.append(self.append(logs[0], batches[0], sync=sync))
            return
        if sync is SyncMode.ALWAYS or any(log.always for log in logs):
            firsts += self.commit_changes([*map(Append, logs, batches)]).first_offsets
            return
        for log, batch in zip(logs, batches, strict=True):
            if len(batch.data) > log.batch_bytes_max:
                raise BatchTooLarge("bytes", len(batch.data), log.batch_bytes_max)
        if self._committer.failure is not None or self._closed:
            self._check_usable()
        size = sum([len(batch.data) for batch in batches])
        self._space.left -= size
        if self._space.left < 0:
            self._space.ask(size)
        with Held(), contextlib.ExitStack() as locks:
            # A signal between taking a lock and noting that would leave it locked for ever.
            for log in _in_lock_order(logs):
                locks.enter_context(log.lock)
            if self._committer.failure is not None or self._closed:
                self._check_usable()
            now_us = self._clock.now_us()
            try:
                for log, batch in zip(logs, batches, strict=True):
                    # What can be refused is refused before the first one is written.
                    log.make_room(len(batch.data), batch.count, now_us)
            except OSError as error:
                self._fail(error)
                raise StorageFailed(self.path, str(error)) from None
            try:
                for log, batch in zip(logs, batches, strict=True):
                    firsts.append(log.append(batch, now_us))
                    self._positions.words[log.end_word] = log.committed_end
            except PenstockError as error:
                # Refused although there was room, and nothing was changed by that one.
                if not firsts:
                    raise
                raise OutcomeUnknown("the batches", str(error)) from None
            except BaseException as error:
                # The write and the book-keeping may disagree: the next append would get the same offset.
                self._fail(error)
                if isinstance(error, OSError):
                    raise OutcomeUnknown("the batches", str(error)) from None
                raise
        if self._due.changed_since is None:
            self._due.note_change()
        if logs[0].interval or sync is SyncMode.INTERVAL:
            self._interval_dirty.update(logs)
            self._interval_wake.set()

    def submit(self, log: PartitionLog, batch: EncodedBatch, callback: Callable[[Ticket], None] | None = None) -> AppendTicket:
        """
        Ask for *batch* to be appended, committed by the journal; returns at once with a ticket to wait for.

        With a *callback*, which is called as `Ticket.on_done` says, nobody is woken: the caller calls `hand_on` when it has submitted
        all that it has. Raises what `append` raises when it is refused at once.
        """
        size = len(batch.data)
        space = self._space
        if size > log.batch_bytes_max or space.left < size:
            ticket = self._ticket(log, batch)
        else:
            space.left -= size
            ticket = self._append_ticket(self._committer, log, batch)
        if callback is None:
            self._committer.submit(ticket)
        else:
            ticket.set_callback(callback)
            self._committer.enqueue(ticket)
        return ticket

    def hand_on(self) -> None:
        """Let what was submitted be committed, by a thread of the store. Never waits."""
        self._committer.hand_on()

    def after_cycles(self, function: Callable[[], None]) -> Callable[[], None]:
        """See `Committer.after_cycles`."""
        return self._committer.after_cycles(function)

    @property
    def last_tickets(self) -> int:
        """How many changes the last commit cycle had: set before they are answered."""
        return self._committer.last_tickets

    def _ticket(self, log: PartitionLog, batch: EncodedBatch) -> AppendTicket:
        size = len(batch.data)
        if size > log.batch_bytes_max:
            raise BatchTooLarge("bytes", size, log.batch_bytes_max)
        space = self._space
        space.left -= size
        if space.left < 0:
            self._check_usable()
            space.ask(size)
        return self._append_ticket(self._committer, log, batch)

    def submit_changes(
        self, changes: Sequence[Change], callback: Callable[[Ticket], None] | None = None, *, essential: bool = False
    ) -> ChangesTicket:
        """
        Ask for several changes to be committed in one frame: all of them or none. *callback*, and what it raises: as `submit`.

        Those that are *essential* are no publish: the floor of free space is there for them, and on a full disk half of the reserve.
        """
        ticket = self._changes_ticket(changes, essential=essential)
        if callback is None:
            self._committer.submit(ticket)
        else:
            ticket.set_callback(callback)
            self._committer.enqueue(ticket)
        return ticket

    def _changes_ticket(self, changes: Sequence[Change], *, essential: bool = False) -> ChangesTicket:
        ticket = self._several_ticket(self._committer, changes)
        ticket.essential = essential
        for change in changes:
            kind = type(change)
            if kind is Append:
                log, batch = cast("Append", change)
                if len(batch.data) > log.batch_bytes_max:
                    raise BatchTooLarge("bytes", len(batch.data), log.batch_bytes_max)
            elif kind is MoveLogStart:
                assert isinstance(change, MoveLogStart)
                if not 0 <= change.offset <= change.log.committed_end:
                    raise OffsetOutOfRange(change.offset, change.log.log_start, change.log.committed_end)
        if ticket.entry_bytes > self.settings.frame_bytes:
            raise BatchTooLarge("bytes", ticket.entry_bytes, self.settings.frame_bytes)
        if ticket.largest_bytes and not essential:
            self._space.left -= ticket.frame_bytes
            if self._space.left < 0:
                self._check_usable()
                self._space.ask(ticket.frame_bytes)
        return ticket

    def commit_changes(self, changes: Sequence[Change]) -> ChangesTicket:
        """The same, and return when they are committed; raises what `append` raises. The calling thread may run the cycle."""
        ticket = self._changes_ticket(changes)
        self._committer.commit(ticket)
        return ticket

    def commit_together(
        self, logs: Sequence[PartitionLog], batches: Sequence[EncodedBatch] | Sequence[bytes], others: Sequence[Other]
    ) -> list[int]:
        """
        `commit_changes` of one batch for each of *logs*, and of *others*; returns where each batch begins.

        The batches may all be values instead, none too long for its log: each becomes a batch, by a quicker way where there is one.
        """
        if batches and type(batches[0]) is bytes:
            values = cast("Sequence[bytes]", batches)
            encoded: Sequence[EncodedBatch] = ()
            size, longest = sum(map(len, values)) + SINGLE_ADDED_BYTES_MAX * len(values), max(map(len, values))
            small = longest < self.settings.reference_bytes - SINGLE_ADDED_BYTES_MAX
        else:
            values, encoded = (), cast("Sequence[EncodedBatch]", batches)
            lengths = [len(batch.data) for batch in encoded]
            size, longest = sum(lengths), max(lengths, default=0)
            small = longest < self.settings.reference_bytes
        for _, body, _ in others:
            size += len(body)
        size += ENTRY_OVERHEAD_BYTES * (len(logs) + len(others))
        if small and size <= self.settings.frame_bytes and len(set(logs)) == len(logs) and _take_at_once(logs, longest):
            if logs:
                space = self._space
                space.left -= size
                if space.left < 0:
                    self._check_usable()
                    space.ask(size)
            ticket = TogetherTicket(self._committer, logs, encoded, values, others, size)
            self._committer.commit(ticket)
            return ticket.first_offsets
        return self.commit_changes([*map(Append, logs, encoded or map(encode_single, values)), *others]).first_offsets

    def commit_pending(self) -> ChangesTicket:
        """Ask for a cycle that takes along what the layers above have pending; the ticket changes nothing itself."""
        ticket = ChangesTicket(self._committer, ())
        self._committer.submit(ticket)
        return ticket

    def on_other(self, owner: int, applier: Callable[[bytes], None]) -> None:
        """Call *applier* with the body of each entry of *owner* when it is committed."""
        self._appliers[owner] = applier

    def check_usable(self) -> None:
        """Raise `Closed` or `StorageFailed` if nothing may be written any more."""
        self._check_usable()

    def _check_usable(self) -> None:
        if self._closed:
            raise Closed(self.path)
        self._check_not_failed()

    def _check_not_failed(self) -> None:
        if self._committer.failure is not None:
            raise StorageFailed(self.path, self._committer.failure)

    def _fail(self, error: BaseException) -> None:
        self._committer.poison(str(error) or type(error).__name__)
        self._positions.set_failed()

    # -- reading ----------------------------------------------------------------------------------------------------

    def ends(self, logs: Sequence[PartitionLog]) -> list[int]:
        """The committed ends of *logs* at one moment: of a change to several logs either all or none is seen."""
        weak = [log for log in logs if not log.always]
        with Held(), contextlib.ExitStack() as locks:
            locks.enter_context(self._committer.quiesce())
            # `append_all` writes to those of a weaker mode without a cycle, and has all their locks meanwhile.
            for log in _in_lock_order(weak) if len(weak) > 1 else ():
                locks.enter_context(log.lock)
            return [log.committed_end for log in logs]

    # -- checkpoints and maintenance --------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """
        Sync the logs' own files and record that, so that the journal before it can be freed.

        Raises:
            StorageFull: there is no room for the record; the journal is kept.
            StorageFailed: a sync failed; the store takes no more writes.
        """
        self._check_usable()
        self._checkpoint(clean=False)

    def _checkpoint(self, *, clean: bool) -> None:
        with Held(), self._checkpoint_lock:
            with self._committer.quiesce():
                if self._closed and not clean:
                    raise Closed(self.path)  # while this thread waited: the last checkpoint is taken, and the files are closed
                # A cycle that this thread waited for may have failed; syncing the same file again would succeed and mean nothing.
                self._check_not_failed()
                number, sequence = self._journal.number, self._journal.sequence
                self._due.begin(self._journal.bytes_written)
                works = []
                for log in list(self._logs.values()):
                    with log.lock:
                        works.append((log, log.sync_work()))
                sections = self._sections()
            try:
                self._sync_logs(works, clean=clean)
            except Unavailable:
                self._due.note_change()  # it was not taken, so it is due again
                raise
            try:
                self._store_checkpoint(number, sequence, clean=clean, rows=[work.row for _, work in works], sections=sections)
                previous = self._checkpoints.previous
                assert previous is not None
                self._journal.free(previous.journal_sequence)
                self._settle()
            except OSError as error:
                if is_full(error):
                    # Nothing is lost: the journal still has what the checkpoint would have covered.
                    self._due.note_change()
                    raise StorageFull(self.path) from None
                self._due.note_change()
                raise self._refusal(error) from None

    def _settle(self) -> None:
        """
        Let one more checkpoint come, though nothing should change, where one of the two keeps sealed segments as they are.

        Else the last of them would never be removed or rewritten in a store that nobody writes to any more.
        """
        if self._due.changed_since is None and not self._checkpoints.is_settled:
            self._due.note_change()

    def _refusal(self, error: OSError) -> PenstockError:
        """
        Of what may be tried again: there was no descriptor for it, or no right to open a file or folder. Any other error is final.

        A sync or a write that failed has none of these: it is told to files that are open.
        """
        if is_out_of_descriptors(error):
            return out_of_descriptors(self.path)
        if is_no_access(error):
            return no_access(self.path, error)
        self._fail(error)
        return StorageFailed(self.path, str(error))

    def _sync_logs(self, works: list[tuple[PartitionLog, SyncWork]], *, clean: bool) -> None:
        """Sync the logs' own files. Any error, a full disk too, leaves un-synced what may never be synced again: it is final."""
        try:
            for log, work in works:
                for segment in work.segments:
                    segment.sync()
                log.sync_names()
                self._check_not_failed()
                log.note_durable(work)
                if self._index_is_old(log, _INDEX_CACHE_LEAST_BYTES if clean else _INDEX_CACHE_EVERY_BYTES):
                    with log.lock if not log.always else self._committer.quiesce():
                        self._check_not_failed()
                        log.cache_index()
        except OSError as error:
            # A folder is opened to be synced; what was not synced is tried again.
            raise self._refusal(error) from None
        self._check_not_failed()

    @staticmethod
    def _index_is_old(log: PartitionLog, bytes_max: int) -> bool:
        active = log.active
        if active is None:
            return False
        uid, cached = log.cached_index
        return active.position - (cached if uid == active.uid else 0) >= bytes_max

    def _sections(self) -> tuple[tuple[int, bytes], ...]:
        """The state of each layer above, as of this moment."""
        return (*self._foreign_sections.items(), *[(layer.owner, layer.snapshot()) for layer in self._layers])

    def _store_checkpoint(
        self,
        number: int,
        sequence: int,
        *,
        clean: bool,
        rows: Iterable[Any] | None = None,
        sections: tuple[tuple[int, bytes], ...] | None = None,
    ) -> None:
        latest = self._checkpoints.latest
        assert latest is not None
        if rows is None:
            rows = [log.row() for log in list(self._logs.values())]
        checkpoint = Checkpoint(
            store_id=self.store_id,
            generation=latest.generation + 1,
            owner_generation=self.owner_generation,
            frame_number=number,
            journal_sequence=sequence,
            log_epoch=self.log_epoch,
            clean=clean,
            next_log_id=self._next_log_id,
            rows=tuple(rows),
            sections=self._sections() if sections is None else sections,
        )
        self._space.make(lambda: self._checkpoints.store(checkpoint))

    def sync_interval_logs(self) -> None:
        """Sync the logs with ``sync=interval`` that were written. Raises `StorageFailed`, or `Unavailable`: it is tried again later."""
        while self._interval_dirty:
            log = self._interval_dirty.pop()
            with log.lock:
                work = log.sync_work()
            if log.deleted:
                continue
            try:
                for segment in work.segments:
                    segment.sync()
                log.sync_names()
            except OSError as error:
                if self._logs.get(log.log_id) is not log:
                    continue  # deleted meanwhile
                # A folder is opened to be synced, as in `_sync_logs`.
                refusal = self._refusal(error)
                if isinstance(refusal, Unavailable):
                    self._interval_dirty.add(log)
                    self._interval_wake.set()
                raise refusal from None
            self._check_not_failed()
            log.note_durable(work)

    def keep_from(self, log: PartitionLog) -> int:
        """The offset from which on the files of *log* must stay as they are: both checkpoints point into them."""
        keep = log.durable_end
        for row in self._checkpoints.rows_of(log.log_id):
            if row is None:
                return 0
            keep = min(keep, row.segment_first if row.position else 0)
        return keep

    def retain(
        self, log: PartitionLog, *, before_time_us: int | None = None, bytes_max: int | None = None, messages_max: int | None = None
    ) -> tuple[int, int]:  # fmt: skip
        """
        Remove whole sealed segments from the front of *log*: those older than a time, or over a limit of bytes or messages.

        Returns (segments, bytes) removed. The new start of the log is durable before the first file goes.
        """
        return self.housekeeping.retain(log, Rules(before_time_us, bytes_max, messages_max))

    def roll(self, log: PartitionLog, is_due: Callable[[], bool] = lambda: True) -> bool:
        """
        Seal the active segment of *log*, and let an empty one take its place, if *is_due* says so while nobody writes; whether it did.

        What it writes is durable with the next checkpoint, which is due from now on.

        Raises:
            StorageFull, Unavailable, NoAccess: nothing was changed.
            StorageFailed: the disk failed; the store takes no more writes.
        """
        with Held(), self._committer.quiesce(), log.lock:
            self._check_usable()
            if log.deleted or log.active is None or not is_due():
                return False
            try:
                log.roll(self._clock.now_us())
            except OSError as error:
                raise self._refusal(error) from None
        self._due.note_change()
        return True

    def coalesce(self, pause: Callable[[], None] = lambda: None) -> int:
        """Rewrite sealed segments that are full of small batches; returns how many."""
        with self._rewrite_lock:
            return self._coalesce_logs(pause)

    def _coalesce_logs(self, pause: Callable[[], None]) -> int:
        """Damage in one log is told, and stops no other one; an error of the disk is raised."""
        count = 0
        for log in list(self._logs.values()):
            while not self._closed:
                try:
                    segment = find_segment_to_coalesce(log, self.keep_from(log))
                    if segment is None:
                        break
                    count += coalesce(self._files, log, segment, pause)
                except Corrupt as error:
                    self._tell_coalescing(log, error)  # and go on behind it
                except OSError as error:
                    if not is_no_access(error):
                        raise
                    self._tell_coalescing(log, error)
                    break
        return count

    def _tell_coalescing(self, log: PartitionLog, error: Exception) -> None:
        identity = log.identity
        text = f"small batches of partition {identity.partition} of topic {identity.topic} are not merged"
        self._troubles.tell(
            log.log_id, text, "coalescing_failed", error, topic=identity.topic, partition=identity.partition
        )  # fmt: skip

    def _sync_intervals(self) -> None:
        """The thread that syncs interval logs: asleep until one is written, then once an interval."""
        while not self._stop.is_set():
            self._interval_wake.wait()
            self._interval_wake.clear()
            self._stop.wait(self.settings.sync_interval_ms / 1000)
            self._run_safely(self.sync_interval_logs)

    def _maintain(self) -> None:
        while not self._stop.wait(min(0.2, self.settings.checkpoint_interval_ms / 1000)):
            if self._committer.failure is not None:
                return
            self._run_safely(self.maintain_once)

    def _run_safely(self, work: Callable[[], None]) -> None:
        """Do the work of a background thread, which must not end: nobody would notice that the store is not synced any more."""
        try:
            work()
        except (PenstockError, OSError):
            return  # Kept by the volume (failure), or it comes again at the next turn.
        except Exception as error:  # noqa: BLE001 - a bug: stop the store rather than go on without maintenance
            self._fail(error)

    def maintain_once(self) -> None:
        """One turn of the maintenance thread. What cannot be done, on a full disk for one, keeps nothing else from being done."""
        failed: list[Exception] = []
        for part in (
            self._checkpoint_if_due,
            self._coalesce_if_wanted,
            self._prepare_journal,
            self._see_to_space,
            self.bound_descriptors,
        ):
            try:
                part()
            except (PenstockError, OSError) as error:
                failed.append(error)
        if failed:
            raise failed[0]

    def _checkpoint_if_due(self) -> None:
        if self._due.is_due(self._journal.bytes_written):
            # First: on a full disk it is what frees journal files.
            try:
                self.checkpoint()
            except Unavailable as error:
                text = "no checkpoint can be taken, and the journal grows"
                self._troubles.tell("checkpoint", text, "checkpoint_failed", error, path=self.path)
                raise
            self._troubles.end("checkpoint")
            if self._has_deleted:
                with self._topic_lock, contextlib.suppress(Unavailable):
                    self._remove_deleted()
            self._wants_coalescing = True

    def _coalesce_if_wanted(self) -> None:
        # Who compacts may take long, and the next checkpoint must not wait for that.
        if self._wants_coalescing and self._rewrite_lock.acquire(blocking=False):
            try:
                self._wants_coalescing = False
                self._coalesce_logs(self.breathe)
            finally:
                self._rewrite_lock.release()

    def _prepare_journal(self) -> None:
        if self._journal.wants_next:
            try:
                self._journal.prepare_next()
            except OSError as error:
                if not is_full(error) and not is_out_of_descriptors(error):
                    self._fail(error)
                self._due.hasten()
                raise

    def _see_to_space(self) -> None:
        self._space.hold_reserve()
        self._space.look()

    def space(self) -> SpaceReport:
        """How much room there is."""
        return self._space.report()

    def bound_descriptors(self) -> None:
        """Close files of logs if there are too many open; what is not durable waits for a checkpoint."""
        if not self.open_files.bound(self._hold_still):
            self._due.hasten()

    @contextlib.contextmanager
    def _hold_still(self) -> Iterator[None]:
        """No commit cycle runs meanwhile. Raises `Closed`, `StorageFailed`."""
        with self._committer.quiesce():
            self._check_usable()
            yield

    def breathe(self) -> None:
        """Let others run; for long work in the background. Raises `Closed` when the store is being closed."""
        if self._stop.wait(0.0005):
            raise Closed(self.path)


def _in_lock_order(logs: Sequence[PartitionLog]) -> list[PartitionLog]:
    """The order in which a commit cycle takes the locks of logs, and everybody else who takes several."""
    return sorted(logs, key=lambda log: log.identity.log_id)


def _take_at_once(logs: Sequence[PartitionLog], batch_bytes: int) -> bool:
    """Whether batches of up to this length may go to all of *logs* with one frame, and with nothing written before it."""
    for log in logs:  # noqa: SIM110 - not a generator, which takes twice as long
        if not log.always or batch_bytes > log.batch_bytes_max:
            return False
    return True
