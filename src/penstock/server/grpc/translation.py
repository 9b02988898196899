"""Between the messages of the proto and the engine's values."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.arguments import shown
from penstock.errors import BadArgument, BatchTooLarge
from penstock.values import BATCH_MESSAGES_MAX, SyncMode
from penstock.wire import penstock_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.settings import GroupSettings, TopicSettings
    from penstock.store.stats import GroupStats, StoreStats, TopicStats
    from penstock.store.store import GroupInfo, TopicInfo
    from penstock.topics.message import Message

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
MESSAGE_OVERHEAD_BYTES = 64
"""About what the numbers of a message take."""

SYNC_MODES: dict[int, str] = {pb.SYNC_MODE_ALWAYS: "always", pb.SYNC_MODE_INTERVAL: "interval", pb.SYNC_MODE_OS: "os"}
RETAINS: dict[int, str] = {pb.RETAIN_UNTIL_ACKED: "until_acked", pb.RETAIN_ALWAYS: "always"}
RESETS: dict[int, str] = {pb.RESET_EARLIEST: "earliest", pb.RESET_LATEST: "latest", pb.RESET_FAIL: "fail"}
EDGES: dict[int, str] = {pb.EDGE_EARLIEST: "earliest", pb.EDGE_LATEST: "latest"}
PRIORITIES: dict[int, str] = {pb.PRIORITY_LOW: "low", pb.PRIORITY_MEDIUM: "medium", pb.PRIORITY_HIGH: "high"}
EXPIREDS: dict[int, str] = {pb.EXPIRED_DROP: "drop", pb.EXPIRED_DEAD_LETTER: "dead_letter"}
_TOPIC_NUMBERS = (
    "segment_bytes", "segment_messages", "segment_age_ms", "max_message_bytes", "dedup_window_ms", "retention_age_ms",
    "retention_bytes", "ttl_ms", "tombstone_grace_ms", "retention_messages", "retention_bytes_hard", "group_expiry_ms",
)  # fmt: skip
_GROUP_NUMBERS = ("lease_ms", "max_deliveries", "backoff_ms", "backoff_max_ms")


def word_of(name: str, number: int, words: dict[int, str]) -> str:
    """The word that an enum's value means. Raises `BadArgument`: it is unspecified, or none that there is."""
    word = words.get(number)
    if word is None:
        why = "is UNSPECIFIED" if number == 0 else "is no value of this enum"
        raise BadArgument(name, shown(number), f"{why}; say {' or '.join(words.values())}")
    return word


def _number_of(word: str, words: dict[int, str]) -> int:
    return next(number for number, one in words.items() if one == word)


def moment_of(name: str, time_us: int) -> dt.datetime:
    """A time. Raises `BadArgument`."""
    try:
        return EPOCH + dt.timedelta(microseconds=time_us)
    except OverflowError:
        raise BadArgument(name, shown(time_us), "is no moment in the years 1 to 9999") from None


def place_of(name: str, place: pb.Place) -> str | int | dt.datetime:
    """A place, as the store takes it. Raises `BadArgument`."""
    which = place.WhichOneof("where")
    if which == "edge":
        return word_of(name, place.edge, EDGES)
    if which == "offset":
        return int(place.offset)
    if which == "time_us":
        return moment_of(name, place.time_us)
    raise BadArgument(name, "{}", "says no place: give edge, offset or time_us")


def given(message: Any, name: str) -> Any:
    """The value of an optional field; None if it is absent."""
    return getattr(message, name) if message.HasField(name) else None


# -- to the engine --------------------------------------------------------------------------------------------------


class NewMessages(NamedTuple):
    """What a publish asks for, as columns; the names are those of `Store.publish_many`."""

    values: list[bytes | None]
    keys: list[bytes | None] | None
    headers: list[list[tuple[str, bytes]] | None] | None
    timestamps: list[dt.datetime | None] | None
    dedup_keys: list[bytes | None] | None
    ttls: list[float | None] | None
    delays: list[float | dt.datetime | None] | None
    priorities: list[str | None] | None


def new_messages(messages: Any) -> NewMessages:
    """The columns of *messages*. Raises `BadArgument`, `BatchTooLarge`."""
    if not messages:
        raise BadArgument("messages", "[]", "publish one message or more")
    if len(messages) > BATCH_MESSAGES_MAX:
        raise BatchTooLarge("messages", len(messages), BATCH_MESSAGES_MAX)
    times = [one.timestamp_us if one.HasField("timestamp_us") else None for one in messages]
    return NewMessages(
        [one.value if one.HasField("value") else None for one in messages],
        _column([one.key if one.HasField("key") else None for one in messages]),
        _column([[(header.name, header.value) for header in one.headers] if one.headers else None for one in messages]),
        _column([None if time_us is None else moment_of("timestamp_us", time_us) for time_us in times]),
        _column([one.dedup_key if one.HasField("dedup_key") else None for one in messages]),
        _column([one.ttl_ms / 1000 if one.HasField("ttl_ms") else None for one in messages]),
        _column([_delay_of(one) for one in messages]),
        _column([word_of("priority", one.priority, PRIORITIES) if one.HasField("priority") else None for one in messages]),
    )


def _delay_of(message: pb.NewMessage) -> float | dt.datetime | None:
    if message.HasField("delay_ms"):
        return message.delay_ms / 1000
    return moment_of("deliver_at_us", message.deliver_at_us) if message.HasField("deliver_at_us") else None


def _column(entries: list[Any]) -> list[Any] | None:
    return entries if any(entry is not None for entry in entries) else None


def topic_options(settings: pb.TopicSettings) -> dict[str, Any]:
    """The keywords of `Store.create_topic` that *settings* give. Raises `BadArgument`."""
    options = {name: int(getattr(settings, name)) for name in _TOPIC_NUMBERS if settings.HasField(name)}
    words: dict[str, Any] = {}
    if settings.HasField("sync"):
        words["sync"] = SyncMode(word_of("sync", settings.sync, SYNC_MODES))
    if settings.HasField("compaction"):
        words["compaction"] = settings.compaction
    if settings.HasField("retain"):
        words["retain"] = word_of("retain", settings.retain, RETAINS)
    if settings.HasField("expired"):
        words["expired"] = word_of("expired", settings.expired, EXPIREDS)
    words |= {
        name: getattr(settings, name) for name in ("priorities", "compression", "record_deliveries") if settings.HasField(name)
    }
    return options | words


def group_options(subscription: pb.Subscription) -> dict[str, Any]:
    """The keywords of `Store.subscribe` that *subscription* gives. Raises `BadArgument`."""
    options: dict[str, Any] = {}
    for name in ("prefetch", "prefetch_bytes", "concurrency", "max_deliveries", "ordered"):
        if subscription.HasField(name):
            options[name] = getattr(subscription, name)
    for name in ("lease", "backoff", "backoff_max"):
        if subscription.HasField(f"{name}_ms"):
            options[name] = getattr(subscription, f"{name}_ms") / 1000
    if subscription.HasField("reset"):
        options["reset"] = word_of("reset", subscription.reset, RESETS)
    if subscription.HasField("start"):
        options["start"] = place_of("start", subscription.start)
    return options


# -- from the engine ------------------------------------------------------------------------------------------------


def message_of(message: Message) -> tuple[pb.Message, int]:
    """A message, and about how many bytes it takes."""
    value, key, headers, dedup_key = message.value, message.key, message.headers, message.dedup_key
    found = pb.Message(
        partition=message.partition, offset=message.offset, value=value, key=key, timestamp_us=message.timestamp_us,
        append_time_us=message.append_time_us, dedup_key=dedup_key, expires_at_us=message.expires_us, deliver_at_us=message.deliver_us,
    )  # fmt: skip
    if message.priority != "low":
        found.priority = _number_of(message.priority, PRIORITIES)  # type: ignore[assignment]
    size = MESSAGE_OVERHEAD_BYTES + len(value or b"") + len(key or b"") + len(dedup_key or b"")
    for name, content in headers:
        found.headers.add(name=name, value=content)
        size += len(name) + len(content) + 8
    return found, size


class Pages:
    """Cuts messages into pages that have about a number of bytes; one message always fits."""

    def __init__(self, messages: Iterator[Message], bytes_max: int) -> None:
        self._messages = messages
        self._bytes_max = bytes_max
        self._held: tuple[pb.Message, int] | None = None

    def next(self, most: int) -> list[pb.Message]:
        """Up to *most* more; none at the end. Reads files."""
        found: list[pb.Message] = []
        size = 0
        while len(found) < most:
            if self._held is None:
                message = next(self._messages, None)
                if message is None:
                    break
                self._held = message_of(message)
            if found and size + self._held[1] > self._bytes_max:
                break
            found.append(self._held[0])
            size += self._held[1]
            self._held = None
        return found


def topic_of(info: TopicInfo) -> pb.Topic:
    """A topic."""
    return pb.Topic(name=info.name, id=info.topic_id.hex(), partitions=info.partitions, settings=_topic_settings(info.settings))


def _topic_settings(settings: TopicSettings) -> pb.TopicSettings:
    return pb.TopicSettings(
        sync=_number_of(settings.sync.value, SYNC_MODES), retain=_number_of(settings.retain, RETAINS),  # type: ignore[arg-type]
        expired=_number_of(settings.expired, EXPIREDS), priorities=settings.priorities, compression=settings.compression,  # type: ignore[arg-type]
        compaction=settings.compaction, record_deliveries=settings.record_deliveries,
        **{name: getattr(settings, name) for name in _TOPIC_NUMBERS},
    )  # fmt: skip


def group_settings_of(settings: GroupSettings) -> pb.GroupSettings:
    """The settings of a group."""
    return pb.GroupSettings(
        ordered=settings.ordered, reset=_number_of(settings.reset, RESETS),  # type: ignore[arg-type]
        **{name: getattr(settings, name) for name in _GROUP_NUMBERS},
    )  # fmt: skip


def group_of(info: GroupInfo) -> pb.Group:
    """A group."""
    return pb.Group(topic=info.topic, name=info.name, settings=group_settings_of(info.settings))


def stats_of(stats: StoreStats, chosen: Iterable[str]) -> pb.GetStatsResponse:
    """The numbers of the topics named by *chosen*."""
    return pb.GetStatsResponse(
        topics={name: _topic_stats(stats.topics[name]) for name in chosen}, commits=stats.commits,
        failure=None if stats.failure is None else "the disk failed; the log of the server says how",
    )  # fmt: skip


def _topic_stats(topic: TopicStats) -> pb.TopicStats:
    return pb.TopicStats(
        messages=topic.messages, published=topic.published, starts=list(topic.starts.values()), ends=list(topic.ends.values()),
        dedup_evicted=topic.dedup_evicted, groups={name: _group_stats(group) for name, group in topic.groups.items()},
    )  # fmt: skip


def _group_stats(group: GroupStats) -> pb.GroupStats:
    numbers = (
        "lag", "in_flight", "retrying", "members", "delivered", "redelivered", "acked", "nacked", "expired_leases", "dead_lettered",
        "skipped", "lost", "expired",
    )  # fmt: skip
    return pb.GroupStats(positions=list(group.positions.values()), **{name: getattr(group, name) for name in numbers})
