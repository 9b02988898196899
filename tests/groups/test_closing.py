"""Whether a store was closed in order, and what it takes for that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.store.store import Store
from tests.groups.sim import Sim

if TYPE_CHECKING:
    from pathlib import Path


def test_a_store_whose_closing_was_interrupted_can_be_closed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    store = Store.open(tmp_path / "s", background=False)
    store.publish("t", b"1")
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(store._housekeeper, "join", interrupt)
        store.close()
    store.close()
    with Store.open(tmp_path / "s", background=False) as again:
        assert again._volume.was_closed_in_order


def test_a_new_store_has_no_crash_behind_it() -> None:
    """`was_closed_in_order`: whether the last owner closed the store, or there was none; else each first lease costs a sync."""
    assert Sim().store._volume.was_closed_in_order
