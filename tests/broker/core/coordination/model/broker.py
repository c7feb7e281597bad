"""A simulated broker: the coordinators, some logs, and a disk that a crash interrupts at any moment.

Whatever is written goes through one queue, in order. What was appended to a log, and is not durable when the broker
crashes, may survive or not.
"""

import random
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

import attrs

from dafka.batches import BatchHeader, Compression, TimestampType
from dafka.broker.core.coordination.effects import Action, Answer, WriteMarkers, WriteState
from dafka.broker.core.coordination.state_records import GROUPS_TOPIC, OFFSETS_TOPIC, StateRecord
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.coordinator import GroupCoordinator
from dafka.broker.core.groups.settings import GroupSettings
from dafka.broker.core.log.entries import TRANSACTIONAL, BatchEntry, MarkerEntry
from dafka.broker.core.log.open_transactions import AbortedTransaction, OpenTransactions
from dafka.broker.core.log.producer_batches import ProducerBatches
from dafka.broker.core.log.producer_state import Marker, ProducerStates, ProducerStateSettings
from dafka.broker.core.positions import Offset, Position, ProducerSequence, RecordSequence, sequence_of
from dafka.broker.core.topic_partition import TopicPartition
from dafka.broker.core.transactions.coordinator import TransactionCoordinator, TransactionSettings
from tests.broker.core.coordination.model.events import Events, ViolationError

PRODUCERS = ProducerStateSettings(producer_id_expiration_ms=10_000)
SETTINGS = TransactionSettings(transactional_id_expiration_ms=120_000)


def make_header(
    base_offset: int,
    count: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    *,
    is_transactional: bool = False,
    is_control: bool = False,
) -> BatchHeader:
    return BatchHeader(
        base_offset,
        100,
        -1,
        0,
        Compression.NONE,
        TimestampType.CREATE_TIME,
        is_transactional,
        is_control,
        count - 1,
        0,
        0,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )


@attrs.frozen
class Entry:
    """A batch in a log."""

    header: BatchHeader
    payload: Hashable
    marker: Marker | None
    appended_at_ms: int
    first_position: Position | None = None


class Log:
    """A log, what its broker knows of its producers, and the index from which a broker restores that."""

    is_gone = False

    def __init__(self, settings: ProducerStateSettings = PRODUCERS) -> None:
        self.settings = settings
        self.entries: list[Entry] = []
        self.durable_count = 0
        self.rewritten: list[BatchEntry | MarkerEntry] = []
        self.rewritten_end = 0
        self.batches = ProducerBatches()
        self.transactions = OpenTransactions()
        self.producers = ProducerStates(settings)

    @property
    def end_offset(self) -> int:
        return self.entries[-1].header.end_offset if self.entries else 0

    @property
    def high_watermark(self) -> int:
        return self.entries[self.durable_count - 1].header.end_offset if self.durable_count else 0

    def append(self, header: BatchHeader, payload: Hashable, now_ms: int) -> int:
        header = attrs.evolve(header, base_offset=self.end_offset)
        self.producers.add_batch(header, RecordSequence(header.base_offset), now_ms)
        self.entries.append(Entry(header, payload, None, now_ms))
        self.note(index_entry(self.entries[-1]))
        return header.base_offset

    def append_marker(self, marker: Marker, now_ms: int) -> None:
        offset = self.end_offset
        first_position = self.producers.open_transactions.get(marker.producer_id)
        self.producers.add_marker(marker, now_ms)
        header = make_header(offset, 1, *marker[:2], -1, is_transactional=True, is_control=True)
        self.entries.append(Entry(header, None, marker, now_ms, first_position))
        self.note(index_entry(self.entries[-1]))

    def flush(self) -> None:
        self.durable_count = len(self.entries)

    def rewrite_index(self) -> None:
        if self.durable_count == len(self.entries):
            markers = [entry for entry in map(index_entry, self.entries) if isinstance(entry, MarkerEntry)]
            kept: list[BatchEntry | MarkerEntry] = [*self.batches.entries(), *markers]
            self.rewritten = sorted(kept, key=lambda entry: entry[0])
            self.rewritten_end = self.end_offset

    def note(self, entry: BatchEntry | MarkerEntry) -> None:
        if isinstance(entry, MarkerEntry):
            self.batches.end_transaction(entry)
            is_commit = bool(entry.is_commit)
            first_offset = None if entry.first_position is None else Offset(sequence_of(entry.first_position))
            self.transactions.end(entry.producer_id, entry.offset, first_offset, is_commit=is_commit)
        elif entry.producer_id >= 0:
            self.batches.add(entry)
            if entry.flags & TRANSACTIONAL:
                self.transactions.begin(entry.producer_id, Offset(sequence_of(entry.position)))

    def recover(self, survivors: int) -> None:
        """Go on with the first entries after a crash."""
        del self.entries[survivors:]
        self.durable_count = survivors
        if self.rewritten_end > self.end_offset:
            self.rewritten, self.rewritten_end = [], 0
        self.batches, self.transactions = ProducerBatches(), OpenTransactions()
        self.producers = ProducerStates(self.settings)
        found = [index_entry(each) for each in self.entries if each.header.base_offset >= self.rewritten_end]
        for entry in [*self.rewritten, *found]:
            self.note(entry)
            self.producers.restore(entry)


def index_entry(entry: Entry) -> BatchEntry | MarkerEntry:
    """Return what the index of a log says of a batch."""
    header, marker, at = entry.header, entry.marker, entry.appended_at_ms
    offset = header.base_offset
    if marker is not None:
        producer, next_sequence = marker[:2], RecordSequence(offset + 1)
        return MarkerEntry(Offset(offset), next_sequence, *producer, marker.is_commit, at, entry.first_position)
    flags, base_sequence = TRANSACTIONAL * header.is_transactional, ProducerSequence(header.base_sequence)
    producer = header.producer_id, header.producer_epoch
    return BatchEntry(RecordSequence(offset), header.count, *producer, base_sequence, flags, at)


class Broker:
    """The broker. Its owner calls `handle` with requests, and `advance` when time has passed."""

    def __init__(self, events: Events, rng: random.Random, logs: list[TopicPartition]) -> None:
        self.events = events
        self.random = rng
        self.logs = {name: Log() for name in logs}
        self.state: list[StateRecord] = []
        self.crash_rate = 0.0
        self.crashes = 0
        self.waiting: dict[int, Callable[[Any], None]] = {}
        self.queue: deque[Callable[[], None]] = deque()
        self.is_working = False
        self.is_ready = False
        self.unwritten = 0
        self.restart()

    @property
    def now_ms(self) -> int:
        return self.events.now_ms

    def restart(self) -> None:
        self.transactions = TransactionCoordinator(SETTINGS)
        self.groups = GroupCoordinator(GroupSettings(), str)
        for record in self.state:
            owner = self.groups if record.topic in {GROUPS_TOPIC, OFFSETS_TOPIC} else self.transactions
            owner.restore(record)
        self.groups.start(self.now_ms)
        self.is_ready = False
        self.execute(self.transactions.start())
        for log in self.logs.values():
            self.enqueue(log.flush)
        self.enqueue(self.become_ready)

    def become_ready(self) -> None:
        self.is_ready = True

    def crash(self) -> None:
        self.crashes += 1
        self.waiting.clear()
        self.queue.clear()
        self.unwritten = 0
        self.is_working = False
        for log in self.logs.values():
            log.recover(self.random.randint(log.durable_count, len(log.entries)))
        if self.random.random() < 0.5:
            last = {(record.topic, record.key): at for at, record in enumerate(self.state)}
            kept = sorted(last.values())
            self.state = [self.state[at] for at in kept if self.state[at].value is not None]
        self.restart()

    def advance(self) -> int | None:
        deadline_ms = self.transactions.next_deadline_ms()
        if deadline_ms is not None and deadline_ms <= self.now_ms:
            self.execute(self.transactions.advance(self.now_ms))
            deadline_ms = self.transactions.next_deadline_ms()
            if deadline_ms is not None and deadline_ms <= self.now_ms:
                raise ViolationError("a deadline stays in the past")
        return deadline_ms

    def expire_producers(self) -> None:
        for log in self.logs.values():
            log.producers.expire(self.now_ms)

    def handle(
        self, token: int, request: Callable[["Broker", int], list[Action]], receive: Callable[[Any], None]
    ) -> None:
        """Handle a request. Whoever calls gets the answer, unless the broker crashes before."""
        if self.is_ready:
            self.waiting[token] = receive
            self.execute(request(self, token))

    def produce(
        self, token: int, name: TopicPartition, header: BatchHeader, payload: Hashable, transactional_id: str | None
    ) -> list[Action]:
        """Append a batch; the answer is an error and an offset."""
        log = self.logs[name]
        if transactional_id is not None:
            producer = (header.producer_id, header.producer_epoch)
            error = self.transactions.check_partition(transactional_id, producer, name)  # type: ignore[arg-type]
            if not error and self.unwritten:
                error = ErrorCode.NOT_ENOUGH_REPLICAS  # nothing else says after a crash that the log takes part
            if error:
                return [Answer(token, (error, -1))]
        check = log.producers.check_batch(header)
        if check.error_code:
            return [Answer(token, (check.error_code, -1))]
        if check.duplicate_of is not None:
            assert check.duplicate_of.position is not None
            offset: int = sequence_of(check.duplicate_of.position)
        else:
            offset = log.append(header, payload, self.now_ms)
        self.enqueue(log.flush)
        return [Answer(token, (check.error_code, offset))]

    def execute(self, actions: list[Action]) -> None:
        for action in actions:
            self.unwritten += isinstance(action, WriteState)
            self.enqueue(lambda action=action: self.carry_out(action))  # type: ignore[misc]

    def enqueue(self, step: Callable[[], None]) -> None:
        self.queue.append(step)
        self.work()

    def work(self) -> None:
        if self.is_working or not self.queue:
            return
        self.is_working = True
        life = self.crashes

        def finish() -> None:
            if self.crashes != life:
                return
            if self.random.random() < self.crash_rate:
                self.crash()
                return
            self.is_working = False
            self.queue.popleft()()
            self.work()

        self.events.call_in(self.random.choice([0, 1, 5]), finish)

    def carry_out(self, action: Action) -> None:
        if isinstance(action, WriteState):
            self.state += action.records
            self.unwritten -= 1
        elif isinstance(action, Answer):
            assert isinstance(action.token, int)
            if action.token not in self.waiting:
                raise ViolationError(f"request {action.token} is answered twice, with {action.result}")
            self.waiting.pop(action.token)(action.result)
        else:
            self.write_markers(action)

    def write_markers(self, action: WriteMarkers) -> None:
        """Write the markers one after the other: the broker may crash between them."""
        marker = Marker(action.producer_id, action.producer_epoch, action.is_commit)
        steps: list[Callable[[], None]] = []
        for name in action.partitions:
            log = self.logs[name]
            steps += [lambda log=log: log.append_marker(marker, self.now_ms), log.flush]  # type: ignore[misc]
        for group_id in action.groups:
            for write in self.groups.end_transaction(group_id, action.producer_id, action.is_commit):
                self.unwritten += 1
                steps.append(lambda write=write: self.carry_out(write))  # type: ignore[misc]
        steps.append(lambda: self.execute(self.transactions.markers_written(action.transactional_id, self.now_ms)))
        self.queue.extendleft(reversed(steps))

    def aborted_between(self, name: TopicPartition, start: int, end: int) -> list[AbortedTransaction]:
        return self.logs[name].transactions.aborted_between(Offset(start), Offset(end))
