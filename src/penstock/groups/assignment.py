"""Which member of an ordered group gets which partition: even, and moving as little as possible."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def assign(partitions: int, members: Sequence[int], current: dict[int, int]) -> dict[int, int]:
    """
    Give each partition to a member: no member has two more than another, and as many as can be stay where they are.

    *current* is partition -> member as it was; members that are not in *members* any more lose theirs. The result depends on nothing else.
    """
    if not members:
        return {}
    least, extra = divmod(partitions, len(members))
    kept: dict[int, list[int]] = {member: [] for member in members}
    free: list[int] = []
    for partition in range(partitions):
        member = current.get(partition)
        if member is not None and member in kept:
            kept[member].append(partition)
        else:
            free.append(partition)
    # The members that hold most may keep one more than the others, as many of them as the remainder allows.
    richest = sorted(kept, key=lambda member: -len(kept[member]))
    quota = {member: least + (1 if rank < extra else 0) for rank, member in enumerate(richest)}
    for member in richest:
        free += kept[member][quota[member] :]
        del kept[member][quota[member] :]
    free.sort()
    for member in members:
        missing = quota[member] - len(kept[member])
        kept[member] += free[:missing]
        del free[:missing]
    return {partition: member for member, own in kept.items() for partition in own}
