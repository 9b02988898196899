"""Transactions and the deliveries that they finish: while they are under way, when they fail, and when they are interrupted."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import BadArgument, Conflict, LeaseExpired, StorageFull, TransactionChanged
from tests.groups.sim import Sim, numbered, offsets, one, open_store, take

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.groups.delivery import Delivery
    from penstock.groups.reservation import Reservation
    from penstock.store.store import Store


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


def before_the_commit(store: Store, work: Callable[[], object]) -> None:
    """Do *work* once, after a transaction has taken its acks and before its frame is written: another thread could."""
    commit = store._volume.commit_together

    def interrupted(*changes: Any) -> object:
        store._volume.commit_together = commit  # type: ignore[method-assign]
        work()
        return commit(*changes)

    store._volume.commit_together = interrupted  # type: ignore[assignment, method-assign]


@pytest.mark.parametrize("extended", [False, True], ids=["plain", "extended"])
def test_a_list_of_acks_leaves_alone_what_a_transaction_is_finishing(extended: bool) -> None:
    """As the ack of one message does, and as it does for messages whose lease was not extended."""
    sim = Sim()
    sim.store.publish_many("t", numbered(2))
    sim.store.create_topic("out")
    consumer = sim.store.subscribe("t", "g")
    first, second = take(consumer)
    if extended:
        first.extend(60)
    told: list[str] = []

    def ack_both() -> None:
        try:
            consumer.ack([first, second])
            told.append("done")
        except LeaseExpired:
            told.append("late")

    before_the_commit(sim.store, ack_both)
    with contextlib.suppress(Conflict), sim.store.transaction() as transaction:
        transaction.publish("out", b"of 0")
        transaction.ack(first)
    assert told == ["late"]


def test_a_repeated_commit_does_not_remove_the_stages_of_another_producer() -> None:
    """It changes nothing, says its docstring; the first commit would have refused such a stage."""
    sim = Sim()
    sim.store.create_topic("t")
    with sim.store.stage("one") as stage:
        stage.publish("t", b"of one")
    sim.store.commit("one", 1, [stage.identity])
    with sim.store.stage("other") as foreign:
        foreign.publish("t", b"of the other")
    with contextlib.suppress(BadArgument, TransactionChanged):
        sim.store.commit("one", 1, [foreign.identity])
    assert sim.store.commit("other", 1, [foreign.identity]).messages == 1


def after_the_acks_are_taken(store: Store, work: Callable[[], object]) -> list[bool]:
    """Do *work* once, after a transaction has taken its acks and before its frame is written: another thread could."""
    (group,) = [group for group in store._groups.all() if not group.name.startswith(".")]
    reserve = group.reserve_acks
    done: list[bool] = []

    def interrupted(deliveries: Sequence[Delivery], reserved: list[Reservation]) -> Reservation:
        reservation = reserve(deliveries, reserved)
        if not done:
            done.append(True)
            work()
        return reservation

    group.reserve_acks = interrupted  # type: ignore[method-assign]
    return done


def test_a_message_that_a_transaction_is_finishing_is_not_handed_out_again() -> None:
    """An ordered group takes back what is behind a failed message; not what is being committed: else it is done twice."""
    store = open_store()
    store.publish_many("t", [b"0", b"1"])
    store.create_topic("out")
    consumer = store.subscribe("t", "g", ordered=True)
    first, second = one(consumer), one(consumer)
    again: list[int] = []

    def fail_first() -> None:
        first.nack(delay=0)
        while (message := consumer.get(timeout=0)) is not None:
            again.append(message.offset)

    interrupted = after_the_acks_are_taken(store, fail_first)
    with store.transaction() as transaction:
        transaction.publish("out", b"of 1")
        transaction.ack(second)
    assert interrupted
    assert again == [0]


def test_one_delivery_is_finished_by_one_transaction() -> None:
    """The second one is told that it is too late, whichever that is."""
    store = open_store()
    store.publish("t", b"0")
    store.create_topic("out")
    message = one(store.subscribe("t", "g"))

    def commit_another() -> None:
        with contextlib.suppress(Conflict), store.transaction() as other:
            other.publish("out", b"other")
            other.ack(message)

    interrupted = after_the_acks_are_taken(store, commit_another)
    with contextlib.suppress(Conflict), store.transaction() as transaction:
        transaction.publish("out", b"one")
        transaction.ack(message)
    assert interrupted
    assert len(list(store.read("out"))) == 1


def test_a_message_that_a_transaction_is_finishing_is_not_dead_lettered() -> None:
    """Finished, or in the dead letters: not both."""
    store = open_store()
    store.publish("t", b"0")
    store.create_topic("out")
    message = one(store.subscribe("t", "g"))

    def reject() -> None:
        with contextlib.suppress(Conflict):
            message.reject("no")

    interrupted = after_the_acks_are_taken(store, reject)
    with contextlib.suppress(Conflict), store.transaction() as transaction:
        transaction.publish("out", b"one")
        transaction.ack(message)
    assert interrupted
    assert len(list(store.read("out"))) + len(store.dead_letters("t")) == 1


def test_a_seek_voids_the_acks_of_a_transaction_that_is_on_its_way() -> None:
    """Whichever of the two comes first: what was leased before the seek finishes nothing behind it."""
    store = open_store()
    store.publish_many("t", [b"0", b"1"])
    consumer = store.subscribe("t", "g")
    message = one(consumer)
    (group,) = store._groups.all()

    class SeekingLock:
        """Another thread seeks as soon as the transaction lets go of the group for the first time."""

        def __init__(self) -> None:
            self.lock = threading.Lock()
            self.thread = threading.Thread(target=store.seek, args=("t", "g", "earliest"))

        def __enter__(self) -> bool:
            return self.lock.__enter__()

        def __exit__(self, *error: object) -> None:
            self.lock.release()
            if self.thread.ident is None:
                self.thread.start()
                self.thread.join(5)

    seeking = SeekingLock()
    transaction = store.transaction()
    transaction.ack(message)
    group.lock = seeking  # type: ignore[assignment]
    with contextlib.suppress(Conflict):
        transaction.commit()
    seeking.thread.join()
    assert [message.offset for message in consumer.get_many(10, timeout=0)] == [0, 1]
