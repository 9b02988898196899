"""A trace from a publisher through a worker to what the worker publishes, by one call. Needs opentelemetry-sdk."""

import penstock
from penstock import telemetry

try:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
except ImportError:
    raise SystemExit(
        "this example needs the OpenTelemetry SDK, which `otel` leaves to you: pip install opentelemetry-sdk"
    ) from None

exporter = InMemorySpanExporter()  # your program has one that sends spans somewhere
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))

with penstock.open("memory:") as store:
    telemetry.instrument(store, tracer_provider=provider)
    with store.producer("orders") as producer:
        producer.send(b"17")

    with store.subscribe("orders", group="billing") as consumer, consumer.get(timeout=5) as order:
        store.publish("invoices", b"invoice for " + order.value)

spans = exporter.get_finished_spans()
for span in spans:
    print(f"{span.context.trace_id:032x} {span.name}")
traced = [span for span in spans if span.name != "receive orders"]
assert [span.name for span in traced] == ["publish orders", "publish invoices", "process orders"]
assert len({span.context.trace_id for span in traced}) == 1, "one trace"
