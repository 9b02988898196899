"""What a database consumer and a relay have in common."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from penstock.database.dialect import Source


class Helper:
    """Works with a connection of its own until it is stopped or closed."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Let `run` end after the batch that it is at. Any thread, or a signal handler, may call it."""
        self._stopping.set()

    def close(self) -> None:
        """Close the connection, if it was opened here. Closing twice does nothing."""
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
