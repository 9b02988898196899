"""The door by which other processes come to a store that this one owns. What it is, the layers above know."""

from __future__ import annotations

from typing import Any, Protocol


class Door(Protocol):
    """
    A way in.

    `open` is called when the store's lock is taken and nothing is recovered yet, `close` while it is still held: whatever the door leaves
    in the folder is its own at these moments, and nobody else's.
    """

    def open(self, folder: str) -> None:
        """Let others knock. Raises nothing: a store that nobody can come to is still a store."""
        ...

    def serve(self, store: Any) -> None:
        """The store is open: let in who knocks, whenever somebody is in `wait`."""
        ...

    def wait(self, seconds: float) -> bool:
        """Listen for who knocks, for so long at most; returns whether nobody is let in any more."""
        ...

    def leave(self) -> None:
        """Send everybody away in order, and let nobody in any more; ends `wait`. Leaving twice does nothing."""
        ...

    def close(self) -> None:
        """Take the door down, when nobody is in `wait`. Closing twice does nothing."""
        ...

    def forget(self) -> None:
        """In a forked child: the door is the parent's."""
        ...
