"""The topics of an open store, by name."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock import threads as threading
from penstock.errors import ReservedName, TopicExists, TopicNotFound
from penstock.settings import TopicSettings
from penstock.topics.options import packing
from penstock.topics.topic import Topic
from penstock.values import MESSAGE_BYTES_MAX, MIB, NAME_CHARACTERS_MAX, SyncMode, check_name
from penstock.volume.topic_files import TopicRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from penstock.clock import Clock
    from penstock.topics.producers import Producers
    from penstock.volume.volume import Volume

DEAD_LETTER_SUFFIX = ".dlq"
DELIVERIES_SUFFIX = ".deliveries"
"""Of topics that tell how long the messages of another one waited; see `groups/delivery_times.py`."""
OWN_SUFFIXES = (DEAD_LETTER_SUFFIX, DELIVERIES_SUFFIX)
"""Names that end so are of topics that only Penstock writes."""
_DAY_MS = 86_400_000
_HEADERS_ROOM_BYTES = 64 * 1024


class Catalog:
    """Finds and makes topics. Safe to use from any thread."""

    def __init__(
        self, volume: Volume, clock: Clock, producers: Producers, default: TopicSettings, *, auto_create: bool
    ) -> None:
        self._volume = volume
        self._clock = clock
        self._producers = producers
        self._default = default
        self._auto_create = auto_create
        self._lock = threading.RLock()
        self._topics: dict[str, Topic] = {}
        self._publishable: dict[str, Topic] = {}
        """Those that users may publish to: each publish looks here, and needs not look at the name."""
        self._by_id: dict[bytes, Topic] = {}
        self._going: set[bytes] = set()
        """Ids of the topics that are being deleted with their dead letters."""
        for record in volume.topics:
            self._add(record)

    def _add(self, record: TopicRecord) -> Topic:
        logs = [self._volume.log(record.name, partition) for partition in range(record.partitions)]
        topic = Topic(record, logs, self._volume, self._clock, self._producers)
        self._topics[record.name] = topic
        if not record.name.endswith(OWN_SUFFIXES):
            self._publishable[record.name] = topic
        self._by_id[record.topic_id] = topic
        return topic

    def all(self) -> list[Topic]:
        """All topics, by name."""
        return [self._topics[name] for name in sorted(self._topics)]

    def named(self, names: Iterable[str]) -> list[Topic]:
        """Those of these names that are there, by name."""
        return [topic for name in sorted(names) if (topic := self._topics.get(name)) is not None]

    def get(self, name: str) -> Topic:
        """The topic of that name. Raises `BadName` or `TopicNotFound`."""
        topic = self._topics.get(name) if isinstance(name, str) else None
        if topic is None:
            check_name("topic", name)
            raise TopicNotFound(name)
        return topic

    def find(self, topic_id: bytes) -> Topic | None:
        """The topic with that id, if it is there."""
        return self._by_id.get(topic_id)

    def to_publish(
        self, name: str, check: Callable[[Topic], object] | None = None, *, auto_create: bool | None = None
    ) -> Topic:
        """
        The topic that *name* publishes to, made now if it is not there and that is allowed.

        *check* is called first with a topic like the new one, and raises if what is to be published there is not allowed. Whether
        it is made is the caller's choice where *auto_create* tells it.
        """
        topic = self.to_publish_now(name)
        if topic is None:
            check_publishable(name)
            if not (self._auto_create if auto_create is None else auto_create):
                raise TopicNotFound(name)
            if check is not None:
                check(self._draft(name))
            try:
                topic = self.create(name, 1, self._default)
            except TopicExists:
                topic = self.get(name)  # somebody else made it at the same moment, with settings of their own
        return topic

    def to_publish_now(self, name: str) -> Topic | None:
        """The topic of that name, if it is there and users may publish to it."""
        return self._publishable.get(name) if isinstance(name, str) else None

    def to_publish_later(self, name: str, check: Callable[[Topic], object]) -> Topic | None:
        """The topic of that name; None if it is not there and may be made later, after *check* has seen one like it."""
        topic = self.to_publish_now(name)
        if topic is not None:
            return topic
        check_publishable(name)
        if not self._auto_create:
            raise TopicNotFound(name)
        check(self._draft(name))
        return None

    def _draft(self, name: str) -> Topic:
        """A topic like the one that would be made, for checking; it has no logs."""
        return Topic(TopicRecord(name, b"", 1, 0, self._default), [], self._volume, self._clock, self._producers)

    def create(self, name: str, partitions: int, settings: TopicSettings) -> Topic:
        """Make a topic, or find the same one. Raises `BadName`, `ReservedName`, `BadSetting`, `TopicExists`."""
        check_publishable(name)
        if settings.record_deliveries:
            _check_room(name, DELIVERIES_SUFFIX + DEAD_LETTER_SUFFIX, "what is recorded of its deliveries")
        packing(settings.compression)  # raises if its library is not installed
        return self._create(name, partitions, settings)

    def _create(self, name: str, partitions: int, settings: TopicSettings) -> Topic:
        with self._lock:
            record = self._volume.create_topic(name, partitions, settings)
            topic = self._topics.get(name)
            return self._add(record) if topic is None else topic

    def delete(self, name: str) -> Topic:
        """Delete a topic; durable when it returns. Raises `TopicNotFound`, `StorageFailed`."""
        with self._lock:
            topic = self.get(name)
            self._volume.delete_topic(name)
            del self._topics[name]
            self._publishable.pop(name, None)
            del self._by_id[topic.topic_id]
            return topic

    @contextmanager
    def going(self, topic: Topic) -> Iterator[None]:
        """Meanwhile nobody makes a topic for the dead letters of *topic*, which would stay behind when it is deleted."""
        self._going.add(topic.topic_id)
        try:
            yield
        finally:
            self._going.discard(topic.topic_id)

    def dead_letters_of(self, topic: Topic) -> Topic:
        """
        The topic of the dead letters of *topic*, made now if it is not there: always durable, whatever its source is.

        Raises `TopicNotFound` if *topic* is deleted, or being deleted, also if there is another one of its name.
        """
        name = topic.name + DEAD_LETTER_SUFFIX
        found = self._topics.get(name)
        # In this order: what was found goes before its source does, and the next one of that name comes after that.
        if found is not None and self._by_id.get(topic.topic_id) is topic:
            return found
        limit = min(topic.settings.max_message_bytes + _HEADERS_ROOM_BYTES, MESSAGE_BYTES_MAX)
        settings = TopicSettings(
            sync=SyncMode.ALWAYS,
            max_message_bytes=limit,
            retention_age_ms=topic.settings.dead_letter_retention_ms,
            retain="always",
            compression=topic.settings.compression,
        )
        return self._open_own(topic, name, settings, essential=True)

    def deliveries_of(self, topic: Topic) -> Topic:
        """
        The topic that tells of the deliveries of *topic*, made now if it is not there.

        It keeps a day, in small segments, whether groups have read it or not. Raises `TopicNotFound` if *topic* is deleted.
        """
        name = topic.name + DELIVERIES_SUFFIX
        settings = TopicSettings(
            sync=self._default.sync, segment_bytes=4 * MIB, segment_age_ms=_DAY_MS // 4, retention_age_ms=_DAY_MS, retain="always"
        )  # fmt: skip
        return self._open_own(topic, name, settings)

    def _open_own(self, topic: Topic, name: str, settings: TopicSettings, *, essential: bool = False) -> Topic:
        """A topic that goes with *topic*, made now if it is not there. Raises `TopicNotFound`."""
        with self._lock:
            if self._by_id.get(topic.topic_id) is not topic or topic.topic_id in self._going:
                raise TopicNotFound(topic.name)
            found = self._topics.get(name)
            return self._add(self._volume.create_topic(name, 1, settings, essential=essential)) if found is None else found

    @property
    def auto_create(self) -> bool:
        """Whether publishing makes a topic that is not there."""
        return self._auto_create

    @property
    def default(self) -> TopicSettings:
        """What a topic gets that is made without saying more."""
        return self._default


def check_publishable(name: str) -> None:
    """Raise `BadName` or `ReservedName` if users may not make or fill a topic of that name."""
    check_name("topic", name)
    _check_room(name, DEAD_LETTER_SUFFIX, "its dead letters")
    if name.endswith(DEAD_LETTER_SUFFIX):
        raise ReservedName("topic", name, f"names that end in {DEAD_LETTER_SUFFIX} are for dead letters, which Penstock writes")
    if name.endswith(DELIVERIES_SUFFIX):
        raise ReservedName(
            "topic", name, f"names that end in {DELIVERIES_SUFFIX} are for records of deliveries, which Penstock writes"
        )


def _check_room(name: str, suffix: str, whose: str) -> None:
    longest = NAME_CHARACTERS_MAX - len(suffix)
    if len(name) > longest:
        raise ReservedName("topic", name, f"with more than {longest} characters {whose} could have no name")
