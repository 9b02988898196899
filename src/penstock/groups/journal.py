"""Where a group's operations go, and who is told of suspects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.groups.cursor import Cursor
    from penstock.groups.deadlines import Looked
    from penstock.groups.hands import Hand

Suspect = tuple[int, int, int]
"""(group id, partition, offset)"""


class Journal(Protocol):
    """What a group needs of the registry (`registry.Groups`)."""

    def note(self, operation: bytes) -> None:
        """Buffer an operation that is made already."""
        ...

    def note_finished(self, cursor: Cursor, group_id: int, offsets: Sequence[int]) -> None:
        """Buffer that *offsets* are finished."""
        ...

    def flush(self) -> None:
        """Return when all that was noted so far is durable."""
        ...

    def claim_suspect(self, suspect: Suspect) -> bool:
        """Whether *suspect* may be handed out: no other one is with anybody in this process."""
        ...

    def release_suspect(self, suspect: Suspect) -> None:
        """It is not with anybody any more."""
        ...

    def release_suspects(self, group_id: int, partition: int, end: int) -> None:
        """Those of a partition below *end* are not with anybody any more."""
        ...

    def has_suspect(self, group_id: int, partition: int) -> bool:
        """Whether one of that partition is with somebody."""
        ...

    def claim_hand(self, group_id: int, member: int, concurrency: int) -> Hand:
        """Where the next owner finds what a new member has in its hands, if this process dies."""
        ...

    def release_hand(self, hand: Hand) -> None:
        """The member has left, and holds nothing."""
        ...

    def look_at(self, moment: float, group: Looked) -> None:
        """Call the *group*'s `look` at that *moment* of the monotonic clock."""
        ...

    def soon(self, errand: Callable[[], None]) -> None:
        """Run *errand* soon, in a thread that no commit waits for."""
        ...

    def wake(self) -> None:
        """Something was noted: it is to be durable soon."""
        ...
