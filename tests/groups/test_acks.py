"""Acks: which messages they finish, and when they are durable."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from penstock.errors import Unavailable
from tests.groups.sim import SOON_S, one

if TYPE_CHECKING:
    import pytest

    from penstock.store.store import Store


def test_acks_become_durable_by_themselves_after_a_process_had_no_descriptors(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.publish("t", b"")
    refused, done = threading.Event(), threading.Event()
    commit_pending = store._volume.commit_pending

    def refuse_once() -> Any:
        if not refused.is_set():
            done.clear()  # here, and not by who waits for it: the thread may try again before that one is on its feet
            refused.set()
            raise Unavailable("as many files open as it may")
        return commit_pending()

    monkeypatch.setattr(store._volume, "commit_pending", refuse_once)
    take_pending = store._groups.take_pending

    def taken(bytes_max: int) -> bytes:
        done.set()
        return take_pending(bytes_max)

    monkeypatch.setattr(store._groups, "take_pending", taken)
    one(store.subscribe("t", "g")).ack()
    assert refused.wait(SOON_S)
    assert done.wait(SOON_S)
