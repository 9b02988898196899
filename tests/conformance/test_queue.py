"""The simple face: `queue.Queue` on disk."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock.errors import BadArgument, Closed, StoreLocked, UsageError
from tests.conformance.backends import skip_unless
from tests.conformance.helpers import PATIENCE, Running, all_of, numbered, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conformance.backends import Backend


@pytest.fixture
def jobs(live: Backend) -> Iterator[penstock.Queue]:
    """An empty queue."""
    with live.queue() as jobs:
        yield jobs


def everything(jobs: penstock.Queue) -> list[bytes]:
    """All items that are there, taken and done."""
    found = []
    while True:
        try:
            found.append(jobs.get_nowait())
        except queue.Empty:
            return found
        jobs.task_done()


def test_what_is_put_is_got_in_order(jobs: penstock.Queue) -> None:
    """First in, first out."""
    for value in numbered(20):
        jobs.put(value)
    assert [jobs.get() for _ in range(20)] == numbered(20)


@pytest.mark.parametrize("item", [b"", b"\0", bytes(range(256)), bytes(100_000)], ids=["empty", "nul", "all", "large"])
def test_any_bytes_come_back(jobs: penstock.Queue, item: bytes) -> None:
    """As they are."""
    jobs.put(item)
    assert jobs.get() == item


@pytest.mark.parametrize("item", ["text", 5, None, [b"x"]], ids=ascii)
def test_only_bytes_are_taken(jobs: penstock.Queue, item: Any) -> None:
    """A typed error, and nothing is put."""
    with pytest.raises(UsageError):
        jobs.put(item)
    with pytest.raises(UsageError):
        jobs.put_many([b"x", item])
    assert jobs.qsize() == 0


def test_an_empty_queue_raises_what_queue_raises(jobs: penstock.Queue) -> None:
    """At once, or when the time is over."""
    with pytest.raises(queue.Empty):
        jobs.get_nowait()
    with pytest.raises(queue.Empty):
        jobs.get(block=False)
    with pytest.raises(queue.Empty):
        jobs.get(timeout=0.05)
    assert jobs.get_many(5, timeout=0) == []


def test_a_get_that_waits_is_woken_by_a_put(jobs: penstock.Queue) -> None:
    """From another thread."""
    for value in numbered(5):
        waiting = Running(jobs.get)
        jobs.put(value)
        assert waiting.result() == value


def test_sizes_count_what_waits(jobs: penstock.Queue) -> None:
    """What was got is not in the queue any more, as with `queue.Queue`, done or not."""
    assert (jobs.qsize(), len(jobs), jobs.empty(), jobs.full()) == (0, 0, True, False)
    jobs.put_many(numbered(3))
    assert (jobs.qsize(), len(jobs), jobs.empty()) == (3, 3, False)
    jobs.get()
    assert jobs.qsize() == 2
    jobs.task_done()
    assert jobs.qsize() == 2
    assert bool(jobs)


def test_many_can_be_put_and_got_at_once(jobs: penstock.Queue) -> None:
    """All that are put together are there together."""
    jobs.put_many(numbered(10))
    jobs.put_many([])
    assert jobs.get_many(4) == numbered(4)
    assert jobs.get_many(100) == numbered(6, 4)
    jobs.task_done(10)
    assert jobs.join(PATIENCE) is not False


def test_a_bounded_queue_takes_no_more_than_its_size(live: Backend) -> None:
    """put_nowait raises Full, put waits until somebody gets."""
    with live.queue(maxsize=3) as jobs:
        for value in numbered(3):
            jobs.put_nowait(value)
        assert jobs.full()
        with pytest.raises(queue.Full):
            jobs.put_nowait(b"x")
        with pytest.raises(queue.Full):
            jobs.put(b"x", block=False)
        with pytest.raises(queue.Full):
            jobs.put(b"x", timeout=0.05)
        waiting = Running(jobs.put, b"3")
        assert jobs.get() == b"0"
        waiting.result()
        assert everything(jobs) == numbered(3, 1)


def test_putters_at_once_do_not_fill_a_bounded_queue_over(live: Backend) -> None:
    """Twenty threads, five places: five are taken, the others are told."""
    with live.queue(maxsize=5) as jobs:
        barrier = threading.Barrier(20)

        def put(_: int) -> bool:
            barrier.wait(PATIENCE)
            try:
                jobs.put_nowait(b"x")
            except queue.Full:
                return False
            return True

        assert sum(all_of(put, range(20))) == 5
        assert jobs.qsize() == 5


def test_join_waits_until_all_is_done(jobs: penstock.Queue) -> None:
    """Not until all is got."""
    jobs.put_many(numbered(3))
    for _ in range(3):
        jobs.get()
    assert jobs.join(0.05) is False
    joining = Running(jobs.join)
    jobs.task_done(2)
    assert jobs.join(0.05) is False
    jobs.task_done()
    joining.result()


def test_join_of_an_empty_queue_returns(jobs: penstock.Queue) -> None:
    """There is nothing to wait for."""
    Running(jobs.join).result()


def test_done_more_often_than_got_is_an_error(jobs: penstock.Queue) -> None:
    """ValueError, as with `queue.Queue`."""
    with pytest.raises(ValueError):
        jobs.task_done()
    jobs.put(b"x")
    jobs.get()
    jobs.task_done()
    with pytest.raises(ValueError):
        jobs.task_done()


def test_producers_and_workers_lose_and_double_nothing(jobs: penstock.Queue) -> None:
    """Three that put, four that get, and a join at the end."""
    seen: list[bytes] = []

    def put(name: int) -> None:
        for number in range(50):
            jobs.put(b"%d %d" % (name, number))

    def work() -> None:
        while True:
            item = jobs.get()
            if item == b"stop":
                jobs.task_done()
                return
            seen.append(item)
            jobs.task_done()

    workers = [Running(work) for _ in range(4)]
    for running in [Running(put, name) for name in range(3)]:
        running.result()
    Running(jobs.join).result()
    assert sorted(seen) == sorted(b"%d %d" % (name, number) for name in range(3) for number in range(50))
    for _ in workers:
        jobs.put(b"stop")
    for running in workers:
        running.result()


def test_a_failed_item_comes_again_and_then_is_set_aside(live: Backend) -> None:
    """As often as allowed; then it is a dead letter of the queue's topic."""
    with live.queue(max_deliveries=2) as jobs:
        jobs.put(b"x")
        for _ in range(2):
            assert jobs.get(timeout=PATIENCE) == b"x"
            jobs.task_failed("broken", delay=0)
        with pytest.raises(queue.Empty):
            jobs.get(timeout=0.2)
        assert until(lambda: len(jobs.store.dead_letters("queue")))
        assert [letter.value for letter in jobs.store.dead_letters("queue").list()] == [b"x"]
        Running(jobs.join).result()


def test_a_closed_queue_is_closed(live: Backend) -> None:
    """Every call says so, also one that waits; closing again is no error."""
    jobs = live.queue()
    waiting = Running(jobs.get)
    jobs.close()
    jobs.close()
    with pytest.raises((Closed, queue.Empty)):
        waiting.result()
    for call in (lambda: jobs.put(b"x"), jobs.get_nowait, jobs.qsize, lambda: jobs.get_many(1, timeout=0)):
        with pytest.raises(Closed):
            call()


@pytest.mark.parametrize("bad", [{"maxsize": -1}, {"maxsize": "5"}, {"maxsize": 1.5}, {"max_deliveries": -1}], ids=ascii)
def test_a_queue_with_bad_arguments_is_refused(live: Backend, bad: dict[str, Any]) -> None:
    """And can be opened with good ones right after."""
    with pytest.raises(UsageError):
        live.queue(**bad)
    live.queue().close()


def test_items_survive_closing(lasting_live: Backend) -> None:
    """What was done is gone; what was not got, and what was got and not done, is there, in order."""
    with lasting_live.queue() as jobs:
        jobs.put_many(numbered(10))
        for _ in range(4):
            jobs.get()
        jobs.task_done(2)
    with lasting_live.queue() as jobs:
        assert len(jobs) == 8
        assert everything(jobs) == numbered(8, 2)
    with lasting_live.queue() as jobs:
        assert jobs.empty()


def test_a_queue_on_disk_has_one_owner(lasting_live: Backend) -> None:
    """A second opener is refused with a typed error."""
    skip_unless(lasting_live.has_one_opener, "a server's queue is everybody's")
    with lasting_live.queue(), pytest.raises(StoreLocked):
        lasting_live.queue()


def test_a_queue_on_a_server_is_shared(lasting_live: Backend) -> None:
    """An item goes to one of those who open it; sizes and the end are about all of them."""
    skip_unless(not lasting_live.has_one_opener, "a queue in a folder has one owner")
    with lasting_live.queue(maxsize=4) as one, lasting_live.queue(maxsize=4) as two:
        one.put_many(numbered(4))
        assert (len(one), len(two), two.full()) == (4, 4, True)
        waiting = Running(two.put, b"4")
        taken = [one.get(), two.get()]
        waiting.result()
        assert (len(one), len(two)) == (3, 3)
        joining = Running(two.join)
        one.task_done()
        two.task_done()
        assert sorted(taken + everything(one)) == numbered(5)
        joining.result()


def test_what_a_process_got_and_did_not_finish_goes_to_another(lasting_live: Backend) -> None:
    """When it closes the queue; in order."""
    skip_unless(not lasting_live.has_one_opener, "a queue in a folder has one owner")
    with lasting_live.queue() as heir:
        with lasting_live.queue() as leaver:
            leaver.put_many(numbered(3))
            assert leaver.get_many(2) == numbered(2)
        assert everything(heir) == numbered(3)


def test_memory_queues_are_private(live: Backend) -> None:
    """Two of them share nothing."""
    with penstock.Queue("memory:") as one, penstock.Queue("memory:") as two:
        one.put(b"x")
        assert two.empty()


def test_items_take_a_ttl_a_delay_and_a_priority(live: Backend) -> None:
    """What they mean is the groups' matter; here they are stored with the items."""
    with live.queue(priorities=True) as queue:
        queue.put(b"a", ttl=60, priority="high")
        queue.put_many([b"b", b"c"], delay=30, priority="medium")
        found = list(queue.store.read("queue"))
        assert [message.priority for message in found] == ["high", "medium", "medium"]
        assert [message.expires_at is None for message in found] == [False, True, True]
        assert [message.deliver_at is None for message in found] == [True, False, False]
    with live.queue(name="plain") as queue:
        with pytest.raises(BadArgument):
            queue.put(b"a", priority="high")
        with pytest.raises(BadArgument):
            queue.put(b"a", ttl=0)
        assert queue.empty()
