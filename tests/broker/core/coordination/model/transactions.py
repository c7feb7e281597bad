"""Simulated producers, idempotent and transactional, that retry, hang, restart and meet their own zombies.

The transactional ones do what exactly-once programs do: they take item n, where n is the offset that their group has
committed, write what comes of it to several logs, and commit the offset n + 1 in the same transaction.
"""

import itertools
import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable
from typing import Any

from dafka.broker.core.coordination.effects import Action, Answer
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.coordinator import CommitRequest, OffsetToCommit
from dafka.broker.core.log.producer_state import Producer
from dafka.broker.core.topic_partition import TopicPartition
from dafka.broker.core.transactions.coordinator import InitProducerResult
from tests.broker.core.coordination.model.broker import Broker, make_header
from tests.broker.core.coordination.model.events import Events, ViolationError
from tests.broker.core.coordination.model.readers import Reader

LOGS = [TopicPartition("out", number) for number in range(3)]
SOURCE = TopicPartition("in", 0)
REQUEST_TIMEOUT_MS = 500
TRANSACTION_TIMEOUT_MS = 3_000
SEQUENCES = 2**31
BUSY_MS = 30_000
QUIET_MS = 30_000

FENCED = {ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING}
RETRIED = {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.UNSTABLE_OFFSET_COMMIT, ErrorCode.NOT_ENOUGH_REPLICAS}


class Connection:
    """Carries requests and answers in order. What follows a lost one is lost.

    It ends when the broker crashes. When the client closes it, requests under way may still arrive if it lingers.
    """

    def __init__(self, world: "TransactionWorld", lingers: bool) -> None:
        self.world = world
        self.lingers = lingers
        self.is_open = True
        self.is_cut = False
        self.is_deaf = False
        self.broker_life = world.broker.crashes
        self.arrival_ms = 0
        self.answer_ms = 0

    def close(self) -> None:
        self.is_open = False
        self.is_cut = not self.lingers or self.world.random.random() < 0.5

    def send(self, request: Callable[[Broker, int], list[Action]], receive: Callable[[Any], None]) -> None:
        world = self.world
        self.arrival_ms = max(self.arrival_ms, world.events.now_ms + world.random.randint(1, 50))

        def answered(result: Any) -> None:
            if world.random.random() < world.loss:
                self.is_deaf = True
            if not self.is_deaf:
                self.answer_ms = max(self.answer_ms, world.events.now_ms + world.random.randint(1, 20))
                delay_ms = self.answer_ms - world.events.now_ms
                world.events.call_in(delay_ms, lambda: receive(result) if self.is_open else None)

        def arrive() -> None:
            if world.random.random() < world.loss or world.broker.crashes != self.broker_life:
                self.is_cut = True
            self.is_cut |= not world.broker.is_ready
            if not self.is_cut:
                world.broker.handle(next(world.tokens), request, answered)

        world.events.call_in(self.arrival_ms - world.events.now_ms, arrive)


class IdempotentProducer:
    """Appends numbered batches to one log, up to five at a time, and retries each until it is acknowledged."""

    def __init__(self, world: "TransactionWorld", number: int, log: TopicPartition) -> None:
        self.world = world
        self.name = f"idempotent-{number}"
        self.log = log
        self.producer: Producer | None = None
        self.sequence = world.random.choice([0, SEQUENCES - 40])
        self.next_number = 0
        self.flying: deque[tuple[int, int, int]] = deque()
        self.offsets: dict[int, int] = {}
        self.connection = Connection(world, lingers=True)
        self.progress = 0
        self.init()

    def init(self) -> None:
        def received(result: InitProducerResult) -> None:
            if self.producer is None:
                self.producer = result.producer
                self.fill()

        now_ms = self.world.events.now_ms
        self.connection.send(
            lambda broker, token: broker.transactions.init_producer_id(token, None, 0, None, now_ms), received
        )
        self.watch()

    def watch(self) -> None:
        """Reconnect if nothing comes back."""
        progress = self.progress

        def check() -> None:
            if self.progress != progress or (self.producer is not None and not self.flying):
                self.watch()
                return
            self.connection.close()
            self.connection = Connection(self.world, lingers=True)
            if self.producer is None:
                self.init()
                return
            for batch in self.flying:
                self.send(*batch)
            self.watch()

        self.world.events.call_in(REQUEST_TIMEOUT_MS, check)

    def fill(self) -> None:
        """Send more batches, or pause while none is under way: sometimes until the log forgets the producer."""
        if self.world.events.now_ms > BUSY_MS:
            return
        if not self.flying and self.world.random.random() < 0.2:
            self.world.events.call_in(self.world.random.choice([100, 2_000, 12_000]), self.fill)
            return
        while len(self.flying) < 5 and (not self.flying or self.world.random.random() < 0.5):
            count = self.world.random.randint(1, 9)
            batch = (self.next_number, self.sequence, count)
            self.next_number += 1
            self.sequence = (self.sequence + count) % SEQUENCES
            self.flying.append(batch)
            self.send(*batch)

    def send(self, number: int, sequence: int, count: int) -> None:
        assert self.producer is not None
        header = make_header(0, count, *self.producer, sequence)

        def received(result: tuple[ErrorCode, int]) -> None:
            error, offset = result
            if error:
                raise ViolationError(f"{self.name}: batch {number} is answered {error.name}")
            self.progress += 1
            if self.offsets.setdefault(number, offset) != offset:
                raise ViolationError(f"{self.name}: batch {number} is at {self.offsets[number]} and at {offset}")
            self.flying = deque(batch for batch in self.flying if batch[0] != number)
            self.fill()

        self.connection.send(
            lambda broker, token: broker.produce(token, self.log, header, (self.name, number), None), received
        )


class TransactionalProducer:
    """One life of an exactly-once program."""

    def __init__(self, world: "TransactionWorld", transactional_id: str) -> None:
        self.world = world
        self.random = world.random
        self.transactional_id = transactional_id
        self.is_running = True
        self.is_fenced = False
        self.producer = Producer(-1, -1)
        self.needs_epoch = False
        self.sequences: Counter[TopicPartition] = Counter()
        self.connection = Connection(world, lingers=False)
        self.serial = 0
        self.init()

    @property
    def now_ms(self) -> int:
        return self.world.events.now_ms

    def stop(self) -> None:
        """Hang or die. A hanging program may go on later, as a zombie."""
        self.is_running = False
        self.serial += 1

    def call(
        self,
        request: Callable[[Broker, int], list[Action]],
        receive: Callable[[Any], None],
        error_of: Callable[[Any], ErrorCode],
    ) -> None:
        """Send a request again and again, until there is an answer that is not to be retried."""
        self.serial += 1
        serial = self.serial

        def again() -> None:
            if self.serial == serial:
                self.connection.close()
                self.connection = Connection(self.world, lingers=False)
                self.call(request, receive, error_of)

        def answered(result: Any) -> None:
            if self.serial != serial:
                return
            error = error_of(result)
            if error in FENCED:
                self.is_fenced = True
                self.stop()
            elif error in RETRIED:
                self.world.events.call_in(20, again)
            elif error:
                raise ViolationError(f"{self.transactional_id} {self.producer} is answered {error.name}")
            else:
                self.serial += 1
                receive(result)

        self.connection.send(request, answered)
        self.world.events.call_in(REQUEST_TIMEOUT_MS, again)

    def init(self, expected: Producer | None = None) -> None:
        def received(result: InitProducerResult) -> None:
            self.producer = result.producer
            self.needs_epoch = False
            self.sequences.clear()
            self.fetch()

        self.call(
            lambda broker, token: broker.transactions.init_producer_id(
                token, self.transactional_id, TRANSACTION_TIMEOUT_MS, expected, self.now_ms
            ),
            received,
            lambda result: result.error_code,
        )

    def fetch(self) -> None:
        """Learn which item is the next one."""

        def received(result: dict[TopicPartition, Any]) -> None:
            self.transact(max(result[SOURCE].offset, 0))

        self.call(
            lambda broker, token: [
                Answer(token, broker.groups.fetch_offsets(self.transactional_id, [SOURCE], require_stable=True))
            ],
            received,
            lambda result: result[SOURCE].error_code,
        )

    def transact(self, item: int) -> None:
        """Handle an item in a transaction."""
        if self.now_ms > BUSY_MS:
            return
        attempt = next(self.world.attempts)
        logs = self.random.sample(LOGS, self.random.randint(1, 3))
        batches = [(self.random.choice(logs), number) for number in range(self.random.randint(1, 5))]
        steps: list[Callable[[Callable[[], None]], None]] = [lambda then: self.add_partitions(logs, then)]
        for log, number in batches:
            steps.append(lambda then, log=log, number=number: self.produce(log, (attempt, number), then))  # type: ignore[misc]
        steps += [self.add_offsets, lambda then: self.commit_offsets(item + 1, then)]
        self.world.written[attempt] = (self.transactional_id, item, len(batches))
        is_commit = self.random.random() < 0.8
        if self.random.random() < 0.1:  # give up in the middle, and ask for a new epoch
            steps = steps[: self.random.randint(1, len(steps))]
            is_commit = False
        if not is_commit and self.random.random() < 0.3:
            steps.append(lambda then: self.abandon(logs[0], (attempt, -1), then))
        self.run_steps(steps, lambda: self.end(attempt, item, is_commit))

    def run_steps(self, steps: list[Callable[[Callable[[], None]], None]], then: Callable[[], None]) -> None:
        if not steps:
            then()
            return
        pause_ms = 2 * TRANSACTION_TIMEOUT_MS if self.random.random() < 0.01 else self.random.choice([0, 0, 30])
        self.serial += 1
        serial = self.serial

        def go_on() -> None:
            if self.serial == serial:
                steps[0](lambda: self.run_steps(steps[1:], then))

        self.world.events.call_in(pause_ms, go_on)

    def add_partitions(self, logs: list[TopicPartition], then: Callable[[], None]) -> None:
        self.call(
            lambda broker, token: broker.transactions.add_partitions(
                token, self.transactional_id, self.producer, logs, self.now_ms
            ),
            lambda _: then(),
            lambda error: error,
        )

    def add_offsets(self, then: Callable[[], None]) -> None:
        self.call(
            lambda broker, token: broker.transactions.add_offsets(
                token, self.transactional_id, self.producer, self.transactional_id, self.now_ms
            ),
            lambda _: then(),
            lambda error: error,
        )

    def commit_offsets(self, offset: int, then: Callable[[], None]) -> None:
        request = CommitRequest(group_id=self.transactional_id, offsets={SOURCE: OffsetToCommit(offset)})

        def handle(broker: Broker, token: int) -> list[Action]:
            error = broker.transactions.check_group(self.transactional_id, self.producer, self.transactional_id)
            if error:
                return [Answer(token, {SOURCE: error})]
            producer_id = self.producer.producer_id
            return broker.groups.commit_transaction_offsets(token, request, producer_id, self.now_ms)

        self.call(handle, lambda _: then(), lambda errors: errors[SOURCE])

    def produce(self, log: TopicPartition, payload: Hashable, then: Callable[[], None]) -> None:
        count = self.random.randint(1, 5)
        header = make_header(0, count, *self.producer, self.sequences[log], is_transactional=True)
        self.sequences[log] += count
        self.call(
            lambda broker, token: broker.produce(token, log, header, payload, self.transactional_id),
            lambda _: then(),
            lambda result: result[0],
        )

    def abandon(self, log: TopicPartition, payload: Hashable, then: Callable[[], None]) -> None:
        """Send a batch, and do not wait for it. It may arrive when its transaction has ended."""
        header = make_header(0, 1, *self.producer, self.sequences[log], is_transactional=True)
        self.needs_epoch = True

        def arrive() -> None:
            self.world.broker.handle(
                next(self.world.tokens),
                lambda broker, token: broker.produce(token, log, header, payload, self.transactional_id),
                lambda _: None,
            )

        self.world.events.call_in(self.random.randint(1, 2_000), arrive)
        then()

    def end(self, attempt: int, item: int, is_commit: bool) -> None:
        if not is_commit and self.random.random() < 0.3:
            self.init(self.producer)
            return

        def received(_: ErrorCode) -> None:
            self.world.ended[attempt] = is_commit
            if self.needs_epoch:
                self.init(self.producer)
            else:
                self.transact(item + 1 if is_commit else item)

        self.call(
            lambda broker, token: broker.transactions.end_transaction(
                token, self.transactional_id, self.producer, is_commit, self.now_ms
            ),
            received,
            lambda error: error,
        )


class TransactionWorld:
    """A broker, its producers, and what must hold.

    Args:
        seed: Determines everything.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.events = Events()
        self.tokens = itertools.count()
        self.attempts = itertools.count()
        self.loss = self.random.choice([0, 0.01, 0.05])
        self.written: dict[int, tuple[str, int, int]] = {}
        self.ended: dict[int, bool] = {}
        self.broker = Broker(self.events, self.random, LOGS)
        self.broker.crash_rate = self.random.choice([0, 0.001, 0.01])
        self.readers = [Reader(name) for name in LOGS]
        self.idempotent = [IdempotentProducer(self, number, LOGS[number]) for number in range(2)]
        self.lives: dict[str, list[TransactionalProducer]] = defaultdict(list)
        self.names = ["first", "second"]

    def run(self) -> int:
        """Play everything; return how many events there were.

        Raises:
            ViolationError: A promise is broken.
        """
        for name in self.names:
            self.lives[name].append(TransactionalProducer(self, name))
        self.change()
        self.events.run_until(BUSY_MS, self.broker.advance)
        self.loss = 0
        self.broker.crash_rate = 0
        self.events.run_until(BUSY_MS + QUIET_MS, self.broker.advance)
        self.check()
        return self.events.count

    def change(self) -> None:
        """Let something happen."""
        if self.events.now_ms >= BUSY_MS:
            return
        number = self.random.random()
        lives = self.lives[self.random.choice(self.names)]
        if number < 0.1:
            lives[-1].stop()
        if number < 0.15 or not lives[-1].is_running:
            lives.append(TransactionalProducer(self, lives[-1].transactional_id))
        elif number < 0.2:
            self.broker.crash()
        elif number < 0.3:
            self.random.choice(list(self.broker.logs.values())).rewrite_index()
        elif number < 0.4:
            self.broker.expire_producers()
        else:
            self.random.choice(self.readers).read(self.broker, self.random)
        self.events.call_in(self.random.choice([10, 100, 1_000]), self.change)

    def check(self) -> None:
        """Check what is in the logs at the end, for readers of committed records."""
        if self.broker.waiting:
            raise ViolationError(f"{len(self.broker.waiting)} requests were never answered")
        for reader, log in zip(self.readers, self.broker.logs.values(), strict=True):
            reader.read(self.broker, self.random)
            if reader.position != log.end_offset:
                raise ViolationError(f"{reader.name}: an open transaction holds back readers at {reader.position}")
            again = Reader(reader.name)
            again.read(self.broker, self.random)
            if again.seen != reader.seen:
                raise ViolationError(f"{reader.name}: a reader has seen what changed later")
        self.check_idempotent()
        self.check_transactions()

    def check_idempotent(self) -> None:
        for producer in self.idempotent:
            if producer.flying:
                raise ViolationError(f"{producer.name}: {len(producer.flying)} batches are not acknowledged")
            entries = self.broker.logs[producer.log].entries
            found = [
                (entry.payload[1], entry.header.base_offset)
                for entry in entries
                if isinstance(entry.payload, tuple) and entry.payload[0] == producer.name
            ]
            if found != list(producer.offsets.items()) or len(found) != producer.next_number:
                raise ViolationError(f"{producer.name}: {len(found)} of {producer.next_number} batches are in the log")

    def check_transactions(self) -> None:
        seen = Counter(
            payload
            for reader in self.readers
            for payload in reader.seen
            if isinstance(payload, tuple) and isinstance(payload[0], int)
        )
        repeated = [payload for payload, count in seen.items() if count > 1]
        if repeated:
            raise ViolationError(f"{repeated} were appended twice")
        batches = Counter(payload[0] for payload in seen)
        items: dict[str, list[int]] = defaultdict(list)
        for attempt, (name, item, count) in self.written.items():
            if batches[attempt] not in {0, count}:
                raise ViolationError(f"transaction {attempt}: {batches[attempt]} of {count} batches are visible")
            if attempt in self.ended and bool(batches[attempt]) != self.ended[attempt]:
                raise ViolationError(
                    f"transaction {attempt}: committed is {self.ended[attempt]}, but its records differ"
                )
            if batches[attempt]:
                items[name].append(item)
        for name in self.names:
            committed = max(self.broker.groups.fetch_offsets(name, [SOURCE])[SOURCE].offset, 0)
            if sorted(items[name]) != list(range(committed)):
                raise ViolationError(f"{name}: items {sorted(items[name])} are visible, and the offset is {committed}")
