"""Nothing that cannot be undone rests on one look at the wall clock; and a clock far from today breaks nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from penstock.clock import OPENING_SECONDS, WatchedClock, settled_us
from penstock.store.store import Store
from penstock.testing import FakeClock, SimulatedFileSystem
from tests.groups.sim import PATH, SETTINGS, Sim, numbered, take

if TYPE_CHECKING:
    import random

DAY_S = 86_400.0
GRACE_S = 3_600.0


def fill(sim: Sim, count: int = 60) -> None:
    """Segments that retention could take, if they were old enough: they are behind two checkpoints."""
    for number in range(count):
        sim.store.publish("t", b"%d" % number * 20)
    for _ in range(2):
        sim.store.publish("other", b"x")
        sim.checkpoint()


def there(sim: Sim) -> int:
    return sum(1 for _ in sim.store.read("t"))


# -- a second of a wrong clock ------------------------------------------------------------------------------------------


def test_a_second_of_a_clock_that_is_days_ahead_removes_no_message() -> None:
    sim = Sim()
    sim.store.create_topic("t", segment_bytes=1_000, retention_age=7 * DAY_S)
    fill(sim)
    sim.store.retain()
    sim.clock.jump_wall(8 * DAY_S)
    assert sim.store.retain().segments == 0
    sim.clock.advance(1.0)
    assert sim.store.retain().segments == 0
    assert sim.store.vacuum("t").messages == 0
    sim.clock.jump_wall(-8 * DAY_S)
    assert sim.store.retain().segments == 0
    assert there(sim) == 60
    sim.clock.advance(8 * DAY_S)
    assert sim.store.retain().segments > 0


def test_it_expires_no_dead_letter() -> None:
    sim = Sim()
    sim.store.create_topic("t")
    sim.store.publish_many("t", numbered(5))
    for message in take(sim.store.subscribe("t", "g")):
        message.reject("no good")
    sim.clock.jump_wall(31 * DAY_S)
    sim.store.retain()
    assert len(sim.store.dead_letters("t")) == 5
    sim.clock.advance(GRACE_S)
    sim.store.retain()
    assert len(sim.store.dead_letters("t")) == 0


def test_it_takes_nothing_from_a_group_that_has_no_consumer_now() -> None:
    sim = Sim()
    sim.store.create_topic("t", segment_bytes=1_000, retention_age=1.0, group_expiry=30 * DAY_S)
    sim.store.subscribe("t", "idle").close()
    fill(sim)
    sim.clock.jump_wall(40 * DAY_S)
    assert sim.store.retain().segments == 0
    sim.clock.advance(1.0)
    sim.clock.jump_wall(-40 * DAY_S)
    sim.clock.advance(60.0)
    assert sim.store.retain().segments == 0
    assert sim.store.stats().topics["t"].groups["idle"].lag == 60


def test_it_removes_no_stage_and_forgets_no_producer() -> None:
    sim = Sim()
    sim.store.create_topic("t")
    stage = sim.store.stage("loader")
    stage.publish("t", b"staged")
    stage.finish()
    first = sim.store.producer("t", name="one")
    first.send(b"x")
    first.flush()
    sim.store.commit("others", 1, [])
    sim.clock.jump_wall(400 * DAY_S)
    sim.store._staging.remove_expired()
    for _ in range(2):
        sim.checkpoint()
        sim.store.publish("t", b"y")
    sim.lose_power()
    sim.clock.jump_wall(-400 * DAY_S)
    assert sim.store.commit("loader", 1, [stage.identity]).messages == 1
    identity = sim.store.producer("t", name="one")._outlet.identity(0)
    assert identity is not None
    assert identity.incarnation == 1


# -- a new time that stays ----------------------------------------------------------------------------------------------


def test_a_jump_that_stays_is_believed_after_the_grace() -> None:
    sim = Sim()
    sim.store.create_topic("t", segment_bytes=1_000, retention_age=7 * DAY_S)
    fill(sim)
    sim.clock.jump_wall(8 * DAY_S)
    sim.store.retain()
    sim.clock.advance(GRACE_S - 10)
    assert sim.store.retain().segments == 0
    sim.clock.advance(10)
    assert sim.store.retain().segments > 0


def test_each_jump_begins_the_grace_anew() -> None:
    clock = FakeClock()
    watched = WatchedClock(clock, GRACE_S)
    before = watched.settled_us()
    for _ in range(10):
        clock.jump_wall(DAY_S)
        watched.settled_us()
        clock.advance(GRACE_S / 2)
    assert watched.settled_us() == before + round(10 * GRACE_S / 2 * 1e6)
    clock.advance(GRACE_S / 2)
    assert watched.settled_us() == clock.now_us()


def test_retention_goes_on_by_the_time_before_the_jump() -> None:
    """It is not stopped: what is old by both times goes."""
    sim = Sim()
    sim.store.create_topic("t", segment_bytes=1_000, retention_age=600.0)
    fill(sim)
    sim.clock.jump_wall(8 * DAY_S)
    assert sim.store.retain().segments == 0
    sim.clock.advance(700.0)
    assert sim.store.retain().segments > 0


def test_after_a_jump_back_nothing_goes_that_is_young_by_the_new_time() -> None:
    sim = Sim()
    sim.store.create_topic("t", segment_bytes=1_000, retention_age=600.0)
    fill(sim)
    sim.clock.jump_wall(-DAY_S)
    sim.clock.advance(1_000.0)
    assert sim.store.retain().segments == 0


def test_without_a_grace_the_clock_is_believed_at_once() -> None:
    sim = Sim(replace(SETTINGS, clock_jump_grace_ms=0))
    sim.store.create_topic("t", segment_bytes=1_000, retention_age=7 * DAY_S)
    fill(sim)
    sim.clock.jump_wall(8 * DAY_S)
    assert sim.store.retain().segments > 0


def closed_for_long() -> Sim:
    """A store that is opened again when all that it holds is too old."""
    sim = Sim()
    sim.store.create_topic("t", segment_bytes=1_000, retention_age=7 * DAY_S)
    fill(sim)
    sim.store.close()
    sim.clock.advance(30 * DAY_S)
    sim.store = sim._open()
    return sim


def test_a_store_that_was_closed_for_long_removes_nothing_by_itself_in_its_first_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """That the clock is far ahead of all that it holds may be true, or a machine that does not know the time yet."""
    sim = closed_for_long()
    sim.store._retain_all()
    sim.clock.advance(OPENING_SECONDS / 2)
    sim.store._retain_all()
    assert there(sim) == 60
    sim.clock.advance(OPENING_SECONDS / 2)
    sim.store._retain_all()
    assert there(sim) < 60
    assert not caplog.records, "to be closed for a while is no jump of the clock"


def test_a_clock_that_is_set_right_in_the_first_minute_has_removed_nothing() -> None:
    sim = Sim()
    sim.store.create_topic("t", segment_bytes=1_000, retention_age=7 * DAY_S)
    fill(sim)
    sim.store.close()
    sim.clock.jump_wall(8 * DAY_S)
    sim.store = sim._open()
    sim.store._retain_all()
    sim.clock.advance(10.0)
    sim.clock.jump_wall(-8 * DAY_S)
    sim.store._retain_all()
    sim.clock.advance(DAY_S)
    sim.store._retain_all()
    assert there(sim) == 60


def test_what_is_ordered_is_done_at_once_also_after_a_long_time() -> None:
    """As `penstock topics retain` does, which opens a store, and closes it again."""
    assert closed_for_long().store.retain().segments > 0


def test_a_dedup_key_is_forgotten_after_its_window_also_where_the_store_was_closed_meanwhile() -> None:
    sim = Sim()
    sim.store.create_topic("t", dedup_window=120)
    sim.store.publish("t", b"of today", dedup_key="daily")
    sim.store.close()
    sim.clock.advance(DAY_S)
    sim.store = sim._open()
    assert not sim.store.publish("t", b"of tomorrow", dedup_key="daily").duplicate


def test_a_slow_or_fast_wall_clock_is_no_jump(rng: random.Random) -> None:
    """As NTP sets it right, by half a thousandth."""
    clock = FakeClock()
    watched = WatchedClock(clock, GRACE_S)
    for _ in range(500):
        seconds = rng.choice([0.01, 1.0, 10.0, 3_600.0, DAY_S])
        clock.advance(seconds)
        clock.jump_wall(rng.choice([-1, 1]) * seconds * 0.0005)
        assert watched.settled_us() == clock.now_us()
        assert not watched.jumped


def test_the_settled_time_is_never_after_either_clock(rng: random.Random) -> None:
    clock = FakeClock()
    watched = WatchedClock(clock, GRACE_S)
    for _ in range(2_000):
        clock.advance(rng.choice([0.0, 1.0, 60.0, 1_800.0]))
        if rng.random() < 0.2:
            clock.jump_wall(rng.choice([-1, 1]) * rng.choice([1.0, 100.0, 10 * DAY_S]))
        assert watched.settled_us() <= clock.now_us()
    assert settled_us(clock) == clock.now_us(), "a clock that nobody watches"


# -- far from today -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("now_us", [-(10**15), -5, 0, 4_294_967_296 * 1_000_000, 20_000_000_000_000_000])
def test_a_clock_before_1970_or_behind_2106_breaks_nothing(now_us: int) -> None:
    clock: Any = FakeClock(now_us=now_us)
    files = SimulatedFileSystem()
    store = Store.open(PATH, settings=SETTINGS, files=files, clock=clock, background=False)
    store.create_topic("t")
    store.publish("t", b"plain")
    store.publish("t", b"mortal", ttl=3600)
    store.publish("t", b"late", delay=5)
    store.publish("t", b"once", dedup_key="a")
    consumer = store.subscribe("t", "g", max_deliveries=3, lease=30)
    handed = take(consumer)
    assert [message.value for message in handed] == [b"plain", b"mortal", b"once"]
    handed[0].nack(delay=0)
    handed[1].reject("no good")
    clock.advance(60)  # the lease of the last one ends
    store._volume.checkpoint()
    store.close()
    store = Store.open(PATH, settings=SETTINGS, files=files, clock=clock, background=False)
    clock.advance(60)
    consumer = store.subscribe("t", "g")
    for message in take(consumer):
        message.ack(wait=True)
    assert [letter.value for letter in store.dead_letters("t").list()] == [b"mortal"]
    assert store.stats().topics["t"].groups["g"].lag == 0
    store.retain()
    store.metrics()
    store.close()
