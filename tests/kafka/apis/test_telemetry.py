"""Clients that can send metrics learn that none are wanted, get an id, and do not ask again soon."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer

from dafka import Config
from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.apis.telemetry import NO_METRICS, PUSH_INTERVAL_MS, TELEMETRY_BYTES_MAX
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.tables import NIL
from tests.kafka.apis.door import Client, Door, open_door

CLIENT = uuid.UUID(int=7)


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    with open_door(Config().with_kafka(request_bytes_max=2**22)) as found:
        yield found


def test_no_metrics_are_wanted_and_a_client_gets_an_id_and_keeps_it(client: Client) -> None:
    first, second, third = (
        client.ask(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, client_instance_id=each) for each in (NIL, NIL, CLIENT)
    )
    assert len({NIL, first["client_instance_id"], second["client_instance_id"]}) == 3
    assert third["client_instance_id"] == CLIENT
    for found in (first, second, third):
        assert (found["error_code"], found["requested_metrics"]) == (ErrorCode.NONE, [])
        assert found["push_interval_ms"] == PUSH_INTERVAL_MS >= 60_000
        assert found["subscription_id"] == NO_METRICS


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({}, ErrorCode.NONE),
        ({"terminating": True, "compression_type": 4}, ErrorCode.NONE),
        ({"client_instance_id": NIL}, ErrorCode.INVALID_REQUEST),
        ({"subscription_id": NO_METRICS + 1}, ErrorCode.UNKNOWN_SUBSCRIPTION_ID),
        ({"compression_type": 5}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({"metrics": bytes(TELEMETRY_BYTES_MAX)}, ErrorCode.NONE),
        ({"metrics": bytes(TELEMETRY_BYTES_MAX + 1)}, ErrorCode.TELEMETRY_TOO_LARGE),
    ],
)
def test_metrics_are_discarded_or_refused(client: Client, changed: dict[str, object], error: ErrorCode) -> None:
    sent = {"client_instance_id": CLIENT, "subscription_id": NO_METRICS, "terminating": False, "compression_type": 0}
    found = client.ask(ApiKey.PUSH_TELEMETRY, 0, **{**sent, "metrics": b"metrics", **changed})
    assert found["error_code"] == error


def test_librdkafka_asks_once_and_sends_nothing(door: Door) -> None:
    errors: list[object] = []
    settings = {"bootstrap.servers": door.servers, "enable.metrics.push": True, "error_cb": errors.append}
    consumer = Consumer(settings | {"group.id": "g", "auto.offset.reset": "earliest"})
    producer = Producer(settings)
    producer.produce("telemetry", b"value")
    assert producer.flush(60) == 0
    consumer.subscribe(["telemetry"])  # a consumer tells of a topic that is not there yet
    message = consumer.poll(60)
    assert message is not None
    assert message.value() == b"value"
    consumer.close()
    assert errors == []
    kafka = door.broker.kafka
    assert kafka is not None
    asked = kafka.counters.requests
    assert asked[ApiKey.PUSH_TELEMETRY] <= 7, "only what the other test has sent"
    assert asked[ApiKey.GET_TELEMETRY_SUBSCRIPTIONS] <= 3 + 2
