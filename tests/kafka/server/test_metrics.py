"""The metrics of a Kafka server: what its counters say after known requests."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from dafka.batches import encode_batch
from dafka.batches.message_sets import encode_message_set
from dafka.broker.access.permissions import Permissions
from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.apis import SERVED
from dafka.kafka.protocol.apis import advertise
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.messages.cluster import MetadataResponse, MetadataResponseTopic
from dafka.kafka.protocol.messages.connections import ApiVersionsResponse
from dafka.kafka.protocol.messages.logs import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from dafka.kafka.server.counters import count_records, find_errors
from dafka.kafka.server.metrics import COUNTERS, DURATION_SECONDS, GAUGES, KafkaMetrics
from dafka.operations.metrics import TopicLabels
from tests.kafka.apis.door import Client, Door, open_door
from tests.kafka.server.secured import EVERYTHING
from tests.waiting import poll_until

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "kafka-clients.md"


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    with open_door(users=tmp_path / "users") as found:
        found.permit(alice=EVERYTHING, bob=Permissions())
        yield found


class Scrape:
    """The metrics of a broker."""

    def __init__(self, door: Door, topics_max: int = 10) -> None:
        kafka = door.broker.kafka
        assert kafka is not None
        self.families = door.call(KafkaMetrics(kafka).read, TopicLabels(topics_max))
        self._samples = [each for family in self.families for each in family.samples]

    def value(self, name: str, **labels: str) -> float:
        """Return the sum of the samples with these labels."""
        name = f"dafka_kafka_{name}"
        return sum(each.value for each in self._samples if each.name == name and labels.items() <= each.labels.items())


def produce(client: Client, topic: str, count: int = 1) -> None:
    client.ask(ApiKey.METADATA, 4, topics=[{"name": topic}])
    client.append(topic, encode_batch(0, [b"x"] * count, timestamps=1))


def test_metrics_count_what_clients_do(door: Door) -> None:
    with door.connect("alice") as client, door.connect("bob") as other:
        for count in (1, 2):
            produce(client, "orders", count)
        for reader, offset in ((client, 0), (client, 1), (other, 0)):
            reader.ask_logs(ApiKey.FETCH, 4, {("orders", 0): {"fetch_offset": offset}})
        with door.connect() as failing:
            failing.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism="SCRAM-SHA-256")
            failing.ask(ApiKey.SASL_AUTHENTICATE, 1, auth_bytes=b"wrong")
            assert failing.receive() is None
        poll_until(lambda: Scrape(door).value("connections") == 2)
        found = Scrape(door)
    assert found.value("records_total", direction="produced", topic="orders") == 3
    assert found.value("records_total", direction="consumed", topic="orders") == 5
    for api, count in ((ApiKey.PRODUCE, 2), (ApiKey.FETCH, 3), (ApiKey.METADATA, 2), (ApiKey.SASL_AUTHENTICATE, 3)):
        assert found.value("requests_total", api=api.name) == count
        assert found.value("request_duration_seconds_count", api=api.name) == count
    assert found.value("logins_total", mechanism="PLAIN", result="succeeded") == 2
    assert found.value("logins_total", mechanism="SCRAM-SHA-256", result="failed") == 1
    assert found.value("logins_total") == 3
    assert found.value("errors_total", api="FETCH", error="TOPIC_AUTHORIZATION_FAILED") == 1
    assert found.value("errors_total", api="SASL_AUTHENTICATE", error="SASL_AUTHENTICATION_FAILED") == 1
    assert found.value("errors_total") == 2
    assert found.value("disconnected_clients_total", reason="failed login") == 1
    assert found.value("accepted_connections_total") == 3
    assert found.value("refused_connections_total") == 0
    assert found.value("bytes_total", direction="received") > 100
    assert found.value("bytes_total", direction="sent") > 100


def commit(client: Client, group: str, topic: str, offset: int) -> None:
    part = {"committed_offset": offset, "committed_metadata": ""}
    client.ask_logs(ApiKey.OFFSET_COMMIT, 5, {(topic, 0): part}, group_id=group)


def test_lag_open_transactions_and_repeated_batches_are_measured(door: Door) -> None:
    with door.connect("alice") as client:
        for topic, offset in (("orders", 2), ("visits", 9)):
            produce(client, topic, 5)
            commit(client, "readers", topic, offset)
        values = {"transactional_id": "mine", "transaction_timeout_ms": 60_000}
        found = client.ask(ApiKey.INIT_PRODUCER_ID, 1, **values)
        producer = {"producer_id": found["producer_id"], "producer_epoch": found["producer_epoch"]}
        identity = {"transactional_id": "mine", **producer}
        assert Scrape(door).value("open_transactions") == 0
        added = {f"v3_and_below_{name}": value for name, value in identity.items()}
        topics = [{"name": "orders", "partitions": [0]}]
        client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 2, **added, v3_and_below_topics=topics)
        batch = encode_batch(0, [b"x"], timestamps=1, base_sequence=0, is_transactional=True, **producer)
        assert [client.append("orders", batch, transactional_id="mine") for _ in range(3)] == [5, 5, 5]
        found = Scrape(door)
        assert found.value("open_transactions") == 1
        assert found.value("duplicate_batches_total") == 2
        assert found.value("records_total", direction="produced", topic="orders") == 6
        assert found.value("group_lag_records", group="readers", topic="orders") == 4
        assert found.value("group_lag_records") == 4
        assert found.value("groups", state="Empty") == 1
        client.ask(ApiKey.END_TXN, 2, **identity, committed=True)
        assert Scrape(door).value("open_transactions") == 0


def test_topics_beyond_the_limit_share_a_series(door: Door) -> None:
    with door.connect("alice") as client:
        for topic in ("a", "b", "c"):
            produce(client, topic)
            commit(client, f"of-{topic}", topic, 0)
    for topics_max, series, others in ((0, 0, 0), (1, 2, 2), (2, 3, 1), (3, 3, 0)):
        found = Scrape(door, topics_max)
        assert found.value("records_total", direction="produced") == (3 if topics_max else 0)
        assert found.value("records_total", direction="produced", topic="other") == others
        assert found.value("group_lag_records", group="other") == others
        (family,) = (each for each in found.families if each.name == "dafka_kafka_records")
        assert len(family.samples) == series


def test_metrics_are_documented_and_exported(door: Door) -> None:
    rows = dict(re.findall(r"^\| `(dafka_\w+)` \| ([^|]*) ?\|", PAGE.read_text("utf-8"), re.MULTILINE))
    described = {f"{name}_total": help_ for name, help_ in COUNTERS.items()} | GAUGES
    assert rows.keys() == described.keys() | {DURATION_SECONDS}
    for name, help_ in described.items():
        assert rows[name].strip() == ", ".join(f"`{label}`" for label in help_.labels)
    assert {each.name for each in Scrape(door).families} == {*COUNTERS, *GAUGES, DURATION_SECONDS}


def test_errors_are_found_at_every_depth() -> None:
    part = PartitionProduceResponse(index=0, error_code=ErrorCode.NONE, base_offset=1)
    refused = PartitionProduceResponse(index=0, error_code=ErrorCode.CORRUPT_MESSAGE, base_offset=-1)
    topics = [TopicProduceResponse(name="a", partition_responses=[part, refused])]
    assert find_errors(ProduceResponse(responses=topics)) == [ErrorCode.CORRUPT_MESSAGE]
    unknown = MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, partitions=[])
    assert find_errors(MetadataResponse(brokers=[], topics=[unknown])) == [ErrorCode.UNKNOWN_TOPIC_ID]
    assert find_errors(advertise(SERVED)) == []
    assert find_errors(ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[])) == [35]


def test_records_in_batches_are_counted() -> None:
    batches = [encode_batch(0, [b"x"] * count, timestamps=1) for count in (1, 5, 100)]
    data = b"".join(batches)
    for end in range(len(data) + 1):
        whole = [each for number, each in enumerate((1, 5, 100)) if end >= sum(map(len, batches[: number + 1]))]
        assert count_records(memoryview(data)[:end]) == sum(whole)
    assert count_records(None) == 0
    for magic in (0, 1):
        assert count_records(encode_message_set(batches[1], magic, bytes_max=10_000)) == 5
    assert count_records(b"\xff" * 100) == 0
    assert count_records(struct.pack(">qiib", 0, 10, 0, 2) + bytes(5)) == 0, "it has no count"
