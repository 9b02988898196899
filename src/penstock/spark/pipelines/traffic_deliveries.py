"""
How long messages waited for their groups, of the records that topics with `record_deliveries` keep (`groups/delivery_times.py`).

A record tells how many messages waited how long, in buckets, for one group and ten seconds. Buckets of the same number are added up, so the
percentiles of any window, and of all groups together, are those of all messages, to the width of a bucket. All of that is done by
Spark; the driver gets a row for each topic, window and group.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from penstock.groups.delivery_times import VERSION, bucket_bounds_us
from penstock.topics.catalog import DELIVERIES_SUFFIX

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
SCHEMA = "topic string, value binary, appended_at timestamp"
"""What is read of the records."""
_RECORD = (
    "version int, `group` string, window_start_us bigint, window_us bigint, redelivered bigint, max_us bigint, "
    "buckets array<array<bigint>>"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Deliveries:
    """What was handed out in one window: by one group, or by all of a topic. The waits are those of first deliveries."""

    delivered: int
    redelivered: int
    deliver_ms_p50: float | None
    deliver_ms_p95: float | None
    deliver_ms_p99: float | None
    deliver_ms_max: float | None


def counted(records: DataFrame, begin_us: int, end_us: int, settle_us: int, window_us: int) -> DataFrame:
    """
    Of *records* (`SCHEMA`) those of [begin, end), by topic, window `at` and group (`reader`); a null `reader` is all of them together.

    A record belongs to one such range for ever: to that which is *settle_us* behind when the record and its window are over. In it,
    it counts where its window begins; one that came too late for that, in the first window.
    """
    told = "greatest(unix_micros(appended_at), record.window_start_us + record.window_us)"
    refused = (
        "concat('a record of deliveries of topic ', topic, ' was written by another version of Penstock, and cannot be read')"
    )
    frame = (
        records.selectExpr(
            f"left(topic, length(topic) - {len(DELIVERIES_SUFFIX)}) as topic", "appended_at",
            f"from_json(cast(value as string), '{_RECORD}') as record",
        )
        .where(f"if(coalesce(record.version, 0) = {VERSION}, true, raise_error({refused}))")
        .where(f"{told} >= {begin_us + settle_us if begin_us else 0} and {told} < {end_us + settle_us}")
    )  # fmt: skip
    clamped = f"greatest(least(record.window_start_us, {end_us - 1}), {begin_us})"
    each = frame.selectExpr(
        "topic", f"{clamped} div {window_us} * {window_us} as at", "explode(array(record.`group`, null)) as reader", "record",
    ).selectExpr("*", "posexplode_outer(record.buckets) as (place, pair)").selectExpr(
        "topic", "at", "reader", "pair[0] as bucket", "coalesce(pair[1], 0) as messages", "record.max_us",
        "if(coalesce(place, 0) = 0, record.redelivered, 0) as redelivered",
    )  # fmt: skip
    together = each.groupBy("topic", "at", "reader", "bucket").agg(
        *_columns("sum(messages) as messages", "sum(redelivered) as redelivered", "max(max_us) as longest")
    )
    ranked = together.selectExpr(
        "*", "sum(messages) over (partition by topic, at, reader order by bucket) as seen",
        "sum(messages) over (partition by topic, at, reader) as total",
    )  # fmt: skip
    return ranked.groupBy("topic", "at", "reader").agg(
        *_columns(
            "sum(messages) as delivered", "sum(redelivered) as redelivered", "max(longest) as longest",
            *(f"min(if(seen >= {share} * total, bucket, null)) as {name}" for name, share in SHARES.items()),
        )
    )  # fmt: skip


def deliveries_of(row: Any) -> Deliveries:
    """A row of `counted`. What is told of a wait is the highest of its bucket, at most 3.2 % too high, and never more than the longest."""
    if not row.delivered:
        return Deliveries(0, row.redelivered, None, None, None, None)
    half, most, nearly_all = (min(bucket_bounds_us(row[name])[1] - 1, row.longest) / 1000 for name in SHARES)
    return Deliveries(row.delivered, row.redelivered, half, most, nearly_all, row.longest / 1000)


def _columns(*texts: str) -> list[Any]:
    from pyspark.sql.functions import expr

    return [expr(text) for text in texts]
