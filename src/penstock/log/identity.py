"""The identity of a log."""

from __future__ import annotations

from typing import NamedTuple


class LogIdentity(NamedTuple):
    """Which log of which store this is."""

    store_id: bytes
    topic_id: bytes
    topic: str
    partition: int
    log_id: int
