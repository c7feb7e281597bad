"""The metrics of a listener, over HTTP and from its counters."""

from __future__ import annotations

import re
import time
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest
import trio
from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families

from dafka import Config
from dafka.batches import encode_batch
from dafka.batches.message_sets import encode_message_set
from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.protocol.messages.cluster import MetadataResponse, MetadataResponseTopic
from dafka.kafka.protocol.messages.connections import ApiVersionsResponse
from dafka.kafka.protocol.messages.logs import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from dafka.kafka.protocol.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from dafka.kafka.server.counters import count_records, find_errors
from dafka.kafka.server.metrics import COUNTERS, DURATION_SECONDS, GAUGES, KafkaMetrics
from dafka.operations.metrics import TopicLabels
from dafka.server import ServingBroker, serve_listeners
from dafka.testing.cluster import open_cluster
from tests.cli.harness import Dafka
from tests.kafka.server import secured
from tests.kafka.server.clients import Confluent, Message
from tests.kafka.server.secured import EVERYTHING, Login, RefusedError, write_user_file
from tests.kafka.server.test_connections import RawClient

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "kafka-clients.md"


class Scrape:
    """The metrics of a process.

    Args:
        url: Where they are.
    """

    def __init__(self, url: str) -> None:
        with urllib.request.urlopen(url, timeout=30) as answer:
            text = answer.read().decode()
        self._samples = [each for family in text_string_to_metric_families(text) for each in family.samples]

    def value(self, name: str, **labels: str) -> float:
        """Return the sum of the samples with these labels."""
        return sum(each.value for each in self._samples if each.name == name and labels.items() <= each.labels.items())


def test_metrics_tell_what_clients_do(dafka: Dafka, tmp_path: Path) -> None:
    users = tmp_path / "users"
    write_user_file(users, alice=EVERYTHING)
    up = dafka.start_up(
        "--kafka", "0", "--storage", f"filelog:{tmp_path}/log", "--users", str(users), "--metrics-listen", "0"
    )
    lines = up.wait_output(4)
    servers, url = lines[2].split()[-1], lines[3].split()[-1]
    client, login = secured.Confluent(), Login("SCRAM-SHA-256")
    for _ in range(3):
        client.write(servers, "orders", login)
    with pytest.raises(RefusedError):
        client.write(servers, "orders", Login("SCRAM-SHA-256", password="wrong"))
    assert client.read(servers, "orders", login) == b"value"

    found = Scrape(url)
    assert found.value("dafka_kafka_records_total", direction="produced", topic="orders") == 3
    assert found.value("dafka_kafka_records_total", direction="consumed", topic="orders") == 3
    assert found.value("dafka_kafka_requests_total", api="PRODUCE") == 3
    assert found.value("dafka_kafka_logins_total", mechanism="SCRAM-SHA-256", result="succeeded") >= 4
    assert found.value("dafka_kafka_logins_total", result="failed") >= 1
    assert found.value("dafka_kafka_errors_total", error="SASL_AUTHENTICATION_FAILED") >= 1
    assert found.value("dafka_kafka_disconnected_clients_total", reason="failed login") >= 1
    assert found.value("dafka_kafka_accepted_connections_total") >= 5
    assert found.value("dafka_kafka_bytes_total", direction="received") > 100
    assert found.value("dafka_kafka_bytes_total", direction="sent") > 100
    assert found.value(f"{DURATION_SECONDS}_count", api="PRODUCE") == 3
    assert found.value("dafka_kafka_groups", state="Empty") == 1


def test_lag_and_open_transactions_are_measured(dafka: Dafka, tmp_path: Path) -> None:
    up = dafka.start_up("--kafka", "0", "--storage", f"filelog:{tmp_path}/log", "--metrics-listen", "0")
    lines = up.wait_output(4)
    servers, url = lines[2].split()[-1], lines[3].split()[-1]
    Confluent().write(servers, "orders", [Message(b"1")] * 3, "none")
    Confluent().read(servers, "orders", 3, "readers")
    Confluent().write(servers, "orders", [Message(b"2")] * 4, "none")
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "mine"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("orders", b"3")
    assert producer.flush(30) == 0
    found = Scrape(url)
    assert found.value("dafka_kafka_group_lag_records", group="readers", topic="orders") == 5
    assert found.value("dafka_kafka_open_transactions") == 1
    assert found.value("dafka_kafka_connections") >= 1
    producer.commit_transaction(30)
    # The values of a scrape are served again for a while.
    deadline = time.monotonic() + 30
    while Scrape(url).value("dafka_kafka_open_transactions"):
        assert time.monotonic() < deadline


def test_batches_that_were_sent_again_are_counted(dafka: Dafka, tmp_path: Path) -> None:
    up = dafka.start_up("--kafka", "0", "--storage", f"filelog:{tmp_path}/log", "--metrics-listen", "0")
    lines = up.wait_output(4)
    servers, url = lines[2].split()[-1], lines[3].split()[-1]
    Confluent().write(servers, "orders", [Message(b"x")], "none")
    with closing(RawClient(servers)) as client:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
        found = client.ask(request, 1, InitProducerIdResponse)
        batch = encode_batch(0, [b"x"], timestamps=1, producer_id=found.producer_id, producer_epoch=0, base_sequence=0)
        parts = [PartitionProduceData(index=0, records=batch)]
        produce = ProduceRequest(
            acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name="orders", partition_data=parts)]
        )
        offsets = [client.ask(produce, 7, ProduceResponse).responses[0].partition_responses[0] for _ in range(3)]
    assert [each.base_offset for each in offsets] == [1, 1, 1]
    scraped = Scrape(url)
    assert scraped.value("dafka_kafka_duplicate_batches_total") == 2
    assert scraped.value("dafka_kafka_records_total", direction="produced", topic="orders") == 2


def test_metrics_are_documented() -> None:
    rows = dict(re.findall(r"^\| `(dafka_\w+)` \| ([^|]*) ?\|", PAGE.read_text("utf-8"), re.MULTILINE))
    described = {f"{name}_total": help_ for name, help_ in COUNTERS.items()} | GAUGES
    assert rows.keys() == described.keys() | {DURATION_SECONDS}
    for name, help_ in described.items():
        assert rows[name].strip() == ", ".join(f"`{label}`" for label in help_.labels)


async def test_every_metric_is_exported() -> None:
    async with open_cluster(Config(), storage=None) as cluster, trio.open_nursery() as nursery:
        config = cluster.config.with_store(storage="memory:").with_kafka(listen="0")
        found: ServingBroker = await nursery.start(serve_listeners, config)
        assert found.kafka is not None
        exported = {each.name for each in KafkaMetrics(found.kafka).read(TopicLabels(10))}
        assert exported == {*COUNTERS, *GAUGES, DURATION_SECONDS}
        nursery.cancel_scope.cancel()


def test_topics_beyond_the_limit_share_a_series(dafka: Dafka, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[metrics]\ntopics_max = 1\n")
    up = dafka.start_up("--kafka", "0", "--storage", "memory:", "--metrics-listen", "0", "--config", str(config))
    lines = up.wait_output(4)
    servers, url = lines[2].split()[-1], lines[3].split()[-1]
    for topic in ("a", "b", "c"):
        Confluent().write(servers, topic, [Message(b"1")], "none")
    found = Scrape(url)
    assert found.value("dafka_kafka_records_total", direction="produced") == 3
    assert found.value("dafka_kafka_records_total", direction="produced", topic="other") == 2


def test_errors_are_found_at_every_depth() -> None:
    part = PartitionProduceResponse(index=0, error_code=ErrorCode.NONE, base_offset=1)
    refused = PartitionProduceResponse(index=0, error_code=ErrorCode.CORRUPT_MESSAGE, base_offset=-1)
    topics = [TopicProduceResponse(name="a", partition_responses=[part, refused])]
    assert find_errors(ProduceResponse(responses=topics)) == [ErrorCode.CORRUPT_MESSAGE]
    unknown = MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, partitions=[])
    assert find_errors(MetadataResponse(brokers=[], topics=[unknown])) == [ErrorCode.UNKNOWN_TOPIC_ID]
    assert find_errors(ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[])) == [35]


def test_records_in_batches_are_counted() -> None:
    batches = [encode_batch(0, [b"x"] * count, timestamps=1) for count in (1, 5, 100)]
    data = b"".join(batches)
    assert count_records(data) == 106
    assert count_records(memoryview(data)) == 106
    assert count_records(data[:-1]) == 6
    assert count_records(None) == 0
    assert count_records(encode_message_set(batches[1], 1, bytes_max=10_000)) == 5
    assert count_records(b"\xff" * 100) == 0
