"""A folder that several processes open."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.sharing.processes import end_helper

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """Where the store is; no helper outlives the test."""
    chosen = tmp_path / "store"
    yield chosen
    end_helper(chosen)
