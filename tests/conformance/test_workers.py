"""Workers: functions that handle messages, run until they are stopped."""

from __future__ import annotations

import asyncio
import logging
import queue
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from penstock import Store
from penstock.errors import BadName, BadSetting, UsageError
from penstock.testing import FakeClock
from tests.conformance.backends import SETTINGS, DirectoryBackend, keep_clients, skip_unless
from tests.conformance.helpers import PATIENCE, Running, numbered, offsets, position, until, values

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conformance.backends import Backend


class Seen:
    """What handlers saw, and a way to wait for so many."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._changed = threading.Condition()

    def add(self, *values: Any) -> None:
        """One more."""
        with self._changed:
            self.values += values
            self._changed.notify_all()

    def wait_for(self, count: int) -> None:
        """Until there are *count*."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.values) >= count, PATIENCE), self.values


def _note(seen: Seen, message: Any) -> None:
    seen.add(message.value)


@contextmanager
def running(store: Store) -> Iterator[None]:
    """The store's workers, while the block runs."""
    run = Running(store.run)
    try:
        yield
    finally:
        store.stop()
        run.result()


def test_a_function_handles_every_message(live_store: Store) -> None:
    """Those that are there and those that come; what returns is acked."""
    seen = Seen()
    live_store.publish_many("t", numbered(20))

    @live_store.worker("t", group="g")
    def handle(message: Any) -> None:
        seen.add(message.value)

    with running(live_store):
        seen.wait_for(20)
        live_store.publish_many("t", numbered(5, 20))
        seen.wait_for(25)
    assert seen.values == numbered(25)
    assert position(live_store, "t", "g") == 25


def test_a_function_that_fails_is_called_again_and_then_gives_up(live_store: Store) -> None:
    """As often as the group allows; then the message is a dead letter with the error as its reason, and the others are handled."""
    seen = Seen()
    live_store.publish_many("t", numbered(3))

    @live_store.worker("t", group="g", max_deliveries=3, backoff=0.01)
    def handle(message: Any) -> None:
        seen.add((message.value, message.attempt))
        if message.value == b"1":
            raise ValueError("cannot do that")

    with running(live_store):
        seen.wait_for(5)
        assert until(lambda: len(live_store.dead_letters("t")))
    assert sorted(seen.values) == [(b"0", 1), (b"1", 1), (b"1", 2), (b"1", 3), (b"2", 1)]
    (letter,) = live_store.dead_letters("t").list()
    assert letter.headers["x-dlq-reason"] == b"ValueError: cannot do that"


class Unprintable(Exception):
    """One that cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("a broken __str__")


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (SystemExit(1), b"RuntimeError: the handler raised SystemExit: 1"),
        (asyncio.CancelledError("by itself"), b"RuntimeError: the handler raised CancelledError: by itself"),
        (Unprintable(), b"Unprintable, which cannot be shown"),
    ],
    ids=["exit", "cancelled", "unprintable"],
)
@pytest.mark.parametrize("is_async", [False, True], ids=["thread", "loop"])
def test_whatever_a_handler_raises_is_a_failure_and_the_next_message_is_handled(
    live_store: Store, failure: BaseException, reason: bytes, is_async: bool
) -> None:
    """Also what would end its thread, or its event loop, or cannot be printed."""
    seen = Seen()
    live_store.publish_many("t", numbered(3))

    def handle(message: Any) -> None:
        seen.add((message.value, message.attempt))
        if message.value == b"0":
            raise failure

    async def handle_in_loop(message: Any) -> None:
        handle(message)

    live_store.worker("t", group="g", max_deliveries=2, backoff=0.01)(handle_in_loop if is_async else handle)
    with running(live_store):
        seen.wait_for(4)
        assert until(lambda: len(live_store.dead_letters("t")))
        live_store.publish("t", b"3")
        seen.wait_for(5)
    assert sorted(seen.values) == [(b"0", 1), (b"0", 2), (b"1", 1), (b"2", 1), (b"3", 1)]
    (letter,) = live_store.dead_letters("t").list()
    assert letter.headers["x-dlq-reason"] == reason


def test_a_log_handler_that_raises_keeps_no_message_from_being_settled(
    live_store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program's own handler may fail at the very exception that it is to show."""
    seen = Seen()
    live_store.publish_many("t", numbered(2))

    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("this handler always fails")

    @live_store.worker("t", group="g", max_deliveries=2, backoff=0.01)
    def handle(message: Any) -> None:
        seen.add((message.value, message.attempt))
        if message.value == b"0":
            raise ValueError("cannot do that")

    broken = Broken()
    logging.getLogger("penstock").addHandler(broken)
    try:
        with running(live_store):
            seen.wait_for(3)
            assert until(lambda: position(live_store, "t", "g") == 2)
    finally:
        logging.getLogger("penstock").removeHandler(broken)
    assert sorted(seen.values) == [(b"0", 1), (b"0", 2), (b"1", 1)]
    assert "this handler always fails" in capsys.readouterr().err


def test_handlers_run_at_once_as_many_as_asked_for(live_store: Store) -> None:
    """Four of them meet at a barrier that one alone would never pass; a fifth is never there."""
    live_store.publish_many("t", numbered(12))
    barrier = threading.Barrier(4)
    seen = Seen()
    inside = Seen()

    @live_store.worker("t", group="g", concurrency=4)
    def handle(message: Any) -> None:
        inside.add(1)
        assert sum(inside.values) <= 4
        barrier.wait(PATIENCE)
        inside.add(-1)
        seen.add(message.value)

    with running(live_store):
        seen.wait_for(12)
    assert sorted(seen.values, key=int) == numbered(12)


def test_one_at_a_time_unless_asked(live_store: Store) -> None:
    """The default keeps the order of one partition."""
    live_store.publish_many("t", numbered(30))
    seen = Seen()
    lock = threading.Lock()

    @live_store.worker("t", group="g")
    def handle(message: Any) -> None:
        assert lock.acquire(blocking=False)
        seen.add(message.value)
        lock.release()

    with running(live_store):
        seen.wait_for(30)
    assert seen.values == numbered(30)


def test_a_function_may_take_many_at_once(live_store: Store) -> None:
    """A list of at most as many as asked for."""
    live_store.publish_many("t", numbered(25))
    seen = Seen()

    @live_store.worker("t", group="g", batch=10)
    def handle(messages: Any) -> None:
        assert 1 <= len(messages) <= 10
        seen.add(*values(messages))

    with running(live_store):
        seen.wait_for(25)
    assert seen.values == numbered(25)
    assert position(live_store, "t", "g") == 25


def test_a_list_that_fails_fails_as_a_whole(live_store: Store) -> None:
    """All of it comes again."""
    live_store.publish_many("t", numbered(4))
    seen = Seen()

    @live_store.worker("t", group="g", batch=4, backoff=0.01)
    def handle(messages: Any) -> None:
        seen.add(sorted(offsets(messages)))
        if max(message.attempt for message in messages) == 1:
            raise RuntimeError("once")

    with running(live_store):
        seen.wait_for(1)
        assert until(lambda: position(live_store, "t", "g") == 4)
    assert seen.values[0] == [0, 1, 2, 3]
    assert sorted(offset for part in seen.values[1:] for offset in part) == [0, 1, 2, 3]


def test_an_async_function_is_awaited(live_store: Store) -> None:
    """As many at once as asked for, in one loop."""
    live_store.publish_many("t", numbered(9))
    seen = Seen()
    waiting: list[asyncio.Future[None]] = []

    @live_store.worker("t", group="g", concurrency=3)
    async def handle(message: Any) -> None:
        # Three must be inside before any may leave.
        mine = asyncio.get_running_loop().create_future()
        waiting.append(mine)
        if len(waiting) == 3:
            for one in waiting:
                one.set_result(None)
            waiting.clear()
        await mine
        seen.add(message.value)

    with running(live_store):
        seen.wait_for(9)
    assert sorted(seen.values, key=int) == numbered(9)
    assert position(live_store, "t", "g") == 9


def test_an_async_function_that_fails_is_called_again(live_store: Store) -> None:
    """Like a plain one."""
    live_store.publish("t", b"x")
    seen = Seen()

    @live_store.worker("t", group="g", backoff=0.01)
    async def handle(message: Any) -> None:
        seen.add(message.attempt)
        await asyncio.sleep(0)
        if message.attempt < 3:
            raise RuntimeError("not yet")

    with running(live_store):
        seen.wait_for(3)
    assert seen.values == [1, 2, 3]
    assert position(live_store, "t", "g") == 1


def test_an_async_function_waits_for_messages_without_being_asked(live_store: Store) -> None:
    """It sleeps on an empty topic and is woken by each publish."""
    live_store.create_topic("t")
    seen = Seen()

    @live_store.worker("t", group="g")
    async def handle(message: Any) -> None:
        seen.add(message.value)

    with running(live_store):
        for number in range(10):
            live_store.publish("t", b"%d" % number)
            seen.wait_for(number + 1)
    assert seen.values == numbered(10)


def test_several_functions_run_side_by_side(live_store: Store) -> None:
    """On two topics and in two groups of one."""
    live_store.publish_many("t", numbered(5))
    live_store.publish_many("u", numbered(5))
    seen = {name: Seen() for name in ("t/a", "t/b", "u/a")}
    for name, mine in seen.items():
        topic, group = name.split("/")
        live_store.worker(topic, group=group)(partial(_note, mine))
    with running(live_store):
        for one in seen.values():
            one.wait_for(5)
    assert all(one.values == numbered(5) for one in seen.values())


def test_a_slow_handler_keeps_its_message(live: Backend) -> None:
    """For many times its lease, while the other handler takes one message after the other: it is called once."""
    clock = live.live_clock = FakeClock()
    store = live.open()
    store.publish("t", b"0")
    may_end = threading.Event()
    seen = Seen()

    @store.worker("t", group="g", lease=10, concurrency=2)
    def handle(message: Any) -> None:
        seen.add((message.value, message.attempt))
        assert message.value != b"0" or may_end.wait(PATIENCE)

    with running(store):
        seen.wait_for(1)
        for number in range(1, 5):
            keep_clients(live.owner(), 11)
            clock.advance(11)
            store.publish("t", b"%d" % number)
            seen.wait_for(number + 1)
        may_end.set()
        assert until(lambda: position(store, "t", "g") == 5)
    assert seen.values == [(value, 1) for value in numbered(5)]


def test_stopping_waits_for_the_handler_that_runs(live_store: Store) -> None:
    """It ends and is acked; what was not begun stays for the next, as new as it was."""
    live_store.publish_many("t", numbered(10))
    begun, may_end = threading.Event(), threading.Event()
    seen = Seen()

    @live_store.worker("t", group="g")
    def handle(message: Any) -> None:
        begun.set()
        assert may_end.wait(PATIENCE)
        seen.add(message.value)

    run = Running(live_store.run)
    assert begun.wait(PATIENCE)
    live_store.stop()
    may_end.set()
    run.result()
    assert seen.values == [b"0"]
    assert position(live_store, "t", "g") == 1
    with live_store.subscribe("t", "g") as consumer:
        got = consumer.get_many(100, timeout=PATIENCE)
    assert [(message.offset, message.attempt) for message in got] == [(offset, 1) for offset in range(1, 10)]


def test_running_without_workers_is_a_mistake(live_store: Store) -> None:
    """It would wait for ever for nothing."""
    with pytest.raises(UsageError):
        live_store.run()


def test_a_worker_may_be_run_again(live_store: Store) -> None:
    """After it was stopped, with what came meanwhile."""
    live_store.create_topic("t")
    seen = Seen()

    @live_store.worker("t", group="g")
    def handle(message: Any) -> None:
        seen.add(message.value)

    for turn in range(3):
        live_store.publish("t", b"%d" % turn)
        with running(live_store):
            seen.wait_for(turn + 1)
    assert seen.values == numbered(3)


def test_a_decorated_function_is_still_a_function(live_store: Store) -> None:
    """It can be called by hand, in a test of its own."""
    live_store.create_topic("t")

    @live_store.worker("t", group="g")
    def handle(message: Any) -> str:
        """What it does."""
        return f"handled {message}"

    assert handle("it") == "handled it"
    assert handle.__name__ == "handle"


@pytest.mark.parametrize(
    "bad",
    [{"concurrency": 0}, {"concurrency": -1}, {"concurrency": "5"}, {"batch": 0}, {"batch": "5"}, {"lease": -1}],
    ids=ascii,
)
def test_a_worker_with_bad_arguments_is_refused(live_store: Store, bad: dict[str, Any]) -> None:
    """When it is declared, or when it is run; with a typed error."""
    live_store.create_topic("t")
    with pytest.raises(UsageError):
        live_store.worker("t", group="g", **bad)(lambda message: None)
        live_store.run()


PROGRAM = """
import sys
import penstock

store = penstock.open(sys.argv[1], free_bytes_floor=0, reserve_bytes=0, journal_file_bytes=1 << 20, frame_bytes=1 << 18,
                      reference_bytes=1 << 16)
store.create_topic("t")

@store.worker("t", group="g")
def handle(message):
    print(message.value.decode(), flush=True)

store.publish_many("t", [b"%d" % number for number in range(10)])
store.run()
store.close()
print("closed", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_stops_a_program_of_workers_in_good_order(live: Backend, tmp_path: Path, number: signal.Signals) -> None:
    """It ends by itself, with status 0, and what it handled is acked."""
    skip_unless(isinstance(live, DirectoryBackend), "runs a program on a folder")
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    with subprocess.Popen([sys.executable, str(script), str(tmp_path / "store")], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            seen = [process.stdout.readline().strip() for _ in range(10)]
            process.send_signal(number)
            rest, _ = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert process.returncode == 0
    assert rest.split() == ["closed"]
    assert seen == [str(at) for at in range(10)]
    with Store.open(str(tmp_path / "store"), settings=SETTINGS) as store:
        assert position(store, "t", "g") == 10


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_worker_may_start_before_the_first_message(live_store: Store, kind: str) -> None:
    """It makes its topic, as it declares it, and gets what is published then."""
    found: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    if kind == "plain":

        @live_store.worker("t", group="g", start="latest", topic_settings={"partitions": 2})
        def handle(message: Any) -> None:
            found.put(message.value)

    else:

        @live_store.worker("t", group="g", start="latest", topic_settings={"partitions": 2})
        async def handle_soon(message: Any) -> None:
            found.put(message.value)

    with running(live_store):
        until(lambda: [info.name for info in live_store.topics()] == ["t"])
        assert live_store.topic("t").partitions == 2
        live_store.publish("t", b"x")
        assert found.get(timeout=PATIENCE) == b"x"


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_worker_waits_for_a_topic_that_it_may_not_make(live: Backend, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """And begins with the first message of it, also if it wants to begin at the end."""
    store = live.open(auto_create=False)
    found: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    if kind == "plain":

        @store.worker("t", group="g", start="latest")
        def handle(message: Any) -> None:
            found.put(message.value)

    else:

        @store.worker("t", group="g", start="latest")
        async def handle_soon(message: Any) -> None:
            found.put(message.value)

    with running(store):
        until(lambda: "waits for the topic t" in caplog.text)
        store.create_topic("t")
        store.publish("t", b"first")
        assert found.get(timeout=PATIENCE) == b"first"


def test_a_worker_that_waits_for_its_topic_can_be_stopped(live: Backend, caplog: pytest.LogCaptureFixture) -> None:
    store = live.open(auto_create=False)
    store.worker("t", group="g")(lambda _: None)
    with running(store):
        until(lambda: "waits for the topic t" in caplog.text)
    assert store.topics() == []


@pytest.mark.parametrize(
    ("wrong", "right"), [("max_retries", "max_deliveries"), ("max_delivery", "max_deliveries"), ("leese", "lease")]
)
def test_a_worker_with_a_misspelt_setting_is_refused_where_it_is_made(live_store: Store, wrong: str, right: str) -> None:
    """And not first where it runs; the error says what is meant."""
    with pytest.raises(BadSetting, match=right):
        live_store.worker("t", group="g", **{wrong: 3})


@pytest.mark.parametrize("wrong", [{"topic": ""}, {"group": "a b"}])
def test_a_worker_with_a_bad_name_is_refused_where_it_is_made(live_store: Store, wrong: dict[str, Any]) -> None:
    with pytest.raises(BadName):
        live_store.worker(wrong.get("topic", "t"), group=wrong.get("group", "g"))
