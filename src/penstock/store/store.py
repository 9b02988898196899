"""
The store: topics, groups and everything on them, in one process.

It opens the volume together with its layers (groups and producers), gives topics and groups what they need, and translates the public
calls. It decides nothing that they can decide.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime as dt
import os
import weakref
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Self

from penstock import threads as threading
from penstock.arguments import check_seconds, check_texts, check_whole_number, shown
from penstock.clock import SystemClock, WatchedClock, asked_us, settled_us
from penstock.errors import (
    BadArgument,
    BadSetting,
    Closed,
    Corrupt,
    MemberNotFound,
    NoAccess,
    PenstockError,
    TopicExists,
    TopicNotFound,
)
from penstock.files import RealFileSystem
from penstock.groups.dead_letters import dead_letter, is_dead_letter_topic
from penstock.groups.hands import Hands
from penstock.groups.registry import GROUPS_OWNER, Groups
from penstock.log.coalescing import packing_of
from penstock.log_events import event, get_logger
from penstock.memory_files import MemoryFileSystem
from penstock.settings import GroupSettings, StoreSettings, TopicSettings, no_such_setting
from penstock.store import reading
from penstock.store.consumer import Consumer
from penstock.store.dead_letter_box import DeadLetters, open_box
from penstock.store.declaring import Declaration
from penstock.store.delivery_records import WRITE_SECONDS, DeliveryRecords
from penstock.store.housekeeping import Housekeeper, Retained, Rewritten
from penstock.store.metrics import Collector, Meter, StoreMetrics
from penstock.store.producer import Producer, ProducerOptions, StoreOutlet
from penstock.store.reading import TopicPositions
from penstock.store.staging import Staging
from penstock.store.stats import GroupStats, MemberInfo, StoreStats, TopicStats
from penstock.store.transaction import Transaction
from penstock.store.worker import STOP_SECONDS, Worker, Workers, check_worker
from penstock.topics.catalog import DEAD_LETTER_SUFFIX, DELIVERIES_SUFFIX, OWN_SUFFIXES, Catalog, check_publishable
from penstock.topics.options import SECONDS_MAX, Options, options
from penstock.topics.producers import Producers
from penstock.topics.stages import Stages
from penstock.values import KIB, MIB, SyncMode, check_name
from penstock.volume.tickets import Append, Other
from penstock.volume.volume import Volume

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from penstock.clock import Clock
    from penstock.files import FileSystem
    from penstock.groups.dead_letters import Move
    from penstock.groups.group import Group
    from penstock.groups.member import Member
    from penstock.journal.ticket import Ticket
    from penstock.log.partition_log import PartitionLog
    from penstock.store.staging import Committed, OpenStage
    from penstock.topics.message import Message
    from penstock.topics.receipt import Receipt, Receipts
    from penstock.topics.topic import Topic
    from penstock.volume.door import Door
    from penstock.volume.tickets import AppendTicket

    Seconds = float | dt.timedelta
    Place = int | str | dt.datetime

_log = get_logger("penstock")

MEMORY = "memory:"
_MEMORY_PATH = "/memory"
_MEMORY_SETTINGS = StoreSettings(
    journal_file_bytes=2 * MIB, frame_bytes=1 * MIB, reference_bytes=256 * KIB, checkpoint_bytes=4 * MIB, free_bytes_floor=0,
    reserve_bytes=0,
)  # fmt: skip
PREFETCH_DEFAULT = 100
PREFETCH_BYTES_DEFAULT = 8 * MIB
MESSAGES_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """What a topic is."""

    name: str
    topic_id: bytes
    partitions: int
    settings: TopicSettings


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """What a group is."""

    topic: str
    name: str
    settings: GroupSettings

    @property
    def ordered(self) -> bool:
        """Whether each partition goes to one member at a time."""
        return self.settings.ordered

    @property
    def max_deliveries(self) -> int:
        """After how many failures a message is dead-lettered; 0 = never."""
        return self.settings.max_deliveries


_OPEN: weakref.WeakSet[Store] = weakref.WeakSet()


def _close_all() -> None:
    """A program that ends without closing its stores closes them now: what its consumers hold is no failure."""
    for store in list(_OPEN):
        with contextlib.suppress(Exception):
            store.close()


def _forget_all() -> None:
    """A forked child has copies of its parent's stores, and must not touch them: the parent owns the files."""
    for store in list(_OPEN):
        store.forget()
    _OPEN.clear()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_forget_all)


class Store:
    """
    An open store, owned by this process. Safe to use from any thread. Open one with `penstock.open`.

    Close it, or use it as a context manager: consumers and producers are closed with it, and everything is durable then.
    """

    def __init__(
        self, path: str, settings: StoreSettings, files: FileSystem, clock: Clock, *, create: bool, background: bool,
        auto_create: bool, default: TopicSettings, keep_finished: bool, door: Door | None = None,
    ) -> None:  # fmt: skip
        self.path = path
        self._door = door
        self._is_parents = False
        self._clock = clock = WatchedClock(clock, settings.clock_jump_grace_ms / 1000)
        self._background = background
        self._keep_finished = keep_finished
        self._groups = Groups(clock)
        self._producers = Producers(clock)
        self._closed = self._let_go = False
        self._close_lock = threading.Lock()
        self._consumers: set[Consumer] = set()
        self._open_producers: set[Producer] = set()
        self._workers = Workers()
        self._next_member = int.from_bytes(os.urandom(6), "little") << 12
        self._member_lock = threading.Lock()
        self._box_lock = threading.Lock()
        self._meter: Meter | None = None
        self._collector = Collector(self)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._volume = Volume.open(
            path, settings=settings, files=files, clock=clock, create=create, background=background,
            layers=(self._producers, self._groups), door=door,
        )  # fmt: skip
        clock.begin(max([log.max_time_us for log in self._volume.logs if log.committed_end > log.log_start], default=None))
        try:
            self._catalog = Catalog(self._volume, clock, self._producers, default, auto_create=auto_create)
            self._deliveries = DeliveryRecords(self._catalog, clock)
            self._producers.attach(self._volume)
            stages = Stages(files, self._volume.path, self._volume.store_id, clock)
            self._staging = Staging(stages, self._catalog, self._producers, self._volume)
            hands = None if isinstance(files, MemoryFileSystem) else self._open_hands(files)
            self._housekeeper = Housekeeper(self._volume, self._groups, clock, self._stop, keep_finished=keep_finished)
            self._groups.attach(self._volume, self._logs_of, self._dead_letter, hands=hands, background=background)
        except BaseException:
            self._volume.close()
            raise
        _OPEN.add(self)
        if background:
            self._thread = threading.Thread(target=self._retain_forever, name=f"penstock-retention {path}", daemon=True)
            self._thread.start()
        if door is not None:
            door.serve(self)

    def _open_hands(self, files: FileSystem) -> Hands | None:
        """The file of hands; None where files cannot be mapped: then the journal alone tells whom a death is put down to."""
        try:
            return Hands(files, self._volume.path, self._volume.store_id, self._volume.owner_generation)
        except OSError as error:
            _log.warning("what consumers have in their hands is not noted, since the file cannot be mapped: %s", error)
            return None

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        create: bool = True,
        auto_create: bool = True,
        settings: StoreSettings | None = None,
        files: FileSystem | None = None,
        clock: Clock | None = None,
        background: bool = True,
        door: Door | None = None,
    ) -> Store:
        """
        Open a store for writing; see `penstock.open`. Others come in by the *door*; without one they are refused.

        *files*, *clock* and *background* are for tests.
        """
        text = os.fspath(path)
        if not isinstance(text, str) or not text or "\0" in text:
            raise BadArgument("path", shown(path), 'must be the path of a folder, or "memory:"')
        if text == ":memory:":
            # SQLite's name: who writes it does not want a folder that is called so.
            raise BadArgument("path", shown(path), 'a store in memory is called "memory:"')
        default = TopicSettings()
        in_memory = text == MEMORY
        if in_memory:
            text = _MEMORY_PATH
            files = files or MemoryFileSystem()
            settings = settings or _MEMORY_SETTINGS
            # There is nothing to sync, and what is finished need not stay.
            default = replace(default, sync=SyncMode.OS, segment_bytes=4 * MIB)
        return cls(
            text,
            settings or StoreSettings(),
            files or RealFileSystem(),
            clock or SystemClock(),
            create=create,
            background=background,
            auto_create=auto_create,
            default=default,
            keep_finished=not in_memory,
            door=door,
        )

    # -- topics -----------------------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        sync: str | SyncMode | None = None,
        segment_bytes: int | None = None,
        segment_messages: int | None = None,
        segment_age: Seconds | None = None,
        max_message_bytes: int | None = None,
        dedup_window: Seconds | None = None,
        retain: str | None = None,
        retention_age: Seconds | None = None,
        retention_bytes: int | None = None,
        compaction: bool | None = None,
        tombstone_grace: Seconds | None = None,
        group_expiry: Seconds | None = None,
        priorities: bool | None = None,
        aging: Seconds | None = None,
        ttl: Seconds | None = None,
        expired: str | None = None,
        compression: str | None = None,
        dead_letter_retention: Seconds | None = None,
        record_deliveries: bool | None = None,
        **storage: Any,
    ) -> TopicInfo:
        """
        Create a topic; durable when it returns. Creating it again with the same settings does nothing.

        With *priorities* its messages may have one; what waits longer than *aging* is served as one priority higher. Messages that do not
        say it themselves live for *ttl*; what expired undelivered is dropped, or dead-lettered, as *expired* says. *compression* is
        "gzip", "zstd" or "lz4". With *record_deliveries* the topic `NAME.deliveries` tells how long messages waited (docs/traffic.md).
        *storage* takes the other topic settings by their names (docs/reference/settings.md).

        Raises:
            BadName, ReservedName, BadSetting: nothing was changed.
            TopicExists: it is there with other settings.
        """
        self._check_open()
        given: dict[str, Any] = {
            "sync": sync, "segment_bytes": segment_bytes, "segment_messages": segment_messages,
            "max_message_bytes": max_message_bytes, "retain": retain, "retention_bytes": retention_bytes,
            "segment_age_ms": _ms("segment_age", segment_age), "dedup_window_ms": _ms("dedup_window", dedup_window),
            "retention_age_ms": _ms("retention_age", retention_age), "compaction": compaction,
            "tombstone_grace_ms": _ms("tombstone_grace", tombstone_grace), "group_expiry_ms": _ms("group_expiry", group_expiry),
            "priorities": priorities, "aging_ms": _ms("aging", aging), "expired": expired, "compression": compression,
            "ttl_ms": None if ttl is None else round(check_seconds("ttl", ttl, 0.001, SECONDS_MAX) * 1000),
            "dead_letter_retention_ms": _ms("dead_letter_retention", dead_letter_retention),
            "record_deliveries": record_deliveries, **storage,
        }  # fmt: skip
        known = {field.name for field in fields(TopicSettings)}
        for setting, value in storage.items():
            if setting not in known:
                raise no_such_setting(setting, value, "topic", ["partitions", *(name.removesuffix("_ms") for name in known)])
        wanted = {setting: value for setting, value in given.items() if value is not None}
        return self._info(self._catalog.create(name, partitions, replace(self._catalog.default, **wanted)))

    def delete_topic(self, name: str) -> None:
        """
        Delete a topic with its messages, groups and dead letters, and what was recorded of its deliveries; durable when it returns.

        Whoever uses it is told `TopicNotFound`. One that is made later under the same name is another topic, and has nothing of this one.

        Raises:
            TopicNotFound, BadName: nothing was changed.
            ReservedName: it holds dead letters or records, and goes with its topic; nothing was changed.
            StorageFailed: the disk failed; it may be there or not when the store is opened again.
        """
        self._check_open()
        going = self._catalog.get(name)
        check_publishable(name)
        records = [name + DELIVERIES_SUFFIX + DEAD_LETTER_SUFFIX, name + DELIVERIES_SUFFIX]
        with self._catalog.going(going):
            self._deliveries.forget(going)
            for one in (*(records if going.settings.record_deliveries else ()), name + DEAD_LETTER_SUFFIX, name):
                # The dead letters first: if this ends half-way, what is left is a topic without any, and never dead letters of nothing.
                with contextlib.suppress(TopicNotFound):
                    topic = self._catalog.delete(one)
                    for group in self._groups.of_topic(topic.topic_id):
                        self._groups.delete_with_topic(group)
                    self._housekeeper.forget(topic)
                    if self._meter is not None:
                        self._meter.forget(one)

    def topics(self) -> list[TopicInfo]:
        """All topics, by name."""
        self._check_open()
        return [self._info(topic) for topic in self._catalog.all()]

    def topic(self, name: str) -> TopicInfo:
        """One topic. Raises `TopicNotFound`."""
        self._check_open()
        return self._info(self._catalog.get(name))

    @staticmethod
    def _info(topic: Topic) -> TopicInfo:
        return TopicInfo(topic.name, topic.topic_id, topic.partitions, topic.settings)

    def _logs_of(self, topic_id: bytes) -> Sequence[PartitionLog]:
        topic = self._catalog.find(topic_id)
        return [] if topic is None else topic.logs

    # -- publishing -------------------------------------------------------------------------------------------------

    def publish(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | str | None = None,
        headers: Mapping[str, bytes] | Sequence[tuple[str, bytes]] | None = None,
        partition: int | None = None,
        timestamp: dt.datetime | float | None = None,
        dedup_key: str | bytes | None = None,
        sync: str | SyncMode | None = None,
        ttl: Seconds | None = None,
        delay: Seconds | dt.datetime | None = None,
        priority: str | None = None,
        compression: str | None = None,
    ) -> Receipt:
        """
        Store one message and return where it lies, committed as its topic's sync mode says, or as *sync* where that is stricter.

        Messages of one key go to one partition and keep their order. A *dedup_key* that was published within the topic's window
        gives the receipt of the first message, with `duplicate` set, and stores nothing.

        Groups are not given it *ttl* seconds after it was stored, or later, and not before *delay* (seconds after it was stored, or a
        datetime). *priority* is "low", "medium" or "high", in topics that have priorities. *compression* is for this message, instead
        of its topic's.

        Raises:
            UsageError: the message is not allowed; nothing was stored.
            StorageFull: there is no room; nothing was stored.
            OutcomeUnknown: the disk failed; it may or may not be stored.
        """
        if self._closed:
            self._check_open()
        chosen = None
        if ttl is not None or delay is not None or priority is not None or compression is not None:
            chosen = Options(ttl, delay, priority, compression)
        target = self._catalog.to_publish_now(topic)
        if target is None:
            target = self._to_publish(topic, (value, key, headers, partition, timestamp, dedup_key, sync, chosen))
        return target.publish(value, key, headers, partition, timestamp, dedup_key, sync, chosen)

    def _to_publish(self, topic: str, message: tuple[Any, ...]) -> Topic:
        """The topic that a message goes to, made now if it is not there. Apart, since a function in `publish` would cost each message."""
        return self._catalog.to_publish(topic, lambda new: new.check_message(*message))

    def begin_publish(self, topic: str, value: object) -> tuple[Topic, int, AppendTicket] | None:
        """
        Ask for one message to be stored; returns its topic (who wants to be told when it is), its partition and the ticket to wait for.

        None if its topic's commits need no waiting, or it must be made first, which waits for the disk: then `publish` is the call.
        """
        self._check_open()
        target = self._catalog.to_publish_now(topic)
        return None if target is None else target.begin_publish(value)

    def publish_many(
        self,
        topic: str,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | str | None] | None = None,
        headers: Sequence[Mapping[str, bytes] | Sequence[tuple[str, bytes]] | None] | None = None,
        partition: int | None = None,
        timestamps: Sequence[dt.datetime | float | None] | None = None,
        dedup_keys: Sequence[str | bytes | None] | None = None,
        sync: str | SyncMode | None = None,
        ttls: Seconds | Sequence[Seconds | None] | None = None,
        delays: Seconds | dt.datetime | Sequence[Seconds | dt.datetime | None] | None = None,
        priorities: str | Sequence[str | None] | None = None,
        compression: str | None = None,
    ) -> Receipts | list[Receipt]:
        """
        Store several messages, all of them or none; returns their receipts in order.

        The other arguments are columns: one entry for each value. *ttls*, *delays* and *priorities* may also be one for all. Without keys
        all of them go to one partition.

        Raises what `publish` raises, and `BatchTooLarge`.
        """
        if self._closed:
            self._check_open()
        chosen = options(ttls, delays, priorities, compression)
        target = self._catalog.to_publish(
            topic, lambda new: new.check_messages(values, keys, headers, partition, timestamps, dedup_keys, sync, chosen)
        )
        return target.publish_many(values, keys, headers, partition, timestamps, dedup_keys, sync, chosen)

    def producer(
        self,
        topic: str,
        *,
        linger: Seconds = 0.005,
        batch_messages: int = 1_000,
        batch_bytes: int = 256 * KIB,
        max_pending: int = 100_000,
        when_full: str = "block",
        name: str | None = None,
        compression: str | None = None,
    ) -> Producer:
        """
        A producer that gathers messages into batches; see `Producer`.

        With a *name* its batches carry a sequence, and opening another one of the same name fences it. *compression* is for its
        batches, instead of the topic's.
        """
        self._check_open()
        checked = ProducerOptions.check(linger, batch_messages, batch_bytes, max_pending, when_full, name, compression)
        outlet = StoreOutlet(self._catalog.to_publish(topic), self._volume, self._producers, checked.name)
        producer = Producer(outlet, self._open_producers.discard, checked, background=self._background)
        self._open_producers.add(producer)
        if self._closed:
            producer.close()
            raise Closed(self.path)
        return producer

    def transaction(self) -> Transaction:
        """Messages to any topics and acks in any groups, all or nothing; see `Transaction`."""
        self._check_open()
        return Transaction(self._catalog, self._volume, self._check_open)

    def stage(self, producer: str) -> OpenStage:
        """
        A stage for messages that `commit` will publish together with those of other stages: the first of two phases.

        *producer* is the name under which it will be committed. See `OpenStage`.
        """
        self._check_open()
        return self._staging.begin(producer, self._check_open)

    def commit(
        self, producer: str, number: int, stages: Sequence[str], *, keep_committed: bool = False, note: str | None = None
    ) -> Committed:
        """
        Publish all messages of *stages* at once, under *number*: the second phase. Readers see all of them or none.

        A number that was committed before, with the same messages in whatever order, gives the first answer and changes nothing, so it may
        be repeated until it succeeds. With *keep_committed* the messages are not compared: what was committed counts. *note*, of up to
        2,048 bytes, is kept beside the number, and `committed` gives it back: how far the input was read, for instance.

        Raises:
            TransactionFenced: a higher number of *producer* was committed, and this one is not known; nothing was changed.
            TransactionChanged: this number was committed with other messages; nothing was changed, and the stages are still there.
            StageNotFound, BadArgument, CommitTooLarge, Corrupt, StorageFull: nothing was changed.
            OutcomeUnknown: the disk failed; reopen the store and repeat it.
        """
        self._check_open()
        return self._staging.commit(producer, number, stages, keep_committed=keep_committed, note=note)

    def abort(self, stages: Sequence[str]) -> int:
        """Drop stages that will not be committed; returns how many were there."""
        self._check_open()
        return self._staging.abort(stages)

    def committed(self, producer: str, number: int) -> Committed | None:
        """The answer of an earlier `commit`, None if there was none. Raises `TransactionFenced`."""
        self._check_open()
        return self._staging.result(producer, number)

    # -- consuming --------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topic: str,
        group: str,
        *,
        prefetch: int = PREFETCH_DEFAULT,
        prefetch_bytes: int = PREFETCH_BYTES_DEFAULT,
        lease: Seconds | None = None,
        max_deliveries: int | None = None,
        ordered: bool | None = None,
        start: Place = "earliest",
        reset: str | None = None,
        backoff: Seconds | None = None,
        backoff_max: Seconds | None = None,
        concurrency: int = 1,
        name: str | None = None,
        create: bool | None = None,
        topic_settings: Mapping[str, Any] | None = None,
    ) -> Consumer:
        """
        A new member of a group; the group is made if it is not there, beginning at *start*. Durable when it returns.

        What is given of *lease*, *max_deliveries*, *ordered*, *reset* and the backoff holds for the whole group from now on; what is
        not given stays as it is. *concurrency* says how many messages are handled at once: so many count as failed if the process dies.
        *name* is what `members` shows.

        A topic that is not there is made, as publishing makes it, and the group gets all that is published from then on, whatever *start*
        says. With *create* it is made also where the store does not make topics by itself, or with False never. *topic_settings*, keywords
        of `create_topic` and their values, declare the topic: a new one gets them, and one that is there must have them.

        Raises:
            TopicNotFound: the topic is not there, and may not be made; nothing was changed.
            TopicExists: the topic is there, and is not as *topic_settings* declare it; the error tells what differs.
            BadName, BadSetting, BadArgument: nothing was changed.
        """
        self._check_open()
        check_name("group", group)
        if name is not None:
            check_name("consumer", name)
        if create is not None and not isinstance(create, bool):
            raise BadArgument("create", shown(create), "must be True, False or None")
        prefetch = check_whole_number("prefetch", prefetch, 1, MESSAGES_MAX)
        prefetch_bytes = check_whole_number("prefetch_bytes", prefetch_bytes, 1, 1 << 40)
        concurrency = check_whole_number("concurrency", concurrency, 1, MESSAGES_MAX)
        given: dict[str, Any] = {
            "ordered": ordered, "lease_ms": _ms("lease", lease), "max_deliveries": max_deliveries,
            "backoff_ms": _ms("backoff", backoff), "backoff_max_ms": _ms("backoff_max", backoff_max), "reset": reset,
        }  # fmt: skip
        wanted = {setting: value for setting, value in given.items() if value is not None}
        declared = Declaration(topic_settings, self._catalog.default)
        found, was_there = self._to_subscribe(topic, declared, lambda: _check_new(wanted, declared, start), create=create)
        if not was_there and start == "latest":
            start = "earliest"  # it was empty when this was called: all that came since is later than that

        def choose(known: Group | None) -> GroupSettings:
            settings = replace(GroupSettings() if known is None else known.settings, **wanted)
            _check_order(settings, found.settings)
            if known is not None and known.ordered != settings.ordered and known.members:
                raise BadSetting("ordered", settings.ordered, f"the group has members that were told {known.ordered}")
            return settings

        if is_dead_letter_topic(found.name):
            open_box(self._groups, found)  # what its members get are the letters that are there
        known = self._groups.find(found.topic_id, group)
        choose(known)  # what is wrong is told before what is wrong with the start
        # Where a group begins counts when it is made; later only that it is a place at all.
        starts = [reading.place("start", start, log, bounded=known is None) for log in found.logs]
        made = self._groups.make(
            found.topic_id, found.name, group, choose, lambda: [max(at, log.log_start) for at, log in zip(starts, found.logs, strict=True)],
            self._volume.settings.topic_groups_max,
        )  # fmt: skip
        if found.settings.record_deliveries:
            self._deliveries.attach(found, made)
        if self._meter is not None:
            self._meter.attach(made)
        with self._member_lock:
            self._next_member += 1
            identity = self._next_member
        try:
            member = made.join(identity, prefetch, prefetch_bytes, concurrency)
            member.name = name
            consumer = Consumer(made, member, self._groups, self._consumers.discard)
            self._consumers.add(consumer)
            if self._closed:
                consumer.close()
                raise Closed(self.path)
            return consumer
        except BaseException:
            # Ctrl-C: a member of which nobody knows would keep its partitions.
            made.leave_all([one for one in made.members if one.identity == identity])
            raise

    def _to_subscribe(
        self, name: str, declared: Declaration, check: Callable[[], None], *, create: bool | None
    ) -> tuple[Topic, bool]:
        """
        The topic to subscribe to, made now if it is not there and may be, after *check*; and whether it was there.

        Raises `TopicNotFound`, `TopicExists`, and what *check* raises: then nothing was changed.
        """
        catalog = self._catalog
        was_there = True
        try:
            found = catalog.get(name)
        except TopicNotFound:
            may_create = catalog.auto_create if create is None else create
            if not may_create:
                raise
            check()
            was_there = False
            if name.endswith(OWN_SUFFIXES):
                found = self._own_to_subscribe(name)
            else:
                try:
                    return catalog.create(
                        name, 1 if declared.partitions is None else declared.partitions, declared.settings
                    ), was_there
                except TopicExists:
                    found = catalog.get(name)  # somebody else made it at the same moment
        declared.check(found)
        return found, was_there

    def _own_to_subscribe(self, name: str) -> Topic:
        """The topic of dead letters, or of records of deliveries: it goes with its source, which is made if it is not there."""
        catalog = self._catalog
        suffix = next(suffix for suffix in OWN_SUFFIXES if name.endswith(suffix))
        source = name.removesuffix(suffix)
        if source.endswith(OWN_SUFFIXES):
            raise TopicNotFound(name)
        if suffix == DEAD_LETTER_SUFFIX:
            return catalog.dead_letters_of(catalog.to_publish(source, auto_create=True))
        if not catalog.get(source).settings.record_deliveries:
            raise TopicNotFound(name)
        return catalog.deliveries_of(catalog.get(source))

    def groups(self, topic: str | None = None) -> list[GroupInfo]:
        """All groups, or those of one topic."""
        self._check_open()
        if topic is not None:
            topic = self._catalog.get(topic).name
        return [
            GroupInfo(group.topic, group.name, group.settings)
            for group in self._groups.all()
            if (topic is None or group.topic == topic) and not group.name.startswith(".")
        ]

    def delete_group(self, topic: str, group: str) -> None:
        """Forget a group and its position; durable when it returns. Its consumers are closed. Raises `GroupNotFound`."""
        self._check_open()
        self._groups.delete(self._group(topic, group))

    def members(self, topic: str, group: str) -> list[MemberInfo]:
        """The members of a group that are there now, the oldest first, and what each holds. Raises `TopicNotFound`, `GroupNotFound`."""
        self._check_open()
        found = self._group(topic, group)
        with found.lock:
            now, now_us = self._clock.monotonic(), self._clock.now_us()
            return [
                _member_info(one, now, now_us) for one in sorted(found.members, key=lambda one: (one.since_us, one.identity))
            ]

    def evict_member(self, topic: str, group: str, member: str) -> int:
        """
        Take a member, by its `id`, out of its group: what it holds goes back to the group at once, and none of it counts as failed.

        Returns how many messages that were. Its consumer raises `ConsumerEvicted` when it next asks for messages; it may subscribe again,
        which workers do by themselves. Raises `MemberNotFound`, `GroupNotFound`, `TopicNotFound`.
        """
        self._check_open()
        found = self._group(topic, group)
        for one in found.members:
            if _member_id(one) == member:
                held = found.evict(one)
                _log.warning(
                    "a member of group %s of %s was evicted; it held %d messages", group, topic, held,
                    extra=event("member_evicted", topic=topic, group=group, member=member, messages=held),
                )  # fmt: skip
                self._groups.flush()
                return held
        raise MemberNotFound(topic, group, str(member))

    def _group(self, topic: str, group: str) -> Group:
        found = self._catalog.get(topic)
        check_name("group", group)
        return self._groups.get(found.topic_id, topic, group)

    def seek(self, topic: str, group: str, to: Place | Mapping[int, Place], *, partition: int | None = None) -> None:
        """
        Move a group: to "earliest", "latest", an offset, a datetime, or to a place for each partition given as a mapping.

        Without *partition* all partitions move. Durable when it returns; what its consumers hold is void then.

        Raises:
            GroupNotFound, TopicNotFound, BadArgument: nothing was changed.
            OffsetOutOfRange: the log does not have that offset; nothing was changed.
        """
        self._check_open()
        found = self._group(topic, group)
        owner = self._catalog.get(topic)
        places: dict[int, Any]
        if hasattr(to, "items"):
            places = {owner.check_partition(number): where for number, where in to.items()}
        elif partition is not None:
            places = {owner.check_partition(partition): to}
        else:
            places = dict.fromkeys(range(owner.partitions), to)
        self._groups.seek(
            found, lambda: {number: reading.place("to", where, owner.logs[number]) for number, where in places.items()}
        )

    # -- dead letters -----------------------------------------------------------------------------------------------

    def dead_letters(self, topic: str) -> DeadLetters:
        """The dead letters of *topic*: list, replay, discard. Raises `TopicNotFound`."""
        self._check_open()
        source = self._catalog.get(topic)

        def find() -> Topic | None:
            self._check_open()
            try:
                return self._catalog.get(source.name + DEAD_LETTER_SUFFIX)
            except TopicNotFound:
                return None

        return DeadLetters(source, find, self._groups, self.transaction, self._box_lock)

    def _dead_letter(self, move: Move) -> None:
        """Write a dead letter and finish its source in one frame. Raises `PenstockError`: nothing was changed."""
        group = move.group
        source = self._catalog.find(group.topic_id)
        if source is None:
            raise TopicNotFound(group.topic)
        target = self._catalog.dead_letters_of(source)
        letter = dead_letter(move, *packing_of(source.settings))
        ticket = self._volume.submit_changes(
            [Append(target.logs[0], letter), Other(GROUPS_OWNER, group.finished_by_move(move))], essential=True
        )

        def done(finished: Ticket) -> None:
            if finished.error is None:
                target.published += 1
                group.moved(move)
            else:
                group.move_failed(move, finished.error)

        if self._background:
            ticket.on_done(done)
        else:
            with contextlib.suppress(PenstockError):
                ticket.wait()
            done(ticket)

    # -- reading ----------------------------------------------------------------------------------------------------

    def read(
        self,
        topic: str,
        partition: int | None = None,
        *,
        start: Place = "earliest",
        end: Place | None = None,
        max_messages: int | None = None,
    ) -> Iterator[Message]:
        """
        The committed messages from *start* up to, not with, *end* (default: all there are now), without a group.

        Of one partition, or of all of them one after the other. Raises `OffsetOutOfRange`, `TopicNotFound`, `Corrupt`.
        """
        self._check_open()
        found = self._catalog.get(topic)
        return reading.messages(found.name, self._chosen(found, partition), start, end, max_messages)

    def read_arrow(
        self,
        topic: str,
        partition: int | None = None,
        *,
        start: Place = "earliest",
        end: Place | None = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[Any]:
        """
        The same as `pyarrow.RecordBatch`es; uncompressed columns are wrapped, not copied. Needs pyarrow.

        *columns* are some of partition, offset, timestamp, key, value, headers, priority, expires_at and deliver_at, default all; and
        timestamp_type and appended_at. Where there is no message one empty batch tells the columns, so `pyarrow.Table.from_batches` takes
        what this gives as it is. Raises `BadColumn`.
        """
        self._check_open()
        found = self._catalog.get(topic)
        return reading.arrow(self._chosen(found, partition), start, end, columns)

    @staticmethod
    def _chosen(topic: Topic, partition: int | None) -> list[tuple[int, PartitionLog]]:
        if partition is None:
            return list(enumerate(topic.logs))
        number = topic.check_partition(partition)
        return [(number, topic.logs[number])]

    def ends(self, topic: str) -> dict[int, int]:
        """The committed end of each partition, at one moment."""
        self._check_open()
        logs = self._catalog.get(topic).logs
        return dict(enumerate(self._volume.ends(logs)))

    def positions(self, topics: Sequence[str]) -> dict[str, TopicPositions]:
        """Where the partitions of *topics* begin and end, all at one moment. Topics that are not there are left out."""
        self._check_open()
        wanted = {check_name("topic", name) for name in check_texts("topics", topics, "names of topics")}
        found = self._catalog.named(wanted)
        ends = iter(self._volume.ends([log for topic in found for log in topic.logs]))
        return {
            topic.name: TopicPositions(
                topic.topic_id,
                self._volume.log_epoch,
                {number: log.log_start for number, log in enumerate(topic.logs)},
                {number: next(ends) for number in range(topic.partitions)},
            )
            for topic in found
        }

    def offset_of_time(self, topic: str, partition: int, when: dt.datetime) -> int:
        """The first offset appended at or after *when*; the committed end if there is none."""
        self._check_open()
        [(_, log)] = self._chosen(self._catalog.get(topic), partition)
        return reading.place("when", when, log)

    def epoch_at(self, topic: str, partition: int, offset: int) -> int | None:
        """The log epoch in which *offset* was written, see `TopicPositions`; None if the log does not have it, or a hole there."""
        self._check_open()
        [(_, log)] = self._chosen(self._catalog.get(topic), partition)
        return reading.epoch_at(log, offset)

    # -- workers ----------------------------------------------------------------------------------------------------

    def worker(
        self,
        topic: str,
        *,
        group: str,
        concurrency: int = 1,
        batch: int | None = None,
        **options: Any,
    ) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
        """
        Let the decorated function handle the messages of *group*, *concurrency* at a time, when `run` is called.

        It may be plain (threads) or async (tasks), and takes a message, or with *batch* a list of up to so many. It acks by returning
        and nacks by raising. *options* are those of `subscribe`; a wrong name is refused here, and not first when it runs. A topic that is
        not there is made, or where that is not allowed, waited for.
        """
        self._check_open()

        def add(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
            handled = concurrency * (batch or 1)
            chosen = {"prefetch": max(PREFETCH_DEFAULT, handled), "concurrency": handled, **options}
            self._workers.add(
                Worker(
                    function,
                    lambda **more: self.subscribe(topic, group, **{**chosen, **more}),
                    topic=topic,
                    concurrency=concurrency,
                    batch=batch,
                    linger=0,
                )
            )
            return function

        check_whole_number("concurrency", concurrency, 1, 10_000)
        if batch is not None:
            check_whole_number("batch", batch, 1, 100_000)
        check_worker(topic, group, options)
        return add

    def run(self, *, stop_timeout: Seconds = STOP_SECONDS) -> None:
        """
        Run the workers until `stop` is called or, in the main thread, SIGTERM or SIGINT comes.

        Handlers that run then have *stop_timeout* seconds to end; what was not begun goes back uncounted.
        """
        self._check_open()
        self._workers.run(stop_timeout=stop_timeout)

    def stop(self) -> None:
        """Let `run` end."""
        self._workers.stop()

    # -- retention --------------------------------------------------------------------------------------------------

    def retain(self, topic: str | None = None) -> Retained:
        """
        Remove what the topics' retention settings say, now; of one topic or of all. Only whole sealed segments go.

        With ``retain="until_acked"`` a segment stays as long as some group has not finished it.
        """
        self._check_open()
        chosen = self._named(topic)
        self._housekeeper.seal(chosen)
        self._settle(chosen)
        return self._retain(chosen)

    def _settle(self, chosen: list[Topic], *, flush: bool = False) -> None:
        """Both checkpoints must point behind what goes, or is rewritten; with *flush* acks so far count too."""
        if any(len(log.segment_firsts) > 1 for one in chosen for log in one.logs):
            if flush:
                self._groups.flush()
            self._volume.checkpoint()
            self._volume.checkpoint()

    def _retain(self, chosen: list[Topic], *, background: bool = False) -> Retained:
        failed: Corrupt | NoAccess | OSError | None = None
        for one in chosen:
            if is_dead_letter_topic(one.name) and one.settings.retention_age_ms:
                try:
                    self._expire_dead_letters(one, settled_us(self._clock) if background else asked_us(self._clock))
                except (Corrupt, NoAccess, OSError) as error:
                    failed = failed or error
                    if background:
                        self._housekeeper.troubles.tell(
                            one.topic_id, f"retention of dead letters {one.name} stopped for now", "retention_failed", error,
                            topic=one.name, partition=None,
                        )  # fmt: skip
                else:
                    self._housekeeper.troubles.end(one.topic_id)
        retained = self._housekeeper.retain(chosen, background=background)
        if failed is not None and not background:
            raise failed
        return retained

    def _expire_dead_letters(self, dead: Topic, now_us: int) -> None:
        """Those that are too old are discarded, also where their segment stays."""
        try:
            box = self.dead_letters(dead.name.removesuffix(DEAD_LETTER_SUFFIX))
            count = box.expire(now_us - dead.settings.retention_age_ms * 1000)
        except TopicNotFound:
            return  # its topic is gone
        if count:
            _log.info(
                "%d dead letters of %s were discarded, since they are old", count, dead.name,
                extra=event("dead_letters_expired", topic=dead.name, messages=count),
            )  # fmt: skip

    def vacuum(self, topic: str | None = None) -> Rewritten:
        """
        Remove expired messages, and finished ones past their retention whose segment an unfinished message keeps.

        Of one topic or of all. Only segments of which at least half goes are rewritten; the active one is sealed first. What a consumer has
        stays. It is done in the background too.
        """
        self._check_open()
        chosen = self._named(topic)
        self._housekeeper.seal(chosen)
        self._housekeeper.seal_expired(chosen)
        self._settle(chosen, flush=True)
        expired, finished = self._housekeeper.expire(chosen), self._housekeeper.vacuum(chosen)
        return Rewritten(*map(int.__add__, expired, finished))

    def compact(self, topic: str | None = None) -> Rewritten:
        """
        Of each key keep the latest message, in the sealed segments of a topic that was made with ``compaction=True``, or of all such.

        Messages without a key stay, and so does what a group has not finished with ``retain="until_acked"``; tombstones stay for
        the topic's `tombstone_grace`. It is done in the background too. Raises `BadSetting` for a topic without compaction.
        """
        self._check_open()
        if topic is not None and not self._catalog.get(topic).settings.compaction:
            raise BadSetting("compaction", False, f"topic {topic!r} was made without it")
        chosen = self._named(topic)
        self._housekeeper.seal(chosen)
        self._settle(chosen, flush=True)
        return self._housekeeper.compact(chosen)

    def _named(self, topic: str | None) -> list[Topic]:
        return self._catalog.all() if topic is None else [self._catalog.get(topic)]

    def _wait(self, seconds: float) -> bool:
        """Until the store is closed, or for so long; meanwhile this thread, which has nothing else to do, minds the door."""
        return self._stop.wait(seconds) if self._door is None else self._door.wait(seconds)

    def _retain_forever(self) -> None:
        seconds = left = self._volume.settings.retention_interval_ms / 1000 if self._keep_finished else 0.5
        while not self._wait(min(left, WRITE_SECONDS)):
            self._deliveries.write()
            left -= WRITE_SECONDS
            if left > 0:
                continue
            left = seconds
            try:
                self._housekeep()
            except Closed:
                return

    def _housekeep(self) -> None:
        """One turn of the thread that looks after old messages. Raises `Closed`."""
        works: tuple[Callable[[], object], ...] = (self._retain_all, self._staging.remove_expired, self._begin_rewriting)
        for number, work in enumerate(works):
            try:
                work()
                self._housekeeper.troubles.end(number)
            except Closed:
                raise
            except (PenstockError, OSError) as error:
                self._housekeeper.troubles.tell(
                    number, "retention stopped for now", "retention_failed", error, topic=None, partition=None
                )

    def _begin_rewriting(self) -> None:
        self._housekeeper.begin_rewriting(self._catalog.all())

    def _retain_all(self) -> None:
        topics = self._catalog.all()
        self._housekeeper.seal(topics, background=True)
        if not self._keep_finished:
            self._settle(topics)
        self._retain(topics, background=True)

    # -- the rest ---------------------------------------------------------------------------------------------------

    def stats(self) -> StoreStats:
        """Numbers of this moment."""
        self._check_open()
        topics = {}
        for topic in self._catalog.all():
            counters = self._housekeeper.counters(topic)
            topics[topic.name] = TopicStats(
                partitions=topic.partitions,
                messages=sum(log.committed_end - log.log_start for log in topic.logs),
                bytes=sum(log.stored_bytes for log in topic.logs),
                published=topic.published,
                starts={number: log.log_start for number, log in enumerate(topic.logs)},
                ends={number: log.committed_end for number, log in enumerate(topic.logs)},
                dedup_evicted=topic.dedup_evicted,
                **asdict(counters),
                groups={
                    group.name: _group_stats(group)
                    for group in self._groups.of_topic(topic.topic_id)
                    if not group.name.startswith(".")
                },
            )
        space = self._volume.space()
        return StoreStats(
            self.path, topics, self._volume.commits, self._volume.failure, space.is_full, space.free_bytes, space.floor_bytes,
            space.refused,
        )  # fmt: skip

    def metrics(self) -> StoreMetrics:
        """What `stats` has, lag and dead letters in seconds too, and, while it is measured (`measure`), how long things take."""
        self._check_open()
        return self._collector.collect(self._clock.now_us(), self._meter)

    def measure(self, *, on: bool = True) -> None:
        """Take times for `metrics` from now on, or no more. Off, which it is at first, costs nothing."""
        self._check_open()
        if on is (self._meter is not None):
            return
        if on:
            self._meter = meter = Meter()
            self._volume.time_appends(meter.published)
            self._volume.time_syncs(meter.fsync.observe)
            for group in self._groups.all():
                meter.attach(group)
            return
        self._meter = None
        self._volume.time_appends(None)
        self._volume.time_syncs(None)
        for group in self._groups.all():
            Meter.detach(group)

    def flush(self) -> None:
        """Return when every ack and nack so far is durable."""
        self._check_open()
        self._groups.flush()

    def _check_open(self) -> None:
        if self._closed:
            parents = ", which the parent process opened, must be opened anew in this one: here it"
            raise Closed(self.path + (parents if self._is_parents else ""))

    @property
    def has_threads(self) -> bool:
        """Whether it commits by itself what was submitted; without threads somebody must wait for it."""
        return self._background

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def forget(self) -> None:
        """In a forked child: this store is the parent's, and is closed for everybody here."""
        self._closed = self._is_parents = True
        self._volume.forget()
        if self._door is not None:
            self._door.forget()
        for consumer in list(self._consumers):
            consumer.forget()

    def close(self) -> None:
        """
        Close consumers and producers, commit everything and let go of the store. Closing twice does nothing.

        If it is interrupted, as by Ctrl-C, closing it again goes on.
        """
        with self._close_lock:
            if self._let_go or self._is_parents:
                return
            if self._door is not None:
                self._door.leave()  # first: what others hold goes back in order
            self._workers.stop()
            self._close_users()
            self._closed = True
            self._close_users()  # those that came meanwhile
            self._stop.set()
            if self._thread is not None:
                self._thread.join()
            self._housekeeper.join()
            self._deliveries.write(unfinished=True)
            self._groups.stop()
            with contextlib.suppress(PenstockError):
                self._groups.flush()
            self._volume.close()
            self._let_go = True

    def _close_users(self) -> None:
        for producer in list(self._open_producers):
            with contextlib.suppress(PenstockError):
                producer.close()
        for consumer in list(self._consumers):
            with contextlib.suppress(PenstockError):
                consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Store {self.path}{', closed' if self._closed else ''}>"


def _time(time_us: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=time_us)


def _member_id(member: Member) -> str:
    return f"{member.identity:x}"


def _member_info(member: Member, now: float, now_us: int) -> MemberInfo:
    """What there is to tell of *member*, at a time by both clocks; under the lock of its group."""
    origin = member.origin
    heard = member.took if origin is None else origin.heard
    return MemberInfo(
        id=_member_id(member),
        name=member.name,
        interface="embedded" if origin is None else origin.interface,
        peer="" if origin is None else origin.peer,
        principal="" if origin is None else origin.principal,
        since=_time(member.since_us),
        last_heard=_time(now_us - max(0, round((now - heard) * 1_000_000))),
        in_flight=member.in_flight,
        buffered=member.buffered,
        bytes=max(0, member.held_bytes),
        prefetch=member.prefetch,
        paused=member.paused,
        partitions=[cursor.partition for cursor in member.cursors],
    )


def _group_stats(group: Group) -> GroupStats:
    with group.lock:
        counters = group.counters
        return GroupStats(
            lag=group.lag(),
            in_flight=sum(member.in_flight for member in group.members),
            retrying=_retrying(group),
            members=len(group.members),
            positions=group.positions(),
            delivered=counters.delivered,
            redelivered=counters.redelivered,
            acked=counters.acked,
            nacked=counters.nacked,
            expired_leases=counters.expired,
            expired=counters.expired_messages,
            dead_lettered=counters.dead_lettered,
            skipped=counters.skipped,
            lost=counters.lost,
        )


def _retrying(group: Group) -> int:
    """How many messages failed and wait for their next delivery: not with a consumer, and not on their way to the dead letters."""
    waiting = sum(len(cursor.failures.offsets - cursor.moving) for cursor in group.cursors if cursor.failures.offsets)
    if not waiting:
        return 0
    handed = [
        one for member in group.members for table in (member.handed, member.extended, member.waiting) for one in table.values()
    ]
    return waiting - sum(one.attempt > 1 for one in handed if one.offset in one._lot.cursor.failures.offsets)  # noqa: SLF001


class _Empty:
    """The log of a topic that is not made yet."""

    log_start = committed_end = 0

    @staticmethod
    def offset_of_time(_: int) -> int:
        return 0


def _check_new(wanted: dict[str, Any], declared: Declaration, start: object) -> None:
    """Raise what is wrong with a subscription to a topic that would have to be made for it."""
    reading.place("start", start, _Empty)
    _check_order(replace(GroupSettings(), **wanted), declared.settings)


def _check_order(group: GroupSettings, topic: TopicSettings) -> None:
    if group.ordered and topic.priorities:
        raise BadSetting("ordered", True, "a topic with priorities has no order to keep: use ordered=False, or another topic")


def _ms(name: str, value: object) -> int | None:
    return None if value is None else round(check_seconds(name, value, 0, 1e9) * 1000)


__all__ = ["GroupInfo", "Retained", "Rewritten", "Store", "TopicInfo"]
