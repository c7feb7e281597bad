"""Traces that continue from a producer to its consumers, with OpenTelemetry's API if it is installed.

    with dafka.tracing.publishing("orders") as headers:
        producer.send(b"...", headers=headers)

    for record in consumer:
        with dafka.tracing.processing(record): ...

The program's propagator writes the context to headers of each record: `traceparent`, by default. Without OpenTelemetry,
there are no headers and no spans.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

from dafka.records import Header, Record

__all__ = ["processing", "publishing", "trace_headers"]

SYSTEM = "dafka"


def trace_headers() -> tuple[Header, ...]:
    """Return headers with the current context, for records to publish; none if there is no trace."""
    api = _open_api()
    if api is None:
        return ()
    carrier: dict[str, str] = {}
    api.propagate.inject(carrier)
    return tuple((name, value.encode()) for name, value in carrier.items())


@contextmanager
def publishing(topic: str) -> Iterator[tuple[Header, ...]]:
    """Run a block in a span of publishing to a topic. Yield the headers of the records that the block publishes."""
    api = _open_api()
    if api is None:
        yield ()
        return
    attributes = {
        "messaging.system": SYSTEM,
        "messaging.operation.type": "send",
        "messaging.operation.name": "send",
        "messaging.destination.name": topic,
    }
    tracer = api.trace.get_tracer(SYSTEM)
    with tracer.start_as_current_span(f"send {topic}", kind=api.trace.SpanKind.PRODUCER, attributes=attributes):
        yield trace_headers()


@contextmanager
def processing(record: Record) -> Iterator[None]:
    """Run a block in a span of processing a record, in the trace that the record's headers name."""
    api = _open_api()
    if api is None:
        yield
        return
    carrier = {name: value.decode(errors="replace") for name, value in record.headers if value is not None}
    attributes = {
        "messaging.system": SYSTEM,
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": record.topic,
        "messaging.destination.partition.id": record.partition.address,
        "messaging.message.id": f"{record.partition.address}/{record.sequence}",
    }
    tracer = api.trace.get_tracer(SYSTEM)
    with tracer.start_as_current_span(
        f"process {record.topic}",
        context=api.propagate.extract(carrier),
        kind=api.trace.SpanKind.CONSUMER,
        attributes=attributes,
    ):
        yield


class _Api(NamedTuple):
    """The parts of OpenTelemetry's API that are used."""

    trace: Any
    propagate: Any


@cache
def _open_api() -> _Api | None:
    """Return OpenTelemetry's API; None if it is not installed."""
    try:
        from opentelemetry import propagate, trace  # noqa: PLC0415
    except ImportError:
        return None
    return _Api(trace, propagate)
