"""OpenTelemetry: a trace goes from the publisher to the consumer, and tracing that fails changes nothing."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

import penstock
from penstock import telemetry
from penstock.errors import BadName, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def store() -> Iterator[Any]:
    with penstock.open("memory:") as store:
        yield store


class Tracing:
    """A provider of spans, and what it was told."""

    def __init__(self, exporter: Any = None) -> None:
        self.exporter = exporter or InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def spans(self) -> list[Any]:
        return list(self.exporter.get_finished_spans())


def test_a_trace_goes_from_publishing_to_processing(store: Any) -> None:
    tracing = Tracing()
    telemetry.instrument(store, tracer_provider=tracing.provider)
    store.publish("orders", b"1", headers={"source": b"web"})
    store.publish_many("orders", [b"2", b"3"])
    with store.subscribe("orders", "billing") as consumer:
        for _ in range(3):
            with telemetry.process(consumer.get(30), tracer_provider=tracing.provider) as message:
                assert message.headers["traceparent"]
        assert consumer.backlog() == (0, 0), "acked"
    one, many, *processed = [span for span in tracing.spans() if span.name != "receive orders"]
    assert [one.name, many.name, processed[0].name] == ["publish orders", "publish orders", "process orders"]
    assert (one.kind, processed[0].kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert [span.parent.span_id for span in processed] == [one.context.span_id, many.context.span_id, many.context.span_id]
    assert [span.context.trace_id for span in processed] == [one.context.trace_id, many.context.trace_id, many.context.trace_id]
    assert one.attributes["messaging.message.id"] == "0"
    assert many.attributes["messaging.batch.message_count"] == 2
    assert processed[0].attributes["messaging.consumer.group.name"] == "billing"
    assert next(iter(store.read("orders"))).headers["source"] == b"web"


def test_a_context_that_a_message_has_already_stays(store: Any) -> None:
    telemetry.instrument(store, tracer_provider=Tracing().provider)
    store.publish("orders", b"1", headers={"traceparent": b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01"})
    [message] = store.read("orders")
    assert message.headers.get_all("traceparent") == [b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01"]


def test_what_fails_is_noted_and_goes_on(store: Any) -> None:
    tracing = Tracing()
    telemetry.instrument(store, tracer_provider=tracing.provider)
    with pytest.raises(BadName):
        store.publish("../x", b"")
    store.publish("orders", b"1")
    with store.subscribe("orders", "billing", backoff=0) as consumer:
        with pytest.raises(ZeroDivisionError), telemetry.process(consumer.get(30), tracer_provider=tracing.provider):
            _ = 1 / 0
        assert consumer.get(30).attempt == 2
    refused, failed = [span for span in tracing.spans() if "error.type" in span.attributes]
    assert refused.attributes["error.type"] == "BadName"
    assert failed.attributes["error.type"] == "ZeroDivisionError"


class Broken:
    """A provider all of whose tracers fail."""

    def get_tracer(self, *arguments: object, **options: object) -> Broken:
        return self

    def start_span(self, *arguments: object, **options: object) -> None:
        raise RuntimeError("the exporter is down")


class BrokenSpan:
    """Every use of it fails."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("the exporter is down")


class HalfBroken(Broken):
    def start_span(self, *arguments: object, **options: object) -> Any:
        return BrokenSpan()


@pytest.mark.parametrize("provider", [Broken(), HalfBroken()], ids=["no spans", "broken spans"])
def test_tracing_that_raises_changes_nothing(store: Any, provider: Any) -> None:
    telemetry.instrument(store, tracer_provider=provider)
    assert store.publish("orders", b"1").offset == 0
    assert len(store.publish_many("orders", [b"2", b"3"])) == 2
    with store.subscribe("orders", "billing") as consumer:
        with telemetry.process(consumer.get(30), tracer_provider=provider) as message:
            assert message.value == b"1"
        assert consumer.backlog()[0] == 2


def test_an_exporter_that_raises_changes_nothing(store: Any) -> None:
    class Down(InMemorySpanExporter):
        def export(self, spans: Any) -> Any:
            raise RuntimeError("down")

    telemetry.instrument(store, tracer_provider=Tracing(Down()).provider)
    assert store.publish("orders", b"1").offset == 0


def test_without_a_provider_messages_are_as_they_were(store: Any) -> None:
    telemetry.instrument(store)
    store.publish("orders", b"1")
    [message] = store.read("orders")
    assert message.headers == ()


def test_undone_it_is_gone(store: Any) -> None:
    telemetry.instrument(store)
    with pytest.raises(UsageError, match="already"):
        telemetry.instrument(store)
    telemetry.uninstrument(store)
    assert "publish" not in vars(store)


def test_who_does_not_trace_imports_nothing_of_it() -> None:
    program = "import sys, penstock; assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    subprocess.run([sys.executable, "-c", program], check=True)
