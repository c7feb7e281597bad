"""A coordinator of transactions and the leaders of two logs, between which messages are late, lost or repeated.

Leaders and coordinators restart, are replaced, and go on for a while without knowing it. The network keeps no order,
but the links between brokers do. What a leader has appended is committed later, unless another one has taken over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from random import Random
from types import SimpleNamespace
from typing import Any

import attrs
import trio

from dafka.broker.coordinator.coordinator_shard import CoordinatorError, CoordinatorShard
from dafka.broker.coordinator.participants import TransactionParticipants
from dafka.broker.coordinator.transaction_joins import TransactionJoins
from dafka.broker.coordinator.transaction_messages import Begin, End, Join, Joined, Refuse
from dafka.broker.coordinator.transactions import TransactionCoordinators
from dafka.broker.core.coordination.state_records import COORDINATORS_TOPIC, StateRecord
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.log import LEADER, Log
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.log.producer_state import Marker, Producer
from dafka.broker.core.metadata.leader_and_isr import LeaderAndIsr
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.positions import Offset, RecordSequence
from dafka.broker.core.transactions.coordinator import TransactionCoordinator, TransactionSettings
from dafka.broker.core.transactions.transaction import PREPARED, TransactionPhase
from dafka.broker.interbroker.messenger import BrokerMessenger, Message
from dafka.broker.log.waiters import LogWaiters
from dafka.steady_clock import steady_now_ms
from tests.broker.coordinator.shards import Records, Shard
from tests.broker.replication.virtual_cluster import batch

LOGS = 2
TIMEOUT_MS = 60_000
COORDINATOR = "C"


@attrs.frozen
class Appended:
    """A record in a log."""

    producer: Producer
    sequence: int
    value: str


@attrs.define(eq=False)
class Place:
    """The replicas of a log, as far as they agree: what each leader has appended, and how much of it is committed."""

    epoch: int = 0
    entries: list[Appended | Marker] = attrs.field(factory=list)
    committed: int = 0

    def transactions(self) -> Iterator[tuple[int, list[str], bool | None]]:
        """Yield each transaction: its producer's id, its values, and whether it was committed; None if it is open."""
        begun: dict[int, list[str]] = {}
        for each in self.entries[: self.committed]:
            if isinstance(each, Appended):
                begun.setdefault(each.producer.producer_id, []).append(each.value)
            else:
                yield each.producer_id, begun.pop(each.producer_id, []), each.is_commit
        for producer_id, values in begun.items():
            yield producer_id, values, None


class Node:
    """One start of a broker: it leads a log, or coordinates transactions, until it learns that another one does."""

    def __init__(self, world: World, address: str) -> None:
        self.world = world
        self.address = address
        self.shard: Shard | None = None
        self.asked = 0
        self.log_table = LogTable(address)
        self.log_table.add_topic(Topic("orders", "T", LOGS))
        self.coordinator = Log(COORDINATORS_TOPIC, 0, self.log(0).leader_partition, self.log(0).index_partition)
        self.watchers = LogWaiters()
        self.scope = trio.CancelScope()
        self.messenger = BrokerMessenger(address, self._send_bytes)
        send = self.messenger.send

        def send_with_lease(to: str, message: Message) -> None:
            """Check that a coordinator that another one can have replaced decides nothing."""
            decides = isinstance(message, (Begin, Refuse, End, Joined))
            assert not decides or (self.shard is not None and self.shard.holds_lease), message
            self.asked += isinstance(message, Join)
            send(to, message)

        self.messenger.send = send_with_lease  # type: ignore[method-assign, assignment]
        on = self.messenger.on

        def on_current(kind: type[Any], handler: Callable[[str, Any], None]) -> None:
            """Check that a message to the leader in another epoch confirms nothing."""

            def check(sender: str, message: Any) -> None:
                log = self.log(message.participant.number)
                is_current = message.participant_epoch == log.leadership.epoch
                known = self.participants.knows(log, message.participant, message.producer)
                handler(sender, message)
                assert is_current or self.participants.knows(log, message.participant, message.producer) == known

            on(kind, check if kind is Begin else handler)

        self.messenger.on = on_current  # type: ignore[method-assign, assignment]
        coordinators: Any = SimpleNamespace(find=self.find, log_of=lambda _name: self.coordinator)
        led_logs: Any = SimpleNamespace(wait_leadership=lambda _log: trio.Event().wait())
        writer: Any = SimpleNamespace(append_marker=self._append_marker)
        self.participants = TransactionParticipants(
            self.log_table, coordinators, led_logs, writer, self.watchers, self.messenger
        )
        self.joins = TransactionJoins(coordinators, self.participants, self.messenger, lambda: True)
        self.transactions = TransactionCoordinators(coordinators, self.participants, self.messenger, lambda: True)

    def log(self, number: int) -> Log:
        return self.log_table.logs("orders")[number]

    def find(self, _name: str) -> CoordinatorShard:
        if self.shard is None:
            raise CoordinatorError(ErrorCode.NOT_COORDINATOR)
        return self.shard.shard

    async def run(self) -> None:
        with self.scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.participants.run)
                nursery.start_soon(self._tick)
                if self.shard is not None:
                    self.shard.end = self.participants.end
                    self.shard.records.loads.set()
                    nursery.start_soon(nursery.start, self.shard.shard.run)
                    nursery.start_soon(self._commit_state, self.shard)
        if self.shard is not None:
            self.shard.shard.close()

    async def _tick(self) -> None:
        while True:
            await trio.sleep(0.25)
            self.messenger.tick()

    async def _commit_state(self, shard: Shard) -> None:
        """Make the state of a coordinator durable, while no other one has taken over."""
        while True:
            await shard.records.wait_put()
            await self.world.pause(0.1)
            if shard.epoch != self.world.shard_epoch:
                return
            count = self.world.random.randint(1, len(shard.records.put_records) - shard.records.durable)
            self.world.state += shard.records.put_records[shard.records.durable :][:count]
            shard.records.commit(count)

    def _send_bytes(self, address: str, data: bytes) -> None:
        self.world.send(self.address, address, data)

    def append(self, log: Log, entry: Appended | Marker) -> Offset:
        """Append to a log. It is committed later, if this broker still leads the log."""
        place, offset, epoch = self.world.places[log.number], log.index.end_offset, log.leadership.epoch
        log.index.append(LEADER, RecordSequence(offset), 1, is_open=False)
        if epoch != place.epoch:
            return offset  # another broker leads it
        place.entries.append(entry)

        async def commit() -> None:
            await self.world.pause(0.2)
            if epoch == place.epoch:
                place.committed = max(place.committed, offset + 1)
                log.high_watermark = Offset(place.committed)
                self.watchers.notify(log)

        self.world.nursery.start_soon(commit)
        return offset

    def _append_marker(self, log: Log, marker: Marker) -> trio.Event:
        self.append(log, marker)
        log.producers.add_marker(marker, steady_now_ms())
        written = trio.Event()
        written.set()
        return written

    async def produce(self, name: str, number: int, record: Appended, *, adds: bool) -> ErrorCode:
        """Append a record of a client, as Produce does."""
        log, asked = self.log(number), self.asked
        if not log.leadership.is_led:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        errors = await self.joins.join_logs(name, record.producer, [log], adds=adds)
        if errors or not log.leadership.is_led:
            return errors.get(log, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if error := self.participants.check_log(log, name, record.producer):
            assert self.asked > asked, "it is known without a question, or it is not"
            return error
        ((header, _),) = batch(b"", producer=(*record.producer, record.sequence), is_transactional=True)
        check, epoch = log.producers.check_batch(header), log.leadership.epoch
        if check.error_code:
            return check.error_code
        if check.duplicate_of is None:
            offset = self.append(log, record)
            log.producers.add_batch(header, RecordSequence(offset), steady_now_ms())
        end = log.index.end_offset
        while log.high_watermark < end:
            with self.watchers.watching([log]) as advanced:
                await advanced.wait()
        return ErrorCode.NONE if log.leadership.epoch == epoch else ErrorCode.NOT_LEADER_OR_FOLLOWER


class World:
    """The brokers, what is committed, and the network."""

    def __init__(self, seed: int, nursery: trio.Nursery) -> None:
        self.random = Random(seed)
        self.nursery = nursery
        self.is_calm = False
        self.places = [Place() for _ in range(LOGS)]
        self.state: list[StateRecord] = []
        self.shard_epoch = 0
        self.nodes: dict[str, Node] = {}
        self.starts, self.epochs = Counter[str](), dict[str, int]()
        self.arrives: dict[tuple[str, str], float] = {}
        for number in range(LOGS):
            self.lead(number)
        self.coordinate()

    async def pause(self, up_to_s: float) -> None:
        await trio.sleep(self.random.random() * up_to_s)

    def send(self, sender: str, address: str, data: bytes) -> None:
        """Deliver bytes: late, never, or twice. A connection that stands still keeps the order."""

        async def deliver(at: float) -> None:
            await trio.sleep_until(at)
            if address in self.nodes:
                self.nodes[address].messenger.receive(sender, data)

        chance, now, link = 0.0 if self.is_calm else 0.05, trio.current_time(), (sender, address)
        stands_s = self.random.random() * (10 if self.random.random() < chance else 0.05)
        self.arrives[link] = max(self.arrives.get(link, now) + 1e-6, now + stands_s)
        if self.random.random() >= chance:
            self.nursery.start_soon(deliver, self.arrives[link])
        if self.random.random() < chance:
            self.nursery.start_soon(deliver, now + self.random.random() * 5)

    def lead(self, number: int) -> None:
        """Have another start of a broker lead a log, or a former leader. It has what is committed, and perhaps more."""
        place, name = self.places[number], f"L{number}"
        place.epoch += 1
        del place.entries[self.random.randint(place.committed, len(place.entries)) :]
        place.committed = len(place.entries)
        living = [each for address, each in self.nodes.items() if address.startswith(name)]
        node = self._start(name, self.random.choice(living) if living and self.random.random() < 0.3 else None)
        log = node.log(number)
        empty = Log(log.topic, number, log.leader_partition, log.index_partition)
        log.index, log.producers = empty.index, empty.producers
        for offset, each in enumerate(place.entries):
            log.index.append(LEADER, RecordSequence(offset), 1, is_open=False)
            if isinstance(each, Marker):
                log.producers.add_marker(each, steady_now_ms())
            else:
                ((header, _),) = batch(b"", producer=(*each.producer, each.sequence), is_transactional=True)
                log.producers.add_batch(header, RecordSequence(offset), steady_now_ms())
        log.high_watermark = Offset(place.committed)
        node.watchers.notify(log)

    def coordinate(self) -> None:
        """Have another start of a broker coordinate transactions. It has all state that is durable."""
        self.shard_epoch += 1
        self._start(COORDINATOR)

    def _start(self, name: str, again: Node | None = None) -> Node:
        """Start a broker in the place of another one, which perhaps runs for a while, and only then hears of it."""
        former = [each for address, each in self.nodes.items() if address.startswith(name) and each is not again]
        self.starts[name] += 1
        node = again or Node(self, f"{name}-{self.starts[name]}")
        self.epochs[node.address] = self.starts[name]
        if name == COORDINATOR:
            node.shard = Shard(Records(self.state), epoch=self.shard_epoch)
        self.nodes[node.address] = node
        for each in former:
            if each.shard is not None:
                each.shard.holds_lease = False
        for each in self.nodes.values():
            is_late = each in former and self.random.random() < 0.7
            self.nursery.start_soon(self._tell, each, node.address, self.random.random() * (10 if is_late else 0.1))
        if again is None:
            self.nursery.start_soon(node.run)
        for each in former:
            self.nursery.start_soon(self._stop, each)
        self._show(node, node.address)
        for other in self.nodes.values():
            if other is not node and other not in former:
                self._show(node, other.address)
        return node

    async def _tell(self, node: Node, address: str, delay_s: float) -> None:
        await trio.sleep(delay_s)
        self._show(node, address)

    def _show(self, node: Node, address: str) -> None:
        """Show a broker who leads a log or coordinates, in which epoch."""
        name, epoch = address.partition("-")[0], self.epochs[address]
        log = node.coordinator if name == COORDINATOR else node.log(int(name[1:]))
        if epoch > log.leadership.epoch or not log.leadership.leader:
            log.leadership = LeaderAndIsr(address, epoch, is_led=node.address == address)

    async def _stop(self, node: Node) -> None:
        epoch = self.epochs[node.address]
        await trio.sleep(12 if self.random.random() < 0.7 else 0)
        if self.epochs[node.address] == epoch:  # it does not lead again
            node.scope.cancel()
            self.nodes.pop(node.address, None)

    def latest(self, name: str) -> Node:
        return next(each for address, each in reversed(self.nodes.items()) if address.startswith(name))

    def any(self, name: str) -> Node:
        """Return a broker that believes to lead a log or to coordinate, as a client finds it."""
        return self.random.choice([each for address, each in self.nodes.items() if address.startswith(name)])

    def expire(self) -> None:
        """Abort the transactions that are open, as if their time had passed."""
        shard = self.latest(COORDINATOR).shard
        assert shard is not None
        shard.shard.execute(shard.shard.transactions.advance(steady_now_ms() + TIMEOUT_MS))

    def check(self) -> None:
        """Check that the durable state of the coordinator has each open transaction."""
        coordinator = TransactionCoordinator(TransactionSettings())
        for record in self.state:
            coordinator.restore(record)
        known = {
            (each.producer_id, log.partition)
            for each in coordinator.list_transactions()
            if each.phase is TransactionPhase.ONGOING or each.phase in PREPARED
            for log in each.partitions
        }
        for number, place in enumerate(self.places):
            for producer_id, values, is_commit in place.transactions():
                assert is_commit is not None or (producer_id, number) in known, (number, producer_id, values)

    async def call(self, ask: Callable[[], Awaitable[Any]], refused: Any, *, is_repeated: bool = True) -> Any:
        """Call a broker, as a client with a timeout that loses some requests, some answers, and repeats some."""

        async def repeat() -> None:
            await self.pause(10)
            await ask()

        if is_repeated and not self.is_calm and self.random.random() < 0.2:
            self.nursery.start_soon(repeat)
        result = refused
        with trio.move_on_after(2):
            await self.pause(0.1)
            if self.is_calm or self.random.random() < 0.9:
                answer = await ask()
                result = answer if self.is_calm or self.random.random() < 0.9 else refused
        return result
