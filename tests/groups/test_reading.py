"""Reading a log while its segments change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.log.segment import Segment
from penstock.testing import SimulatedFileSystem
from tests.groups.sim import open_store

if TYPE_CHECKING:
    import pytest


def test_a_segment_that_is_sealed_while_it_is_read_is_not_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader has the first bytes of a batch from the file; before it asks for the rest, the file may be mapped."""
    store = open_store(SimulatedFileSystem())
    store.publish_many("t", [b"x" * 100] * 50)
    store.publish_many("t", [b"y" * 100] * 50)
    chunk = Segment._chunk
    asked: list[int] = []

    def sealed_in_between(segment: Segment, start: int, stop: int) -> tuple[memoryview, int]:
        asked.append(start)
        return chunk(segment, start, stop)

    monkeypatch.setattr(Segment, "_chunk", sealed_in_between)
    monkeypatch.setattr(Segment, "view", lambda segment: segment.open_file().map() if len(asked) > 1 else None)
    (batch,) = store._catalog.get("t").logs[0].read(70, 1)
    assert len(asked) == 2
    assert batch.first_offset == 50
