"""Produce, Fetch, ListOffsets, DeleteRecords and OffsetForLeaderEpoch of logs, compared with plain lists of records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from random import Random
from typing import Any

import attrs
import pytest

from dafka import Config
from dafka.batches import Compression, decode_batch, encode_batch, iter_batches
from dafka.batches.message_sets import decode_message_set
from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.protocol.constants import ApiKey
from tests.kafka.apis.door import Client, Door, Log, of_logs, open_door
from tests.waiting import poll_until

NONE, UNKNOWN, OUT_OF_RANGE = ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OFFSET_OUT_OF_RANGE
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = range(-1, -7, -1)
UNCOMMITTED, COMMITTED = 0, 1


@attrs.define
class Record:
    """A record of the model. `batch` is the offset where its batch begins."""

    value: bytes
    time: int
    batch: int


@attrs.define
class Model:
    """A log.

    Attributes:
        records: By their offsets; None is the end of a transaction.
        opened: Where open transactions begin, by the ids of their producers.
        aborted: The producer of each aborted transaction, its first offset, and its end.
    """

    records: list[Record | None] = attrs.field(factory=list)
    start: int = 0
    opened: dict[int, int] = attrs.field(factory=dict)
    aborted: list[tuple[int, int, int]] = attrs.field(factory=list)

    @property
    def end(self) -> int:
        return len(self.records)

    @property
    def stable(self) -> int:
        return min(self.opened.values(), default=self.end)

    def append(self, values: Sequence[bytes], times: Sequence[int], producer: int = -1) -> None:
        first = self.end
        if producer >= 0:
            self.opened.setdefault(producer, first)
        self.records += [Record(value, time, first) for value, time in zip(values, times, strict=True)]

    def end_transaction(self, producer: int, *, is_committed: bool) -> None:
        if not is_committed:
            self.aborted.append((producer, self.opened[producer], self.end))
        del self.opened[producer]
        self.records.append(None)

    def find_offset(self, time: int, end: int) -> tuple[int, int]:
        """Return the answer to ListOffsets, and the timestamp in it."""
        if time in {LATEST, EARLIEST, EARLIEST_LOCAL}:
            return end if time == LATEST else self.start, -1
        known = [(at, each.time) for at, each in enumerate(self.records) if each is not None and at >= self.start]
        if time == MAX_TIMESTAMP:
            known.sort(key=lambda each: -each[1])
        elif time in {LATEST_TIERED, EARLIEST_PENDING_UPLOAD}:  # nothing is stored elsewhere
            known = []
        found = next((each for each in known if each[1] >= time), (-1, -1))
        return found if found[0] < end else (-1, -1)


FIRST_VERSIONS = {-1: 0, -2: 0, -3: 7, -4: 8, -5: 9, -6: 11}
"""The versions of ListOffsets in which Kafka has introduced times that stand for offsets."""


class History:
    """A random history of two logs, with two producers of transactions. Other logs are asked about, too."""

    def __init__(self, client: Client, seed: int) -> None:
        self.random = Random(seed)
        self.client = client
        self.topic = f"t{seed}"
        client.create_topics(self.topic)
        self.models = {(self.topic, number): Model() for number in range(2)}
        found = client.ask_logs(ApiKey.LIST_OFFSETS, 5, {(self.topic, 0): {"timestamp": EARLIEST}})
        self.epoch = int(found[self.topic, 0]["leader_epoch"])
        self.missing = [("unknown", 0), (self.topic, 2), (self.topic, -1)]
        self.producers = {f"{self.topic}-{each}": self._begin(f"{self.topic}-{each}") for each in "ab"}
        self.sequences: dict[tuple[int, Log], tuple[int, int]] = {}  # the epoch, and the next sequence
        self.made = 0

    def _begin(self, name: str) -> dict[str, int]:
        asked = {"transactional_id": name, "transaction_timeout_ms": 600_000}
        found = self.client.ask(ApiKey.INIT_PRODUCER_ID, 1, **asked)
        return {key: found[key] for key in ("producer_id", "producer_epoch")}

    def ask(self, api: ApiKey, version: int, fields: dict[Log, dict[str, Any]], **values: Any) -> dict[Log, Any]:
        """Ask about logs, in any order, together with missing ones."""
        asked = [*fields.items(), *((each, next(iter(fields.values()))) for each in self.missing)]
        self.random.shuffle(asked)
        found = self.client.ask_logs(api, version, dict(asked), **values)
        assert {found.pop(each)["error_code"] for each in self.missing} == {UNKNOWN}
        return found

    def append(self, name: str = "") -> None:
        """Append batches, perhaps in a transaction; what the broker sets itself may be anything."""
        random, transaction = self.random, {"transactional_id": name} if name else {}
        ends, batches = {log: each.end for log, each in self.models.items()}, {}
        logs = random.sample([*self.models], random.choice((1, 2)))
        version, producer = random.randrange(3, 13), self.producers.get(name, {})
        if name and version < 12:  # later, Produce adds the logs itself
            topics = [{"name": self.topic, "partitions": [number for _, number in logs]}]
            asked = {**transaction, **producer, "topics": topics}
            prefixed = {f"v3_and_below_{key}": each for key, each in asked.items()}
            self.client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, random.randrange(4), **prefixed)
        for log in logs:
            values = [b"%d" % number for number in range(self.made, self.made + random.randrange(1, 4))]
            self.made += len(values)
            times = [random.randrange(1000, 9000, 500) for _ in values]
            others: dict[str, Any] = {"compression": random.choice([*Compression][: 5 if version >= 7 else 4])}
            if name:
                key, own = (producer["producer_id"], log), producer["producer_epoch"]
                epoch, sequence = self.sequences.get(key, (own, 0))
                sequence = sequence if epoch == own else 0
                self.sequences[key] = own, sequence + len(values)
                others |= {**producer, "base_sequence": sequence, "is_transactional": True}
            batch = encode_batch(random.randrange(99), values, timestamps=times, leader_epoch=9, **others)
            batches[log] = {"records": batch}
            self.models[log].append(values, times, producer.get("producer_id", -1))
        for log, part in self.ask(ApiKey.PRODUCE, version, batches, **transaction).items():
            start = self.models[log].start if version >= 5 else -1
            answered = [part[each] for each in ("error_code", "base_offset", "log_append_time_ms", "log_start_offset")]
            assert answered == [NONE, ends[log], -1, start]

    def end_transaction(self) -> None:
        name = self.random.choice([*self.producers])
        producer, is_committed = self.producers[name], self.random.random() < 0.5
        opened = [log for log, each in self.models.items() if producer["producer_id"] in each.opened]
        for model in map(self.models.__getitem__, opened):
            model.end_transaction(producer["producer_id"], is_committed=is_committed)
        if opened:
            asked, version = {"transactional_id": name, "committed": is_committed, **producer}, self.random.randrange(6)
            found = self.client.ask(ApiKey.END_TXN, version, **asked)
            assert found["error_code"] == NONE
            if version >= 5:
                assert found["producer_epoch"] == producer["producer_epoch"] + 1
                self.producers[name] = {key: found[key] for key in producer}
                for log in opened:
                    self.sequences[producer["producer_id"], log] = found["producer_epoch"], 0

    def delete(self) -> None:
        asked = {}
        for log, model in self.models.items():
            beyond = [-2, model.end + 1, *([] if model.opened else [-1, model.end])]
            asked[log] = {"offset": self.random.choice([*range(model.stable + 1), *beyond])}
        for log, part in self.ask(ApiKey.DELETE_RECORDS, self.random.randrange(3), asked).items():
            model, offset = self.models[log], asked[log]["offset"]
            is_valid = -1 <= offset <= model.end
            if is_valid:
                model.start = max(model.start, model.end if offset == -1 else offset)
            expected = (NONE, model.start) if is_valid else (OUT_OF_RANGE, -1)
            assert (part["error_code"], part["low_watermark"]) == expected

    def check_offsets(self) -> None:
        random = self.random
        time, isolation = random.choice([*range(-7, 0), 0, 999, *range(1000, 9001, 250)]), random.choice((0, 1))
        asked, version = {log: {"timestamp": time} for log in self.models}, random.randrange(4, 12)
        found = self.ask(ApiKey.LIST_OFFSETS, version, asked, isolation_level=isolation)
        error = ErrorCode.UNSUPPORTED_VERSION if time < 0 and version < FIRST_VERSIONS.get(time, 99) else NONE
        for log, part in found.items():
            model = self.models[log]
            expected = model.find_offset(time, model.stable if isolation == COMMITTED else model.end)
            answer = (-1, -1) if error else expected
            assert (part["error_code"], (part["offset"], part["timestamp"])) == (error, answer), (time, isolation)

    def check_epochs(self) -> None:
        current, wanted = self.random.choice(
            [(-1, self.epoch), (self.epoch, self.epoch), (self.epoch + 1, 0), (-1, -1)]
        )
        asked = {log: {"current_leader_epoch": current, "leader_epoch": wanted} for log in self.models}
        for log, part in self.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, 3, asked).items():
            error = ErrorCode.UNKNOWN_LEADER_EPOCH if current > self.epoch else NONE
            end = (-1, -1) if error or wanted < 0 else (self.epoch, self.models[log].end)
            assert (part["error_code"], (part["leader_epoch"], part["end_offset"])) == (error, end)

    def check_producers(self) -> None:
        asked = [{"name": self.topic, "partition_indexes": [1, 2, 0]}, {"name": "unknown", "partition_indexes": [0]}]
        answer = self.client.ask(ApiKey.DESCRIBE_PRODUCERS, 0, topics=asked)
        found = {
            (each["name"], part["partition_index"]): part for each in answer["topics"] for part in each["partitions"]
        }
        for log in ((self.topic, 2), ("unknown", 0)):
            assert (found[log]["error_code"], found[log]["active_producers"]) == (UNKNOWN, [])
        for log, model in self.models.items():
            names = ("producer_epoch", "last_sequence", "current_txn_start_offset", "coordinator_epoch")
            known = {each["producer_id"]: each for each in found[log]["active_producers"]}
            assert {number: [each[name] for name in names] for number, each in known.items()} == {
                number: [epoch, sequence - 1, model.opened.get(number, -1), -1]
                for (number, each), (epoch, sequence) in self.sequences.items()
                if each == log
            }

    def check_reads(self) -> None:
        """Read at most some bytes of each log, with the aborted transactions: of the first one, at least a batch."""
        random = self.random
        version, isolation, limit = random.randrange(4, 13), random.choice((0, 1)), random.choice((1, 200, 10**6))
        asked = {
            log: {"fetch_offset": random.randrange(-1, each.end + 3), "partition_max_bytes": limit}
            for log, each in self.models.items()
        }
        is_first = True
        for log, part in self.ask(ApiKey.FETCH, version, asked, isolation_level=isolation).items():
            model, offset = self.models[log], asked[log]["fetch_offset"]
            if not model.start <= offset <= model.end:
                assert (part["error_code"], part["records"]) == (OUT_OF_RANGE, b"")
                continue
            end = model.stable if isolation == COMMITTED else model.end
            ends = part["high_watermark"], part["last_stable_offset"]
            assert (part["error_code"], ends) == (NONE, (model.end, model.stable))
            assert part["log_start_offset"] == (model.start if version >= 5 else -1)
            batches = [header for _, header in iter_batches(part["records"])]
            assert bool(batches) is (offset < end) if is_first else len(part["records"]) <= limit
            is_first = is_first and not batches
            read_end = batches[-1].end_offset if batches else offset
            assert read_end == max(offset, end) if limit == 10**6 else len(batches) <= (1 if limit == 1 else 10)
            found = values_in(part["records"])
            assert {at: value for at, value in found.items() if at >= offset} == {
                at: each.value for at, each in enumerate(model.records[:read_end]) if each is not None and at >= offset
            }
            assert min(found, default=offset) >= min(
                (each.batch for each in model.records[offset:read_end] if each), default=offset
            )
            told = part["aborted_transactions"]
            assert (told is not None) is (isolation == COMMITTED and offset < end)
            aborted = [each[:2] for each in model.aborted if each[2] >= offset and each[1] < read_end]
            told = [(each["producer_id"], each["first_offset"]) for each in told or ()]
            assert sorted(told) == (sorted(aborted) if isolation == COMMITTED and offset < end else [])


def values_in(records: bytes) -> dict[int, bytes | None]:
    found: dict[int, bytes | None] = {}
    for at, header in iter_batches(records):
        if not header.is_control:
            batch = decode_batch(records[at : at + header.size], bytes_max=10**6)
            found |= {header.base_offset + number: value for number, value in enumerate(batch.values)}
    return found


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    with open_door(Config().with_kafka(auto_create_topics="off")) as found:
        yield found


@pytest.fixture
def client(door: Door) -> Iterator[Client]:
    with door.connect() as found:
        yield found
        assert door.broker.kafka is not None
        answers = door.broker.kafka.answers
        poll_until(lambda: answers.taken_bytes == 0)


@pytest.mark.parametrize("seed", range(8))
def test_any_history_of_logs_follows_the_model(client: Client, seed: int) -> None:
    history = History(client, seed)
    changes = [history.append] * 3 + [history.end_transaction, history.delete]
    changes += [partial(history.append, each) for each in history.producers]
    for _ in range(60):
        history.random.choice(changes)()
        for check in (history.check_offsets, history.check_reads, history.check_epochs, history.check_producers):
            check()


def test_topics_of_brokers_are_refused(door: Door, client: Client) -> None:
    for name in sorted(each for each in door.broker.node.log_table.topics if each.startswith("$")):
        log = {(name, 0): {"offset": -1}}, {(name, 0): {"records": encode_batch(0, [b"x"], timestamps=[1])}}
        for api, version, each in ((ApiKey.DELETE_RECORDS, 1, log[0]), (ApiKey.PRODUCE, 7, log[1])):
            (answer,) = client.ask_logs(api, version, each).values()
            assert answer["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        (answer,) = client.ask(ApiKey.DELETE_TOPICS, 4, topic_names=[name], timeout_ms=1000)["responses"]
        assert answer["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert name in door.broker.node.log_table.topics


@pytest.mark.parametrize("version", range(4))
def test_oldest_versions_get_message_sets(client: Client, version: int) -> None:
    client.create_topics(f"old-{version}")
    client.append(f"old-{version}", encode_batch(0, [b"one", b"two"], timestamps=7))
    for offset, expected in ((0, [b"one", b"two"]), (2, [])):
        (part,) = client.ask_logs(ApiKey.FETCH, version, {(f"old-{version}", 0): {"fetch_offset": offset}}).values()
        found = decode_message_set(part["records"], bytes_max=10**6).values if part["records"] else []
        assert (part["error_code"], [*found]) == (NONE, expected)


def test_fetch_waits_until_there_are_enough_bytes(door: Door, client: Client) -> None:
    client.create_topics("awaited", logs=1)
    batch = encode_batch(0, [b"x"], timestamps=1)
    asked: dict[Log, dict[str, Any]] = {("awaited", 0): {}}
    with door.connect() as waiting:
        waiting.send(ApiKey.FETCH, 11, **of_logs(ApiKey.FETCH, asked, max_wait_ms=10**7, min_bytes=2 * len(batch)))
        client.append("awaited", batch)
        assert values_in(client.ask_logs(ApiKey.FETCH, 11, asked)["awaited", 0]["records"]) == {0: b"x"}
        waiting.socket.settimeout(0.1)
        with pytest.raises(TimeoutError):
            waiting.socket.recv(1)
        client.append("awaited", batch)
        waiting.socket.settimeout(50)
        assert (waiting.receive() or b"").count(b"x") >= 2


def test_session_of_fetches_leaves_out_logs_without_news(client: Client) -> None:
    client.create_topics("busy", "idle", logs=1)
    asked: dict[str, Any] = of_logs(ApiKey.FETCH, {("busy", 0): {}, ("idle", 0): {}}, session_epoch=0)
    first = client.ask(ApiKey.FETCH, 11, **asked)
    assert first["session_id"] > 0
    assert [each["topic"] for each in first["responses"]] == ["busy", "idle"]
    client.append("busy", encode_batch(0, [b"x"], timestamps=1))
    asked |= {"session_id": first["session_id"], "session_epoch": 1, "topics": []}
    second = client.ask(ApiKey.FETCH, 11, **asked)
    assert (second["session_id"], second["error_code"]) == (first["session_id"], ErrorCode.NONE)
    assert [(each["topic"], bool(each["partitions"][0]["records"])) for each in second["responses"]] == [("busy", True)]
    asked |= {"session_epoch": 2, "forgotten_topics_data": [{"topic": "busy", "partitions": [0]}]}
    assert client.ask(ApiKey.FETCH, 11, **asked)["responses"] == []
    assert client.ask(ApiKey.FETCH, 11, **asked)["error_code"] == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    asked["session_id"] = first["session_id"] % (2**31 - 1) + 1
    assert client.ask(ApiKey.FETCH, 11, **asked)["error_code"] == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
