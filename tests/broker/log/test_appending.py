"""When records of clients are accepted, refused and acknowledged; the storage and the replicas are the test's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import nullcontext
from itertools import combinations, product
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from dafka.batches import (
    BatchHeader,
    Compression,
    TimestampType,
    check_crc,
    decode_batch,
    encode_batch,
    with_base_offset,
)
from dafka.broker.connections.memory import MemoryPool
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.log.offset_assigner import OffsetAssigner
from dafka.broker.core.log.producer_state import GAP_WAIT_MS, Marker
from dafka.broker.core.metadata.leader_and_isr import LeaderAndIsr
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.positions import Offset, RecordSequence
from dafka.broker.log.appending import (
    INLINE_BYTES_MAX,
    AppendedBatches,
    AppendRefusedError,
    Batch,
    ClientAppender,
    read_batches,
)
from dafka.broker.log.waiters import LogWaiters
from dafka.broker.log.writer import LogWriter
from dafka.config import Config
from dafka.errors import NotLeaderError, TopicDeletedError
from dafka.records import Partition, RecordBatch
from dafka.steady_clock import steady_now_ms
from dafka.storage.plugin_helpers import now_ms
from tests.broker.core.entries import batch_entry, run_entry

OUTCOME = Offset(77)
"""What the search for records whose log has another leader finds."""


class Broker:
    """A broker that leads one log. Records are durable and committed when a test says so."""

    def __init__(self, **settings: str) -> None:
        self.table = LogTable("here")
        self.table.add_topic(Topic("orders", "1D", 1, settings))
        self.assigner = OffsetAssigner(self.table)
        self.log = self.table.logs("orders")[0]
        self.table.replicate(self.log)
        self.log.leadership = LeaderAndIsr("here", 0, replicas=("here", "b", "c"), in_sync=("here", "b", "c"))
        self.pending: list[RecordBatch] = []
        self.ends: defaultdict[Partition, int] = defaultdict(int)
        self.durable_ends: dict[Partition, int] = {}
        self.dead: set[str] = set()
        self.refused = ErrorCode.NONE
        self.watchers = LogWaiters()
        self.storage: Any = SimpleNamespace(
            problem="",
            durable=trio.Event(),
            durable_end=lambda partition: self.durable_ends.get(partition, 0),
            wait_capacity=trio.lowlevel.checkpoint,
            write=lambda: self.storage.durable,
        )

        def append_own(records: RecordBatch, _now: float) -> list[Any]:
            self.pending.append(records)
            self.ends[records.partition] = records.end_sequence
            return []

        async def find(_appended: object, *, all_replicas: bool) -> Offset:
            return OUTCOME

        storage: Any = self.storage
        machine: Any = SimpleNamespace(append_own=append_own, next_sequence=self.ends.__getitem__)
        brokers: Any = SimpleNamespace(is_alive=lambda address: address not in self.dead)
        outcomes: Any = SimpleNamespace(find=find)
        self.writer = LogWriter(machine, lambda _actions: None, storage, self.table, self.watchers, 500)
        self.appender = ClientAppender(
            self.table,
            brokers,
            Config().with_kafka(message_bytes_max=1000),
            storage,
            self.writer,
            self.watchers,
            outcomes,
            MemoryPool(2**20),
            lambda *_: self.refused,
            now_ms,
        )

    async def write(self) -> None:
        """Let everything become durable on this broker."""
        plan = self.assigner.plan(self.pending, 0)
        self.assigner.commit(plan)
        self.durable_ends.update((each.partition, each.end_sequence) for each in self.pending)
        self.pending = []
        self.storage.durable.set()
        self.storage.durable = trio.Event()
        await self.notify()

    async def commit(self, offset: int) -> None:
        self.log.high_watermark = Offset(offset)
        await self.notify()

    async def notify(self) -> None:
        self.watchers.notify(self.log)
        await trio.testing.wait_all_tasks_blocked()

    def append(self, *batches: Batch, **options: Any) -> AppendedBatches | ErrorCode:
        try:
            return self.appender.append(self.log, batches, **options)
        except AppendRefusedError as error:
            return error.error_code


def batch(count: int = 2, *, sequence: int = 0, producer_id: int = -1, **fields: Any) -> tuple[BatchHeader, bytes]:
    if producer_id >= 0:
        fields |= {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence}
    data = encode_batch(0, [b"value"] * count, timestamps=0, **fields)
    return check_crc(data), data


async def wait_all(nursery: trio.Nursery, attempts: Iterable[Any], **options: Any) -> list[Any]:
    """Wait for the offsets of records, and return what is found until everything else waits, and later."""
    found: list[Any] = []

    async def wait(appended: AppendedBatches) -> None:
        try:
            found.append(await appended.wait_offset(**options))
        except (NotLeaderError, TopicDeletedError) as error:
            found.append(type(error))

    for each in attempts:
        nursery.start_soon(wait, each)
    await trio.testing.wait_all_tasks_blocked()
    return found


@pytest.mark.parametrize("all_replicas", [True, False])
@pytest.mark.parametrize("producer_id", [-1, 0])
async def test_records_and_their_repetitions_are_acknowledged_when_enough_replicas_have_all_of_them(
    producer_id: int, all_replicas: bool
) -> None:
    broker = Broker()
    broker.append(batch(1))
    await broker.write()
    sent = batch(3, producer_id=producer_id)
    attempts = [broker.append(sent)]
    if producer_id >= 0:
        attempts.append(broker.append(sent))
    for is_duplicate, each in enumerate(attempts):
        assert isinstance(each, AppendedBatches)
        assert (each.is_duplicate, each.record_count, each.is_durable()) == (bool(is_duplicate), 3, False)
    async with trio.open_nursery() as nursery:
        found = await wait_all(nursery, attempts, all_replicas=all_replicas)
        assert found == []
        await broker.write()
        assert all(isinstance(each, AppendedBatches) and each.is_durable() for each in attempts)
        if all_replicas:
            for high_watermark in (1, 3):
                await broker.commit(high_watermark)
                assert found == []
            await broker.commit(4)
        assert found == [1] * len(attempts)
    if producer_id >= 0 and all_replicas:
        late = broker.append(sent)
        assert isinstance(late, AppendedBatches)
        assert await late.wait_offset() == 1


@pytest.mark.parametrize("producer_id", [-1, 0])
@pytest.mark.parametrize("moment", ["before it is durable", "before it is committed"])
async def test_another_leader_decides_about_records_that_are_not_committed(moment: str, producer_id: int) -> None:
    broker = Broker()
    sent = batch(producer_id=producer_id)
    attempts = [broker.append(sent), *([broker.append(sent)] if producer_id >= 0 else [])]
    if moment == "before it is committed":
        await broker.write()
    async with trio.open_nursery() as nursery:
        found = await wait_all(nursery, attempts)
        assert found == []
        broker.log.leadership = attrs.evolve(broker.log.leadership, is_led=False, leader="b")
        await broker.notify()
    # Producers with ids repeat their records at the next leader, which recognizes them.
    assert found == [NotLeaderError] * len(attempts) if producer_id >= 0 else [OUTCOME]
    with pytest.raises(NotLeaderError):
        broker.append(batch())


async def test_records_of_a_deleted_topic_are_never_acknowledged() -> None:
    broker = Broker()
    attempts = [broker.append(batch(producer_id=7)), broker.append(batch(producer_id=7)), broker.append(batch())]
    await broker.write()
    async with trio.open_nursery() as nursery:
        found = await wait_all(nursery, attempts)
        broker.table.remove_topic("orders")
        await broker.notify()
    assert found == [TopicDeletedError] * 3


async def test_records_need_a_majority_of_living_replicas_and_as_many_in_sync_as_the_topic_says() -> None:
    names = ["here", "b", "c", "d", "e"]
    for size, availability, needed in product(range(1, 6), ("majority", "branch"), (1, 2, 3)):
        broker = Broker(**{"availability": availability, "min.insync.replicas": str(needed)})
        replicas = names[:size]
        for dead_count, sync_count in product(range(size), range(1, size + 1)):
            for dead in combinations(replicas[1:], dead_count):
                broker.dead = set(dead)
                in_sync = tuple(replicas[:sync_count])
                broker.log.leadership = LeaderAndIsr("here", 0, replicas=tuple(replicas), in_sync=in_sync)
                living = size - dead_count
                is_majority = living > size / 2 or availability == "branch"
                has_enough = len(set(in_sync) - set(dead)) >= needed
                found = broker.append(batch())
                assert (found is ErrorCode.NOT_ENOUGH_REPLICAS) != (is_majority and has_enough)
                assert isinstance(broker.append(batch(), all_replicas=False), AppendedBatches)


async def test_batches_are_refused_without_effect() -> None:
    broker = Broker(**{"max.message.bytes": "300", "max.decompressed.message.bytes": "1000"})
    broker.append(batch(producer_id=7))
    pending = len(broker.pending)
    broker.refused = ErrorCode.INVALID_TXN_STATE
    large = encode_batch(0, [b"v" * 300] * 4, timestamps=0, compression=Compression.ZSTD)
    record = encode_batch(0, [b"v" * 501], timestamps=0, producer_id=7, producer_epoch=0, base_sequence=2)
    for sent, error in [
        ([batch(producer_id=7, sequence=2), batch(producer_id=7, sequence=4)], ErrorCode.INVALID_RECORD),
        ([batch(producer_id=7, sequence=2, is_transactional=True)], ErrorCode.INVALID_TXN_STATE),
        ([batch(producer_id=7, sequence=1)], ErrorCode.NOT_ENOUGH_REPLICAS),
        ([batch(producer_id=7, sequence=9)], ErrorCode.NOT_ENOUGH_REPLICAS),
        ([(check_crc(large), large)], ErrorCode.MESSAGE_TOO_LARGE),
        ([(check_crc(record), record)], ErrorCode.MESSAGE_TOO_LARGE),
    ]:
        assert broker.append(*sent) is error
    broker.storage.problem = "disk full"
    assert broker.append(batch()) is ErrorCode.KAFKA_STORAGE_ERROR
    assert len(broker.pending) == pending
    broker.storage.problem = ""
    accepted = broker.append(batch(producer_id=7, sequence=2))
    assert isinstance(accepted, AppendedBatches)
    assert not accepted.is_duplicate
    broker.appender.check_size(broker.log, 300)
    with pytest.raises(AppendRefusedError):
        broker.appender.check_size(broker.log, 301)
    assert Broker().appender.rules_of(broker.log).bytes_max == 1000


async def test_records_that_were_unpacked_before_are_appended_as_those_that_were_not() -> None:
    found: list[list[tuple[Any, ...]]] = []
    for is_unpacked in (True, False):
        broker = Broker()
        for count in (1, 2, 3):
            sent = [batch(each, compression=Compression.ZSTD) for each in (10 * count, 20)]
            async with broker.appender.unpacked(broker.log, sent, "source") as (batches, records):
                assert batches is sent
                assert records is not None
                appended = broker.append(*sent, records=records if is_unpacked else None)
            assert isinstance(appended, AppendedBatches)
            assert appended.record_count == 10 * count + 20
        found.append(
            [
                (each.partition, each.first_sequence, list(each.values), [*map(bytes, each.encoded)])
                for each in broker.pending
            ]
        )
    assert found[0] == found[1]
    assert [first for _, first, _, _ in found[0]] == [0, 30, 70]


@pytest.mark.parametrize("is_compressed", [True, False])
async def test_records_get_the_time_of_their_append_and_a_repetition_gets_the_same_answer(is_compressed: bool) -> None:
    broker = Broker(**{"message.timestamp.type": "LogAppendTime", "message.timestamp.after.max.ms": "0"})
    compression = Compression.ZSTD if is_compressed else Compression.NONE
    sent = [batch(20, producer_id=7, compression=compression)]
    appended = []
    for _ in range(3):  # the last one reaches another leader, which has read the index
        async with broker.appender.unpacked(broker.log, sent, "source") as (batches, records):
            found = broker.append(*batches, records=records)
        assert isinstance(found, AppendedBatches)
        appended.append(found)
        if len(appended) == 2:
            (written,) = broker.pending
            await broker.write()
            broker.log.producers.producers.clear()
            for entry in broker.log.producer_batches.entries():
                broker.log.producers.restore(entry)
    assert [each.is_duplicate for each in appended] == [False, True, True]
    (time_ms,) = {each.append_time_ms for each in appended}
    assert 0 <= now_ms() - time_ms < 3_600_000
    assert list(written.timestamps or ()) == [time_ms] * 20
    (data,) = written.encoded
    assert list(decode_batch(data).timestamps) == [time_ms] * 20
    assert check_crc(data).timestamp_type is TimestampType.LOG_APPEND_TIME
    plain = Broker()
    for is_duplicate in (False, True):
        found = plain.append(batch(producer_id=7))
        assert isinstance(found, AppendedBatches)
        assert (found.is_duplicate, found.append_time_ms) == (is_duplicate, -1)


async def test_records_that_break_a_rule_of_their_topic_are_named_and_nothing_is_appended() -> None:
    broker = Broker(**{"cleanup.policy": "compact", "message.timestamp.before.max.ms": "1000"})
    cases: list[tuple[Compression, Any, Any, ErrorCode, list[int]]] = [
        (Compression.NONE, None, now_ms(), ErrorCode.INVALID_RECORD, [0, 1]),
        (Compression.ZSTD, [b"k", None], now_ms(), ErrorCode.INVALID_RECORD, [1]),
        (Compression.NONE, [b"k", b""], [now_ms(), 0], ErrorCode.INVALID_TIMESTAMP, [1]),
        (Compression.ZSTD, [b"k", b""], [now_ms() + 2**40, now_ms()], ErrorCode.INVALID_TIMESTAMP, [0]),
    ]
    for compression, keys, times, error, numbers in cases:
        data = encode_batch(
            0,
            [b"v" * 100] * 2,
            keys=keys,
            timestamps=times,
            compression=compression,
            producer_id=7,
            producer_epoch=0,
            base_sequence=0,
        )
        async with broker.appender.unpacked(broker.log, [(check_crc(data), data)], "source") as (batches, records):
            with pytest.raises(AppendRefusedError) as refused:
                broker.appender.append(broker.log, batches, records=records)
        assert (refused.value.error_code, [each.number for each in refused.value.problems]) == (error, numbers)
    assert broker.pending == []
    assert len(broker.log.producers) == 0
    good = encode_batch(0, [b"v"], keys=[b"k"], timestamps=now_ms())
    assert isinstance(broker.append((check_crc(good), good)), AppendedBatches)


@pytest.mark.parametrize("wanted", ["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"])
async def test_batches_are_stored_in_the_compression_of_their_topic_with_the_same_records(wanted: str) -> None:
    values = [b"%d" % number * 9 for number in range(300)]
    large = [bytes(INLINE_BYTES_MAX // 2), b"x", bytes(INLINE_BYTES_MAX)]
    for sent_values in (values, large):
        settings = {"compression.type": wanted, "max.message.bytes": "4000000"}
        broker = Broker(**settings, **{"max.decompressed.message.bytes": "4000000"})
        broker.writer = attrs.evolve(broker.writer, record_bytes_max=2**22)
        broker.appender._writer = broker.writer
        broker.appender._unpacking = MemoryPool(2**30)
        for compression in Compression:
            data = [
                encode_batch(0, sent_values, timestamps=5, compression=each) for each in (compression, Compression.GZIP)
            ]
            sent = [(check_crc(each), each) for each in data]
            async with broker.appender.unpacked(broker.log, sent, "source") as (batches, records):
                assert isinstance(broker.append(*batches, records=records), AppendedBatches)
            written = broker.pending.pop()
            assert list(written.values) == sent_values * 2
            decoded = [decode_batch(each) for each in written.encoded]
            assert [list(each.values) for each in decoded] == [sent_values] * 2
            stored = [each.header.compression for each in decoded]
            name = wanted.replace("uncompressed", "none").upper()
            expected = [compression, Compression.GZIP] if wanted == "producer" else [Compression[name]] * 2
            assert stored == expected
            for header, before, after in zip(stored, sent, written.encoded, strict=True):
                if before[0].compression is header:  # batches that match are not touched
                    assert bytes(after)[12:] == before[1][12:]
    small = Broker(**{"compression.type": wanted, "max.message.bytes": "1500"})
    packed = encode_batch(0, [b"v" * 400] * 4, timestamps=0, compression=Compression.ZSTD)
    is_too_large = pytest.raises(AppendRefusedError, match="at most 1500 bytes of records")
    with is_too_large if wanted == "uncompressed" else nullcontext():
        async with small.appender.unpacked(small.log, [(check_crc(packed), packed)], "source"):
            pass


@pytest.mark.parametrize("is_commit", [True, False])
async def test_a_transaction_ends_after_the_records_before_its_marker_and_in_the_log_of_its_leader_only(
    is_commit: bool,
) -> None:
    broker = Broker()
    log = broker.log
    for count, options in ((1, {}), (2, {"producer_id": 7, "is_transactional": True}), (1, {})):
        broker.append(batch(count, **options))
    written = broker.writer.append_marker(log, Marker(7, 0, is_commit))
    assert not log.producers.open_transactions, "what the producer sends now is in its next transaction"
    broker.append(batch(2, sequence=2, producer_id=7, is_transactional=True))
    assert list(log.producers.open_transactions) == [7]
    await broker.write()
    await broker.commit(7)
    assert written.is_set()
    location = log.index.locate(Offset(4))
    assert location is not None
    (marker,) = log.index.markers(location, 1)
    assert marker[2:5] == (7, 0, int(is_commit))
    assert 0 <= steady_now_ms() - marker.timestamp_ms < 3_600_000
    assert (log.index.end_offset, log.last_stable_offset) == (7, 5)
    assert log.aborted_between(Offset(0), Offset(5)) == ([] if is_commit else [(7, 1)])
    log.leadership = attrs.evolve(log.leadership, is_led=False)
    with pytest.raises(NotLeaderError):
        broker.writer.append_marker(log, Marker(7, 0, is_commit))
    assert (log.markers, list(log.producers.open_transactions)) == ([], [7])


@pytest.mark.parametrize("all_replicas", [True, False])
@pytest.mark.parametrize("is_forgotten", [True, False])
async def test_a_duplicate_of_a_batch_of_another_leader_epoch_is_acknowledged_once_that_is_merged(
    is_forgotten: bool, all_replicas: bool
) -> None:
    broker = Broker(availability="branch")
    log = broker.log
    broker.append(batch(3))
    await broker.write()
    entries: list[Any] = [
        run_entry(0, "another", 0, 4),
        *(batch_entry(first, 2, 7, 0, first, 0, steady_now_ms()) for first in (0, 2)),
    ]
    assert [log.producers.admit_divergent(each) for each in entries[1:]] == [True, True]
    broker.table.merge_divergent(log, entries)
    appended = broker.append(batch(producer_id=7, sequence=2))
    assert isinstance(appended, AppendedBatches)
    assert (appended.is_duplicate, appended.is_durable()) == (True, False)
    async with trio.open_nursery() as nursery:
        found = await wait_all(nursery, [appended], all_replicas=all_replicas)
        await broker.commit(3)
        assert found == []
        if is_forgotten:
            log.divergent.clear()
            log.index.append("another", RecordSequence(0), 4, is_open=False)
        await broker.write()
        assert appended.is_durable()
        if all_replicas:
            await broker.commit(6)
            assert found == []
            await broker.commit(7)
    assert found == [-1 if is_forgotten else 5]


async def test_compressed_batches_are_unpacked_within_the_limit_of_their_topic_when_there_is_room() -> None:
    values = {size: [bytes(size)] * 4 for size in (10, 240, 260, INLINE_BYTES_MAX)}
    sent = {size: encode_batch(0, each, timestamps=0, compression=Compression.ZSTD) for size, each in values.items()}
    small, large = (Broker(**{"max.decompressed.message.bytes": f"{limit}"}) for limit in (1000, 5 * INLINE_BYTES_MAX))
    waits = 0

    async def unpack(broker: Broker, data: bytes) -> Any:
        try:
            async with broker.appender.unpacked(broker.log, [(check_crc(data), data)], "source") as (_, records):
                return records and list(records.values)
        except AppendRefusedError as error:
            return error.error_code

    async def wait_capacity() -> None:
        nonlocal waits
        waits += 1
        if waits == 2:
            large.table.remove_topic("orders")

    large.storage.wait_capacity = wait_capacity
    assert await unpack(small, batch(2)[1]) is None, "it is not compressed"
    for size in (10, 240, 260):
        found = await unpack(small, sent[size])
        assert found == (values[size] if size < 250 else ErrorCode.MESSAGE_TOO_LARGE)
        assert await unpack(large, sent[size]) == values[size]
    assert waits == 0
    assert await unpack(large, sent[INLINE_BYTES_MAX]) == values[INLINE_BYTES_MAX]
    assert await unpack(large, sent[INLINE_BYTES_MAX]) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "it is gone"
    small.log.leadership = attrs.evolve(small.log.leadership, is_led=False)
    assert await unpack(small, sent[10]) is None


@pytest.mark.parametrize("availability", ["majority", "branch"])
async def test_a_lasting_gap_is_refused_unless_the_rest_may_be_on_the_other_side_of_a_split(availability: str) -> None:
    broker = Broker(availability=availability)
    broker.append(batch(2, producer_id=7))
    after = batch(2, producer_id=7, sequence=5)
    assert broker.append(after) is ErrorCode.NOT_ENOUGH_REPLICAS
    state = broker.log.producers.producers[7]
    assert state.gap is not None
    state.gap = attrs.evolve(state.gap, noticed_ms=state.gap.noticed_ms - GAP_WAIT_MS)
    found = broker.append(after)
    if availability == "majority":
        assert found is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    else:
        assert isinstance(found, AppendedBatches)
        assert not found.is_duplicate


def test_only_whole_undamaged_batches_of_records_are_read() -> None:
    data = b"".join(with_base_offset(batch(count)[1], 0) for count in (1, 2, 3))
    assert [(header.count, bytes(each)) for header, each in read_batches(data)] == [
        (count, batch(count)[1]) for count in (1, 2, 3)
    ]
    damaged = bytearray(data)
    damaged[-1] ^= 1
    control = encode_batch(0, [b""], timestamps=0, is_control=True, producer_id=1, producer_epoch=0)
    for wrong, error in [
        (bytes(damaged), ErrorCode.CORRUPT_MESSAGE),
        (data[:-1], ErrorCode.CORRUPT_MESSAGE),
        (control, ErrorCode.INVALID_RECORD),
    ]:
        with pytest.raises(AppendRefusedError) as refused:
            read_batches(wrong)
        assert refused.value.error_code is error
