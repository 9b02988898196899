"""Groups of a topic with a weak sync mode, whose log lost its tail with the power: the group knows more than the log."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from tests.groups.sim import Sim, numbered, offsets, one, take

if TYPE_CHECKING:
    from penstock import Consumer

DURABLE = 4


def _made(**options: object) -> tuple[Sim, Consumer]:
    """Four messages that are durable and four that are not, and a consumer."""
    sim = Sim()
    sim.store.create_topic("t", sync="os")
    sim.store.publish_many("t", numbered(DURABLE), sync="always")
    sim.store.publish_many("t", numbered(4, DURABLE))
    return sim, sim.store.subscribe("t", "g", max_deliveries=3, **options)  # type: ignore[arg-type]


def _again(sim: Sim) -> list[tuple[int, int, bytes]]:
    """What is published at the places of what was lost, and then delivered: offset, attempt, value."""
    sim.store.publish_many("t", [b"new %d" % number for number in range(4)])
    consumer = sim.store.subscribe("t", "g")
    found = []
    while (message := consumer.get(timeout=0)) is not None:
        found.append((message.offset, message.attempt, bytes(message.value or b"")))
        message.ack()
    return found


def test_acks_of_what_was_lost_finish_nothing_new() -> None:
    """The acks are durable and the messages are not: other messages get the same offsets, and must be delivered."""
    sim, consumer = _made()
    consumer.ack(take(consumer), wait=True)
    sim.lose_power()
    assert sim.store.ends("t") == {0: DURABLE}
    assert sim.store.stats().topics["t"].groups["g"].positions == {0: DURABLE}
    assert sim.store.stats().topics["t"].groups["g"].lost == 4
    assert _again(sim) == [(4 + number, 1, b"new %d" % number) for number in range(4)]


def test_it_is_said_how_many_were_lost(caplog: pytest.LogCaptureFixture) -> None:
    """And which."""
    sim, consumer = _made()
    consumer.ack(take(consumer), wait=True)
    with caplog.at_level(logging.WARNING, "penstock"):
        sim.lose_power()
    assert "offsets [4, 8) of partition 0" in caplog.text


def test_failures_and_delays_of_what_was_lost_are_forgotten() -> None:
    """A new message is not late, not counted and not condemned because an old one was."""
    sim, consumer = _made()
    messages = take(consumer)
    messages[5].nack(delay=1_000)
    messages[6].nack(delay=0)
    one(consumer).nack(delay=0)
    consumer.ack([*messages[:5], messages[7]], wait=True)
    sim.lose_power()
    assert sim.failures() == {}
    assert sorted(_again(sim)) == [(4 + number, 1, b"new %d" % number) for number in range(4)]
    assert sim.store.dead_letters("t").list() == []


def test_what_was_in_hand_is_no_suspect_if_it_is_lost() -> None:
    """What is left and was in hand is one; the rest is new."""
    sim, consumer = _made()
    take(consumer)
    sim.store.flush()
    sim.lose_power()
    assert set(sim.group().cursors[0].suspects) == set(range(DURABLE))
    assert sim.failures() == {0: 1}
    found = _again(sim)
    assert [offset for offset, _, _ in found if offset >= DURABLE] == [4, 5, 6, 7]
    assert {attempt for offset, attempt, _ in found if offset >= DURABLE} == {1}
    assert sorted(offset for offset, _, _ in found) == list(range(8))


def test_a_dead_letter_stays_though_its_source_is_lost() -> None:
    """Dead letters are always durable; the message that gets its offset may become one, too."""
    sim, consumer = _made()
    messages = take(consumer)
    messages[6].reject("bad")
    consumer.ack([*messages[:6], messages[7]], wait=True)
    store = sim.lose_power()
    assert [letter.value for letter in store.dead_letters("t").list()] == [b"6"]
    store.publish_many("t", numbered(4, 100))
    consumer = store.subscribe("t", "g")
    messages = take(consumer)
    assert offsets(messages) == [4, 5, 6, 7]
    messages[2].reject("also bad")
    assert [letter.value for letter in store.dead_letters("t").list()] == [b"6", b"102"]


@pytest.mark.parametrize("to", [6, "latest"])
def test_a_seek_into_what_is_lost_ends_at_the_end(to: int | str) -> None:
    """The group begins with what is published next."""
    sim, _ = _made()
    sim.store.seek("t", "g", to)
    sim.lose_power()
    assert sim.store.stats().topics["t"].groups["g"].positions == {0: DURABLE}
    assert [offset for offset, _, _ in _again(sim)] == [4, 5, 6, 7]


def test_a_group_that_began_in_what_is_lost_begins_at_the_end() -> None:
    """It was made for what comes: it gets it."""
    sim, _ = _made()
    sim.store.subscribe("t", "late", start="latest")
    store = sim.lose_power()
    store.publish("t", b"new")
    assert [message.value for message in take(store.subscribe("t", "late"))] == [b"new"]


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_killed_process_loses_nothing(checkpoint: bool) -> None:
    """The cache outlives it: acks and counts stay with their messages."""
    sim, consumer = _made()
    messages = take(consumer)
    messages[6].nack(delay=0)
    consumer.ack([*messages[:6], messages[7]], wait=True)
    if checkpoint:
        sim.checkpoint()
    store = sim.kill()
    assert store.ends("t") == {0: 8}
    found = one(store.subscribe("t", "g"))
    assert (found.offset, found.attempt) == (6, 2)


def test_a_checkpoint_makes_the_tail_durable_with_the_acks() -> None:
    """Both, or neither would be of use."""
    sim, consumer = _made()
    consumer.ack(take(consumer))
    sim.checkpoint()
    store = sim.lose_power()
    assert store.ends("t") == {0: 8}
    assert take(store.subscribe("t", "g")) == []


def test_a_second_loss_is_cut_at_its_own_place() -> None:
    """Offsets that were lost and given out anew may be lost again."""
    sim, consumer = _made()
    consumer.ack(take(consumer), wait=True)
    store = sim.lose_power()
    store.publish_many("t", numbered(2, 10), sync="always")
    store.publish_many("t", numbered(2, 12))
    consumer = store.subscribe("t", "g")
    consumer.ack(take(consumer), wait=True)
    store = sim.lose_power(1)
    assert store.ends("t") == {0: 6}
    assert store.stats().topics["t"].groups["g"].positions == {0: 6}
    store.publish("t", b"newest")
    assert [(message.offset, message.value) for message in take(store.subscribe("t", "g"))] == [(6, b"newest")]


def test_a_crash_while_the_cut_is_made_cuts_again(rng: object) -> None:
    """At every operation of opening: the next opening comes to the same."""
    sim, consumer = _made()
    consumer.ack(take(consumer), wait=True)
    lost = sim.files.crash(rng, keep="nothing")  # type: ignore[arg-type]
    states = []
    lost.on_operation = lambda _: states.append(lost.crash(rng))  # type: ignore[arg-type]
    sim.files = lost
    sim.store = sim._open()
    lost.on_operation = None
    assert len(states) > 10
    for state in states:
        sim.files = state
        sim.store = sim._open()
        assert sim.store.stats().topics["t"].groups["g"].positions == {0: DURABLE}
        assert [offset for offset, _, _ in _again(sim)] == [4, 5, 6, 7]
