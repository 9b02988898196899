"""What the soak and poison tests found in the engine, each as small as it can be told."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

from penstock.errors import Conflict
from penstock.groups.group import Group
from penstock.log.segment import Segment
from penstock.offset_set import OffsetSet
from penstock.store.store import Store
from penstock.testing import FakeClock, SimulatedFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pytest

    from penstock.groups.delivery import Delivery
    from penstock.groups.reservation import Reservation
    from penstock.store.consumer import Consumer


def open_store(files: SimulatedFileSystem | None = None, clock: FakeClock | None = None) -> Store:
    if files is None:
        return Store.open("memory:", clock=clock or FakeClock(), background=False)
    return Store.open("/store", files=files, clock=clock or FakeClock(), background=False)


def take(consumer: Consumer) -> Delivery:
    message = consumer.get(timeout=0)
    assert message is not None
    return message


def before_the_commit(store: Store, work: Callable[[], object]) -> list[bool]:
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


# -- poison ---------------------------------------------------------------------------------------------------------------


def test_a_message_that_kills_its_process_at_once_is_counted() -> None:
    """The lease was noted, and nothing of it was durable: then every start is the first one, for ever."""
    files = SimulatedFileSystem()
    store = open_store(files)
    store.publish_many("t", [b"0", b"1"])
    deaths = 0
    while deaths < 8:
        consumer = store.subscribe("t", "g", max_deliveries=3)
        message = consumer.get(timeout=0)
        if message is None or message.value != b"0":
            break
        files = files.kill()
        deaths += 1
        store = open_store(files)
    # Three that count, and one that may be put down to a neighbour whose ack was not durable yet.
    assert deaths <= 4
    assert [letter.value for letter in store.dead_letters("t").list()] == [b"0"]


def test_messages_handled_beside_a_poison_are_not_condemned_with_it() -> None:
    """Four at once: those that were still being handled when the fourth killed them all are not dead letters in the end."""
    files = SimulatedFileSystem()
    store = open_store(files)
    store.publish_many("t", [b"%d" % number for number in range(8)])
    deaths = 0
    while deaths < 8:
        consumer = store.subscribe("t", "g", max_deliveries=3, concurrency=4)
        handled: list[Delivery] = []
        while len(handled) < 4 and (message := consumer.get(timeout=0)) is not None:
            handled.append(message)
        store.flush()
        if b"0" not in [message.value for message in handled]:
            break
        # The handler of 0 kills the process; the three beside it take longer than that, every time.
        files = files.kill()
        deaths += 1
        store = open_store(files)
    assert [letter.value for letter in store.dead_letters("t").list()] == [b"0"]


def test_a_poison_of_one_group_condemns_nothing_in_another() -> None:
    """Both groups work in the process that dies; the other one's message takes longer than the poison does, every time."""
    files = SimulatedFileSystem()
    store = open_store(files)
    store.publish("t", b"0")
    deaths = 0
    while deaths < 8:
        healthy = store.subscribe("t", "healthy", max_deliveries=3)
        deadly = store.subscribe("t", "deadly", max_deliveries=3)
        slow = healthy.get(timeout=0)
        poison = deadly.get(timeout=0)
        if poison is None and slow is not None:
            # It has to wait until the other one is done: then there is no doubt whose fault it is.
            slow.ack()
            poison = deadly.get(timeout=0)
        if poison is None:
            break
        store.flush()
        files = files.kill()
        deaths += 1
        store = open_store(files)
    assert deaths <= 4
    assert [letter.headers["x-dlq-group"] for letter in store.dead_letters("t").list()] == [b"deadly"]


# -- acks -------------------------------------------------------------------------------------------------------------------


def test_a_list_of_acks_in_any_order_finishes_those_and_no_others() -> None:
    """0, 5 and 2 span as much as 0, 1 and 2 do, and are not that."""
    store = open_store()
    store.publish_many("t", [b"%d" % number for number in range(6)])
    consumer = store.subscribe("t", "g")
    messages = [take(consumer) for _ in range(6)]
    consumer.ack([messages[0], messages[5], messages[2]])
    assert store.stats().topics["t"].groups["g"].positions == {0: 1}
    for message in (messages[1], messages[3], messages[4]):
        message.ack()
    assert store.stats().topics["t"].groups["g"].lag == 0


# -- transactions -----------------------------------------------------------------------------------------------------------


def test_a_message_that_a_transaction_is_finishing_is_not_handed_out_again() -> None:
    """An ordered group takes back what is behind a failed message; not what is being committed: else it is done twice."""
    store = open_store()
    store.publish_many("t", [b"0", b"1"])
    store.create_topic("out")
    consumer = store.subscribe("t", "g", ordered=True)
    first, second = take(consumer), take(consumer)
    again: list[int] = []

    def fail_first() -> None:
        first.nack(delay=0)
        while (message := consumer.get(timeout=0)) is not None:
            again.append(message.offset)

    interrupted = before_the_commit(store, fail_first)
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
    message = take(store.subscribe("t", "g"))

    def commit_another() -> None:
        with contextlib.suppress(Conflict), store.transaction() as other:
            other.publish("out", b"other")
            other.ack(message)

    interrupted = before_the_commit(store, commit_another)
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
    message = take(store.subscribe("t", "g"))

    def reject() -> None:
        with contextlib.suppress(Conflict):
            message.reject("no")

    interrupted = before_the_commit(store, reject)
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
    message = take(consumer)
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


# -- retention --------------------------------------------------------------------------------------------------------------


def test_retention_asks_for_a_position_that_is_one() -> None:
    """Between two looks at a cursor another thread leases all there is: what is leased now is not finished."""
    store = open_store()
    store.publish_many("t", [b"%d" % number for number in range(10)])
    consumer = store.subscribe("t", "g")
    cursor = store._groups.all()[0].cursors[0]
    taken: list[Delivery] = []
    thread = threading.Thread(target=lambda: taken.append(take(consumer)))

    class Interrupted(OffsetSet):
        """Lets the other thread run while it is being asked whether it is empty; one that needs a lock has to wait."""

        def __bool__(self) -> bool:
            empty = len(self) == 0
            if thread.ident is None:
                thread.start()
                thread.join(1)
            return not empty

    cursor.open = Interrupted()
    store.retain("t")
    thread.join()
    assert [message.offset for message in taken] == [0]
    assert store._catalog.get("t").logs[0].floors["groups"] == 0


# -- reading ------------------------------------------------------------------------------------------------------------------


def test_a_segment_that_is_sealed_while_it_is_read_is_not_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader has the first bytes of a batch from the file; before it asks for the rest, the file may be mapped."""
    store = open_store(SimulatedFileSystem())
    store.publish_many("t", [b"x" * 100] * 50)
    store.publish_many("t", [b"y" * 100] * 50)
    chunk = Segment._chunk
    asked: list[int] = []

    def sealed_in_between(segment: Segment, start: int, stop: int) -> tuple[memoryview, int]:
        asked.append(start)
        return chunk(segment, start, stop)

    monkeypatch.setattr(Segment, "_chunk", sealed_in_between)
    monkeypatch.setattr(Segment, "view", lambda segment: segment.open_file().map() if len(asked) > 1 else None)
    (batch,) = store._catalog.get("t").logs[0].read(70, 1)
    assert len(asked) == 2
    assert batch.first_offset == 50


# -- time -------------------------------------------------------------------------------------------------------------------


def test_a_shorter_lease_ends_when_it_says_so() -> None:
    """Though a message with a longer one was handed out before it."""
    clock = FakeClock()
    store = open_store(clock=clock)
    store.publish_many("t", [b"0", b"1"])
    consumer = store.subscribe("t", "g", lease=100)
    take(consumer)
    other = store.subscribe("t", "g", lease=5)
    second = take(consumer)
    clock.advance(6)
    message = other.get(timeout=0)
    assert message is not None
    assert message.offset == second.offset


def test_consumers_that_wait_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Being woken in vain is no reason to wake the next one: they would go on for ever."""
    store = Store.open("memory:")
    store.create_topic("t")
    consumers = [store.subscribe("t", "g") for _ in range(4)]

    def consume(consumer: Consumer) -> None:
        for message in consumer:
            message.ack()

    looks = [0]
    take_now = Group.take

    def counted(*arguments: Any) -> Any:
        looks[0] += 1
        return take_now(*arguments)

    monkeypatch.setattr(Group, "take", counted)
    threads = [threading.Thread(target=consume, args=(consumer,), daemon=True) for consumer in consumers]
    for thread in threads:
        thread.start()
    store.publish("t", b"x")
    at_rest, end = False, time.monotonic() + 60
    while not at_rest and time.monotonic() < end:
        before = looks[0]
        time.sleep(0.5)
        at_rest = looks[0] == before > len(threads) and store.stats().topics["t"].groups["g"].lag == 0
    store.close()
    for thread in threads:
        thread.join(60)
    assert at_rest, "somebody looks again and again, and there is nothing"
