"""
Work is shared in proportion to what each consumer finishes, whatever a client has buffered.

Every interface runs these, with the loop that a user writes and the default prefetch. Nobody is idle while a message waits in the buffer of
another, and what each one finishes differs by a fifth at most from what the speeds allow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.conformance.helpers import group_stats, numbered
from tests.conformance.interfaces import PARAMETERS
from tests.conformance.race import Race

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.conformance.backends import Backend

SHARE = 0.2
AHEAD = 10
"""What a consumer is given ahead at most where that cannot be had back."""


@pytest.fixture(params=PARAMETERS)
def backend_type(request: pytest.FixtureRequest) -> type[Backend]:
    """Every interface: none is left out here."""
    chosen: type[Backend] = request.param
    return chosen


def _race(live: Backend, total: int) -> Race:
    """Where clients cannot be asked, one may be idle when all that is left was pushed to others."""

    def spare() -> int:
        (group,) = live.owner()._groups.all()
        with group.lock:
            held = [member.in_flight for member in group.members]
            return held.count(0) if sum(held) == group.lag() else 0

    return Race(total, None if live.gives_back else spare)


def _stores(live: Backend, count: int) -> list[Any]:
    """A client for each consumer, or one store for all where there can be one only."""
    return [live.open()] * count if live.has_one_opener else [live.open() for _ in range(count)]


def _check(race: Race, fair: dict[str, int]) -> None:
    """The shares are fair, and no message was begun twice."""
    assert not race.failures
    assert sorted(race.seen) == sorted(set(race.seen))
    assert len(race.seen) == race.total
    assert race.attempts == {1}
    for name, count in fair.items():
        assert abs(race.finished[name] - count) <= max(1, SHARE * count), (race.finished, fair)


def _run(live: Backend, costs: Sequence[int], total: int, *, before: Callable[[Any], None] | None = None, **topic: Any) -> None:
    stores = _stores(live, len(costs))
    stores[0].create_topic("t", **topic)
    stores[0].publish_many("t", numbered(total))
    if before is not None:
        before(stores[0])
    race = _race(live, total)
    consumers = [store.subscribe("t", "g") for store in stores]
    for number, (consumer, cost) in enumerate(zip(consumers, costs, strict=True)):
        race.enter(f"{number}", consumer, cost)
    race.run()
    stats = group_stats(stores[0])
    race.stop(consumers)
    _check(race, race.fair())
    assert (stats.dead_lettered, stats.expired_leases, stats.nacked) == (0, 0, 0)


def test_three_equal_consumers_share_equally(live: Backend) -> None:
    """What the first two had fetched ahead does not keep the third idle."""
    _run(live, [1, 1, 1], 150)


def test_work_is_shared_in_proportion_to_speed(live: Backend) -> None:
    """One does in a tick what takes others two and five."""
    _run(live, [1, 2, 5], 85)


def test_a_slow_consumer_keeps_no_more_than_what_it_works_on(live: Backend) -> None:
    """The quick one never waits for it."""
    _run(live, [1, 40], 82)


@pytest.mark.long
def test_partitions_make_no_difference(live: Backend) -> None:
    """A shared group gives any message to anybody."""
    _run(live, [1, 3, 3, 6], 120, partitions=5)


def test_who_comes_late_gets_its_share_of_what_others_have_buffered(live: Backend) -> None:
    """All of it waits with the first one when the second one comes, or what the first one said that it takes."""
    total = 60
    options = {} if live.gives_back else {"prefetch": AHEAD}
    first, second = _stores(live, 2)
    first.create_topic("t")
    first.publish_many("t", numbered(total))
    race = _race(live, total)
    consumers = [first.subscribe("t", "g", **options)]
    race.enter("first", consumers[0], 1)
    for _ in range(4):
        race.tick()
    race.settle()
    begun_alone = race.finished["first"]
    consumers.append(second.subscribe("t", "g", **options))
    race.enter("second", consumers[1], 1)
    race.run()
    race.stop(consumers)
    assert not race.failures
    assert len(race.seen) == len(set(race.seen)) == total
    assert race.attempts == {1}
    shared = total - begun_alone
    assert abs(race.finished["second"] - shared / 2) <= max(1, SHARE * shared / 2), race.finished


def test_who_leaves_leaves_all_it_had_not_begun_to_others(live: Backend) -> None:
    """At once, uncounted."""
    total = 40
    first, second = _stores(live, 2)
    first.create_topic("t")
    first.publish_many("t", numbered(total))
    leaving = first.subscribe("t", "g")
    messages = iter(leaving)
    for _ in range(3):
        next(messages).ack()
    leaving.close()
    race = _race(live, total - 3)
    staying = second.subscribe("t", "g")
    race.enter("staying", staying, 1)
    race.run()
    stats = group_stats(second)
    race.stop([staying])
    assert (race.attempts, stats.expired_leases, stats.dead_lettered) == ({1}, 0, 0)
