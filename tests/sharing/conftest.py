"""A folder that several processes open."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.sharing.processes import PATIENCE_S, end_helper

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A helper is waited for as long as a slow machine takes to start it."""
    monkeypatch.setattr("penstock.client.connection.CONNECT_SECONDS", PATIENCE_S)


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """Where the store is; no helper outlives the test."""
    chosen = tmp_path / "store"
    yield chosen
    end_helper(chosen)
