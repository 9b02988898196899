"""Compaction of many messages of few keys equals a simple reference, while others write and read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks import compaction

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.long
def test_200_thousand_messages_are_compacted_to_the_reference_beside_readers_and_writers(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    compaction.fill(path, 200_000, 5_000, segment_bytes=1 << 20)
    result = compaction.compact(path)
    left = compaction.check(path, 200_000, 5_000)
    assert result["removed"]["messages"] == 200_000 - left
    assert left < 25_000
    assert result["writes_per_s"] > 0
    assert result["reads_per_s"] > 0
    assert result["own_more_mb"] < 50
    assert result["rss_more_mb"] < 120
