"""Between the messages of the proto and the engine's values."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.arguments import check_moment_us, shown
from penstock.errors import BadArgument, BatchTooLarge
from penstock.store.dead_letter_filter import DeadLetterFilter
from penstock.store.metrics import BOUNDS_S
from penstock.values import BATCH_MESSAGES_MAX
from penstock.wire import penstock_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.settings import GroupSettings, TopicSettings
    from penstock.store.metrics import Latency, StoreMetrics
    from penstock.store.stats import GroupStats, MemberInfo, StoreStats, TopicStats
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
_WORDS = {"sync": SYNC_MODES, "retain": RETAINS, "expired": EXPIREDS, "reset": RESETS}
"""Settings that are enums in the proto and words in the engine."""
REASON_CHARACTERS_MAX = 256
"""As much as is kept of a reason: a longer pattern fits none, and costs time."""


def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in kind.DESCRIPTOR.fields)


# The proto says which settings and numbers there are, by the engine's names; a test compares it with the engine's.
_TOPIC_SETTINGS = _names(pb.TopicSettings)
_GROUP_SETTINGS = _names(pb.GroupSettings)
_TOPIC_NUMBERS = tuple(name for name in _names(pb.TopicStats) if name not in ("starts", "ends", "groups"))
_GROUP_NUMBERS = tuple(name for name in _names(pb.GroupStats) if name != "positions")


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
    given = {name: getattr(settings, name) for name in _TOPIC_SETTINGS if settings.HasField(name)}
    return {name: word_of(name, value, _WORDS[name]) if name in _WORDS else value for name, value in given.items()}


def group_options(subscription: pb.Subscription) -> dict[str, Any]:
    """The keywords of `Store.subscribe` that *subscription* gives. Raises `BadArgument`."""
    options: dict[str, Any] = {}
    for name in ("prefetch", "prefetch_bytes", "concurrency", "max_deliveries", "ordered", "name", "create"):
        if subscription.HasField(name):
            options[name] = getattr(subscription, name)
    for name in ("lease", "backoff", "backoff_max"):
        if subscription.HasField(f"{name}_ms"):
            options[name] = getattr(subscription, f"{name}_ms") / 1000
    if subscription.HasField("reset"):
        options["reset"] = word_of("reset", subscription.reset, RESETS)
    if subscription.HasField("start"):
        options["start"] = place_of("start", subscription.start)
    declared = topic_options(subscription.topic_settings)
    if subscription.HasField("partitions"):
        declared["partitions"] = subscription.partitions
    if declared:
        options["topic_settings"] = declared
    return options


def filter_of(wanted: pb.DeadLetterFilter) -> DeadLetterFilter | None:
    """The dead letters that are meant; None if nothing is said of them. Raises `BadArgument`."""
    options = {name: given(wanted, name) for name in ("reason", "group", "partition", "start", "end", "key")}
    if options["reason"] is not None and len(options["reason"]) > REASON_CHARACTERS_MAX:
        raise BadArgument("reason", shown(options["reason"]), f"must have at most {REASON_CHARACTERS_MAX} characters")
    for name in ("since", "until"):
        time_us = given(wanted, f"{name}_us")
        options[name] = None if time_us is None else moment_of(f"{name}_us", time_us)
    headers = {one.name: given(one, "value") for one in wanted.headers}
    if len(headers) < len(wanted.headers):
        raise BadArgument("headers", f"<{len(wanted.headers)} headers>", "name each header once")
    chosen = {name: value for name, value in options.items() if value is not None}
    if headers:
        chosen["headers"] = headers
    return DeadLetterFilter(**chosen) if chosen else None


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
    return pb.TopicSettings(**_told(settings.to_json(), _TOPIC_SETTINGS))


def _told(settings: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: _number_of(settings[name], _WORDS[name]) if name in _WORDS else settings[name] for name in names}


def group_settings_of(settings: GroupSettings) -> pb.GroupSettings:
    """The settings of a group."""
    return pb.GroupSettings(**_told(settings.to_json(), _GROUP_SETTINGS))


def group_of(info: GroupInfo) -> pb.Group:
    """A group."""
    return pb.Group(topic=info.topic, name=info.name, settings=group_settings_of(info.settings))


def member_of(member: MemberInfo) -> pb.Member:
    """A member of a group."""
    return pb.Member(
        id=member.id, name=member.name, interface=member.interface, peer=member.peer, principal=member.principal,
        since_us=check_moment_us("since", member.since), heard_us=check_moment_us("last_heard", member.last_heard),
        in_flight=member.in_flight, buffered=member.buffered, bytes=member.bytes, prefetch=member.prefetch, paused=member.paused,
        partitions=member.partitions,
    )  # fmt: skip


def stats_of(stats: StoreStats, chosen: Iterable[str]) -> pb.GetStatsResponse:
    """The numbers of the topics named by *chosen*."""
    return pb.GetStatsResponse(
        topics={name: _topic_stats(stats.topics[name]) for name in chosen}, commits=stats.commits,
        failure=None if stats.failure is None else "the disk failed; the log of the server says how",
        is_full=stats.is_full, free_bytes=stats.free_bytes, free_bytes_floor=stats.free_bytes_floor, refused=stats.refused,
    )  # fmt: skip


def metrics_of(metrics: StoreMetrics, chosen: Iterable[str]) -> pb.GetMetricsResponse:
    """The metrics of the topics named by *chosen*; one that is gone meanwhile is left out."""
    topics = {
        name: pb.TopicMetrics(
            groups={
                group: pb.GroupMetrics(lag_s=found.lag_s, deliver_to_ack=_latency(found.deliver_to_ack))
                for group, found in metrics.topics[name].groups.items()
            },
            dead_letters=metrics.topics[name].dead_letters,
            dead_letter_age_s=metrics.topics[name].dead_letter_age_s,
            publish=_latency(metrics.topics[name].publish),
        )
        for name in chosen
        if name in metrics.topics
    }
    return pb.GetMetricsResponse(topics=topics, fsync=_latency(metrics.fsync), bounds_s=BOUNDS_S)


def _latency(latency: Latency | None) -> pb.Latency | None:
    return None if latency is None else pb.Latency(counts=latency.counts, sum_s=latency.sum_s)


def _topic_stats(topic: TopicStats) -> pb.TopicStats:
    return pb.TopicStats(
        starts=list(topic.starts.values()), ends=list(topic.ends.values()),
        groups={name: _group_stats(group) for name, group in topic.groups.items()},
        **{name: getattr(topic, name) for name in _TOPIC_NUMBERS},
    )  # fmt: skip


def _group_stats(group: GroupStats) -> pb.GroupStats:
    return pb.GroupStats(positions=list(group.positions.values()), **{name: getattr(group, name) for name in _GROUP_NUMBERS})
