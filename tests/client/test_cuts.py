"""The connection is cut after every single byte: what was acknowledged is there once, in order, and what was not is told right."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from penstock import aio
from penstock.errors import LeaseExpired, OutcomeUnknown, PenstockError, SequenceGap, Unavailable, UsageError
from penstock.format.batch import encode_batch
from penstock.format.batch_header import Producer
from penstock.wire.calls import Call
from tests.client.proxy import DOWN, UP
from tests.client.served import PATIENCE_S, eventually, later

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from penstock import Store
    from tests.client.proxy import Proxy
    from tests.client.served import Served

BYTES_MAX = 1_500
"""No call of these tests has so many in either direction."""


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connect again at once."""
    monkeypatch.setattr("penstock.client.connection.PAUSE_FIRST_SECONDS", 0.001)


def cut_everywhere(proxy: Proxy, client: Any, call: Callable[[Callable[[], None]], None], step: int = 1) -> int:
    """
    Make *call* again and again, each time cut *step* bytes later, until it passes whole; both ways. Returns how often it was cut.

    It is given the function that lets the cut come from now on.
    """
    begun = proxy.cuts
    for direction in (UP, DOWN):
        for count in range(0, BYTES_MAX, step):
            cuts = proxy.cuts
            call(lambda direction=direction, count=count: proxy.cut_after(direction, count))  # type: ignore[misc]
            proxy.spare()
            if proxy.cuts == cuts:
                break
            eventually(lambda: client._connection._channel is not None)
            client.topics()
        else:
            raise AssertionError("the call never got through whole")
    return proxy.cuts - begun


def test_a_publish_cut_anywhere_is_stored_once(proxy: Proxy, client: Store, served: Served) -> None:
    """It waits for the connection, and is sent again if it was not answered."""
    client.publish("orders", b"first")
    offsets: list[int] = []
    sent = [b"first"]

    def publish(arm: Callable[[], None]) -> None:
        sent.append(b"%d" % len(sent))
        arm()
        offsets.append(client.publish("orders", sent[-1]).offset)

    assert cut_everywhere(proxy, client, publish) > 100
    assert offsets == list(range(1, len(sent)))
    assert served.values("orders") == sent


def test_many_published_at_once_cut_anywhere_are_stored_once(proxy: Proxy, client: Store, served: Served) -> None:
    """Over the partitions of a topic, in order in each."""
    client.create_topic("orders", partitions=2)
    sent: list[bytes] = []

    def publish(arm: Callable[[], None]) -> None:
        values = [b"%d.%d" % (len(sent), number) for number in range(2)]
        arm()
        client.publish_many("orders", values, partition=len(sent) // 2 % 2)
        sent.extend(values)

    cut_everywhere(proxy, client, publish, step=3)
    for partition in (0, 1):
        assert served.values("orders", partition) == [value for at, value in enumerate(sent) if at // 2 % 2 == partition]


@pytest.mark.parametrize("sync", ["always", "os"])
def test_messages_for_many_partitions_cut_anywhere_are_stored_once_and_together(
    proxy: Proxy, client: Store, served: Served, sync: str
) -> None:
    """Whatever was cut, request or answer: the receipts are those of the one time that they were stored."""
    client.create_topic("orders", partitions=4, sync=sync)
    keys = [b"key %d" % number for number in range(8)]
    calls = 0

    def publish(arm: Callable[[], None]) -> None:
        nonlocal calls
        values = [b"%d.%d" % (calls, number) for number in range(len(keys))]
        arm()
        receipts = client.publish_many("orders", values, keys=keys)
        calls += 1
        for value, receipt in zip(values, receipts, strict=True):
            [message] = served.store.read("orders", receipt.partition, start=receipt.offset, max_messages=1)
            assert (message.value, receipt.duplicate) == (value, False)

    assert cut_everywhere(proxy, client, publish, step=5) > 20
    stored = sorted(served.values("orders"))
    assert stored == sorted(b"%d.%d" % (call, number) for call in range(calls) for number in range(len(keys)))


def test_messages_for_many_partitions_are_stored_once_from_asyncio_too(proxy: Proxy, served: Served) -> None:
    keys = [b"key %d" % number for number in range(8)]

    async def publish_cut() -> list[bytes]:
        sent = []
        async with aio.open(proxy.address, give_up=PATIENCE_S) as store:
            await store.create_topic("orders", partitions=4)
            for count in range(0, 400, 9):
                values = [b"%d.%d" % (count, number) for number in range(len(keys))]
                proxy.cut_after(DOWN, count % 90)
                receipts = await store.publish_many("orders", values, keys=keys)
                proxy.spare()
                sent += values
                for value, receipt in zip(values, receipts, strict=True):
                    [message] = served.store.read("orders", receipt.partition, start=receipt.offset, max_messages=1)
                    assert message.value == value
        return sent

    sent = asyncio.run(publish_cut())
    assert proxy.cuts > 10
    assert sorted(served.values("orders")) == sorted(sent)


def test_the_same_batches_sent_again_get_the_first_answer_and_a_part_of_them_is_refused(served: Served) -> None:
    served.store.create_topic("orders", partitions=3)
    raw = served.raw()

    def batches(sequence: int, partitions: list[int]) -> list[bytearray]:
        found = [encode_batch([b"%d" % number], producer=Producer(8, 1, sequence)) for number in partitions]
        for one in found:
            one.stamp(0, 0, 0, 0, 0, 0)
        return [one.data for one in found]

    first = raw.call(Call.PUBLISH_MANY, *batches(0, [0, 1]), topic="orders", partitions=[0, 1]).fields
    again = raw.call(Call.PUBLISH_MANY, *batches(0, [0, 1]), topic="orders", partitions=[0, 1]).fields
    assert (first, again) == ({"offsets": [0, 0], "duplicate": False}, {"offsets": [0, 0], "duplicate": True})
    with pytest.raises(UsageError, match="stored already"):
        raw.call(Call.PUBLISH_MANY, *batches(0, [1, 2]), topic="orders", partitions=[1, 2])
    with pytest.raises(SequenceGap):
        raw.call(Call.PUBLISH_MANY, *batches(2, [0, 1]), topic="orders", partitions=[0, 1])
    for partitions in ([0], [0, 0], [0, 7], [0, "1"], None, []):
        with pytest.raises(PenstockError):
            raw.call(Call.PUBLISH_MANY, *batches(1, [0, 1]), topic="orders", partitions=partitions)
    assert served.store.ends("orders") == {0: 1, 1: 1, 2: 0}


def test_a_publish_with_a_deduplication_key_cut_anywhere_is_stored_once(proxy: Proxy, client: Store, served: Served) -> None:
    """The key is what the server knows it by."""
    client.create_topic("orders", dedup_window=60)
    sent: list[bytes] = []

    def publish(arm: Callable[[], None]) -> None:
        sent.append(b"%d" % len(sent))
        arm()
        assert client.publish("orders", sent[-1], dedup_key=sent[-1]).offset == len(sent) - 1

    cut_everywhere(proxy, client, publish, step=3)
    assert served.values("orders") == sent


def test_a_fetch_cut_anywhere_loses_no_message(proxy: Proxy, client: Store, served: Served) -> None:
    """What was handed out and did not arrive comes again; what arrives can be finished, or is told to be late."""
    client.create_topic("orders")
    consumer = client.subscribe("orders", "workers", backoff=0.001, backoff_max=0.001, max_deliveries=1_000)
    finished: list[bytes] = []
    published = 0

    def get(arm: Callable[[], None]) -> None:
        nonlocal published
        served.store.publish("orders", b"%d" % published)
        published += 1
        arm()
        message = consumer.get(timeout=PATIENCE_S)
        assert message is not None
        proxy.spare()
        try:
            message.ack(wait=True)
        except LeaseExpired:
            return
        finished.append(message.value)  # type: ignore[arg-type]

    cut_everywhere(proxy, client, get)
    while len(finished) < published:
        message = consumer.get(timeout=PATIENCE_S)
        assert message is not None
        message.ack(wait=True)
        finished.append(message.value)  # type: ignore[arg-type]
    assert sorted(map(int, finished)) == list(range(published))
    assert consumer.get(timeout=0.05) is None


def test_an_ack_cut_anywhere_is_late_or_done(proxy: Proxy, client: Store, served: Served) -> None:
    """One that returns is done; one that is cut is late, whether the server had heard it or not, and the message may come again."""
    client.create_topic("orders")
    consumer = client.subscribe("orders", "workers", backoff=0.001, backoff_max=0.001, max_deliveries=1_000)
    acked: set[bytes] = set()
    published = 0

    def ack(arm: Callable[[], None]) -> None:
        nonlocal published
        served.store.publish("orders", b"%d" % published)
        published += 1
        message = consumer.get(timeout=PATIENCE_S)
        assert message is not None
        assert message.value not in acked
        cuts = proxy.cuts
        arm()
        try:
            message.ack(wait=True)
        except LeaseExpired:
            assert proxy.cuts > cuts
            with pytest.raises(LeaseExpired):
                message.ack()
        else:
            acked.add(message.value)  # type: ignore[arg-type]

    cut_everywhere(proxy, client, ack)

    def take_the_rest() -> bool:
        # The server may not have noticed yet that what it handed out last was lost.
        message = consumer.get(timeout=0.05)
        if message is not None:
            assert message.value not in acked
            message.ack(wait=True)
        return served.store.stats().topics["orders"].groups["workers"].lag == 0

    eventually(take_the_rest)


def test_a_transaction_cut_anywhere_is_whole_or_not_there(proxy: Proxy, client: Store, served: Served) -> None:
    """`OutcomeUnknown` says that one of both is true."""
    client.create_topic("a")
    client.create_topic("b")
    certain: set[bytes] = set()
    unknown: set[bytes] = set()

    def transact(arm: Callable[[], None]) -> None:
        value = b"%d" % (len(certain) + len(unknown))
        cuts = proxy.cuts
        arm()
        try:
            with client.transaction() as transaction:
                transaction.publish("a", value)
                transaction.publish("b", value)
        except OutcomeUnknown:
            assert proxy.cuts > cuts
            unknown.add(value)
        else:
            certain.add(value)

    cut_everywhere(proxy, client, transact, step=5)
    stored = served.values("a")
    assert stored == served.values("b")
    assert len(set(stored)) == len(stored)
    assert certain <= set(stored) <= certain | unknown
    assert len(unknown) > 20


def test_a_numbered_commit_cut_anywhere_gives_its_first_answer(proxy: Proxy, client: Store, served: Served) -> None:
    """It is sent again, and the server knows the number."""
    client.create_topic("orders")
    numbers: list[int] = []

    def commit(arm: Callable[[], None]) -> None:
        number = len(numbers) + 1
        with client.stage("job") as stage:
            stage.publish("orders", b"%d" % number)
            stage.publish("orders", b"%d again" % number)
        arm()
        committed = client.commit("job", number, [stage.identity])
        assert (committed.number, committed.messages) == (number, 2)
        numbers.append(number)

    cut_everywhere(proxy, client, commit)
    assert sorted(served.values("orders")) == sorted(
        value for number in numbers for value in (b"%d" % number, b"%d again" % number)
    )
    found = client.committed("job", numbers[-1])
    assert found is not None
    assert found.messages == 2


def test_a_stage_cut_anywhere_is_gone_or_finished(proxy: Proxy, client: Store, served: Served) -> None:
    """One that was not finished says so, and nothing of it can be committed."""
    client.create_topic("orders")
    finished: list[str] = []

    def stage(arm: Callable[[], None]) -> None:
        arm()
        try:
            with client.stage("job") as made:
                made.publish("orders", b"%d" % len(finished))
        except Unavailable:
            pass
        else:
            finished.append(made.identity)

    cut_everywhere(proxy, client, stage, step=11)
    assert client.commit("job", 1, finished).messages == len(finished)
    assert len(served.values("orders")) == len(finished)


@pytest.mark.parametrize("count", [50, 300])
def test_producers_with_many_batches_on_their_way_lose_and_double_nothing(
    proxy: Proxy, client: Store, served: Served, rng: Random, count: int
) -> None:
    """Cut again and again at random, in either direction, with and without a reset."""
    client.create_topic("orders", partitions=3)
    with client.producer("orders", linger=0.001, batch_messages=1) as producer:
        for turn in range(8):
            proxy.cut_after(rng.choice((UP, DOWN)), rng.randrange(1, 20_000), reset=rng.random() < 0.5)
            sent = [producer.send(b"%d.%d" % (turn, number), partition=number % 3) for number in range(count)]
            receipts = [one.result(PATIENCE_S) for one in sent]
            assert [one.partition for one in receipts] == [number % 3 for number in range(count)]
        proxy.spare()
    for partition in range(3):
        expected = [b"%d.%d" % (turn, number) for turn in range(8) for number in range(partition, count, 3)]
        assert served.values("orders", partition) == expected


def test_many_threads_publishing_over_random_cuts_store_everything_once(
    proxy: Proxy, client: Store, served: Served, rng: Random
) -> None:
    """Each thread's messages in its order."""
    client.create_topic("orders")
    threads = 8

    def publish(thread: int) -> list[int]:
        return [client.publish("orders", b"%d.%d" % (thread, number)).offset for number in range(60)]

    running = [later(lambda thread=thread: publish(thread)) for thread in range(threads)]  # type: ignore[misc]
    while not all(one.done() for one in running):
        proxy.cut_after(rng.choice((UP, DOWN)), rng.randrange(3_000), reset=rng.random() < 0.3)
        eventually(lambda: proxy._budget is None or all(one.done() for one in running))
    proxy.spare()
    stored = served.values("orders")
    assert len(stored) == len(set(stored)) == threads * 60
    for thread, one in enumerate(running):
        offsets = one.result()
        assert offsets == sorted(offsets)
        assert [stored[offset] for offset in offsets] == [b"%d.%d" % (thread, number) for number in range(60)]


def test_iterating_over_random_cuts_handles_every_message(proxy: Proxy, client: Store, served: Served, rng: Random) -> None:
    """At least once; and what was acked in time never again."""
    client.create_topic("orders")
    count = 400
    served.store.publish_many("orders", [b"%d" % number for number in range(count)])
    consumer = client.subscribe("orders", "workers", backoff=0.001, backoff_max=0.001, max_deliveries=1_000)
    done: set[int] = set()
    late: set[int] = set()

    def work() -> None:
        for message in consumer:
            number = int(message.value)  # type: ignore[arg-type]
            assert number not in done
            try:
                message.ack(wait=True)
            except LeaseExpired:
                late.add(number)  # or done, and the answer was lost
            else:
                done.add(number)
            if proxy._budget is None:
                proxy.cut_after(rng.choice((UP, DOWN)), rng.randrange(4_000), reset=rng.random() < 0.3)

    proxy.cut_after(DOWN, 2_000)
    working = later(work)
    eventually(lambda: served.store.stats().topics["orders"].groups["workers"].lag == 0 or working.done())
    proxy.spare()
    consumer.close()
    working.result(PATIENCE_S)
    assert done | late == set(range(count))
    assert proxy.cuts > 5


def test_a_producer_with_more_batches_unanswered_than_the_server_remembers_doubles_and_loses_nothing(
    proxy: Proxy, client: Store, served: Served
) -> None:
    """The server remembers the last 64 of a producer; all answers are lost, and all batches sent again."""
    client.create_topic("orders")
    count = 300
    with client.producer("orders", linger=0.001, batch_messages=1) as producer:
        proxy.hold(DOWN)
        sending = later(lambda: [producer.send(b"%d" % number) for number in range(count)])
        eventually(lambda: len(served.values("orders")) >= 32)
        time.sleep(0.3)  # as many as are sent without an answer
        proxy.cut()
        proxy.release()
        assert [one.result(PATIENCE_S).offset for one in sending.result(PATIENCE_S)] == list(range(count))
    assert served.values("orders") == [b"%d" % number for number in range(count)]


def test_a_publish_whose_answer_is_lost_again_and_again_is_stored_once(proxy: Proxy, client: Store, served: Served) -> None:
    """However many copies of it arrive."""
    client.create_topic("orders")
    proxy.hold(DOWN)
    publishing = later(lambda: client.publish("orders", b"once"))
    eventually(lambda: served.values("orders") == [b"once"])
    for _ in range(5):
        connections = proxy.connections
        proxy.cut()
        eventually(lambda seen=connections: proxy.connections > seen)  # type: ignore[misc]
    proxy.release()
    assert publishing.result(PATIENCE_S).offset == 0
    assert client.publish("orders", b"next").offset == 1
    assert served.values("orders") == [b"once", b"next"]
