"""What a second review of the engine found in groups: each test fails until its fault is mended."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import Closed, Unavailable
from penstock.store.dead_letter_box import DeadLetters
from penstock.store.store import Store
from penstock.topics.message import Message
from penstock.volume.tickets import MoveLogStart
from tests.groups.sim import Sim, numbered, offsets, one, take
from tests.one_log import replace_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE_S = 30.0


@pytest.fixture
def sim() -> Sim:
    sim = Sim()
    sim.store.create_topic("t")
    return sim


@pytest.fixture
def memory() -> Iterator[Store]:
    with Store.open("memory:") as store:
        store.create_topic("t")
        yield store


# -- what is noted for the journal --------------------------------------------------------------------------------------


def test_leasing_and_finishing_many_scattered_messages_fits_into_any_frame(sim: Sim) -> None:
    """A journal file of 64 KiB has room for 4,000 ranges: there are more here, in one call each."""
    count = 20_000
    sim.store.publish_many("t", [b""] * count)
    consumer = sim.store.subscribe("t", "g", prefetch=count)
    consumer.ack(consumer.get_many(count, timeout=0)[::2])
    consumer.close()
    again = sim.store.subscribe("t", "g", prefetch=count)
    odd = again.get_many(count, timeout=0)
    assert offsets(odd) == [*range(1, count, 2)]
    again.flush()
    again.ack(odd[:-1], wait=True)
    left = sim.kill().subscribe("t", "g", prefetch=count)
    assert offsets(left.get_many(count, timeout=0)) == [count - 1]


def test_passing_over_many_scattered_messages_that_are_not_due_fits_into_any_frame(sim: Sim) -> None:
    count = 12_000
    sim.store.publish_many("t", [b""] * count, delays=[3600 if number % 2 else None for number in range(count)])
    consumer = sim.store.subscribe("t", "g", prefetch=count)
    due = consumer.get_many(count, timeout=0)
    assert offsets(due) == [*range(0, count, 2)]
    consumer.ack(due, wait=True)
    consumer = sim.kill().subscribe("t", "g", prefetch=count)
    assert consumer.get_many(count, timeout=0) == []
    sim.clock.advance(3601)
    assert offsets(consumer.get_many(count, timeout=0)) == [*range(1, count, 2)]


@pytest.mark.parametrize("delay", [None, 3600], ids=["leased", "put aside"])
def test_a_store_opens_after_retention_took_messages_while_they_were_leased(
    delay: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group skips to the end in the middle of a lease; what is noted of it must be possible."""
    sim = Sim()
    sim.store.create_topic("t", segment_messages=1, retain="always", retention_messages=1)
    for _ in range(4):
        sim.store.publish("t", bytes(300_000), delay=delay)
    sim.checkpoint()
    sim.checkpoint()
    consumer = sim.store.subscribe("t", "g", reset="latest")
    log = sim.store._volume.log("t")
    read, reads = log.read, []

    def read_after_retention(*arguments: Any, **named: Any) -> Any:
        reads.append(arguments)
        if len(reads) == 2:
            # The group's lock is held, so as `retain` does it: the start first, then the files.
            sim.store._volume.commit_changes([MoveLogStart(log, 3)])
        return read(*arguments, **named)

    replace_of(monkeypatch, log, "read", read_after_retention)
    assert consumer.get(timeout=0) is None
    assert len(reads) == 2
    consumer.flush()
    store = sim.kill()
    assert store.stats().topics["t"].groups["g"].lag == 0
    store.publish("t", b"next")
    assert one(store.subscribe("t", "g")).value == b"next"


def test_acks_become_durable_by_themselves_after_a_process_had_no_descriptors(
    memory: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.publish("t", b"")
    refused, done = threading.Event(), threading.Event()
    commit_pending = memory._volume.commit_pending

    def refuse_once() -> Any:
        if not refused.is_set():
            done.clear()  # here, and not by who waits for it: the thread may try again before that one is on its feet
            refused.set()
            raise Unavailable("as many files open as it may")
        return commit_pending()

    monkeypatch.setattr(memory._volume, "commit_pending", refuse_once)
    take_pending = memory._groups.take_pending

    def taken(bytes_max: int) -> bytes:
        done.set()
        return take_pending(bytes_max)

    monkeypatch.setattr(memory._groups, "take_pending", taken)
    one(memory.subscribe("t", "g")).ack()
    assert refused.wait(PATIENCE_S)
    assert done.wait(PATIENCE_S)


# -- members ------------------------------------------------------------------------------------------------------------


def test_who_joins_while_the_group_is_deleted_is_closed_with_it(memory: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would be handed messages in the name of a group that is not there, and its acks would be forgotten."""
    memory.publish("t", b"")
    memory.subscribe("t", "g")
    joining, deleted = threading.Event(), threading.Event()
    claim_hand, delete = memory._groups.claim_hand, memory._groups._deleted

    def claim_when_deleted(*arguments: Any) -> Any:
        joining.set()
        assert deleted.wait(PATIENCE_S)
        return claim_hand(*arguments)

    def tell(group: Any) -> None:
        delete(group)
        deleted.set()

    monkeypatch.setattr(memory._groups, "claim_hand", claim_when_deleted)
    monkeypatch.setattr(memory._groups, "_deleted", tell)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(memory.subscribe("t", "g")), daemon=True)
    thread.start()
    assert joining.wait(PATIENCE_S)
    memory.delete_group("t", "g")
    thread.join(PATIENCE_S)
    with pytest.raises(Closed):
        found[0].get(timeout=0)


def test_a_consumer_of_a_deleted_group_is_forgotten_when_it_is_closed(memory: Store) -> None:
    with memory.subscribe("t", "g"):
        memory.delete_group("t", "g")
    assert not memory._consumers


# -- settling -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delay", [5e-324, 1e-300, 1e-9, 0.031, 0.033])
def test_a_message_comes_again_after_the_shortest_delays(sim: Sim, delay: float) -> None:
    sim.store.publish("t", b"")
    consumer = sim.store.subscribe("t", "g")
    one(consumer).nack(delay=delay)
    sim.clock.advance(0.04)
    assert one(consumer).attempt == 2


def test_an_interrupted_transaction_that_is_committed_after_all_ends_once(sim: Sim, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an ordered partition would go to another consumer while the next transaction still finishes its messages."""
    sim.store.publish_many("t", numbered(4))
    leaving = sim.store.subscribe("t", "g", ordered=True)
    volume = sim.store._volume

    def interrupted(_logs: Any, _batches: Any, others: Any) -> None:
        volume.submit_changes(others)
        raise KeyboardInterrupt

    first = one(leaving)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt), sim.store.transaction() as transaction:
        patched.setattr(volume, "commit_together", interrupted)
        transaction.ack(first)
    sim.store.flush()  # commits it
    assert sim.store.stats().topics["t"].groups["g"].lag == 3
    reservation = sim.group().reserve_acks([one(leaving)], [])
    leaving.close()
    staying = sim.store.subscribe("t", "g")
    assert staying.get(timeout=0) is None, "what comes behind it must not come before it"
    reservation.finish()
    assert offsets(take(staying)) == [2, 3]


# -- dead letters, compaction, closing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("republish", [False, True], ids=["discarded", "sent back"])
def test_dead_letters_are_not_all_in_memory_while_they_are_taken_out(
    sim: Sim, monkeypatch: pytest.MonkeyPatch, republish: bool
) -> None:
    """A million of them, as after an outage, would take gigabytes."""
    sim.store.publish_many("t", numbered(1_000))
    consumer = sim.store.subscribe("t", "g", prefetch=1_000)
    for message in consumer.get_many(1_000, timeout=0):
        message.reject("bad")
    others = [
        one for one in gc.get_objects() if type(one) is Message
    ]  # what tests before this one left; held, so that they stay
    counts = []
    take_out_part = DeadLetters._take_out_part

    def counted(*arguments: Any, **named: Any) -> None:
        counts.append(sum(type(one) is Message for one in gc.get_objects()) - len(others))
        take_out_part(*arguments, **named)

    monkeypatch.setattr(DeadLetters, "_take_out_part", counted)
    box = sim.store.dead_letters("t")
    assert (box.replay() if republish else box.discard()) == 1_000
    assert len(counts) == 10
    assert max(counts) < 300
    assert len(box) == 0
    assert len([*sim.store.read("t")]) == (2_000 if republish else 1_000)


def test_what_a_filter_raises_keeps_all_dead_letters_where_they_are(sim: Sim) -> None:
    sim.store.publish_many("t", numbered(300))
    consumer = sim.store.subscribe("t", "g", prefetch=300)
    for message in consumer.get_many(300, timeout=0):
        message.reject("bad")
    box = sim.store.dead_letters("t")
    with pytest.raises(ZeroDivisionError):
        box.discard(lambda letter: bool(1 // (299 - letter.offset)) or True)
    assert len(box) == 300
    assert box.discard(lambda letter: letter.offset % 2 == 1) == 150
    assert [letter.offset for letter in box] == [*range(0, 300, 2)]


def test_compaction_keeps_what_a_group_that_was_made_anew_meanwhile_has_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = Sim()
    sim.store.create_topic("c", segment_messages=2, compaction=True)
    for number in range(6):
        sim.store.publish("c", b"%d" % number, key="k")
    with sim.store.subscribe("c", "g") as consumer:
        consumer.ack(consumer.get_many(6, timeout=0))
    protection = sim.store._housekeeper._protection
    again = []

    def then_made_anew(*arguments: Any) -> Any:
        found = protection(*arguments)
        sim.store.delete_group("c", "g")
        again.append(sim.store.subscribe("c", "g"))
        return found

    monkeypatch.setattr(sim.store._housekeeper, "_protection", then_made_anew)
    with pytest.raises(Unavailable):
        sim.store.compact("c")
    assert offsets(take(again[0])) == [0, 1, 2, 3, 4, 5]


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
