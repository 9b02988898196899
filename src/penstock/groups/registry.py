"""
All groups of a store, and how they reach the journal.

Operations that a group has made already (leases, acks, failures) gather in one list, in order, and ride along with the next frame;
a thread sees to it that there is one within a few milliseconds. Operations that must be durable first (making, moving and deleting a
group, dead letters, transactions) are entries of a ticket, and change the memory when they are committed.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from penstock import threads as threading
from penstock.errors import BadBytes, BadSetting, Closed, GroupNotFound, LimitReached, TopicNotFound, Unavailable
from penstock.groups import operations as ops
from penstock.groups.dead_letters import BOX_GROUP, is_dead_letter_topic
from penstock.groups.deadlines import Deadlines
from penstock.groups.group import Group
from penstock.groups.hands import Hand, HandsBefore
from penstock.groups.letters import LetterGroup
from penstock.settings import GroupSettings
from penstock.volume.tickets import Other

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from penstock.clock import Clock
    from penstock.groups.cursor import Cursor
    from penstock.groups.dead_letters import Move
    from penstock.groups.deadlines import Looked
    from penstock.groups.hands import Hands
    from penstock.groups.journal import Suspect
    from penstock.log.partition_log import PartitionLog
    from penstock.volume.layer import Ended
    from penstock.volume.volume import Volume

GROUPS_OWNER = 1
FLUSH_SECONDS = 0.005
"""How long a buffered ack waits for company before it is committed."""
RETRY_SECONDS = 0.2
_OF_THE_REGISTRY = frozenset([ops.MADE, ops.CONFIGURED, ops.DELETED, ops.NEXT_ID, ops.NOTED])


class _Mark:
    """
    A place in the list of operations; `durable` once all that was noted before it is.

    Not once a frame has taken it: the thread that waits may look between that and the sync, while another thread leads.
    """

    __slots__ = ("durable",)

    def __init__(self) -> None:
        self.durable = False


class _Barrier:
    """A place in the list of operations where a snapshot was taken: no frame holds operations of both sides."""

    __slots__ = ()


class Groups:
    """
    The groups of one store. Safe to call from any thread.

    It is a layer of the volume (`volume.Layer`): create it, open the volume with it, then `attach`.
    """

    owner = GROUPS_OWNER

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_id: dict[int, Group] = {}
        self._by_name: dict[tuple[bytes, str], Group] = {}
        self._by_topic: dict[bytes, dict[str, Group]] = {}
        self._next_id = 1
        self._noted: list[bytes | tuple[Cursor, int, int, Sequence[int]] | _Mark | _Barrier] = []
        self._marks_taken: list[_Mark] = []
        """Of the frame that is under way; only the cycle's leader touches it."""
        self._make_lock = threading.Lock()
        self._start_lock = threading.Lock()
        self._volume: Volume | None = None
        self._logs_of: Callable[[bytes], Sequence[PartitionLog]] | None = None
        self._mover: Callable[[Move], None] | None = None
        self._awake = False
        self._wake = threading.Lock()
        """Released to wake the thread. Not an event, whose own lock stays held if Ctrl-C comes while it is set."""
        self._wake.acquire()
        self._stop = False
        self._thread: threading.Thread | None = None
        self._background = False
        self._careful = False
        self._taken = 0  # operations that were noted and are in a frame
        self._snapshot = b""
        self._suspects_out: set[Suspect] = set()
        self._suspect_lock = threading.Lock()
        self._hands: Hands | None = None
        self._deadlines = Deadlines(clock)

    # -- opening ----------------------------------------------------------------------------------------------------

    def attach(
        self,
        volume: Volume,
        logs_of: Callable[[bytes], Sequence[PartitionLog]],
        mover: Callable[[Move], None],
        *,
        hands: Hands | None,
        background: bool,
    ) -> None:
        """
        Begin to work: the volume is open. *mover* writes dead letters; *hands* is None where there is no such file.

        *logs_of* is called by the committing thread too; it gives no logs for a topic that is deleted.
        """
        self._volume = volume
        self._hands = hands
        self._logs_of = logs_of
        self._mover = mover
        self._background = background
        if background:
            self._deadlines.start()
        self._careful = not volume.was_closed_in_order
        for group in self._by_id.values():
            group.attach(logs_of(group.topic_id), self._clock, mover, careful=self._careful)

    def stop(self) -> None:
        """All members have left. No more flushing in the background; closing the volume commits what is left."""
        self._deadlines.stop()
        with self._start_lock:
            self._stop = True
            self._wake_up()
        if self._thread is not None:
            self._thread.join()
        if self._hands is not None:
            self._hands.close()

    # -- the layer --------------------------------------------------------------------------------------------------

    def restore(self, snapshot: bytes) -> None:
        """See `Layer`. Opening may be tried again, so it begins anew."""
        self._by_id, self._by_name, self._by_topic, self._next_id = {}, {}, {}, 1
        self._noted = []
        self._taken = 0
        self._snapshot = snapshot
        self.replay(snapshot)
        self._snapshot = b""

    def replay(self, body: bytes) -> None:
        """See `Layer`."""
        together: list[ops.Operation] = []  # operations of one group that follow each other
        of_snapshot = body is self._snapshot
        for operation in ops.operations(body):
            if together and (operation.group_id != together[0].group_id or operation.kind in _OF_THE_REGISTRY):
                self._by_id[together[0].group_id].apply(together, of_snapshot=of_snapshot)
                together = []
            if operation.kind == ops.NOTED:
                end = ops.decode_number(operation)
                if end <= self._taken and not of_snapshot:
                    return  # the snapshot has them already
                self._taken = end
            elif operation.kind == ops.NEXT_ID:
                self._next_id = max(self._next_id, ops.decode_number(operation))
            elif operation.kind == ops.MADE:
                self._made(operation)
            elif operation.group_id in self._by_id:  # else it was deleted
                if operation.kind == ops.DELETED:
                    self._deleted(self._by_id[operation.group_id])
                elif operation.kind == ops.CONFIGURED:
                    group = self._by_id[operation.group_id]
                    with group.lock:
                        group.configure(_settings(ops.decode_document(operation)))
                else:
                    together.append(operation)
        if together:
            self._by_id[together[0].group_id].apply(together, of_snapshot=of_snapshot)

    apply = replay

    def recovered(self, ends: dict[bytes, list[int]], ended: Ended) -> None:
        """See `Layer`."""
        before = None
        if not ended.in_order:
            before = HandsBefore.read(ended.files, ended.path, ended.store_id, ended.owner_generation)
        for group in list(self._by_id.values()):
            known = ends.get(group.topic_id)
            if known is None or len(known) != len(group.cursors):
                self._deleted(group)
                continue
            group.recovered(known, self._clock, before)
            group.attach([None] * len(known), self._clock, None)  # type: ignore[list-item, arg-type]  # for the snapshot

    @property
    def pending(self) -> bool:
        """See `Layer`."""
        return bool(self._noted)

    def take_pending(self, bytes_max: int) -> bytes:
        """See `Layer`. Called by the cycle's leader only."""
        noted = self._noted
        if not noted:
            return b""
        parts: list[bytes] = []
        finished: dict[tuple[Cursor, int, int], list[int]] = {}
        run: list[int] = []
        of: Cursor | None = None
        at_generation = 0
        size = count = operations = 0
        for entry in noted[:]:
            if type(entry) is tuple:
                # First, and with little ado where it follows one of the same cursor: there is one for each message that is acked alone.
                cursor, group_id, generation, offsets = entry
                # A bitmap takes two bytes an offset at most, and a little for each run of 65,536.
                size += 32 + 2 * len(offsets)
                if size > bytes_max and operations:
                    break
                if cursor is not of or generation != at_generation:
                    of, at_generation = cursor, generation
                    run = finished.setdefault((cursor, group_id, generation), [])
                run += offsets
                operations += 1
            elif type(entry) is bytes:
                size += len(entry)
                if size > bytes_max and operations:
                    break
                parts.append(entry)
                operations += 1
            elif type(entry) is _Barrier:
                if operations:
                    count += 1
                    break  # a snapshot has what comes before it, and not what comes after
            else:
                assert isinstance(entry, _Mark)
                self._marks_taken.append(entry)
            count += 1
        del noted[:count]
        if not operations:
            return b""
        for (cursor, group_id, generation), offsets in finished.items():
            parts += ops.encode_finished(cursor.partition, group_id, generation, offsets)
        self._taken += operations
        return b"".join([ops.encode_offset(ops.NOTED, 0, 0, 0, self._taken), *parts])

    def committed(self) -> None:
        """See `Layer`. Called by the cycle's leader only."""
        if self._marks_taken:
            for mark in self._marks_taken:
                mark.durable = True
            self._marks_taken = []

    def snapshot(self) -> bytes:
        """See `Layer`."""
        groups = [group for _, group in sorted(self._by_id.items())]
        with contextlib.ExitStack() as locks:
            # All at one moment: each operation that is noted is either in the snapshot of its group or behind the barrier.
            # Boxes last: groups over dead letters take their locks under their own.
            for group in sorted(groups, key=lambda group: group.name == BOX_GROUP):
                locks.enter_context(group.lock)
            noted = self._taken + sum(type(entry) is not _Mark and type(entry) is not _Barrier for entry in self._noted)
            if self._noted:
                self._noted.append(_Barrier())
            parts = [ops.encode_offset(ops.NOTED, 0, 0, 0, noted), ops.encode_offset(ops.NEXT_ID, 0, 0, 0, self._next_id)]
            parts += [group.snapshot() for group in groups]
        return b"".join(parts)

    def _made(self, operation: ops.Operation) -> None:
        values = ops.decode_document(operation)
        try:
            topic_id, topic, name = bytes.fromhex(values["topic_id"]), str(values["topic"]), str(values["name"])
            settings = _settings(values["settings"])
            starts = [int(start) for start in values["starts"]]
            seen_us, dead_lettered = int(values.get("seen_us", 0)), int(values.get("dead_lettered", 0))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise BadBytes("group", f"{type(error).__name__}: {error}") from None
        if not all(0 <= start <= ops.OFFSET_MAX for start in starts):
            raise BadBytes("group", "begins at what is no offset")
        if operation.group_id in self._by_id:
            return
        kind = LetterGroup if is_dead_letter_topic(topic) and name != BOX_GROUP else Group
        group = kind(operation.group_id, topic_id, topic, name, settings, starts, self, seen_us)
        group.counters.dead_lettered = dead_lettered
        if self._logs_of is not None and self._mover is not None:
            # Its topic may have been deleted since somebody asked for the group: then there is none, now or after recovery.
            logs = self._logs_of(topic_id)
            if not logs or logs[0].deleted:
                return
            group.attach(logs, self._clock, self._mover, careful=self._careful)
        self._by_id[group.identity] = group
        self._by_name[topic_id, name] = group
        self._by_topic.setdefault(topic_id, {})[name] = group
        self._next_id = max(self._next_id, operation.group_id + 1)

    def _deleted(self, group: Group) -> None:
        group.deleted = True
        self._by_id.pop(group.identity, None)
        self._by_name.pop((group.topic_id, group.name), None)
        of_topic = self._by_topic.get(group.topic_id, {})
        of_topic.pop(group.name, None)
        if not of_topic:
            self._by_topic.pop(group.topic_id, None)

    # -- what groups note -------------------------------------------------------------------------------------------

    def note(self, operation: bytes) -> None:
        """Buffer an operation that is made already."""
        self._noted.append(operation)

    def note_finished(self, cursor: Cursor, group_id: int, offsets: Sequence[int]) -> None:
        """Buffer that *offsets* are finished."""
        if len(offsets) <= ops.FINISHED_PER_OPERATION:
            self._noted.append((cursor, group_id, cursor.generation, offsets))
            return
        # Each must fit into a frame, and there may be a million.
        for at in range(0, len(offsets), ops.FINISHED_PER_OPERATION):
            part = offsets[at : at + ops.FINISHED_PER_OPERATION]
            self._noted.append((cursor, group_id, cursor.generation, part))

    def wake(self) -> None:
        """See to it that what was noted becomes durable soon."""
        if not self._awake and self._background:
            self._awake = True
            try:
                if self._thread is None:
                    self._start()
                self._wake_up()
            except BaseException:
                self._awake = False  # Ctrl-C: the next one wakes it
                raise

    def look_at(self, moment: float, group: Looked) -> None:
        """See `Journal`."""
        self._deadlines.add(moment, group)

    def soon(self, errand: Callable[[], None]) -> None:
        """See `Journal`."""
        self._deadlines.soon(errand)

    def look_at_deadlines(self) -> None:
        """Let leases end whose time is over: for stores that do nothing in the background."""
        self._deadlines.look()

    def _wake_up(self) -> None:
        with contextlib.suppress(RuntimeError):  # it was woken already
            self._wake.release()

    def _start(self) -> None:
        with self._start_lock:
            if self._thread is None and not self._stop:
                thread = threading.Thread(target=self._flush_forever, name="penstock-groups", daemon=True)
                thread.start()
                self._thread = thread

    def _flush_forever(self) -> None:
        pause = threading.Event()
        assert self._volume is not None
        while not self._stop:
            self._wake.acquire()
            pause.wait(FLUSH_SECONDS)
            self._awake = False
            while self._noted and not self._stop:
                try:
                    self._volume.commit_pending().wait()
                except Unavailable:  # a full disk, or no descriptors
                    pause.wait(RETRY_SECONDS)
                except Closed:
                    return
                except Exception:
                    # The disk failed: those who use the store are told by their own calls, and the log by the committer.
                    if self._volume.failure is None:
                        raise
                    return  # What was not committed is delivered again after reopening.

    def flush(self) -> None:
        """Return when all that was noted before is durable. Raises what a commit raises."""
        assert self._volume is not None
        mark = _Mark()
        self._noted.append(mark)
        # A frame takes what fits, and stops at a snapshot's barrier: there may be several before the one that takes the mark.
        while not mark.durable:
            self._volume.commit_changes(())

    # -- hands ------------------------------------------------------------------------------------------------------

    def claim_hand(self, group_id: int, member: int, concurrency: int) -> Hand:
        """Where the next owner finds what a new member has in its hands, if this process dies."""
        return Hand() if self._hands is None else self._hands.claim(group_id, member, concurrency)

    def release_hand(self, hand: Hand) -> None:
        """The member has left, and holds nothing."""
        if self._hands is not None:
            self._hands.release(hand)

    # -- suspects ---------------------------------------------------------------------------------------------------

    def claim_suspect(self, suspect: Suspect) -> bool:
        """Whether *suspect* may be handed out: no other one is with anybody in this process, in any group."""
        with self._suspect_lock:
            if self._suspects_out:
                return False
            self._suspects_out.add(suspect)
            return True

    def release_suspect(self, suspect: Suspect) -> None:
        """It is not with anybody any more: the next one may go, in whichever group."""
        if suspect in self._suspects_out:
            self._suspects_out.discard(suspect)
            for group in list(self._by_id.values()):
                group.wake_all()

    def release_suspects(self, group_id: int, partition: int, end: int) -> None:
        """Those of a partition below *end* are not with anybody any more."""
        for suspect in list(self._suspects_out):
            if suspect[:2] == (group_id, partition) and suspect[2] < end:
                self.release_suspect(suspect)

    def has_suspect(self, group_id: int, partition: int) -> bool:
        """Whether one of that partition is with somebody."""
        return any(suspect[:2] == (group_id, partition) for suspect in list(self._suspects_out))

    # -- groups -----------------------------------------------------------------------------------------------------

    def find(self, topic_id: bytes, name: str) -> Group | None:
        """The group of that name, if there is one."""
        return self._by_name.get((topic_id, name))

    def get(self, topic_id: bytes, topic: str, name: str) -> Group:
        """The group of that name. Raises `GroupNotFound`."""
        group = self._by_name.get((topic_id, name))
        if group is None:
            raise GroupNotFound(topic, name)
        return group

    def all(self) -> list[Group]:
        """All groups, by topic and name."""
        return sorted(self._by_id.values(), key=lambda group: (group.topic, group.name))

    def of_topic(self, topic_id: bytes) -> list[Group]:
        """The groups of one topic, by name."""
        return [group for _, group in sorted(self._by_topic.get(topic_id, {}).items())]

    def make(
        self,
        topic_id: bytes,
        topic: str,
        name: str,
        choose: Callable[[Group | None], GroupSettings],
        starts: Callable[[], list[int]],
        most: int | None = None,
    ) -> Group:
        """
        The group of that name, made if it is not there and the topic has less than *most*. Durable when it returns.

        It works from now on by what *choose* says, which is given the group if it is there, and whose settings nobody changes meanwhile.

        Raises `TopicNotFound` if the topic is deleted meanwhile, and `LimitReached`.
        """
        with self._make_lock:
            group = self._by_name.get((topic_id, name))
            settings = choose(group)
            if group is None:
                if most is not None and len(self.of_topic(topic_id)) >= most:
                    raise LimitReached(f"groups of topic {topic!r}", most, "topic_groups_max")
                identity = self._next_id
                self._next_id += 1
                document = {
                    "topic_id": topic_id.hex(), "topic": topic, "name": name, "settings": settings.to_json(), "starts": starts(),
                }  # fmt: skip
                self.commit(ops.encode_document(ops.MADE, identity, document))
                group = self._by_name.get((topic_id, name))
                if group is None:
                    raise TopicNotFound(topic)
                return group
            if group.settings != settings:
                self.commit(ops.encode_document(ops.CONFIGURED, group.identity, settings.to_json()))
            return group

    def delete(self, group: Group) -> None:
        """Forget a group; durable when it returns. Its members find themselves closed."""
        self.commit(ops.encode_document(ops.DELETED, group.identity, {}))
        self._close(group)

    def delete_with_topic(self, group: Group) -> None:
        """The same where its topic is deleted, which is durable: if there is no room to say so, the next opening finds out."""
        with contextlib.suppress(Unavailable):
            self.commit(ops.encode_document(ops.DELETED, group.identity, {}))
        self._close(group)

    def _close(self, group: Group) -> None:
        with group.lock:
            group.deleted = True
            members = group.members  # also one that was about to join: from now on none can
        for member in members:
            group.leave(member)
        # Behind the last moment that it may have added.
        self._deadlines.discard(group)

    def seek(self, group: Group, targets: Callable[[], dict[int, int]]) -> None:
        """Move the cursors of *group* to *targets*, by partition; durable when it returns."""
        with self._make_lock:
            # Not before: what retention removed until now is no target.
            self.commit(group.seek_operations(targets()))

    def standstill(self) -> AbstractContextManager[object]:
        """
        While it is entered no group is made, sought or configured: positions only go on.

        Whoever removes messages by what groups have finished looks at that, and commits the removal, in one standstill: a seek that was
        durable before is seen, and one that comes after finds the messages gone. May be entered by whoever holds no group's lock, and
        left after a commit: no cycle's leader needs it.
        """
        return self._make_lock

    def commit(self, body: bytes) -> None:
        """Commit operations and carry them out; raises what a commit raises."""
        assert self._volume is not None
        self._volume.commit_changes([Other(self.owner, body)])


def _settings(values: dict[str, object]) -> GroupSettings:
    try:
        return GroupSettings.from_json(values)
    except (BadSetting, AttributeError, TypeError) as error:
        raise BadBytes("group settings", str(error)) from None
