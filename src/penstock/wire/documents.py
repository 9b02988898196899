"""What stores tell about themselves, as JSON objects and back."""

from __future__ import annotations

import datetime as dt
from dataclasses import asdict, fields
from typing import Any

from penstock.arguments import check_moment_us, shown
from penstock.errors import BadArgument, BadBytes, UsageError
from penstock.settings import GroupSettings, TopicSettings
from penstock.store.metrics import BOUNDS_S, GroupMetrics, Latency, StoreMetrics, TopicMetrics
from penstock.store.reading import TopicPositions
from penstock.store.stats import GroupStats, MemberInfo, StoreStats, TopicStats
from penstock.store.store import GroupInfo, TopicInfo
from penstock.values import SyncMode

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def encode_place(name: str, where: object) -> Any:
    """A place in a log: "earliest", "latest", an offset, or a datetime as ``{"time_us": n}``. Raises `BadArgument`."""
    if isinstance(where, dt.datetime):
        return {"time_us": check_moment_us(name, where)}
    if isinstance(where, bool) or not isinstance(where, (str, int)):
        raise BadArgument(name, shown(where), 'use "earliest", "latest", an offset or a datetime')
    return where


def decode_place(name: str, where: Any) -> Any:
    """What the store takes. Raises `BadArgument`."""
    if isinstance(where, dict):
        time_us = where.get("time_us")
        if isinstance(time_us, bool) or not isinstance(time_us, int):
            raise BadArgument(name, shown(where), "time_us must be a whole number of microseconds")
        try:
            return EPOCH + dt.timedelta(microseconds=time_us)
        except OverflowError:
            raise BadArgument(name, shown(where), "time_us is out of range") from None
    return where


def encode_settings(settings: TopicSettings | GroupSettings) -> dict[str, Any]:
    """The settings by name."""
    return {name: value.value if isinstance(value, SyncMode) else value for name, value in asdict(settings).items()}


def _known(kind: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Those that this version knows: a newer server may have more."""
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in values.items() if name in names}


def encode_topic(info: TopicInfo) -> dict[str, Any]:
    """A topic."""
    return {
        "name": info.name, "topic_id": info.topic_id.hex(), "partitions": info.partitions, "settings": encode_settings(info.settings)
    }  # fmt: skip


def decode_topic(document: dict[str, Any]) -> TopicInfo:
    """The same back. Raises `BadBytes`."""
    try:
        settings = decode_topic_settings(document["settings"])
        return TopicInfo(str(document["name"]), bytes.fromhex(document["topic_id"]), int(document["partitions"]), settings)
    except (KeyError, TypeError, ValueError, AttributeError, UsageError) as error:
        raise BadBytes("answer", f"describes no topic: {error}") from None


def decode_topic_settings(values: Any) -> TopicSettings:
    """The settings of a topic. Raises `BadBytes`."""
    try:
        known = _known(TopicSettings, values)
        return TopicSettings(**{**known, "sync": SyncMode(known["sync"])})
    except (KeyError, TypeError, ValueError, AttributeError, UsageError) as error:
        raise BadBytes("answer", f"has no settings of a topic: {error}") from None


def decode_group_settings(values: Any) -> GroupSettings | None:
    """The settings of a group; None if they are not told, or not understood."""
    try:
        return None if values is None else GroupSettings(**_known(GroupSettings, values))
    except (TypeError, ValueError, AttributeError, UsageError):
        return None


def encode_member(member: MemberInfo) -> dict[str, Any]:
    """A member of a group."""
    times = {"since": member.since, "last_heard": member.last_heard}
    return {**asdict(member), **{name: check_moment_us(name, time) for name, time in times.items()}}


def decode_member(document: dict[str, Any]) -> MemberInfo:
    """The same back. Raises `BadBytes`."""
    try:
        known = _known(MemberInfo, document)
        times = {name: EPOCH + dt.timedelta(microseconds=int(known[name])) for name in ("since", "last_heard")}
        return MemberInfo(**{**known, **times})
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise BadBytes("answer", f"describes no member: {error}") from None


def encode_positions(positions: TopicPositions) -> dict[str, Any]:
    """How far a topic reaches."""
    return {
        "topic_id": positions.topic_id.hex(), "log_epoch": positions.log_epoch,
        "starts": list(positions.starts.values()), "ends": list(positions.ends.values()),
    }  # fmt: skip


def decode_positions(document: dict[str, Any]) -> TopicPositions:
    """The same back. Raises `BadBytes`."""
    try:
        starts, ends = ([int(one) for one in document[name]] for name in ("starts", "ends"))
        return TopicPositions(
            bytes.fromhex(document["topic_id"]), int(document["log_epoch"]), dict(enumerate(starts)), dict(enumerate(ends))
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadBytes("answer", f"has no positions of a topic: {error}") from None


def encode_group(info: GroupInfo) -> dict[str, Any]:
    """A group."""
    return {"topic": info.topic, "name": info.name, "settings": encode_settings(info.settings)}


def decode_group(document: dict[str, Any]) -> GroupInfo:
    """The same back. Raises `BadBytes`."""
    try:
        return GroupInfo(
            str(document["topic"]),
            str(document["name"]),
            GroupSettings(**_known(GroupSettings, document["settings"])),
        )
    except (KeyError, TypeError, ValueError, AttributeError, UsageError) as error:
        raise BadBytes("answer", f"describes no group: {error}") from None


def encode_stats(stats: StoreStats) -> dict[str, Any]:
    """The numbers of a store."""
    return asdict(stats)


def decode_stats(document: dict[str, Any]) -> StoreStats:
    """The same back; JSON has made text of the partitions' numbers. Raises `BadBytes`."""
    try:
        topics = {}
        for name, topic in document["topics"].items():
            values = _known(TopicStats, topic)
            values["starts"], values["ends"] = _numbered(values["starts"]), _numbered(values["ends"])
            values["groups"] = {
                group: GroupStats(**{**_known(GroupStats, one), "positions": _numbered(one["positions"])})
                for group, one in topic["groups"].items()
            }
            topics[name] = TopicStats(**values)
        return StoreStats(**{**_known(StoreStats, document), "topics": topics})
    except (KeyError, TypeError, ValueError, AttributeError, UsageError) as error:
        raise BadBytes("answer", f"has no numbers of a store: {error}") from None


def encode_metrics(metrics: StoreMetrics) -> dict[str, Any]:
    """The metrics of a store: what is not in its numbers stands beside them."""
    topics = {
        name: {
            "groups": {
                group: {"lag_s": one.lag_s, "deliver_to_ack": _encode_latency(one.deliver_to_ack)}
                for group, one in topic.groups.items()
            },
            "dead_letters": topic.dead_letters,
            "dead_letter_age_s": topic.dead_letter_age_s,
            "publish": _encode_latency(topic.publish),
        }
        for name, topic in metrics.topics.items()
    }
    return {"stats": encode_stats(metrics.stats), "topics": topics, "fsync": _encode_latency(metrics.fsync)}


def _encode_latency(latency: Latency | None) -> dict[str, Any] | None:
    return None if latency is None else asdict(latency)


def decode_metrics(document: dict[str, Any]) -> StoreMetrics:
    """The same back. Raises `BadBytes`."""
    try:
        stats = decode_stats(document["stats"])
        topics = {}
        for name, topic in document["topics"].items():
            numbers = stats.topics[name]
            groups = {
                group: GroupMetrics(numbers.groups[group], float(one["lag_s"]), _latency(one["deliver_to_ack"]))
                for group, one in topic["groups"].items()
            }
            count, age_s = int(topic["dead_letters"]), float(topic["dead_letter_age_s"])
            topics[name] = TopicMetrics(numbers, groups, count, age_s, _latency(topic["publish"]))
        return StoreMetrics(stats, topics, _latency(document["fsync"]))
    except (KeyError, TypeError, ValueError, AttributeError, UsageError) as error:
        raise BadBytes("answer", f"has no metrics of a store: {error}") from None


def _latency(document: dict[str, Any] | None) -> Latency | None:
    if document is None:
        return None
    counts = tuple(int(count) for count in document["counts"])
    if len(counts) != len(BOUNDS_S) + 1:
        raise ValueError(f"a latency with {len(counts)} buckets")
    return Latency(counts, float(document["sum_s"]))


def _numbered(values: dict[str, int]) -> dict[int, int]:
    return {int(partition): value for partition, value in values.items()}
