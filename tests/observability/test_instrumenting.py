"""One call traces all of a store: however a message is published, and however it is taken; embedded, over a server, with asyncio."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from penstock import telemetry
from penstock.aio.remote_store import AsyncRemoteStore
from penstock.aio.store import AsyncStore
from penstock.client.address import parse_address
from penstock.client.store import RemoteStore
from penstock.errors import BadArgument
from penstock.server.running import RunningServer
from penstock.store.store import Store
from tests.conformance.backends import SETTINGS
from tests.faces import open_face

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ORDERS, BILLING = "orders", "billing"


class Tracing:
    """A provider of spans, and what it was told."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def spans(self, name: str) -> list[Any]:
        """Those that begin with *name*, in the order in which they ended."""
        return [span for span in self.exporter.get_finished_spans() if span.name.startswith(name)]

    def instrument(self, store: Any) -> Any:
        telemetry.instrument(store, tracer_provider=self.provider)
        return store


@pytest.fixture
def tracing() -> Tracing:
    return Tracing()


@pytest.fixture(params=["embedded", "server"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    with open_face(tmp_path, served=request.param == "server") as found:
        yield found


def id_of(span: Any) -> int:
    return int(span.context.span_id)


def links_of(span: Any) -> list[int]:
    return [link.context.span_id for link in span.links]


def current() -> int:
    return trace.get_current_span().get_span_context().span_id


def test_a_producer_makes_a_span_for_each_message_that_ends_when_it_is_stored(store: Any, tracing: Tracing) -> None:
    tracing.instrument(store)
    with store.producer(ORDERS, linger=60) as producer:
        futures = [producer.send(b"%d" % number, headers={"source": b"web"}) for number in range(3)]
        assert tracing.spans("publish") == []
    offsets = [future.result().offset for future in futures]
    sent = tracing.spans("publish orders")
    assert [span.attributes["messaging.message.id"] for span in sent] == [str(offset) for offset in offsets]
    with store.subscribe(ORDERS, BILLING) as consumer:
        for _ in range(3):
            with consumer.get(30) as message:
                assert message.headers["source"] == b"web"
    assert [span.parent.span_id for span in tracing.spans("process orders")] == [id_of(span) for span in sent]


def test_what_a_producer_refuses_is_noted(store: Any, tracing: Tracing) -> None:
    tracing.instrument(store)
    with store.producer(ORDERS) as producer, pytest.raises(BadArgument):
        producer.send("no bytes")
    [span] = tracing.spans("publish orders")
    assert span.attributes["error.type"] == "BadArgument"


def test_messages_of_a_transaction_are_created_and_its_commit_is_linked_to_them(store: Any, tracing: Tracing) -> None:
    tracing.instrument(store)
    with store.transaction() as transaction:
        transaction.publish(ORDERS, b"1")
        transaction.publish_many("invoices", [b"2", b"3"])
        assert tracing.spans("commit") == []
    first, second = tracing.spans("create")
    [commit] = tracing.spans("commit")
    assert (first.name, second.name) == ("create orders", "create invoices")
    assert second.attributes["messaging.batch.message_count"] == 2
    assert (first.kind, commit.kind) == (SpanKind.PRODUCER, SpanKind.CLIENT)
    assert links_of(commit) == [id_of(first), id_of(second)]
    with store.subscribe("invoices", BILLING) as consumer, consumer.get(30):
        pass
    [processed] = tracing.spans("process invoices")
    assert processed.parent.span_id == id_of(second)
    with pytest.raises(ZeroDivisionError), store.transaction() as transaction:
        transaction.publish(ORDERS, b"4")
        _ = 1 / 0
    assert len(tracing.spans("commit")) == 1


def test_messages_are_processed_in_spans_of_their_traces_however_they_are_taken(store: Any, tracing: Tracing) -> None:
    tracing.instrument(store)
    for number in range(4):
        store.publish(ORDERS, b"%d" % number)
    sent = tracing.spans("publish orders")
    seen = []
    with store.subscribe(ORDERS, BILLING, backoff=0) as consumer:
        with consumer.get(30):
            seen.append(current())
        for number, message in enumerate(consumer):
            with message:
                seen.append(current())
            if number == 2:
                break
        assert current() == 0
    processed = tracing.spans("process orders")
    assert [id_of(span) for span in processed] == seen
    assert [span.parent.span_id for span in processed] == [id_of(span) for span in sent]
    received = tracing.spans("receive orders")
    assert [links_of(span) for span in received] == [[id_of(span)] for span in sent]
    assert received[0].kind == SpanKind.CLIENT


def test_messages_that_come_together_are_linked_to(store: Any, tracing: Tracing) -> None:
    tracing.instrument(store)
    store.publish(ORDERS, b"1")
    store.publish(ORDERS, b"2")
    with store.subscribe(ORDERS, BILLING) as consumer:
        found: list[Any] = []
        while len(found) < 2:
            some = consumer.get_many(10, 30)
            assert some
            found += some
        consumer.ack(found)
        assert consumer.get_many(10, 0) == []
    received = tracing.spans("receive orders")
    assert [link for span in received for link in links_of(span)] == [id_of(span) for span in tracing.spans("publish")]
    assert received[0].attributes["messaging.consumer.group.name"] == BILLING


def test_two_blocks_may_end_in_any_order(store: Any, tracing: Tracing) -> None:
    tracing.instrument(store)
    store.publish_many(ORDERS, [b"1", b"2"])
    with store.subscribe(ORDERS, BILLING, concurrency=2) as consumer:
        first, second = consumer.get(30), consumer.get(30)
        first.__enter__()
        outer = current()
        second.__enter__()
        inner = current()
        first.__exit__(None, None, None)
        assert current() == inner != outer
        second.__exit__(None, None, None)
        assert current() == 0


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("batch", [None, 10])
def test_workers_handle_messages_in_spans(store: Any, tracing: Tracing, is_async: bool, batch: int | None) -> None:
    tracing.instrument(store)
    store.publish_many(ORDERS, [b"1", b"2", b"3"])
    [sent] = tracing.spans("publish orders")
    seen: list[int] = []
    done = threading.Event()

    def note(found: Any) -> None:
        seen.extend([current()] * (len(found) if batch else 1))
        if len(seen) == 3:
            done.set()

    async def note_in_task(found: Any) -> None:
        await asyncio.sleep(0)
        note(found)

    handle: Any = note_in_task if is_async else note
    assert store.worker(ORDERS, group=BILLING, batch=batch)(handle) is handle
    running = threading.Thread(target=store.run)
    running.start()
    assert done.wait(60)
    store.stop()
    running.join(60)
    processed = tracing.spans("process orders")
    assert {id_of(span) for span in processed} == set(seen)
    if batch is None:
        assert [span.parent.span_id for span in processed] == [id_of(sent)] * 3
    else:
        assert [link for span in processed for link in links_of(span)] == [id_of(sent)] * 3


@pytest.mark.parametrize("served", [False, True], ids=["embedded", "server"])
def test_asyncio_is_traced_in_the_same_way(tmp_path: Path, tracing: Tracing, served: bool) -> None:
    async def run(store: Any) -> None:
        tracing.instrument(store)
        await store.publish(ORDERS, b"1")
        await store.publish_many(ORDERS, [b"2", b"3"])
        async with store.producer(ORDERS) as producer:
            await (await producer.send(b"4"))
        async with store.transaction() as transaction:
            transaction.publish(ORDERS, b"5")
        one, many, sent = tracing.spans("publish orders")
        [created], [commit] = tracing.spans("create orders"), tracing.spans("commit")
        assert links_of(commit) == [id_of(created)]
        seen = []
        async with store.subscribe(ORDERS, BILLING) as consumer:
            async with await consumer.get(30):
                seen.append(current())
            async for message in consumer:
                async with message:
                    await asyncio.sleep(0)
                    seen.append(current())
                if len(seen) == 5:
                    break
            assert current() == 0
        processed = tracing.spans("process orders")
        assert [id_of(span) for span in processed] == seen
        assert [span.parent.span_id for span in processed] == [id_of(span) for span in (one, many, many, sent, created)]
        telemetry.uninstrument(store)
        await store.publish(ORDERS, b"6")
        assert len(tracing.spans("publish")) == 3

    with open_face(tmp_path, served=served) as store:
        asyncio.run(run(AsyncRemoteStore(store) if isinstance(store, RemoteStore) else AsyncStore(store)))


def test_a_trace_goes_over_a_server_from_one_client_to_another(tmp_path: Path, tracing: Tracing) -> None:
    with Store.open(tmp_path / "store", settings=SETTINGS) as own, RunningServer(own) as server:
        address = parse_address(server.address)
        with RemoteStore(address) as publisher, RemoteStore(address) as other:
            tracing.instrument(publisher).publish(ORDERS, b"1")
            with tracing.instrument(other).subscribe(ORDERS, BILLING) as consumer, consumer.get(30):
                pass
    [sent], [processed] = tracing.spans("publish"), tracing.spans("process")
    assert processed.context.trace_id == sent.context.trace_id


def test_a_store_that_is_not_instrumented_runs_the_plain_code(store: Any, tracing: Tracing) -> None:
    tracing.instrument(store)
    telemetry.uninstrument(store)
    store.publish(ORDERS, b"1")
    with store.subscribe(ORDERS, BILLING) as consumer, consumer.get(30) as message:
        for plain in (consumer, message, store.producer(ORDERS), store.transaction()):
            assert not hasattr(type(plain), "_tracing")
    assert not {"publish", "publish_many", "producer", "transaction", "subscribe", "worker"} & vars(store).keys()
    assert tracing.spans("") == []
