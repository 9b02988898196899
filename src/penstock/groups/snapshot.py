"""A group as operations that make it anew; the group's lock is held meanwhile."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from penstock.groups import operations as ops
from penstock.offset_set import OffsetSet

if TYPE_CHECKING:
    from penstock.groups.cursor import Cursor
    from penstock.groups.member import Member


def cursor_operations(group_id: int, cursor: Cursor, now: float, now_us: int) -> list[bytes]:
    """The operations that give a cursor its state."""
    head = (cursor.partition, group_id, cursor.generation)
    parts = []
    if cursor.generation:
        parts.append(ops.encode_offset(ops.SOUGHT, *head, cursor.scan))
    parts.append(ops.encode_position(*head, cursor.scan, cursor.open))
    if cursor.suspects:
        parts.append(ops.encode_bitmap(ops.SUSPECTS, *head, cursor.suspects))
    if cursor.failures:
        failures, schedule = cursor.failures, cursor.schedule
        by_due = {0: failures.offsets - schedule.offsets}
        for due, waiting in schedule.by_time():
            due_us = now_us + math.ceil((due - now) * 1e6)
            # Later rather than earlier, so that those that are due at about the same time are stored together.
            rounded_us = -(-due_us // 100_000) * 100_000 if due_us > now_us else 0
            by_due[rounded_us] = by_due.get(rounded_us, OffsetSet()) | (waiting & failures.offsets)
        for due_us, offsets in by_due.items():
            for failure, alike in failures.alike(offsets).items():
                failed = ops.Failed(
                    0, due_us, failure.first_s, failure.last_s, failure.count, failure.reason, failure.condemned
                )
                parts.append(ops.encode_failed_all(*head, failed, alike))
    return parts


def member_operations(group_id: int, member: Member) -> list[bytes]:
    """The operations that say what a member holds."""
    # In the order in which they were leased: that tells which are the oldest, if the process dies.
    deliveries = sorted(
        [*member.handed.values(), *member.extended.values(), *member.waiting.values()],
        key=lambda one: (one._lot.number, one._index),  # noqa: SLF001
    )
    held: list[tuple[Cursor, int]] = [
        (delivery._lot.cursor, delivery.offset)  # noqa: SLF001
        for delivery in deliveries
        if delivery._lot.epoch == delivery._lot.cursor.epoch  # noqa: SLF001
    ]
    begun = [(cursor, offset) for cursor, offset in held if offset in cursor.suspects]
    for lot in member.lots:
        if lot.epoch == lot.cursor.epoch:
            held += [(lot.cursor, lot.offset(at)) for at in range(lot.index, lot.stop)]
    parts: list[bytes] = []
    at = 0
    while at < len(held):
        cursor = held[at][0]
        end = at
        while end < len(held) and held[end][0] is cursor:
            end += 1
        ranges = ops.ranges_of([offset for _, offset in held[at:end]])
        parts.append(
            ops.encode_ranges(
                ops.LEASED, cursor.partition, group_id, cursor.generation, member.identity, member.concurrency, ranges
            )
        )
        at = end
    parts += [
        ops.encode_begun(cursor.partition, group_id, cursor.generation, member.identity, offset) for cursor, offset in begun
    ]
    return parts
