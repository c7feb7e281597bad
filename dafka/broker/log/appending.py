"""Appends record batches of clients to logs. Repeated batches of idempotent producers are not appended again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from traceback import clear_frames
from typing import Protocol, TypeAlias

import attrs
import trio

from dafka.batches import (
    BatchHeader,
    Compression,
    check_crc,
    compress_whole,
    decode_run,
    decompress_batch,
    iter_batches,
)
from dafka.broker.connections.memory import MemoryPool
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.log import Log
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.log.producer_state import AppendedBatch, Producer
from dafka.broker.core.log.record_rules import RecordProblem, RecordRules, rules_of
from dafka.broker.core.metadata.brokers import Brokers
from dafka.broker.core.metadata.topic_settings import MAJORITY, availability_of, replicas_min_of
from dafka.broker.core.positions import UNKNOWN_OFFSET, AtOffset, Offset, Position, ProducerSequence
from dafka.broker.log.append_outcomes import AppendOutcomes
from dafka.broker.log.broker_storage import BrokerStorage
from dafka.broker.log.waiters import LogWaiters
from dafka.broker.log.writer import LogWriter
from dafka.config import Config
from dafka.errors import (
    BatchError,
    BatchTooLargeError,
    DafkaError,
    NotLeaderError,
    RecordError,
    StorageError,
    TopicDeletedError,
)
from dafka.packed_bytes import Repeated
from dafka.records import Partition, RecordBatch
from dafka.steady_clock import steady_now_ms

Batch: TypeAlias = tuple[BatchHeader, bytes | memoryview]
"""The header of a record batch, and the record batch."""

_REFUSALS: dict[type[DafkaError], ErrorCode] = {
    RecordError: ErrorCode.MESSAGE_TOO_LARGE,
    BatchError: ErrorCode.INVALID_RECORD,
    StorageError: ErrorCode.KAFKA_STORAGE_ERROR,
}

INLINE_BYTES_MAX = 2**20
"""Records up to this size, decompressed, are unpacked inline. Larger ones are unpacked in a thread."""

_UNPACKING_FACTOR = 2
"""The number of copies of the records in memory while they are unpacked."""

_NO_TIME = -1


class AppendRefusedError(DafkaError):
    """Records for a log are refused, with an explanation if Kafka's error code is not enough.

    `problems` names the records that are wrong, if the others are not.
    """

    def __init__(
        self, error_code: ErrorCode, message: str | None = None, problems: Sequence[RecordProblem] = ()
    ) -> None:
        super().__init__(message or error_code.name)
        self.error_code = error_code
        self.message = message
        self.problems = problems


class WaitOffset(Protocol):
    """Waits until records are durable."""

    def __call__(self, *, all_replicas: bool = True) -> Awaitable[Offset]:
        """Wait, and return the offset of the first record; -1 if they were appended long before and it is unknown.

        Raises `NotLeaderError` if the log does not have the records, or if their producer has an id, so that it can
        repeat them in any case; `OutcomeUnknownError` if no leader says in time whether the log has them; and
        `TopicDeletedError`.
        """


@attrs.frozen(eq=False)
class AppendedBatches:
    """Record batches in a log, possibly not durable yet. `is_duplicate` if they were appended before.

    `append_time_ms` is the time of the records, in milliseconds since 1970, if the leader sets it; else -1.
    """

    log: Log
    record_count: int
    is_duplicate: bool
    append_time_ms: int
    is_durable: Callable[[], bool]
    wait_offset: WaitOffset


def read_batches(records: bytes | memoryview) -> list[Batch]:
    """Split whole record batches of a client, one after the other, and check their CRCs.

    Raise `AppendRefusedError` if they are damaged, or of a kind that clients may not append.
    """
    whole = memoryview(records)
    found: list[Batch] = []
    try:
        for position, each in iter_batches(whole):
            header = check_crc(whole, position)
            if header.is_control or header.last_offset_delta != header.count - 1:
                raise AppendRefusedError(ErrorCode.INVALID_RECORD)
            found.append((header, whole[position : position + each.size]))
    except BatchError as error:
        raise AppendRefusedError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
    return found


@contextmanager
def _refusing() -> Iterator[None]:
    """Raise `AppendRefusedError` for records that cannot be unpacked or stored."""
    try:
        yield
    except (BatchError, RecordError, StorageError) as error:
        clear_frames(error.__traceback__)  # they keep unpacked records in memory
        if isinstance(error, BatchTooLargeError):
            raise too_large(error) from None
        code = next(code for kind, code in _REFUSALS.items() if isinstance(error, kind))
        raise AppendRefusedError(code, str(error)) from None


def too_large(error: BatchTooLargeError) -> AppendRefusedError:
    """Return the error for records that are larger, decompressed, than their topic allows."""
    return AppendRefusedError(ErrorCode.MESSAGE_TOO_LARGE, f"{error} (max.decompressed.message.bytes)")


def not_leader(log: Log) -> NotLeaderError:
    """Return the error for a request that only the leader of a log can serve."""
    return NotLeaderError(f"another broker leads log {log.number} of the topic {log.topic!r}", log.leadership.leader)


@attrs.define(eq=False, slots=False)
class ClientAppender:
    """Appends record batches of clients to the logs that this broker leads.

    Batches of transactions are checked by `check_transaction`, see `TransactionParticipants.check_log`. Records of
    clients are decompressed in the memory `unpacking`. `time_ms` returns the time, also if the clock of this broker is
    wrong: else it would refuse all records, or date them wrongly.
    """

    _log_table: LogTable
    _brokers: Brokers
    _config: Config
    _storage: BrokerStorage
    _writer: LogWriter
    _watchers: LogWaiters
    _outcomes: AppendOutcomes
    _unpacking: MemoryPool
    _check_transaction: Callable[[Log, str, Producer], ErrorCode]
    time_ms: Callable[[], int]
    _rules: dict[str, RecordRules] = attrs.field(factory=dict, init=False)
    _rules_revision: int = attrs.field(default=-1, init=False)

    def rules_of(self, log: Log) -> RecordRules:
        """Return what the topic of a log requires of the records of clients."""
        if self._rules_revision != self._log_table.revision:  # topics have changed
            self._rules, self._rules_revision = {}, self._log_table.revision
        found = self._rules.get(log.topic)
        if found is None:
            found = self._rules[log.topic] = rules_of(self._log_table.topics[log.topic], self._config)
        return found

    def check_size(self, log: Log, size: int) -> None:
        """Raise `AppendRefusedError` if batches are too large to be appended to a log at once."""
        _check_size(self.rules_of(log), size)

    @asynccontextmanager
    async def unpacked(
        self, log: Log, batches: Sequence[Batch], source: str
    ) -> AsyncIterator[tuple[Sequence[Batch], RecordBatch | None]]:
        """Unpack compressed record batches of a client, and compress batches as the topic of the log requires.

        Large ones are unpacked in a thread, and all are compressed in a thread; the sources take turns.

        Append the yielded batches and records within the block, during which their memory is reserved. The records are
        None if the batches are neither unpacked nor compressed, or another broker leads the log: the batches are then
        decoded when they are appended. Raise `AppendRefusedError` if they are malformed or too large, the storage
        fails, or the topic was deleted meanwhile.
        """
        rules = None if log.is_gone else self.rules_of(log)
        if rules is None or not log.leadership.is_led or not any(_is_packed(header, rules) for header, _ in batches):
            yield batches, None
            return
        bytes_max = rules.decompressed_bytes_max
        unpack = partial(_unpack, log.leader_partition, batches, rules)
        found = None
        with _refusing():
            try:
                found = unpack(bytes_max=min(bytes_max, INLINE_BYTES_MAX))
            except BatchTooLargeError:
                if bytes_max <= INLINE_BYTES_MAX:
                    raise
        if found is not None:
            plain, records = found
            yield (batches if plain is None else await _compress(log, plain, rules)), records
            return
        copies = _UNPACKING_FACTOR + any(rules.recompresses(header) for header, _ in batches)
        async with self._unpacking.take(source, copies * bytes_max):
            with _refusing():
                await self._storage.wait_capacity()  # includes unpacked records that are not durable yet
                plain, records = await trio.to_thread.run_sync(partial(unpack, bytes_max=bytes_max))
            if plain is not None:
                batches = await _compress(log, plain, rules)
            if log.is_gone:
                raise AppendRefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            yield batches, records

    def append(
        self,
        log: Log,
        batches: Sequence[Batch],
        transactional_id: str = "",
        *,
        records: RecordBatch | None = None,
        all_replicas: bool = True,
        has_own_epoch: bool = False,
    ) -> AppendedBatches:
        """Append record batches of a client to a log, unless its producer has appended them before.

        Their CRCs were checked. A batch of a producer with an id must be the only one; `transactional_id` is its name
        if the batch belongs to a transaction. `batches` and `records` are what `unpacked` has yielded. With
        `all_replicas`, enough replicas must be alive. With `has_own_epoch`, the epoch of the producer is that of one
        transaction, so that the sequences of its batches in each log begin with 0.

        Raise `NotLeaderError`; and `AppendRefusedError` if the records are malformed or too large, break a rule of the
        topic, or do not follow the producer's last batch, or if too few replicas are alive.
        """
        if not log.leadership.is_led:
            raise not_leader(log)
        if self._storage.problem:
            raise AppendRefusedError(ErrorCode.KAFKA_STORAGE_ERROR, self._storage.problem)
        if all_replicas:
            self._check_replicas(log)
        if all(header.producer_id < 0 for header, _ in batches):
            return self._append(log, batches, records)
        if len(batches) > 1:
            raise AppendRefusedError(ErrorCode.INVALID_RECORD, "expected one batch of a producer with an id")
        header = batches[0][0]
        if header.is_transactional:
            producer = Producer(header.producer_id, header.producer_epoch)
            error = self._check_transaction(log, transactional_id, producer)
            if error:
                raise AppendRefusedError(error)
            if has_own_epoch and header.base_sequence and producer.producer_id not in log.producers.producers:
                raise AppendRefusedError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "earlier records are missing")
        duplicate_of = self._find_earlier(log, header)
        if duplicate_of is not None:
            return self._find_duplicate(log, duplicate_of, header)
        sequence = self._writer.next_sequence(log)
        appended = self._append(log, batches, records)
        time_ms = steady_now_ms() if appended.append_time_ms < 0 else appended.append_time_ms
        log.producers.add_batch(header, sequence, time_ms)
        return appended

    def _check_replicas(self, log: Log) -> None:
        """Refuse records if too few replicas are alive."""
        leadership, is_alive = log.leadership, self._brokers.is_alive
        topic = self._log_table.topics[log.topic]
        voters = leadership.voters
        living = sum(map(is_alive, voters))
        if availability_of(topic) == MAJORITY and living <= len(voters) // 2 and voters:
            raise AppendRefusedError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{living} of {len(voters)} replicas are alive, which is no majority",
            )
        needed = replicas_min_of(topic)
        in_sync = max(sum(map(is_alive, leadership.in_sync)), 1)  # this broker is in sync
        if in_sync < needed:
            raise AppendRefusedError(
                ErrorCode.NOT_ENOUGH_REPLICAS, f"{in_sync} replicas are in sync, and min.insync.replicas is {needed}"
            )

    def _find_earlier(self, log: Log, header: BatchHeader) -> AppendedBatch | None:
        """Return the earlier append of a batch; None if it must be appended. Raises `AppendRefusedError`."""
        producers = log.producers
        check = producers.check_batch(header)
        if check.error_code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and log.is_replicated:
            # The missing batch can still arrive: librdkafka sends batches to a new leader before it repeats those that
            # the former leader has not answered. If it got an error for the gap, it would send all as new records.
            if not producers.is_lasting_gap(header, steady_now_ms()):
                raise AppendRefusedError(ErrorCode.NOT_ENOUGH_REPLICAS, "records before these are missing: try again")
            if availability_of(self._log_table.topics[log.topic]) != MAJORITY:
                return None
        if check.error_code:
            raise AppendRefusedError(check.error_code)
        return check.duplicate_of

    def _append(self, log: Log, batches: Sequence[Batch], records: RecordBatch | None) -> AppendedBatches:
        rules, time_ms = self.rules_of(log), self.time_ms()
        batches = rules.set_time(batches, time_ms)
        if records is not None and rules.is_append_time:
            records = attrs.evolve(records, timestamps=Repeated(time_ms, len(records)))
        with _refusing():
            records = self._writer.place(log, batches, records=records, bytes_max=rules.decompressed_bytes_max)
        if refused := rules.find_refused(len(records), records.keys, records.timestamps, time_ms):
            raise AppendRefusedError(*refused)
        appended = self._writer.append_placed(log, records)
        is_plain = all(header.producer_id < 0 for header, _ in batches)

        async def wait_offset(*, all_replicas: bool = True) -> Offset:
            try:
                return await appended.wait_offset(all_replicas=all_replicas)
            except NotLeaderError:
                if not is_plain:
                    raise
            return await self._outcomes.find(appended, all_replicas=all_replicas)

        count = sum(header.count for header, _ in batches)
        return AppendedBatches(
            log,
            count,
            is_duplicate=False,
            append_time_ms=time_ms if rules.is_append_time else _NO_TIME,
            is_durable=appended.durable.is_set,
            wait_offset=wait_offset,
        )

    def _find_duplicate(self, log: Log, batch: AppendedBatch, header: BatchHeader) -> AppendedBatches:
        """Return records that were appended before."""
        position = batch.position  # None if they come from a divergent leader epoch

        def is_durable() -> bool:
            if position is None:
                return not log.divergent
            return isinstance(position, AtOffset) or self._storage.durable_end(log.leader_partition) > position

        async def wait_offset(*, all_replicas: bool = True) -> Offset:
            while True:
                with self._watchers.watching([log]) as advanced:
                    if log.is_gone:
                        raise TopicDeletedError(log.topic)
                    if not log.leadership.is_led:
                        raise not_leader(log)
                    if is_durable():
                        offset = _find_offset(log, position, header)
                        end = log.index.end_offset if offset < 0 else offset + header.count
                        if not all_replicas or end <= log.high_watermark:
                            return offset
                    await advanced.wait()

        return AppendedBatches(
            log,
            header.count,
            is_duplicate=True,
            append_time_ms=batch.timestamp_ms if self.rules_of(log).is_append_time else _NO_TIME,
            is_durable=is_durable,
            wait_offset=wait_offset,
        )


def _check_size(rules: RecordRules, size: int) -> None:
    if size > rules.bytes_max:
        raise AppendRefusedError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"expected at most {rules.bytes_max} bytes of records (max.message.bytes), not {size}",
        )


def _is_packed(header: BatchHeader, rules: RecordRules) -> bool:
    return header.compression is not Compression.NONE or rules.recompresses(header)


def _unpack(
    partition: Partition, batches: Sequence[Batch], rules: RecordRules, *, bytes_max: int
) -> tuple[Sequence[Batch] | None, RecordBatch]:
    """Return the records of batches; and the batches without compression if the topic requires another one."""
    if not any(rules.recompresses(header) for header, _ in batches):
        return None, decode_run(partition, batches, bytes_max=bytes_max, is_kept=False)
    plain, left = [], bytes_max
    for batch in batches:
        plain.append(decompress_batch(*batch, left))
        left -= plain[-1][0].size if batch[0].compression is not Compression.NONE else 0
    return plain, decode_run(partition, plain, bytes_max=bytes_max, is_kept=False)


async def _compress(log: Log, batches: Sequence[Batch], rules: RecordRules) -> Sequence[Batch]:
    """Compress batches as the topic of a log requires, one after the other, in a thread."""
    compression = rules.compression
    if compression is not None and compression is not Compression.NONE:
        batches = [await trio.to_thread.run_sync(compress_whole, *batch, compression, rules.level) for batch in batches]
        if log.is_gone:
            raise AppendRefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    _check_size(rules, sum(header.size for header, _ in batches))
    return batches


def _find_offset(log: Log, position: Position | None, header: BatchHeader) -> Offset:
    """Return the offset of the first record of a batch that was appended before; -1 if it is unknown."""
    if position is not None:
        return log.find_offset(position)
    base_sequence = ProducerSequence(header.base_sequence)
    entry = log.producer_batches.find(header.producer_id, header.producer_epoch, base_sequence)
    return UNKNOWN_OFFSET if entry is None else log.find_offset(entry.position)
