"""The response to Produce has an outcome for each log, which does not depend on those of other logs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from dafka.batches import encode_batch
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.log import Log
from dafka.broker.core.log.producer_state import Producer
from dafka.broker.core.metadata.leader_and_isr import LeaderAndIsr
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.positions import Offset
from dafka.broker.log.appending import AppendRefusedError
from dafka.errors import NotLeaderError, OutcomeUnknownError, StorageError, TopicDeletedError
from dafka.kafka.apis.produce import ProduceRefusedError, begin_produce
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.messages.logs import ProduceRequest, ProduceResponse
from tests.kafka.apis.door import Log as LogName
from tests.kafka.apis.door import build, of_logs
from tests.kafka.apis.fake_cluster import OWN, SECOND, FakeCluster
from tests.seeds import each_seed

SEEDS = 60
LOGS: list[LogName] = [*(("u", number) for number in range(5)), ("none", 0)]
TIMEOUT_S = 5
NONE, NOT_LEADER = ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER
REFUSALS = [ErrorCode.INVALID_TXN_STATE, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.INVALID_PRODUCER_EPOCH]
ENDINGS: list[Exception] = [NotLeaderError("moved", SECOND), TopicDeletedError("u"), OutcomeUnknownError("unknown")]
ERRORS = [NOT_LEADER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.REQUEST_TIMED_OUT]
PRODUCER = Producer(7, 3)


@attrs.define(eq=False)
class Records:
    """Records of one log, and what becomes of them."""

    data: bytes
    is_transactional: bool
    join_error: ErrorCode
    refusal: ErrorCode | None
    is_led: bool
    is_duplicate: bool
    is_durable: bool
    wait_s: float
    ending: Exception | None
    offset: int
    is_replicated: bool
    record_count: int = 2
    append_time_ms: int = 99


class World:
    """A broker to which some records are sent. Its appender does with them what was decided before."""

    def __init__(self, draw: Random) -> None:
        self.draw = draw
        self.cluster = FakeCluster()
        self.cluster.broker.log_table.add_topic(Topic("u", "e" * 32, 5))
        self.version = draw.choice([7, 10, 11, 12])
        self.acks = draw.choice([-1, -1, 0, 1, 2])
        self.name = draw.choice([None, "billing"])
        self.has_failed = draw.random() < 0.1
        self.chosen = draw.sample(LOGS, draw.randint(1, 4))
        self.records = {each: self.make_records(number) for number, each in enumerate(self.chosen)}
        self.context = self.cluster.client(ApiKey.PRODUCE, self.version)
        part: Any = self
        self.context.broker.appender = part
        self.context.broker.joins = part
        self.cluster.broker.storage.wait_capacity = self.wait_capacity
        self.appended: list[LogName] = []
        self.joined: list[LogName] | None = None
        for log in self.cluster.broker.logs("u"):
            is_led = self.find(log).is_led if (log.topic, log.number) in self.records else True
            log.leadership = LeaderAndIsr(OWN if is_led else SECOND, 4, is_led=is_led, replicas=(OWN, SECOND))
            log.is_replicated = (log.topic, log.number) in self.records and self.find(log).is_replicated

    def make_records(self, number: int) -> Records:
        draw = self.draw
        is_transactional = bool(self.name) and draw.random() < 0.7
        fields: dict[str, Any] = {
            "producer_id": PRODUCER.producer_id, "producer_epoch": PRODUCER.producer_epoch, "base_sequence": 0,
            "is_transactional": True,
        }  # fmt: skip
        data = encode_batch(0, [b"%d" % number] * 2, timestamps=1, **(fields if is_transactional else {}))
        return Records(
            data=data if draw.random() < 0.95 else b"",
            is_transactional=is_transactional,
            join_error=draw.choice([NONE, NONE, *REFUSALS]) if is_transactional else NONE,
            refusal=draw.choice(REFUSALS) if draw.random() < 0.15 else None,
            is_led=draw.random() < 0.9,
            is_duplicate=draw.random() < 0.2,
            is_durable=draw.random() < 0.5,
            wait_s=draw.choice([1, TIMEOUT_S + 1]),
            ending=draw.choice(ENDINGS) if draw.random() < 0.3 else None,
            offset=draw.randint(0, 99),
            is_replicated=draw.random() < 0.5,
        )

    def find(self, log: Log) -> Records:
        return self.records[log.topic, log.number]

    # What the handler uses

    async def wait_capacity(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.has_failed:
            raise StorageError("full")

    async def join_logs(
        self, name: str, producer: Producer, logs: Sequence[Log], *, adds: bool
    ) -> dict[Log, ErrorCode]:
        await trio.lowlevel.checkpoint()
        assert (name, producer, adds) == (self.name, PRODUCER, self.version >= 12)
        assert self.joined is None, "all logs join at once"
        self.joined = [(log.topic, log.number) for log in logs]
        return {log: self.find(log).join_error for log in logs if self.find(log).join_error}

    def check_size(self, log: Log, size: int) -> None:
        assert size == len(self.find(log).data)

    @asynccontextmanager
    async def unpacked(self, log: Log, batches: Sequence[Any], source: str) -> AsyncIterator[tuple[Any, str]]:
        await trio.lowlevel.checkpoint()
        yield batches, f"records for {source}"

    def append(
        self, log: Log, batches: Sequence[Any], name: str, *, records: str, all_replicas: bool, has_own_epoch: bool
    ) -> Any:
        found = self.find(log)
        assert [bytes(data) for _, data in batches] == [found.data]
        assert (name, records) == (self.name or "", f"records for {self.context.source}")
        assert (all_replicas, has_own_epoch) == (self.acks == -1, self.version >= 12)
        if not found.is_led:
            raise NotLeaderError("another one leads it", SECOND)
        if found.refusal is not None:
            raise AppendRefusedError(found.refusal)
        self.appended.append((log.topic, log.number))

        done_at = trio.current_time() + found.wait_s

        async def wait_offset(*, all_replicas: bool = True) -> Offset:
            assert all_replicas == (self.acks == -1)
            is_complete = found.is_durable and not (all_replicas and found.is_replicated)
            if not is_complete and trio.current_time() < done_at:  # what is complete needs no checkpoint
                await trio.sleep_until(done_at)
            if found.ending is not None:
                raise found.ending
            return Offset(found.offset)

        return SimpleNamespace(
            is_duplicate=found.is_duplicate,
            is_durable=lambda: found.is_durable,
            wait_offset=wait_offset,
            record_count=found.record_count,
            append_time_ms=found.append_time_ms,
        )

    # What must come of it

    def find_refusal(self, name: LogName) -> ErrorCode:
        """Return why nothing is appended to a log; NONE if something is."""
        found = self.records[name]
        if name == ("none", 0):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if self.acks not in {-1, 0, 1}:
            return ErrorCode.INVALID_REQUIRED_ACKS
        if self.has_failed:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if not found.data:
            return ErrorCode.INVALID_RECORD
        if not found.is_led:
            return NOT_LEADER
        error = found.join_error or found.refusal or NONE
        if self.version >= 11:
            error = ErrorCode.TRANSACTION_ABORTABLE if error is ErrorCode.INVALID_TXN_STATE else error
        if self.version < 12:
            error = ErrorCode.NOT_ENOUGH_REPLICAS if error is ErrorCode.CONCURRENT_TRANSACTIONS else error
        return error

    def joins(self, name: LogName) -> bool:
        """Return whether a log must take part in the transaction."""
        found = self.records[name]
        return found.is_transactional and found.is_led and bool(found.data) and name != ("none", 0)

    def waits(self, name: LogName) -> bool:
        """Return whether a log has records that are not as durable as the client wants."""
        found = self.records[name]
        return not self.find_refusal(name) and (not found.is_durable or (self.acks == -1 and found.is_replicated))

    def find_outcome(self, name: LogName) -> ErrorCode:
        """Return what the response says of a log, which does not depend on others."""
        found, error = self.records[name], self.find_refusal(name)
        if error:
            return error
        if self.waits(name) and found.wait_s > TIMEOUT_S and self.acks:
            return ErrorCode.REQUEST_TIMED_OUT
        return NONE if found.ending is None else ERRORS[ENDINGS.index(found.ending)]


async def play(seed: int) -> None:
    world = World(Random(seed))
    logs = {each: {"records": found.data} for each, found in world.records.items()}
    asked = of_logs(ApiKey.PRODUCE, logs, acks=world.acks, timeout_ms=TIMEOUT_S * 1000, transactional_id=world.name)
    pending = await begin_produce(world.context, build(ProduceRequest, asked))
    assert world.appended == [each for each in world.chosen if not world.find_refusal(each)]
    assert world.joined == ([each for each in world.chosen if world.joins(each)] or None)
    outcomes, begun = {each: world.find_outcome(each) for each in world.chosen}, trio.current_time()
    is_ready = pending.is_ready()
    assert is_ready is (world.acks != 0 and not any(map(world.waits, world.chosen)))
    if world.acks == 0 and any(outcomes.values()):
        with pytest.raises(ProduceRefusedError):  # otherwise the client would not learn that they are lost
            await pending.wait()
        return
    response = await pending.wait()
    assert not is_ready or trio.current_time() == begun
    assert (response is None) is (world.acks == 0)
    if response is not None:
        check_response(world, response, outcomes)
    counters, appended = world.cluster.listener.counters, [world.records[each] for each in world.appended]
    assert counters.duplicates == sum(each.is_duplicate for each in appended)
    stored = [world.records[each] for each in world.appended if not outcomes[each]]
    assert counters.produced["u"] == sum(each.record_count for each in stored if not each.is_duplicate)


def check_response(world: World, response: ProduceResponse, outcomes: dict[LogName, ErrorCode]) -> None:
    parts = {(topic.name or "", part.index): part for topic in response.responses for part in topic.partition_responses}
    assert {each: part.error_code for each, part in parts.items()} == outcomes
    for each, part in parts.items():
        offset = -1 if outcomes[each] else world.records[each].offset
        assert (part.base_offset, part.log_append_time_ms) == (offset, -1 if outcomes[each] else 99)
        assert (part.current_leader is not None) is (outcomes[each] is NOT_LEADER)
    assert bool(response.node_endpoints) is (NOT_LEADER in outcomes.values())


@each_seed(SEEDS)
def test_each_log_has_what_became_of_its_records(seed: int) -> None:
    trio.run(play, seed, clock=MockClock(autojump_threshold=0))
