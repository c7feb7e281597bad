"""A broker answers no request before what it promises is synced, and a power failure then loses nothing of it.

The broker runs in a thread of this process, and its file log is recorded. Syncs are held back while each request waits
for its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic

from dafka.testing.kafka import kafka
from tests.power.disk import NOTHING, Disk, Tree, store_tree
from tests.power.recorder import Recorder, another_boot

DEADLINE_S = 60
HELD_S = 0.2
"""How long syncs are held back: a broker that does not wait for them answers within that time."""


class Clients:
    """Clients of a broker, which do one thing each and return when it is acknowledged."""

    def __init__(self, servers: str) -> None:
        self._options = {"bootstrap.servers": servers}
        self.admin = AdminClient(self._options)

    def create_topic(self) -> None:
        self._wait(self.admin.create_topics([NewTopic("orders", 2)]))

    def create_partitions(self) -> None:
        self._wait(self.admin.create_partitions([NewPartitions("orders", 3)]))

    def change_config(self) -> None:
        entry = ConfigEntry("retention.ms", "86400000", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource("topic", "orders", incremental_configs=[entry])
        self._wait(self.admin.incremental_alter_configs([resource]))

    def delete_topic(self) -> None:
        self._wait(self.admin.delete_topics(["old"]))

    def create_another(self) -> None:
        self._wait(self.admin.create_topics([NewTopic("old", 1)]))

    def delete_records(self) -> None:
        self._wait(self.admin.delete_records([TopicPartition("orders", 1, 2)]))

    def produce(self) -> None:
        self._send(Producer({**self._options, "acks": "all"}), 0, b"all")

    def produce_to_leader(self) -> None:
        self._send(Producer({**self._options, "acks": "1"}), 1, b"leader")

    def produce_idempotently(self) -> None:
        self._send(Producer({**self._options, "enable.idempotence": True}), 2, b"idempotent")

    def commit_offsets(self) -> None:
        group = ConsumerGroupTopicPartitions("readers", [TopicPartition("orders", 0, 2)])
        self._wait(self.admin.alter_consumer_group_offsets([group]))

    def consume_and_commit(self) -> None:
        with self._consumer("others", {"enable.auto.commit": False}) as consumer:
            consumer.commit(offsets=[TopicPartition("orders", 1, 3)], asynchronous=False)

    def commit_transaction(self) -> None:
        producer = Producer({**self._options, "transactional.id": "transfer"})
        producer.init_transactions(DEADLINE_S)
        producer.begin_transaction()
        producer.produce("orders", b"committed", partition=0)
        offsets = [TopicPartition("orders", 2, 3)]
        producer.send_offsets_to_transaction(offsets, self._metadata(), DEADLINE_S)
        producer.commit_transaction(DEADLINE_S)

    def _metadata(self) -> Any:
        with self._consumer("transactional") as consumer:
            return consumer.consumer_group_metadata()

    @contextmanager
    def _consumer(self, group: str, options: dict[str, bool] | None = None) -> Iterator[Consumer]:
        with closing(Consumer({**self._options, "group.id": group, **(options or {})})) as consumer:
            yield consumer

    @staticmethod
    def _wait(futures: dict[Any, Future[Any]]) -> None:
        for each in futures.values():
            each.result(DEADLINE_S)

    @staticmethod
    def _send(producer: Producer, partition: int, value: bytes) -> None:
        errors: list[Any] = []
        for number in range(3):
            content = b"%b %d" % (value, number)
            producer.produce("orders", content, partition=partition, on_delivery=lambda *each: errors.append(each[0]))
        assert producer.flush(DEADLINE_S) == 0
        assert errors == [None] * 3

    # What must be there

    def topics(self) -> dict[str, int]:
        found = self.admin.list_topics(timeout=DEADLINE_S).topics
        return {name: len(topic.partitions) for name, topic in found.items() if not name.startswith("$")}

    def values(self, partition: int) -> list[bytes | None]:
        with self._consumer("check", {"enable.partition.eof": True}) as consumer:
            found: list[bytes | None] = []
            consumer.assign([TopicPartition("orders", partition, OFFSET_BEGINNING)])
            while (message := consumer.poll(DEADLINE_S)) is not None and message.error() is None:
                found.append(message.value())
            return found

    def first_offset(self, partition: int) -> int:
        with self._consumer("check") as consumer:
            first: int = consumer.get_watermark_offsets(TopicPartition("orders", partition), timeout=DEADLINE_S)[0]
            return first

    def committed(self, group: str, partition: int) -> int:
        with self._consumer(group) as consumer:
            offset: int = consumer.committed([TopicPartition("orders", partition)], timeout=DEADLINE_S)[0].offset
            return offset

    def retention_ms(self) -> str:
        resource = ConfigResource("topic", "orders")
        (found,) = self.admin.describe_configs([resource]).values()
        value: str = found.result(DEADLINE_S)["retention.ms"].value
        return value


REQUESTS: dict[str, Callable[[Clients], None]] = {
    name: getattr(Clients, name)
    for name in (
        *("create_topic", "create_partitions", "change_config", "create_another", "delete_topic"),
        *("produce", "produce_to_leader", "produce_idempotently", "delete_records"),
        *("commit_offsets", "consume_and_commit", "commit_transaction"),
    )
}
"""The requests whose answer is a promise, in the order in which they are made."""


@attrs.frozen
class Recorded:
    """A broker that was recorded: the requests that it answered before a sync, and its synced files."""

    answered_early: list[str]
    synced: Tree


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    root = tmp_path_factory.mktemp("broker")
    recorder, disk, early = Recorder(root), Disk(root), []
    with recorder.recording(), kafka(f"filelog:{root}/log") as running, ThreadPoolExecutor(1) as threads:
        clients = Clients(running.bootstrap_servers)
        for name, request in REQUESTS.items():
            with held_back(recorder):
                answered = threads.submit(request, clients)
                if wait([answered], HELD_S).done:
                    early.append(name)
            answered.result(DEADLINE_S)
        entries = list(recorder.entries)
    for entry in entries:
        disk.apply(entry)
    return Recorded(early, disk.tree(NOTHING))


@contextmanager
def held_back(recorder: Recorder) -> Iterator[None]:
    """Let syncs wait until the block ends."""
    recorder.may_sync.clear()
    try:
        yield
    finally:
        recorder.may_sync.set()


def test_no_request_is_answered_before_a_sync(recorded: Recorded) -> None:
    assert recorded.answered_early == []


def test_a_power_failure_loses_nothing_that_was_answered(recorded: Recorded, tmp_path: Path) -> None:
    store_tree(recorded.synced, tmp_path / "left")
    with another_boot(), kafka(f"filelog:{tmp_path}/left/log") as running:
        clients = Clients(running.bootstrap_servers)
        assert clients.topics() == {"orders": 3}
        assert clients.retention_ms() == "86400000"
        assert clients.values(0) == [b"all 0", b"all 1", b"all 2", b"committed"]
        assert clients.values(1) == [b"leader 2"]
        assert clients.values(2) == [b"idempotent 0", b"idempotent 1", b"idempotent 2"]
        assert (clients.first_offset(1), clients.first_offset(0)) == (2, 0)
        assert (clients.committed("readers", 0), clients.committed("others", 1)) == (2, 3)
        assert clients.committed("transactional", 2) == 3
