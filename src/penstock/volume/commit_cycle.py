"""
What a commit cycle does to the logs of a store: the participant of `journal/committer.py`.

`prepare` plans the batches of the tickets in their logs and builds the frame; the committer writes and syncs it; `apply` writes the
batches to their segments and moves the committed ends.

A batch that is large, or that must be durable in a log with a weaker mode, is written to its log and synced there *before* the
frame, which then only refers to it. Such batches carry a flag (prewritten), so that recovery cuts them if their frame never came.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock import threads as threading
from penstock.errors import StorageFull, TopicNotFound, Unavailable
from penstock.files import is_full, is_no_access, is_out_of_descriptors
from penstock.format.batch import encode_single
from penstock.format.frame import batch_entry, log_start_entry, other_entry, reference_entry
from penstock.log.partition_log import (
    all_have_room,
    apply_planned,
    commit_planned,
    no_access,
    out_of_descriptors,
    plan_together,
    plan_values,
    values_have_room,
)
from penstock.volume.tickets import (
    ENTRY_OVERHEAD_BYTES,
    Adopt,
    Append,
    AppendTicket,
    ChangesTicket,
    MoveLogStart,
    Other,
    Outgrown,
    TogetherTicket,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.errors import PenstockError
    from penstock.files import Buffer
    from penstock.journal.journal import Journal
    from penstock.journal.ticket import Ticket
    from penstock.log.partition_log import PartitionLog
    from penstock.log.positions import PositionsWriter
    from penstock.settings import StoreSettings
    from penstock.volume.checkpoint_due import CheckpointDue
    from penstock.volume.layer import Layer
    from penstock.volume.open_files import OpenFiles
    from penstock.volume.space import Space


class CycleWork:
    """One cycle's work."""

    __slots__ = ("entries", "layers", "log_starts", "logs", "others", "parts", "tickets", "weak")

    def __init__(self) -> None:
        self.entries = 0
        self.parts: list[Buffer] = []
        self.tickets: list[Any] = []
        self.logs: dict[PartitionLog, None] = {}
        self.layers: list[Layer] = []
        """Those that were asked for what they had pending."""
        self.weak: list[PartitionLog] = []
        self.log_starts: list[MoveLogStart] = []
        self.others: list[Other] = []


class CommitCycle:
    """The part that logs, positions and layers have in each cycle. All methods are called by the cycle's leader only."""

    def __init__(
        self, path: str, settings: StoreSettings, journal: Journal, positions: PositionsWriter, space: Space, due: CheckpointDue,
        layers: Sequence[Layer], appliers: Mapping[int, Callable[[bytes], None]], open_files: OpenFiles,
    ) -> None:  # fmt: skip
        """*appliers* are called with the body of each committed entry of their owner; more may be added later."""
        self._path = path
        self._settings = settings
        self._journal = journal
        self._positions = positions
        self._space = space
        self._due = due
        self._layers = layers
        self._appliers = appliers
        self._open_files = open_files
        self._pending_bytes_max = settings.frame_bytes // 2
        self._work = CycleWork()

    def prepare(self, tickets: list[Ticket], now_us: int) -> CycleWork:
        """Plan the tickets' changes in their logs and build the frame."""
        self._open_files.leader = threading.get_ident()
        prepared = self._work = CycleWork()
        if not self._journal_has_room(tickets):
            return prepared
        for layer in self._layers:
            if layer.pending:
                self._add_pending(prepared, layer)
        ahead = self._logs_to_write_ahead(tickets)
        for log in ahead:
            if not log.always:
                # Nobody may write directly between planning and applying: the offsets are given out.
                log.lock.acquire()
                prepared.weak.append(log)
        parts, logs, planned = prepared.parts, prepared.logs, prepared.tickets
        entries = 0
        for ticket in tickets:
            if isinstance(ticket, AppendTicket):
                log, batch = ticket.log, ticket.batch
                if not log.has_room(len(batch.data)):
                    try:
                        log.make_room(len(batch.data), batch.count, now_us)
                    except (Unavailable, TopicNotFound) as error:  # a full disk, no descriptors, or it was deleted
                        self._refuse(ticket, error)
                        continue
                in_ahead = log in ahead if ahead else False
                if in_ahead and (refusal := _sync_names(log)) is not None:
                    ticket.finish(refusal)
                    continue
                ticket.first_offset = log.plan(batch, now_us, prewritten=in_ahead)
                ticket.append_time_us = now_us
                logs[log] = None
                if not in_ahead:
                    parts += batch_entry(log.log_id, batch.data)
                    entries += 1
                planned.append(ticket)
            elif type(ticket) is TogetherTicket:
                self._prepare_together(prepared, ticket, ahead, now_us)
            else:
                assert isinstance(ticket, ChangesTicket)
                self._prepare_changes(prepared, ticket, ahead, now_us)
        prepared.entries += entries
        for log in ahead:
            self._write_ahead(prepared, log)
        return prepared

    def _add_pending(self, prepared: CycleWork, layer: Layer) -> None:
        """Let a layer's buffered changes ride along: they come first, since the tickets of this cycle were made after them."""
        prepared.layers.append(layer)
        body = layer.take_pending(self._pending_bytes_max)
        if body:
            prepared.parts.append(other_entry(layer.owner, body))
            prepared.entries += 1

    def _journal_has_room(self, tickets: list[Ticket]) -> bool:
        wanted = sum([ticket.frame_bytes for ticket in tickets])
        for layer in self._layers:
            if layer.pending:
                wanted += self._pending_bytes_max + ENTRY_OVERHEAD_BYTES
        if self._journal.has_room(wanted):
            return True
        try:
            self._space.make(lambda: self._journal.prepare_next(wanted))
        except OSError as error:
            if is_out_of_descriptors(error):
                for ticket in tickets:
                    ticket.finish(out_of_descriptors(self._path))
                return False
            if not is_full(error):
                raise
            self._due.hasten()
            for ticket in tickets:
                self._refuse(ticket, StorageFull(self._path))
            return False
        return True

    def _refuse(self, ticket: Ticket, error: PenstockError) -> None:
        if isinstance(error, StorageFull):
            self._space.refuse(error)
        ticket.finish(error)

    def _logs_to_write_ahead(self, tickets: list[Ticket]) -> dict[PartitionLog, None]:
        """The logs whose batches of this cycle go to the log before the frame, in the order of their ids."""
        found: dict[PartitionLog, None] = {}
        least = self._settings.reference_bytes
        for ticket in tickets:
            if isinstance(ticket, AppendTicket):
                if len(ticket.batch.data) >= least or not ticket.log.always:
                    found[ticket.log] = None
            elif isinstance(ticket, ChangesTicket):
                # A ticket that is too long for a frame travels by reference as a whole.
                long = ticket.frame_bytes > self._settings.frame_bytes
                if not (long or ticket.written_ahead or ticket.largest_bytes >= least):
                    continue
                for change in ticket.changes:
                    if isinstance(change, Adopt) or (
                        isinstance(change, Append) and (long or len(change.batch.data) >= least or not change.log.always)
                    ):
                        found[change.log] = None
        if len(found) > 1:
            return dict.fromkeys(sorted(found, key=lambda log: log.identity.log_id))
        return found

    def _prepare_together(
        self, prepared: CycleWork, ticket: TogetherTicket, ahead: dict[PartitionLog, None], now_us: int
    ) -> None:
        logs, batches, values = ticket.logs, ticket.batches, ticket.values
        parts = prepared.parts
        if values:
            if not ahead and values_have_room(logs, values):
                ticket.first_offsets = plan_values(logs, values, now_us, parts)
                prepared.entries += len(logs)
                CommitCycle._note_together(prepared, ticket)
                return
            batches = [encode_single(value) for value in values]
        try:
            # As in `_prepare_changes`.
            if not all_have_room(logs, batches):
                for log, batch in zip(logs, batches, strict=True):
                    if not log.has_room(len(batch.data)):
                        log.make_room(len(batch.data), batch.count, now_us)
            for log in logs if ahead else ():
                if log in ahead and (refusal := _sync_names(log)) is not None:
                    raise refusal
        except (Unavailable, TopicNotFound) as error:
            self._refuse(ticket, error)
            return
        if not ahead:
            ticket.first_offsets = plan_together(logs, batches, now_us, parts)
            prepared.entries += len(logs)
        else:
            for log, batch in zip(logs, batches, strict=True):
                in_ahead = log in ahead
                ticket.first_offsets.append(log.plan(batch, now_us, prewritten=in_ahead))
                if not in_ahead:
                    parts += batch_entry(log.log_id, batch.data)
                    prepared.entries += 1
        CommitCycle._note_together(prepared, ticket)

    @staticmethod
    def _note_together(prepared: CycleWork, ticket: TogetherTicket) -> None:
        """Its batches are planned."""
        prepared.logs.update(dict.fromkeys(ticket.logs))
        others = ticket.others
        if others:
            prepared.others += others
            prepared.parts += [other_entry(owner, body) for owner, body, _ in others]
            prepared.entries += len(others)
        prepared.tickets.append(ticket)

    def _prepare_changes(
        self, prepared: CycleWork, ticket: ChangesTicket, ahead: dict[PartitionLog, None], now_us: int
    ) -> None:
        try:
            # Room for all of them first: after that nothing of the ticket can fail any more.
            if ticket.essential:
                space = self._space
                made = space.make(lambda: self._make_room(ticket, now_us), keep=space.kept_from_letters)
            else:
                made = self._make_room(ticket, now_us)
            if not made:
                return
            for change in ticket.changes if ahead else ():
                if (
                    isinstance(change, (Append, Adopt))
                    and change.log in ahead
                    and (refusal := _sync_names(change.log)) is not None
                ):
                    raise refusal
        except (Unavailable, TopicNotFound) as error:
            self._refuse(ticket, error)
            return
        parts, logs, first_offsets = prepared.parts, prepared.logs, ticket.first_offsets
        entries = 0
        for change in ticket.changes:
            if type(change) is Append:
                log, batch = change
                in_ahead = log in ahead if ahead else False
                first_offsets.append(log.plan(batch, now_us, prewritten=in_ahead))
                logs[log] = None
                if not in_ahead:
                    parts += batch_entry(log.log_id, batch.data)
                    entries += 1
            elif isinstance(change, Adopt):
                ticket.first_offsets.append(change.log.plan_adoption(change.staged, now_us))
                prepared.logs[change.log] = None
            elif isinstance(change, MoveLogStart):
                prepared.log_starts.append(change)
                prepared.parts.append(log_start_entry(change.log.identity.log_id, change.offset))
                entries += 1
            else:
                assert isinstance(change, Other)
                prepared.others.append(change)
                parts.append(other_entry(change.owner, change.body))
                entries += 1
        prepared.entries += entries
        ticket.append_time_us = now_us
        prepared.tickets.append(ticket)

    @staticmethod
    def _make_room(ticket: ChangesTicket, now_us: int) -> bool:
        """Make sure that all batches of *ticket* can be planned; False if it was refused. Raises `StorageFull`."""
        needs: dict[PartitionLog, int] = {}
        outgrown: list[Adopt] = []
        for change in ticket.changes:
            if type(change) is Append:
                log, batch = change
                if not ticket.distinct:
                    needs[log] = needs.get(log, 0) + len(batch.data)
                elif not log.has_room(len(batch.data)):
                    log.make_room(len(batch.data), 1, now_us)
            elif isinstance(change, (Adopt, MoveLogStart)) and change.log.deleted:
                # Nothing may name a log that is gone.
                raise TopicNotFound(change.log.identity.topic)
            elif isinstance(change, Adopt) and not change.log.fits(change.staged):
                # Producers came since it was staged.
                outgrown.append(change)
        if outgrown:
            first, paths = outgrown[0], [change.staged.path for change in outgrown]
            ticket.finish(Outgrown("bytes", len(first.log.state.encode()), first.staged.state_bytes, paths))
            return False
        for log, size in needs.items():
            if not log.has_room(size):
                log.make_room(size, 1, now_us)
        return True

    def _write_ahead(self, prepared: CycleWork, log: PartitionLog) -> None:
        references = [reference for group in log.planned_groups for reference in group.references(log.log_id)]
        if not references:
            return
        self._apply_log(log)
        for segment in log.sync_work().segments:
            segment.sync()
        log.sync_names()
        prepared.parts += [reference_entry(reference) for reference in references]
        prepared.entries += len(references)

    def _apply_log(self, log: PartitionLog) -> None:
        try:
            log.apply_planned()
        except OSError as error:
            self._apply_with_reserve(log, error)

    def _apply_with_reserve(self, log: PartitionLog, error: OSError) -> None:
        """The frame is durable, so this must be finished: that is what the reserve is for."""
        if not is_full(error) or not self._space.draw():
            raise error
        self._space.make(log.apply_planned)

    def apply(self, prepared: CycleWork) -> None:
        """Write what is committed to the logs and show it."""
        for layer in prepared.layers:
            layer.committed()
        logs = prepared.logs
        ends = apply_planned(logs, self._apply_with_reserve)
        if ends:
            # In the shared file as one step, then for the threads of this process.
            self._positions.set_ends(ends)
            commit_planned(logs)
        for change in prepared.log_starts:
            change.log.log_start = max(change.log.log_start, change.offset)
            self._positions.set_log_start(change.log.slot, change.log.log_start)
        for owner, body, carry_out in prepared.others:
            if carry_out is not None:
                carry_out()
            else:
                applier = self._appliers.get(owner)
                if applier is not None:
                    applier(body)
        for log in prepared.weak:
            log.lock.release()
        prepared.weak = []
        if self._due.changed_since is None:
            self._due.note_change()
        self._open_files.leader = 0

    def abandon(self) -> None:
        """The disk failed: mark the positions as not to be trusted, and let go of what is held."""
        self._open_files.leader = 0
        self._positions.set_failed()
        for log in self._work.weak:
            log.lock.release()
        self._work.weak = []


def _sync_names(log: PartitionLog) -> Unavailable | None:
    """
    Make the names of *log*'s segments durable before anything is planned for it that is written ahead of its frame.

    A folder is opened to be synced. Where the process may open no more this is the last moment at which it can be refused: what is planned
    has its offset.
    """
    try:
        log.sync_names()
    except OSError as error:
        if is_out_of_descriptors(error):
            return out_of_descriptors(log.directory)
        if is_no_access(error):
            return no_access(log.directory, error)
        raise
    return None
