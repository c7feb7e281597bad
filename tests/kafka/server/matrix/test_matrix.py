"""Unmodified clients of Kafka, new and three years old, and Dafka's commands read what each of them has written."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from dafka.kafka.protocol.constants import ApiKey
from tests.cli.harness import Dafka
from tests.kafka.apis.door import Client
from tests.kafka.server.clients import Message, read_log
from tests.kafka.server.matrix.programs import COMPRESSIONS, PROGRAMS, Driven, Kcat, Program

RECORDS = int(os.environ.get("KAFKA_CLIENTS_RECORDS", "100000"))
"""How many records each program writes, the same number with each compression."""

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@attrs.frozen
class Written:
    """What a program has written."""

    topics: dict[str, str]
    records: list[Message]
    has_times: bool


class Matrix:
    def __init__(self, servers: str, options: list[str], folder: Path) -> None:
        self.servers = servers
        self.options = options
        self.folder = folder
        self._written: dict[str, Written] = {}

    def write(self, name: str) -> Written:
        """Return what a program has written. It writes once, with each compression to another topic."""
        found = self._written.get(name)
        if found is None:
            program = find_program(name)
            topics = {f"{name}-{each}": each for each in COMPRESSIONS}
            records = program.make_records(RECORDS // len(topics))
            began = time.monotonic()
            program.write(self, records, topics)
            found = self._written[name] = Written(topics, records, not isinstance(program, Kcat))
            print(f"{name} wrote {RECORDS / (time.monotonic() - began):.0f} records/s")
        return found


def find_program(name: str) -> Program:
    obstacle = PROGRAMS[name].find_obstacle()
    if obstacle:
        pytest.skip(obstacle)
    return PROGRAMS[name]


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Matrix]:
    folder = tmp_path_factory.mktemp("matrix")
    dafka = Dafka(folder)
    try:
        up = dafka.start_up("--kafka", "127.0.0.1:0", "--storage", f"filelog:{folder}/log")
        servers = up.wait_output(3)[2].split()[-1]
        yield Matrix(servers, dafka.options, folder)
        assert up.process.poll() is None, up.errors
    finally:
        dafka.close()


@pytest.mark.parametrize("writer", PROGRAMS)
@pytest.mark.parametrize("reader", PROGRAMS)
def test_programs_read_what_programs_write(matrix: Matrix, reader: str, writer: str) -> None:
    program = find_program(reader)
    written = matrix.write(writer)
    began = time.monotonic()
    found = program.read(matrix, len(written.records), list(written.topics))
    print(f"{reader} read {RECORDS / (time.monotonic() - began):.0f} records/s of {writer}")
    for topic in written.topics:
        records = found[topic]
        if not written.has_times:
            assert all(each.timestamp > 1_700_000_000_000 for each in records)
            records = [
                each._replace(timestamp=want.timestamp) for each, want in zip(records, written.records, strict=True)
            ]
        wrong = next((pair for pair in zip(records, written.records, strict=True) if pair[0] != pair[1]), None)
        assert wrong is None, (topic, wrong)


def test_each_transaction_has_an_epoch_of_its_own(matrix: Matrix) -> None:
    """Kafka's own client is the only one that makes such transactions (KIP-890)."""
    program, topic, count = find_program("java-4.3"), "transactions", 20
    assert isinstance(program, Driven)
    with Client(matrix.servers) as client:
        client.create_topics(topic, logs=3)
        program.transact(matrix.servers, topic, count)
        (state,) = client.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[topic])["transaction_states"]
        assert (state["transaction_state"], state["producer_epoch"]) == ("CompleteCommit", count)
        groups = [{"group_id": topic, "topics": [{"name": topic, "partition_indexes": [0]}]}]
        (group,) = client.ask(ApiKey.OFFSET_FETCH, 8, groups=groups, require_stable=True)["groups"]
        assert group["topics"][0]["partitions"][0]["committed_offset"] == count - 1
    values = [b"%d" % number for number in range(count) if number % 3 != 2]
    assert [each for _, each in read_log(matrix.servers, topic, isolation_level="read_committed").values()] == values
