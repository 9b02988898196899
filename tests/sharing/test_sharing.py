"""A second process opens a store that somebody has open: it simply works."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from typing import TYPE_CHECKING

import penstock
from penstock import aio
from penstock.client.store import RemoteStore
from tests.cli.conftest import SCRIPT
from tests.sharing.processes import PATIENCE_S, SETTINGS, Program, eventually, owner_of, program

if TYPE_CHECKING:
    from pathlib import Path


def values(store: penstock.Store, topic: str) -> list[bytes | None]:
    """What a topic holds."""
    return [message.value for message in store.read(topic)]


def test_a_second_process_publishes_consumes_and_transacts(path: Path) -> None:
    """With the calls of the first, in the same topics and groups."""
    text = """
with open() as store:
    receipt = store.publish("t", b"second")
    say(receipt.partition, receipt.offset, type(store).__name__)
    with store.subscribe("t", group="g") as consumer:
        message = consumer.get(timeout=30)
        say(message.value.decode())
        with store.transaction() as transaction:
            transaction.publish("results", message.value + b" done")
            transaction.ack(message)
    say("end")
"""
    with penstock.open(path, **SETTINGS) as store, program(path, text) as other:
        store.publish("t", b"first")
        assert other.hear() in ("0 1 RemoteStore", "0 0 RemoteStore")
        got = other.hear()
        assert got in ("first", "second")
        assert other.hear() == "end"
        assert other.end() == 0
        assert values(store, "results") == [got.encode() + b" done"]
        with store.subscribe("t", group="g") as consumer:
            left = consumer.get(timeout=PATIENCE_S)
            assert left is not None
            assert {got.encode(), left.value} == {b"first", b"second"}


def test_consumers_of_two_processes_compete(path: Path) -> None:
    """Each message goes to one of them, whoever published it."""
    text = """
with open() as store:
    consumer = store.subscribe("t", "g", prefetch=1)
    say("ready")
    message = consumer.get(timeout=30)
    say(message.value.decode())
    told()  # and holds it, so that it cannot take the other one too
    message.ack(wait=True)
"""
    with penstock.open(path, **SETTINGS) as store:
        store.create_topic("t")
        with program(path, text) as other:
            assert other.hear() == "ready"
            with store.subscribe("t", "g", prefetch=1) as consumer:
                store.publish_many("t", [b"%d" % number for number in range(2)])
                mine = consumer.get(timeout=30)
                assert mine is not None
                mine.ack()
                theirs = other.hear()
                assert {bytes(mine.value or b""), theirs.encode()} == {b"0", b"1"}
            other.tell()
            assert other.end() == 0
        store.flush()
        assert store.stats().topics["t"].groups["g"].lag == 0


def test_the_owner_need_not_make_topics_for_those_who_may(path: Path) -> None:
    """Whether publishing makes a topic is said by each opener for itself."""
    with (
        penstock.open(path, auto_create=False, **SETTINGS) as owner,
        penstock.open(path) as willing,
        penstock.open(path, auto_create=False) as unwilling,
    ):
        for store in (owner, unwilling):
            try:
                store.publish("new", b"x")
            except penstock.errors.TopicNotFound:
                continue
            raise AssertionError(store)
        with willing.transaction() as transaction:
            transaction.publish("new", b"x")
        assert unwilling.publish("new", b"y").offset == 1
        willing.publish("newer", b"x")
        assert [info.name for info in owner.topics()] == ["new", "newer"]


def test_asyncio_shares_too(path: Path) -> None:
    """`aio.open` on a path that is owned is the asyncio client."""

    async def main() -> None:
        async with aio.open(path) as store:
            await store.publish("t", b"x")
            async with store.subscribe("t", group="g") as consumer, await consumer.get(timeout=30) as message:  # type: ignore[union-attr]
                assert message.value == b"x"
        async with aio.open(path) as store:
            await store.publish("t", b"y")

    with penstock.open(path, **SETTINGS) as owner:
        asyncio.run(main())
        assert values(owner, "t") == [b"x", b"y"]
        assert owner.stats().topics["t"].groups["g"].lag == 1


def test_commands_work_on_a_store_that_is_in_use(path: Path) -> None:
    """Without a server."""
    with penstock.open(path, **SETTINGS) as owner:
        owner.publish("orders", b"first")

        def run(*arguments: str) -> str:
            return subprocess.run([SCRIPT, *arguments], capture_output=True, text=True, check=True, timeout=60).stdout

        run("publish", str(path), "orders", "second")
        assert values(owner, "orders") == [b"first", b"second"]
        assert json.loads(run("consume", str(path), "orders", "--group", "g", "--count", "1", "--json"))["value"] == "first"
        assert owner.stats().topics["orders"].groups["g"].lag == 1


def test_one_process_may_open_a_store_twice(path: Path) -> None:
    """Two parts of a program that know nothing of each other; the second goes on when the first has closed its own."""
    first = penstock.open(path, **SETTINGS)
    with penstock.open(path, **SETTINGS) as second:
        assert isinstance(second, RemoteStore)
        second.publish("t", b"x")
        assert values(first, "t") == [b"x"]
        first.close()
        assert second.publish("t", b"y").offset == 1
        assert owner_of(path) not in (None, os.getpid())


def test_siblings_see_a_consumer_leave_with_its_process(path: Path) -> None:
    """A sibling that is killed gives back what it held within moments, not when its lease ends."""
    text = """
store = open()
consumer = store.subscribe("t", "g", lease=600)
say(consumer.get(timeout=30).value.decode())
told()
"""
    with penstock.open(path, **SETTINGS) as store:
        store.publish("t", b"x")
        with program(path, text) as other:
            assert other.hear() == "x"
            other.kill()
        with store.subscribe("t", "g") as consumer:
            message = consumer.get(timeout=30)
            assert message is not None
            message.ack()


def test_nobody_pays_for_sharing_before_somebody_comes(path: Path) -> None:
    """The modules of the server are loaded with the first knock."""
    text = """
store = open()
say("penstock.server.running" in sys.modules, "asyncio.sslproto" in sys.modules)
told()
say("penstock.server.running" in sys.modules)
store.close()
say(os.path.exists(os.path.join(path, "share.socket")))
"""
    with program(path, text) as owner:
        assert owner.hear().startswith("False")
        penstock.open(path).close()
        owner.tell()
        assert owner.hear() == "True"
        assert owner.hear() == "False"
        assert owner.end() == 0


def test_a_program_whose_main_thread_has_ended_still_serves(path: Path) -> None:
    """Its other threads go on with the store, and so do those who share it."""
    text = """
import threading
store = open()
def go_on():
    told()
    store.close()
threading.Thread(target=go_on).start()
say("open")
"""
    with program(path, text) as owner:
        assert owner.hear() == "open"
        # Until Python has told its own executors to stop.
        eventually(lambda: len(os.listdir(f"/proc/{owner.pid}/task")) > 1)
        with penstock.open(path) as store:
            assert [store.publish("t", b"x").offset for _ in range(3)] == [0, 1, 2]
            assert store.stats().topics["t"].messages == 3
            owner.tell()
            assert owner.end() == 0
            assert store.publish("t", b"x").offset == 3


def test_a_program_that_ends_without_closing_gives_back_what_it_holds(path: Path) -> None:
    """Uncounted, as one that owns its store does."""
    text = """
store = open()
consumer = store.subscribe("t", "g", lease=600)
say(consumer.get(timeout=30).value.decode())
"""
    with penstock.open(path, **SETTINGS) as store:
        store.publish("t", b"x")
        other = Program(path, text)
        assert other.hear() == "x"
        assert other.end() == 0
        with store.subscribe("t", "g") as consumer:
            message = consumer.get(timeout=30)
            assert message is not None
            assert message.attempt == 1


def test_a_consumer_in_a_second_process_may_come_before_the_first_message(path: Path) -> None:
    """It makes the topic as it declares it, and gets what the first process publishes then."""
    text = """
with open() as store, store.subscribe("t", group="g", start="latest", topic_settings={"partitions": 2}) as consumer:
    say("ready")
    say(consumer.get(timeout=30).value.decode())
"""
    with penstock.open(path, **SETTINGS) as store, program(path, text) as other:
        assert other.hear() == "ready"
        assert store.topic("t").partitions == 2
        store.publish("t", b"first")
        assert other.hear() == "first"
