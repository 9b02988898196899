"""A snapshot and what is replayed behind it give the same as replaying everything: checkpoints change nothing that a crash leaves."""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import LeaseExpired
from tests.groups.sim import Sim, numbered

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock import Consumer, Delivery
    from penstock.groups.group import Group

NAMES = ("shared", "ordered")


def _state(group: Group, now: float) -> list[dict[str, Any]]:
    """All that a group brings back, by partition."""
    return [
        {
            "generation": cursor.generation,
            "scan": cursor.scan,
            "open": set(cursor.open),
            "ready": set(cursor.ready),
            "suspects": set(cursor.suspects),
            "failures": dict(cursor.failures.items()),
            "due": {offset: due - now for due, waiting in cursor.schedule.by_time() for offset in waiting},
        }
        for cursor in group.cursors
    ]


def _assert_same(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    for left, right in zip(one, other, strict=True):
        due, also = left.pop("due"), right.pop("due")
        assert left == right
        assert due.keys() == also.keys()
        for offset, seconds in due.items():
            # Snapshots round up to tenths of a second, and the schedule to a thirty-second part.
            assert abs(seconds - also[offset]) <= 0.1 + max(seconds, also[offset]) / 16


class _History:
    """The same steps whenever it is given the same seed; *checkpoints* are the steps before which one is taken."""

    def __init__(self, seed: int, checkpoints: Iterable[int]) -> None:
        self.rng = random.Random(seed)
        self.checkpoints = set(checkpoints)
        self.sim = Sim()
        self.sim.store.create_topic("t", partitions=2)
        self.sim.restart()
        self.consumers: dict[str, list[Consumer]] = {name: [] for name in NAMES}
        self.held: list[Delivery] = []
        for name in NAMES:
            self._subscribe(name)

    def run(self, steps: int) -> None:
        for step in range(steps):
            if step in self.checkpoints:
                self.sim.checkpoint()
            self._step()

    def _subscribe(self, name: str) -> None:
        self.consumers[name].append(
            self.sim.store.subscribe(
                "t", name, ordered=name == "ordered", prefetch=self.rng.choice([2, 5]), lease=30, max_deliveries=4,
                concurrency=self.rng.choice([1, 2]),
            )
        )  # fmt: skip

    def _step(self) -> None:
        rng, store = self.rng, self.sim.store
        kind = rng.choices(
            ["publish", "get", "ack", "nack", "close", "subscribe", "commit", "seek", "advance", "flush", "extend", "die"],
            [10, 20, 12, 10, 2, 4, 1, 1, 4, 3, 3, 1],
        )[0]
        name = rng.choice(NAMES)
        own = self.consumers[name]
        self.held = [one for one in self.held if one._lot.member.holds(one)]
        delivery = self.held.pop(rng.randrange(len(self.held))) if kind in {"ack", "nack", "extend"} and self.held else None
        if kind == "publish":
            store.publish_many("t", numbered(rng.randint(1, 4)), partition=rng.randrange(2))
        elif kind == "subscribe" or not own:
            if len(own) < 3:
                self._subscribe(name)
        elif kind == "get":
            self.held += rng.choice(own).get_many(rng.randint(1, 3), timeout=0)
        elif delivery is not None:
            with contextlib.suppress(LeaseExpired):
                self._finish(delivery, kind)
        elif kind == "close":
            own.pop(rng.randrange(len(own))).close()
        elif kind == "commit":
            partition = rng.randrange(2)
            own[0].commit(rng.randint(0, store.ends("t")[partition]), partition)
        elif kind == "seek":
            store.seek("t", name, "earliest", partition=rng.choice([None, 0, 1]))
        elif kind == "advance":
            self.sim.clock.advance(rng.choice([1, 5, 31]))
        elif kind == "flush":
            store.flush()
        elif kind == "die":
            store.flush()
            self.sim.kill()
            self.consumers = {one: [] for one in NAMES}
            self.held = []

    def _finish(self, delivery: Delivery, kind: str) -> None:
        if kind == "ack":
            delivery.ack()
        elif kind == "nack":
            delivery.nack(delay=self.rng.choice([0, 0, 20]), reason=self.rng.choice(["", "why"]))
        else:
            delivery.extend(self.rng.choice([None, 100]))
            self.held.append(delivery)

    def left_by_a_crash(self) -> list[list[dict[str, Any]]]:
        self.sim.store.flush()
        self.sim.kill()
        return [_state(self.sim.group("t", name), self.sim.clock.monotonic()) for name in NAMES]


@pytest.mark.parametrize("where", ["often", "once", "last"])
def test_checkpoints_change_nothing_that_a_crash_leaves(where: str, rng: random.Random) -> None:
    """Neither many, nor one in the middle with half of what came before it still to be written, nor one after all is written."""
    steps = 60
    for _ in range(50):
        seed = rng.randrange(1 << 32)
        plain = _History(seed, ())
        # Dying in the middle would be another history: blame depends on what was durable, and flushing makes that the same.
        chosen = {"often": range(0, steps, 3), "once": [rng.randrange(steps)], "last": []}[where]
        other = _History(seed, chosen)
        for history in (plain, other):
            history.run(steps)
        if where == "last":
            other.sim.store.flush()
            other.sim.checkpoint()
        for one, two in zip(plain.left_by_a_crash(), other.left_by_a_crash(), strict=True):
            try:
                _assert_same(one, two)
            except AssertionError as error:
                error.add_note(f"seed {seed}, checkpoints {chosen}")
                raise


def test_a_snapshot_of_a_snapshot_is_the_same(rng: random.Random) -> None:
    """Opening takes a checkpoint: opening and dying, again and again, changes nothing and blames nobody twice."""
    for _ in range(30):
        history = _History(rng.randrange(1 << 32), ())
        history.run(60)
        states = [history.left_by_a_crash()]
        for _ in range(3):
            history.sim.kill()
            states.append([_state(history.sim.group("t", name), history.sim.clock.monotonic()) for name in NAMES])
        for state in states[1:]:
            for one, two in zip(states[0], state, strict=True):
                _assert_same([dict(part) for part in one], two)


def test_an_orderly_restart_keeps_all_and_blames_nobody(rng: random.Random) -> None:
    """What consumers held is ready again; counts and suspects stay as they are."""
    for _ in range(50):
        history = _History(rng.randrange(1 << 32), ())
        history.run(60)
        before = [_state(history.sim.group("t", name), history.sim.clock.monotonic()) for name in NAMES]
        history.sim.restart()
        for name, old in zip(NAMES, before, strict=True):
            new = _state(history.sim.group("t", name), history.sim.clock.monotonic())
            for left, right in zip(old, new, strict=True):
                assert (left["failures"], left["suspects"], left["open"]) == (
                    right["failures"],
                    right["suspects"],
                    right["open"],
                )
                assert right["ready"] == right["open"] - right["due"].keys()
                assert {offset for offset, seconds in left["due"].items() if seconds > 0} == right["due"].keys()
