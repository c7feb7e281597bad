"""Requests that real clients sent are read and written again byte by byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dafka.batches import check_crc, decode_batch
from dafka.batches.message_sets import decode_message_set, is_message_set
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.frames import decode_request, encode_request
from dafka.kafka.protocol.messages.connections import ApiVersionsRequest, SaslAuthenticateRequest
from dafka.kafka.protocol.messages.logs import FetchRequest, ProduceRequest
from dafka.kafka.protocol.messages.membership import JoinGroupRequest
from dafka.kafka.protocol.messages.transactions import AddPartitionsToTxnRequest, EndTxnRequest

RECORDED: list[dict[str, Any]] = json.loads((Path(__file__).parent / "requests.json").read_text())


def recorded(api: ApiKey, client: str = "") -> list[Any]:
    """Return the decoded requests of an API, by client and version."""
    found = [each for each in RECORDED if each["api"] == api.name and each["client"].startswith(client)]
    assert found
    return [decode_request(bytes.fromhex(each["frame"]))[1] for each in found]


@pytest.mark.parametrize("each", RECORDED, ids=lambda each: f"{each['client']}, {each['api']} {each['version']}")
def test_requests_are_read_and_written_again(each: dict[str, Any]) -> None:
    frame = bytes.fromhex(each["frame"])
    header, request = decode_request(frame)
    assert (header.api_key.name, header.api_version) == (each["api"], each["version"])
    assert encode_request(request, header.api_version, header.correlation_id, header.client_id)[4:] == frame


def test_records() -> None:
    """Every client sent one record, as a message set or as a record batch."""
    formats = set()
    for request in recorded(ApiKey.PRODUCE):
        assert isinstance(request, ProduceRequest)
        (topic,) = request.topic_data
        (part,) = topic.partition_data
        assert (topic.name, part.index) == ("orders", 0)
        assert part.records is not None
        formats.add(part.records[16])
        if is_message_set(part.records):
            found = decode_message_set(part.records, bytes_max=1000)
            assert (found.values, found.keys) == ([b"value"], [b"key"])
        else:
            check_crc(part.records)
            batch = decode_batch(part.records, bytes_max=1000)
            assert (batch.values, batch.keys) == ([b"value"], [b"key"])
    assert formats == {0, 1, 2}


def test_fetch_requests() -> None:
    for request in recorded(ApiKey.FETCH):
        assert isinstance(request, FetchRequest)
        (topic,) = request.topics
        (part,) = topic.partitions
        assert (topic.topic, part.partition, part.fetch_offset) == ("orders", 0, 0)
        assert part.partition_max_bytes > 0
        assert request.replica_id == -1


def test_group_requests() -> None:
    for request in recorded(ApiKey.JOIN_GROUP):
        assert isinstance(request, JoinGroupRequest)
        assert (request.group_id, request.protocol_type) == ("g", "consumer")
        assert all(b"orders" in protocol.metadata for protocol in request.protocols)


def test_transactions() -> None:
    for request in [*recorded(ApiKey.ADD_PARTITIONS_TO_TXN), *recorded(ApiKey.END_TXN)]:
        assert isinstance(request, (AddPartitionsToTxnRequest, EndTxnRequest))
        if isinstance(request, EndTxnRequest):
            assert (request.transactional_id, request.producer_id, request.committed) == ("t", 7, True)
        else:
            assert request.v3_and_below_transactional_id == "t"
            assert [(each.name, each.partitions) for each in request.v3_and_below_topics] == [("orders", [0])]


def test_passwords() -> None:
    for request in recorded(ApiKey.SASL_AUTHENTICATE):
        assert isinstance(request, SaslAuthenticateRequest)
        assert request.auth_bytes.endswith(b"\0user\0password")


def test_names_of_clients() -> None:
    (librdkafka,) = recorded(ApiKey.API_VERSIONS, "confluent_kafka")
    assert isinstance(librdkafka, ApiVersionsRequest)
    assert librdkafka.client_software_name == "confluent-kafka-python"


def test_versions_of_each_age() -> None:
    versions: dict[str, set[int]] = {}
    for each in RECORDED:
        versions.setdefault(each["api"], set()).add(each["version"])
    assert versions["PRODUCE"] >= {0, 1, 2, 3, 7, 9, 10}
    assert versions["FETCH"] >= {0, 1, 3, 4, 11, 12}
    assert versions["METADATA"] >= {0, 1, 5, 13}
    assert len(versions) >= 29
