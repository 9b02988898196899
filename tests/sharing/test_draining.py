"""The owner of a shared folder closes, or is stopped: who holds messages may finish them, and then another one owns the folder."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import penstock
from penstock.errors import LeaseExpired
from penstock.files import lock_owner
from tests.client.served import eventually, later
from tests.sharing.processes import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path


def test_an_owner_that_closes_lets_others_finish_what_they_hold(path: Path) -> None:
    owner = penstock.open(path, drain_ms=60_000)
    owner.publish_many("orders", [b"one", b"two"])
    with penstock.open(path, give_up=PATIENCE_S) as sibling:
        first, second = sibling.subscribe("orders", "workers").get_many(2, timeout=PATIENCE_S)
        closing = later(owner.close)
        waiting = later(lambda: sibling.publish("orders", b"three"))
        first.ack(wait=True)
        assert not closing.done()
        with second:
            pass
        closing.result(PATIENCE_S)
        assert waiting.result(PATIENCE_S).offset == 2, "by the next owner"
        group = sibling.stats().topics["orders"].groups["workers"]
        assert (group.lag, group.redelivered) == (1, 0)


def test_it_does_not_wait_for_ever(path: Path) -> None:
    owner = penstock.open(path, drain_ms=50)
    owner.publish("orders", b"one")
    with penstock.open(path, give_up=PATIENCE_S) as sibling:
        consumer = sibling.subscribe("orders", "workers")
        held = consumer.get(timeout=PATIENCE_S)
        assert held is not None
        later(owner.close).result(PATIENCE_S)
        again = consumer.get(timeout=PATIENCE_S)
        assert again is not None
        assert again.attempt == 1, "it is nobody's failure"
        try:
            held.ack(wait=True)
        except LeaseExpired:
            again.ack(wait=True)


def test_a_helper_that_is_stopped_lets_them_too(path: Path) -> None:
    with penstock.open(path, share="helper", drain_ms=60_000, give_up=PATIENCE_S) as store:
        store.publish("orders", b"one")
        message = store.subscribe("orders", "workers").get(timeout=PATIENCE_S)
        assert message is not None
        holder = lock_owner(str(path / "LOCK"))
        assert holder is not None
        os.kill(int(holder["pid"]), signal.SIGTERM)
        waiting = later(lambda: store.publish("orders", b"two"))
        message.ack(wait=True)
        assert waiting.result(PATIENCE_S).offset == 1
        group = store.stats().topics["orders"].groups["workers"]
        assert (group.lag, group.redelivered) == (1, 0)
        eventually(lambda: lock_owner(str(path / "LOCK")) != holder)
