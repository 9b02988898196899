"""The metrics as JSON: what `/v1/metrics` tells, of what somebody may read."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from penstock.groups.dead_letters import SUFFIX
from penstock.store.metrics import BOUNDS_S

if TYPE_CHECKING:
    from penstock.server.auth import Principal
    from penstock.store.metrics import Latency, StoreMetrics, TopicMetrics

TOPIC_BYTES = 1_024
"""About what a topic takes in JSON."""


def metrics_fields(found: StoreMetrics, principal: Principal) -> dict[str, Any]:
    """The topics that *principal* may read, and the store if it may read all; dead letters have rights of their own."""
    fields: dict[str, Any] = {
        "bounds_s": BOUNDS_S,
        "topics": {
            name: _topic_fields(topic, dead_letters=principal.may("read", name + SUFFIX))
            for name, topic in found.topics.items()
            if principal.may("read", name)
        },
    }
    if principal.may("read", None):
        stats = found.stats
        fields["store"] = {
            "commits": stats.commits,
            "failed": stats.failure is not None,
            "is_full": stats.is_full,
            "free_bytes": stats.free_bytes,
            "free_bytes_floor": stats.free_bytes_floor,
            "refused": stats.refused,
            "topics_left_out": len(stats.topics) - len(found.topics),
            "fsync": _latency_fields(found.fsync),
        }
        if principal.may("admin", None):
            # Both name files of the server.
            fields["store"] |= {"path": stats.path, "failure": stats.failure}
    return fields


def _topic_fields(topic: TopicMetrics, *, dead_letters: bool) -> dict[str, Any]:
    groups = {
        name: asdict(group.stats) | {"lag_s": max(0.0, group.lag_s), "deliver_to_ack": _latency_fields(group.deliver_to_ack)}
        for name, group in topic.groups.items()
    }
    fields = asdict(topic.stats) | {"groups": groups, "publish": _latency_fields(topic.publish)}
    if dead_letters:
        fields |= {"dead_letters": topic.dead_letters, "dead_letter_age_s": topic.dead_letter_age_s}
    return fields


def _latency_fields(latency: Latency | None) -> dict[str, Any] | None:
    return None if latency is None else {"counts": latency.counts, "sum_s": latency.sum_s}
