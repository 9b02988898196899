"""Workers whose group cannot give them messages for a moment."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from penstock.errors import StorageFull
from tests.groups.sim import SOON_S, in_thread

if TYPE_CHECKING:
    from penstock.store.store import Store


def test_a_worker_goes_on_after_taking_failed_once(memory: Store) -> None:
    memory.create_topic("t")
    memory.publish("t", b"x")
    handled = threading.Event()

    @memory.worker("t", group="g")
    def handle(_: object) -> None:
        handled.set()

    memory.subscribe("t", "g").close()
    group = memory._group("t", "g")
    take_now = group.take
    failed = threading.Event()

    def full_once(*args: Any) -> Any:
        if not failed.is_set():
            failed.set()
            raise StorageFull("/s", None, None)
        return take_now(*args)

    group.take = full_once  # type: ignore[assignment, method-assign]
    runner, _ = in_thread(memory.run)
    assert failed.wait(SOON_S)
    ok = handled.wait(SOON_S) or not runner.is_alive()
    memory.stop()
    runner.join(SOON_S)
    assert ok, "its thread is dead, and run() goes on as if nothing were"
