"""Traces continue from a producer to its consumers; without OpenTelemetry nothing happens."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from dafka import tracing
from dafka.records import Header, Partition, Record
from dafka.testing import Cluster

sdk = pytest.importorskip("opentelemetry.sdk.trace")
PARTITION = Partition("orders", "A" * 32)


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the spans that end, in an exporter in memory."""
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    api = tracing._open_api()
    assert api is not None
    monkeypatch.setattr(api.trace, "get_tracer", provider.get_tracer)
    return exporter


async def test_a_trace_continues_from_the_producer_to_the_consumer(dafka_cluster: Cluster, spans: Any) -> None:
    async with dafka_cluster.producer("orders") as producer:
        with tracing.publishing("orders") as headers:
            await producer.send(b"tea", headers=[("own", b"1"), *headers])
    async with dafka_cluster.consumer(["orders"]) as consumer:
        record = await consumer.next_record()
    assert [name for name, _ in record.headers] == ["own", "traceparent"]
    with tracing.processing(record):
        assert tracing.trace_headers()[0][0] == "traceparent"
    sent, processed = spans.get_finished_spans()
    assert processed.context.trace_id == sent.context.trace_id
    assert processed.parent.span_id == sent.context.span_id
    assert (sent.name, sent.kind.name) == ("send orders", "PRODUCER")
    assert (processed.name, processed.kind.name) == ("process orders", "CONSUMER")
    common = {"system": "dafka", "destination.name": "orders"}
    address = record.partition.address
    for span, operation, others in (
        (sent, "send", {}),
        (processed, "process", {"destination.partition.id": address, "message.id": f"{address}/0"}),
    ):
        expected = {**common, "operation.type": operation, "operation.name": operation, **others}
        assert dict(span.attributes) == {f"messaging.{name}": value for name, value in expected.items()}


@pytest.mark.parametrize(
    "headers", [(), (("traceparent", None),), (("traceparent", b"\xff nonsense"),), (("a", b"1"), ("a", b"2"))]
)
def test_a_record_without_a_trace_begins_one(headers: tuple[Header, ...], spans: Any) -> None:
    with tracing.processing(Record(PARTITION, 3, b"tea", headers=headers)):
        pass
    (processed,) = spans.get_finished_spans()
    assert processed.parent is None


def test_an_error_in_the_block_is_recorded_and_raised(spans: Any) -> None:
    with pytest.raises(KeyError), tracing.processing(Record(PARTITION, 3, b"tea")):
        raise KeyError
    (processed,) = spans.get_finished_spans()
    assert not processed.status.is_ok


def test_outside_a_span_there_are_no_headers() -> None:
    assert tracing.trace_headers() == ()


def test_without_opentelemetry_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.setattr(tracing, "_open_api", tracing._open_api.__wrapped__)
    assert tracing._open_api() is None
    with tracing.publishing("orders") as headers, tracing.processing(Record(PARTITION, 0, b"")):
        assert (headers, tracing.trace_headers()) == ((), ())
