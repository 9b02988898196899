"""Publishing from tasks: a commit wakes the task that waits for it, and no thread waits for a message."""

from __future__ import annotations

import asyncio
import datetime as dt
import errno
import threading
from typing import Any

import pytest

from penstock import Receipt, Store, aio
from penstock.errors import (
    BadArgument,
    Closed,
    MessageTooLarge,
    OutcomeUnknown,
    ReservedName,
    StorageFailed,
    TopicNotFound,
    UsageError,
)
from penstock.journal.journal import Journal
from penstock.testing import FakeClock, SimulatedFileSystem
from tests.aio.helpers import PATIENCE, Opener, counted_threads, run, stored
from tests.conformance.backends import SETTINGS
from tests.conformance.helpers import numbered

MODES = pytest.mark.parametrize("sync", ["always", "os"])
"""Waiting for the disk, and not."""


@pytest.mark.parametrize("sync", ["always", "interval", "os"])
def test_a_receipt_says_where_the_message_is(opener: Opener, sync: str) -> None:
    """Dense offsets from 0, in every mode."""

    async def main() -> None:
        async with opener() as store:
            await store.create_topic("t", sync=sync)
            receipts = [await store.publish("t", value) for value in numbered(5)]
            assert receipts == [Receipt("t", 0, offset) for offset in range(5)]
            assert await stored(store) == numbered(5)
            assert store.stats().topics["t"].published == 5

    run(main())


@MODES
def test_options_are_those_of_the_plain_store(opener: Opener, sync: str) -> None:
    """Key, headers, partition, time, deduplication and mode."""
    moment = dt.datetime(2024, 5, 6, 7, 8, 9, tzinfo=dt.UTC)

    async def main() -> None:
        async with opener() as store:
            await store.create_topic("t", partitions=4, sync=sync)
            first = await store.publish("t", b"v", key="k", headers={"h": b"1"}, timestamp=moment, dedup_key="d", sync="always")
            again = await store.publish("t", b"other", key="k", dedup_key="d")
            assert (again.partition, again.offset) == (first.partition, first.offset)
            assert again.duplicate
            assert not first.duplicate
            chosen = await store.publish("t", None, partition=3)
            assert chosen.partition == 3
            (message,) = [message async for message in store.read("t", first.partition, max_messages=1)]
            assert (message.value, message.key, list(message.headers)) == (b"v", b"k", [("h", b"1")])
            assert message.timestamp == moment

    run(main())


@MODES
def test_any_value_comes_back_as_it_is(opener: Opener, sync: str) -> None:
    """An empty one is no tombstone."""
    given: list[Any] = [b"", None, bytearray(b"x"), memoryview(b"xyz"), b"x" * 100_000]

    async def main() -> None:
        async with opener() as store:
            await store.create_topic("t", sync=sync)
            for value in given:
                await store.publish("t", value)
            assert await stored(store) == [None if value is None else bytes(value) for value in given]

    run(main())


def test_messages_without_a_key_go_round(opener: Opener) -> None:
    """Whether the disk is waited for or not."""

    async def main() -> None:
        async with opener() as store:
            for topic, sync in (("a", "always"), ("o", "os")):
                await store.create_topic(topic, partitions=3, sync=sync)
                receipts = [await store.publish(topic, b"x") for _ in range(6)]
                assert sorted((receipt.partition, receipt.offset) for receipt in receipts) == [
                    (partition, offset) for partition in range(3) for offset in range(2)
                ]

    run(main())


BAD: list[tuple[Any, dict[str, Any], type[Exception]]] = [
    ("text", {}, BadArgument),
    (5, {}, BadArgument),
    (b"x" * 101, {}, MessageTooLarge),
    (b"x", {"key": 5}, BadArgument),
    (b"x", {"headers": {"h": "text"}}, BadArgument),
    (b"x", {"timestamp": "now"}, BadArgument),
    (b"x", {"partition": 1}, TopicNotFound),
    (b"x", {"sync": "sometimes"}, UsageError),
    (b"x", {"dedup_key": ""}, BadArgument),
]


@MODES
def test_a_bad_message_is_refused(opener: Opener, sync: str) -> None:
    """With the plain store's error, and no hole is left."""

    async def main() -> None:
        async with opener() as store:
            await store.create_topic("t", sync=sync, max_message_bytes=100)
            for value, options, error in BAD:
                with pytest.raises(error):
                    await store.publish("t", value, **options)
            assert (await store.publish("t", b"good")).offset == 0
            assert await stored(store) == [b"good"]
            assert store.stats().topics["t"].published == 1

    run(main())


def test_a_bad_message_makes_no_topic(opener: Opener) -> None:
    """Nor does a reserved name."""

    async def main() -> None:
        async with opener() as store:
            with pytest.raises(BadArgument):
                await store.publish("t", "text")  # type: ignore[arg-type]
            with pytest.raises(ReservedName):
                await store.publish("t.dlq", b"x")
            assert store.topics() == []

    run(main())


# -- many -------------------------------------------------------------------------------------------------------------


@MODES
def test_many_are_published_at_once(opener: Opener, sync: str) -> None:
    """With their columns; the receipts come in order."""

    async def main() -> None:
        async with opener() as store:
            await store.create_topic("t", partitions=2, sync=sync)
            receipts = await store.publish_many("t", numbered(10), partition=1)
            assert [(receipt.partition, receipt.offset) for receipt in receipts] == [(1, offset) for offset in range(10)]
            keyed = await store.publish_many(
                "t", [b"a", b"b"], keys=["k", "k"], headers=[{"h": b"1"}, None], timestamps=[1, 2], dedup_keys=["d", "e"]
            )
            assert len({receipt.partition for receipt in keyed}) == 1
            again = await store.publish_many("t", [b"a", b"c"], dedup_keys=["d", "f"])
            assert [receipt.duplicate for receipt in again] == [True, False]
            assert len(await store.publish_many("t", [])) == 0
            assert sorted(value for value in await stored(store) if value is not None) == sorted(
                [*numbered(10), b"a", b"b", b"c"]
            )

    run(main())


def test_one_bad_message_refuses_them_all(opener: Opener) -> None:
    """Nothing of them is stored."""

    async def main() -> None:
        async with opener() as store:
            await store.create_topic("t")
            with pytest.raises(UsageError):
                await store.publish_many("t", [b"good", "bad"])  # type: ignore[list-item]
            with pytest.raises(UsageError):
                await store.publish_many("t", [b"a", b"b"], keys=["k"])
            assert await stored(store) == []

    run(main())


# -- tasks ------------------------------------------------------------------------------------------------------------


@MODES
def test_a_thousand_publishes_at_once_need_no_threads(opener: Opener, sync: str) -> None:
    """They share commits; each task is told its own offset, in the order in which the tasks began."""

    async def main() -> None:
        async with opener() as store:
            await store.create_topic("t", sync=sync)
            commits = store.stats().commits
            with counted_threads() as threads:
                receipts = await asyncio.gather(*[store.publish("t", value) for value in numbered(1000)])
            assert threads[0] < 10
            assert [receipt.offset for receipt in receipts] == list(range(1000))
            assert await stored(store) == numbered(1000)
            assert store.stats().topics["t"].published == 1000
            assert store.stats().commits - commits < 500

    run(main())


def test_publishes_with_options_share_a_few_threads(opener: Opener) -> None:
    """Those of the loop, however many messages there are."""

    async def main() -> None:
        async with opener() as store:
            await store.create_topic("t", partitions=4)
            with counted_threads() as threads:
                receipts = await asyncio.gather(*[store.publish("t", value, key=value) for value in numbered(300)])
            assert threads[0] < 50
            assert len({(receipt.partition, receipt.offset) for receipt in receipts}) == 300

    run(main())


def test_tasks_that_publish_one_deduplication_key_store_one_message(opener: Opener) -> None:
    """One of them is the first."""

    async def main() -> None:
        async with opener() as store:
            receipts = await asyncio.gather(*[store.publish("t", b"x", dedup_key="d") for _ in range(50)])
            assert sorted(receipt.duplicate for receipt in receipts) == [False] + [True] * 49
            assert await stored(store) == [b"x"]

    run(main())


def test_tasks_that_make_one_topic_make_one_topic(opener: Opener) -> None:
    """By their first publish."""

    async def main() -> None:
        async with opener() as store:
            receipts = await asyncio.gather(*[store.publish("t", b"x", **({"key": "k"} if at % 2 else {})) for at in range(50)])
            assert sorted(receipt.offset for receipt in receipts) == list(range(50))
            assert len(store.topics()) == 1

    run(main())


def test_the_loop_goes_on_while_the_disk_is_waited_for(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """A publish that waits for its commit holds up no other task: the disk takes until the loop had a hundred turns."""
    turned = threading.Event()
    plain = Journal.sync

    def sync(journal: Journal) -> None:
        assert turned.wait(PATIENCE), "the loop stands still"
        plain(journal)

    async def main() -> None:
        async with opener() as store:
            await store.create_topic("t", sync="always")
            monkeypatch.setattr(Journal, "sync", sync)
            publishing = asyncio.create_task(store.publish("t", b"x"))
            for _ in range(100):
                await asyncio.sleep(0)
                assert not publishing.done()
            turned.set()
            assert (await publishing).offset == 0

    run(main())


@MODES
def test_a_cancelled_publish_is_stored_nevertheless(opener: Opener, sync: str) -> None:
    """It was asked for, and the task only stopped waiting for the answer; what comes after it has the next offset."""

    async def main() -> None:
        async with opener() as store:
            await store.create_topic("t", sync=sync)
            tasks = [asyncio.create_task(store.publish("t", value)) for value in numbered(20)]
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert (await store.publish("t", b"20")).offset == 20
            assert await stored(store) == numbered(21)

    run(main())


@MODES
def test_closing_answers_every_publish(folder_opener: Opener, sync: str) -> None:
    """Each has its receipt, and then it is there, or `Closed`."""

    async def main() -> None:
        store = await folder_opener()
        await store.create_topic("t", sync=sync)
        tasks = [asyncio.create_task(store.publish("t", value)) for value in numbered(100)]
        await asyncio.sleep(0)
        await store.close()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(answer, Receipt | Closed) for answer in answers), answers
        async with folder_opener() as again:
            found = await stored(again)
        for value, answer in zip(numbered(100), answers, strict=True):
            if isinstance(answer, Receipt):
                assert found[answer.offset] == value

    run(main())


# -- a failing disk ---------------------------------------------------------------------------------------------------


async def _failed_publishes() -> tuple[aio.AsyncStore, list[Any]]:
    files = SimulatedFileSystem()
    store = aio.AsyncStore(Store.open("/store", settings=SETTINGS, files=files, clock=FakeClock()))
    await store.create_topic("t", sync="always")
    await store.publish("t", b"before")
    files.fail("sync_data", 1, errno.EIO, count=None)
    return store, await asyncio.gather(*[store.publish("t", b"x") for _ in range(20)], return_exceptions=True)


def test_a_failed_sync_is_told_to_every_task() -> None:
    """None of them gets a receipt, and none hangs."""

    async def main() -> None:
        store, answers = await _failed_publishes()
        assert all(isinstance(answer, OutcomeUnknown | StorageFailed) for answer in answers), answers
        assert any(isinstance(answer, OutcomeUnknown) for answer in answers)
        with pytest.raises(StorageFailed):
            await store.publish("t", b"x")
        assert store.stats().failure is not None
        await store.close()

    run(main())


def test_a_failed_publish_is_not_counted() -> None:
    """`published` counts what was published, as it does for the plain store."""

    async def main() -> None:
        store, _ = await _failed_publishes()
        assert store.stats().topics["t"].published == 1
        await store.close()

    run(main())


def test_the_loop_does_not_wait_for_a_topic_that_is_made(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are synced, however long the disk takes for that."""

    async def main() -> None:
        async with aio.open(folder) as store:
            catalog, makers = store.sync._catalog, []
            create = catalog.create

            def noted(*arguments: Any) -> Any:
                makers.append(threading.current_thread())
                return create(*arguments)

            monkeypatch.setattr(catalog, "create", noted)
            assert await store.publish("t", b"x") == Receipt("t", 0, 0)
            assert await store.publish("t", b"y") == Receipt("t", 0, 1)
            assert len(makers) == 1
            assert makers[0] is not threading.current_thread()

    run(main())
