"""When the next checkpoint is due."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.clock import Clock
    from penstock.settings import StoreSettings


class CheckpointDue:
    """
    What was changed since the last checkpoint. Any thread may call it.

    Attributes:
        changed_since: when the first change was made, by the monotonic clock; None if there was none.
    """

    __slots__ = ("_bytes_before", "_clock", "_settings", "changed_since")

    def __init__(self, settings: StoreSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._bytes_before = 0
        self.changed_since: float | None = None

    def note_change(self) -> None:
        """There is a change now. Who calls it often looks at `changed_since` first."""
        self.changed_since = self._clock.monotonic()

    def begin(self, journal_bytes: int) -> None:
        """A checkpoint begins, when *journal_bytes* were written."""
        self.changed_since = None
        self._bytes_before = journal_bytes

    def hasten(self) -> None:
        """The journal has no room for its next file: checkpoints free its old ones, two for each file."""
        self.changed_since = float("-inf")

    def is_due(self, journal_bytes: int) -> bool:
        """Whether enough was written, or long enough ago."""
        if journal_bytes - self._bytes_before >= self._settings.checkpoint_bytes:
            return True
        changed = self.changed_since
        return changed is not None and (self._clock.monotonic() - changed) * 1000 >= self._settings.checkpoint_interval_ms
