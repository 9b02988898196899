"""What a transaction that fails leaves behind with the consumer whose messages it was to finish."""

from __future__ import annotations

import pytest

from penstock.errors import StorageFull
from tests.groups.sim import Sim, numbered, offsets, one, take


@pytest.fixture
def sim() -> Sim:
    sim = Sim()
    sim.store.create_topic("t")
    return sim


@pytest.mark.parametrize("with_others", [False, True])
def test_a_handler_keeps_its_message_when_its_transaction_fails(
    sim: Sim, monkeypatch: pytest.MonkeyPatch, with_others: bool
) -> None:
    """The lease of `with message` goes on as long as the block."""
    sim.store.publish_many("t", numbered(2))
    busy, idle = (sim.store.subscribe("t", "g", lease=30) for _ in range(2))
    messages = [one(busy) for _ in range(1 + with_others)]

    def full(*_: object) -> None:
        raise StorageFull("/s", None, None)

    with messages[0]:
        with (
            monkeypatch.context() as broken,
            pytest.raises(StorageFull),
            sim.store.transaction() as transaction,
        ):
            broken.setattr(sim.store._volume, "commit_together", full)
            for message in messages:
                transaction.ack(message)
        sim.clock.advance(31)
        assert 0 not in offsets(take(idle)), "it is still being handled"
    sim.clock.advance(31)
    assert 0 not in offsets(take(idle)), "it was acked"


@pytest.mark.parametrize("commits", [False, True])
def test_an_ordered_partition_waits_for_the_transaction_of_a_consumer_that_has_left(sim: Sim, commits: bool) -> None:
    sim.store.publish_many("t", numbered(4))
    members = [sim.store.subscribe("t", "g", ordered=True) for _ in range(2)]
    messages = [message for member in members if (message := member.get(timeout=0)) is not None]
    (message,) = messages
    leaving, staying = members if members[0]._member is message._lot.member else members[::-1]
    reservation = sim.group().reserve_acks([message], [])
    leaving.close()
    assert staying.get(timeout=0) is None, "what comes behind it must not come before it"
    if commits:
        reservation.finish()
    else:
        reservation.release()
    assert offsets(take(staying)) == [1, 2, 3] if commits else [0, 1, 2, 3]


def test_an_ordered_partition_goes_to_one_who_comes_after_its_last_consumer_left_in_a_transaction(sim: Sim) -> None:
    sim.store.publish_many("t", numbered(2))
    leaving = sim.store.subscribe("t", "g", ordered=True)
    reservation = sim.group().reserve_acks([one(leaving)], [])
    leaving.close()
    early = sim.store.subscribe("t", "g")
    assert early.get(timeout=0) is None
    reservation.release()
    assert offsets(take(early)) == [0, 1]
