"""What the model of the queue (tests/model) and the reading for it found in the engine, each as small as it can be told."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import BadArgument, Conflict, LeaseExpired, TransactionChanged
from tests.groups.sim import Sim, numbered, one, take

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.store.store import Store
    from penstock.testing import Operation, SimulatedFileSystem


def before_the_commit(store: Store, work: Callable[[], object]) -> None:
    """Do *work* once, after a transaction has taken its acks and before its frame is written: another thread could."""
    commit = store._volume.commit_together

    def interrupted(*changes: Any) -> object:
        store._volume.commit_together = commit  # type: ignore[method-assign]
        work()
        return commit(*changes)

    store._volume.commit_together = interrupted  # type: ignore[assignment, method-assign]


# -- leases -----------------------------------------------------------------------------------------------------------------


def test_a_lease_ends_though_a_suspect_came_next() -> None:
    """I19. A call hands out a message of partition 0 and stops before the suspect of partition 1: the lease must end all the same."""
    sim = Sim()
    sim.store.create_topic("t", partitions=2)
    sim.store.publish("t", b"suspect", partition=1)
    one(sim.store.subscribe("t", "g", max_deliveries=0))
    sim.store.flush()
    store = sim.kill()
    store.publish("t", b"plain", partition=0)
    consumer = store.subscribe("t", "g", lease=10)
    assert [message.value for message in consumer.get_many(2, timeout=0)] == [b"plain"]
    consumer.pause()
    other = store.subscribe("t", "g")
    sim.clock.advance(11)
    assert b"plain" in [message.value for message in take(other)]


# -- suspects ---------------------------------------------------------------------------------------------------------------


def test_a_suspect_that_nobody_was_handed_does_not_stop_other_groups() -> None:
    """I20, I28. It lies in the prefetch of a consumer that asks for nothing more, and has no lease that would end."""
    sim = Sim()
    sim.store.publish_many("t", numbered(2))
    for group in ("g", "h"):
        take(sim.store.subscribe("t", group, max_deliveries=0))
    sim.store.flush()
    store = sim.kill()
    slow, quick = store.subscribe("t", "g"), store.subscribe("t", "h")
    store.publish("t", b"2")
    one(slow).ack()
    assert [message.value for message in slow.get_many(2, timeout=0)] == [b"2"]  # and 1 is in its prefetch
    slow.pause()
    seen = []
    for _ in range(5):
        sim.clock.advance(3600)
        for message in take(quick):
            seen.append(message.offset)
            message.ack()
    assert sorted(seen) == [0, 1, 2]


# -- dead letters -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["extend", "transaction"])
def test_what_fails_for_the_last_time_in_any_call_is_dead_lettered_by_it(how: str) -> None:
    """Its lease ended, and the call that noticed was not a get, an ack or a nack: nobody need ever make one of those."""
    sim = Sim()
    sim.store.publish_many("t", numbered(2))
    consumer = sim.store.subscribe("t", "g", lease=10, max_deliveries=1)
    one(consumer)
    sim.clock.advance(6)
    second = one(consumer)
    sim.clock.advance(6)
    if how == "extend":
        second.extend()
    else:
        with sim.store.transaction() as transaction:
            transaction.ack(second)
    assert [letter.value for letter in sim.store.dead_letters("t").list()] == [b"0"]


@pytest.mark.parametrize("how", ["commit", "seek"])
def test_what_was_finished_or_sought_meanwhile_is_not_dead_lettered(how: str) -> None:
    """The dead letter was planned and not written yet: then the group was moved, and what comes now counts anew."""
    sim = Sim()
    sim.store.publish_many("t", numbered(2))
    consumer = sim.store.subscribe("t", "g", lease=10, max_deliveries=1)
    one(consumer)
    sim.clock.advance(6)
    second = one(consumer)
    sim.clock.advance(6)
    second.extend()
    before = len(sim.store.dead_letters("t"))
    if how == "commit":
        consumer.commit(1)
    else:
        sim.store.seek("t", "g", 0)
    consumer.get(timeout=0)
    assert len(sim.store.dead_letters("t")) == before


# -- transactions -----------------------------------------------------------------------------------------------------------


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


# -- counting ---------------------------------------------------------------------------------------------------------------


def test_a_checkpoint_does_not_change_who_is_blamed() -> None:
    """0 was handed out first, and its handler asked for more time: it is the one that was being handled, snapshot or not."""
    blamed = []
    for snapshot in (False, True):
        sim = Sim()
        sim.store.publish_many("t", numbered(3))
        consumer = sim.store.subscribe("t", "g", max_deliveries=0)
        first = one(consumer)
        one(consumer)
        first.extend(60)
        sim.store.flush()
        if snapshot:
            sim.checkpoint()
        sim.kill()
        blamed.append(sim.failures())
    assert blamed[0] == blamed[1]


def test_a_checkpoint_does_not_change_who_is_blamed_of_what_was_stolen() -> None:
    """The thief was handed the first of what it took; that the lots were taken from the other end says nothing."""
    blamed = []
    for snapshot in (False, True):
        sim = Sim()
        for value in numbered(6):
            sim.store.publish("t", value)
        busy = sim.store.subscribe("t", "g", max_deliveries=0)
        assert one(busy).offset == 0
        thief = sim.store.subscribe("t", "g")
        stolen = one(thief).offset
        one(thief)
        sim.store.flush()
        if snapshot:
            sim.checkpoint()
        sim.kill()
        blamed.append(sim.failures())
        assert blamed[-1] == {0: 1, stolen: 1}
    assert blamed[0] == blamed[1]


def test_counts_that_a_checkpoint_has_do_not_go_back_in_replay() -> None:
    """I17, I21. The journal got the first part only of what was noted, and the snapshot before it had all: no prefix gives that."""
    sim = Sim()
    store = sim.restart()
    store.publish_many("t", numbered(60))
    consumer = store.subscribe("t", "g", max_deliveries=0)
    for _ in range(2):
        for message in consumer.get_many(60, timeout=0):
            message.nack(delay=0, reason="x" * 250)
    sim.checkpoint()
    store._volume.commit_pending().wait()  # one frame: it has room for some of it
    assert sim.store._groups.pending
    sim.kill()
    found = sim.failures()
    assert {offset: count for offset, count in found.items() if count < 2} == {}
    assert {offset: count for offset, count in found.items() if count > 2} == {}, "nobody held it when the process died"


# -- deduplication ----------------------------------------------------------------------------------------------------------


def test_a_deduplication_key_outlives_retention_and_a_restart() -> None:
    """I29. Within its window: retention keeps the segment that it lies in so long, and takes it after that."""
    sim = Sim()
    sim.store.create_topic("t", segment_messages=4, retain="always", retention_bytes=1, dedup_window=1_000)
    first = sim.store.publish("t", b"x", dedup_key="k")
    for number in range(40):
        sim.store.publish("t", b"%d" % number)
    sim.store.retain("t")
    for reopen in (False, True):
        store = sim.restart() if reopen else sim.store
        again = store.publish("t", b"x", dedup_key="k")
        assert (again.offset, again.duplicate) == (first.offset, True)
        store.retain("t")
    sim.clock.advance(1_001)
    assert sim.store.retain("t").segments > 0
    assert sim.store.stats().topics["t"].starts[0] > first.offset
    assert not sim.store.publish("t", b"x", dedup_key="k").duplicate


# -- opening ----------------------------------------------------------------------------------------------------------------


def test_a_new_store_has_no_crash_behind_it() -> None:
    """`was_closed_in_order`: whether the last owner closed the store, or there was none; else each first lease costs a sync."""
    assert Sim().store._volume.was_closed_in_order


# -- topics -----------------------------------------------------------------------------------------------------------------


def test_a_topic_that_was_being_made_when_the_process_was_killed_survives_the_next_power_loss() -> None:
    """I10, R4. Its folder has its name and nobody synced that; the next process finds it, uses it, and then the power goes."""
    sim = Sim()
    killed: list[SimulatedFileSystem] = []

    def kill(operation: Operation) -> None:
        if operation.kind == "sync_directory" and operation.path == "/s/topics":
            killed.append(sim.files.kill())

    sim.files.on_operation = kill
    sim.store.create_topic("t")
    assert killed
    for sim.files in killed:
        sim.store = sim._open()
        if "t" in [topic.name for topic in sim.store.topics()]:
            sim.store.publish("t", b"x")
            sim.lose_power()
            assert [message.value for message in sim.store.read("t")] == [b"x"]
