"""Whole brokers in one process, on a clock that jumps, with a network and disks in memory.

Everything is the code that a running broker uses, from its node on: only sockets and discovery are replaced. A test has
the argument `autojump_clock`; then seconds of the cluster take milliseconds.
"""

from __future__ import annotations

import copy
import logging
import math
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, cast

import attrs
import trio

from dafka import wire
from dafka.batches import check_crc, encode_batch
from dafka.batches.decoding import decode_batch
from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.features import SUPPORTED, FeatureSupport
from dafka.broker.core.partition_address import name_log
from dafka.broker.core.positions import Offset
from dafka.broker.core.replication.replicated_logs import ReplicatedLog
from dafka.broker.node import BrokerNode
from dafka.broker.startup import run_broker
from dafka.config import Config
from dafka.endpoints import ConnectionChange, PeerEndpoint
from dafka.errors import OutdatedStoreError, StorageCorruptError, StorageError
from dafka.exceptions import unwrap_group
from dafka.protocol import Node, PeerJoined, PeerLeft
from dafka.protocol.presence.beacons import Settled
from dafka.records import Partition, RecordBatch
from dafka.roles.events import EventFeed
from dafka.roles.sockets import NodeSockets
from dafka.storage.memory import MemoryStorage
from dafka.storage.opening import read_range
from dafka.wire.commands import decode_subscription
from tests.simulation.network import topic_frame

LATENCY_S = 0.001
SETTLE_S = 0.05
BEGIN_S = 1_700_000_000
"""When a cluster begins, in seconds since 1970, by wall clocks that are right."""

_RUNNING = ContextVar("_RUNNING", default="")
"""The name of the broker that runs."""

PATIENCE_S = 120.0
"""The longest wait, in seconds of the cluster's clock."""


class Disk(MemoryStorage):
    """A disk that outlives its broker, can be full or damaged, and whose reads can fail or be held back.

    `damaged` are partitions and sequences of damaged records. They are good again when their partition is deleted.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.identity = name * 32
        self.is_full = False
        self.unreadable: set[Partition] = set()
        self.damaged: set[tuple[Partition, int]] = set()
        self.held: set[Partition] = set()
        self.append_s = LATENCY_S
        self.were_read: set[Partition] = set()

    def copy(self) -> Disk:
        """Return a copy, as it is now."""
        return copy.deepcopy(self)

    def take_back(self, before: Disk, partition: Partition) -> None:
        """Have a partition again as it was on a copy of this disk."""
        self._logs[partition] = copy.deepcopy(before._logs[partition])

    async def read(self, partition: Partition, *arguments: Any, **options: Any) -> Any:
        """See `Storage.read`. It notes the partition."""
        await trio.sleep(LATENCY_S)
        self.were_read.add(partition)
        while partition in self.held:  # noqa: ASYNC110
            await trio.sleep(LATENCY_S)
        if partition in self.unreadable:
            raise StorageError("the disk cannot be read")
        found = await super().read(partition, *arguments, **options)
        return found if found is None else self._up_to_damage(partition, found)

    def _up_to_damage(self, partition: Partition, found: RecordBatch) -> RecordBatch:
        sequences = range(found.first_sequence, found.end_sequence)
        first = next((each for each in sequences if (partition, each) in self.damaged), found.end_sequence)
        if first == found.first_sequence:
            raise StorageCorruptError(f"{partition}, sequence {first}: the checksum is wrong", first + 1)
        return found if first == found.end_sequence else found.between(found.first_sequence, first)

    async def delete_partitions(self, partitions: Collection[Partition]) -> None:
        """See `DeletesPartitions`."""
        await super().delete_partitions(partitions)
        self.damaged = {each for each in self.damaged if each[0] not in partitions}

    async def append(self, batches: Sequence[RecordBatch]) -> None:
        """See `Storage.append`."""
        await trio.sleep(self.append_s)
        if self.is_full:
            raise StorageError("no space left on the disk")
        await super().append(batches)


class VirtualSockets:
    """The sockets of one broker; implements what a store uses of `NodeSockets`."""

    def __init__(self, cluster: VirtualCluster, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.endpoint = f"tcp://{name}:1"
        self.events = EventFeed(logging.getLogger("dafka.store"), address)
        self.prefixes: Counter[bytes] = Counter()
        self.peers: set[str] = set()
        self.sent: Counter[type] = Counter()
        self.node: Node | None = None
        self._cluster = cluster
        self._wanted: tuple[bytes, ...] = ()
        self._inbox: deque[tuple[float, list[wire.BatchedMessage]]] = deque()
        self._timer = math.inf
        self._sleep = trio.CancelScope()

    def discarded(self) -> Counter[str]:
        return Counter()

    def publish(self, messages: Sequence[wire.BatchedMessage]) -> None:
        self.sent.update(map(type, messages))
        for other in list(self._cluster.sockets.values()):
            if self.name in other.peers and (self.name, other.name) not in self._cluster.down:
                other.arrive([each for each in messages if other.wants(each)])

    def wants(self, message: wire.BatchedMessage) -> bool:
        if isinstance(message, wire.RecordRun) and message.batch.partition in self._cluster.lost:
            return False
        return topic_frame(message).startswith(self._wanted)

    def arrive(self, messages: list[wire.BatchedMessage]) -> None:
        if messages:
            self._inbox.append((trio.current_time() + LATENCY_S, messages))
            self._sleep.deadline = self._next()

    async def compress(self, batch: RecordBatch) -> RecordBatch:
        return batch

    def compresses_aside(self, _batch: RecordBatch) -> bool:
        return False

    def need_regular_heads(self) -> bool:
        return False

    def subscribe(self, prefix: bytes) -> None:
        self.prefixes[prefix] += 1
        self._wanted = (*self.prefixes,)
        for each in self.peers:
            self._show_subscription(each, b"\1" + prefix)

    def unsubscribe(self, prefix: bytes) -> None:
        self.prefixes[prefix] -= 1
        self.prefixes = +self.prefixes
        self._wanted = (*self.prefixes,)

    def connect(self, endpoint: PeerEndpoint) -> bool:
        peer = endpoint.endpoint.split("/")[2].partition(":")[0]
        self.peers.add(peer)
        for each in self.prefixes:
            self._show_subscription(peer, b"\1" + each)
        self._cluster.nursery.start_soon(self._connected, endpoint)
        return True

    def reconnect(self, other: VirtualSockets) -> None:
        """Connect to another node again, after the connection was lost."""
        assert self.node is not None
        for is_made in (False, True):
            change = ConnectionChange(PeerEndpoint(other.endpoint), is_made=is_made)
            self.node.connections_changed([change], trio.current_time())
        for each in self.prefixes:
            self._show_subscription(other.name, b"\1" + each)

    def disconnect(self, endpoint: PeerEndpoint) -> None:
        self.peers.discard(endpoint.endpoint.split("/")[2].partition(":")[0])

    def set_timer(self, deadline: float) -> None:
        self._timer = deadline
        self._sleep.deadline = self._next()

    def _next(self) -> float:
        """Return when messages arrive or something is due."""
        return min(self._timer, self._inbox[0][0]) if self._inbox else self._timer

    async def _connected(self, endpoint: PeerEndpoint) -> None:
        if self.node is not None:
            self.node.connections_changed([ConnectionChange(endpoint, is_made=True)], trio.current_time())

    def _show_subscription(self, peer: str, frame: bytes) -> None:
        other, found = self._cluster.sockets.get(peer), decode_subscription(frame)
        if other is not None and other.node is not None and found is not None:
            other.node.receive_subscriptions([found], trio.current_time())

    async def run(self, node: Node, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        self.node = node
        node.start(trio.current_time())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_node, node)
            self._cluster.join(self)
            nursery.start_soon(self._settle, node)
            task_status.started()

    async def _settle(self, node: Node) -> None:
        await trio.sleep(SETTLE_S)
        node.discovered(Settled(), trio.current_time())

    async def _run_node(self, node: Node) -> None:
        self._timer = node.deadline()
        while True:
            with trio.CancelScope(deadline=self._next()) as self._sleep:
                await trio.sleep_forever()
            arrived: list[wire.BatchedMessage] = []
            while self._inbox and self._inbox[0][0] <= trio.current_time():
                arrived += self._inbox.popleft()[1]
            if arrived:
                node.receive(arrived, trio.current_time())
            if self._timer <= trio.current_time():
                node.tick(trio.current_time())


@attrs.define(eq=False)
class VirtualCluster:
    """Brokers, by the letter of their name: `A` has the address `AAA...`. No records of `lost` partitions arrive.

    `starting` has the last start of each broker, as soon as it describes the cluster to clients.

    A test that replaces `time.time_ns` by the method of this name gives brokers wall clocks, which can be `ahead_s`.
    """

    nursery: trio.Nursery
    sockets: dict[str, VirtualSockets] = attrs.field(factory=dict)
    brokers: dict[str, BrokerNode] = attrs.field(factory=dict)
    starting: dict[str, BrokerNode] = attrs.field(factory=dict)
    disks: dict[str, Disk] = attrs.field(factory=dict)
    down: set[tuple[str, str]] = attrs.field(factory=set)
    lost: set[Partition] = attrs.field(factory=set)
    scopes: dict[str, tuple[trio.CancelScope, trio.Event]] = attrs.field(factory=dict)
    ahead_s: dict[str, float] = attrs.field(factory=dict)

    def time_ns(self) -> int:
        """Return the time by the wall clock of the broker that runs."""
        return round((BEGIN_S + trio.current_time() + self.ahead_s.get(_RUNNING.get(), 0)) * 1e9)

    async def start(self, *names: str, are_cut: bool = False, **settings: Any) -> list[BrokerNode]:
        """Start brokers, for the first time or again, and wait until they know each other, unless they are cut off.

        The settings are those of `[broker]`, those of `[store]` after `store_`, and `support` for what the brokers'
        version of dafka supports.
        """
        if not self.disks:
            settings.setdefault("initial_brokers", len(names))
        for each in names:
            self.brokers[each] = await self.nursery.start(self.run, each, settings)
        if are_cut:
            return [self.brokers[each] for each in names]
        await wait_for(lambda: all(each.joining.has_joined.is_set() for each in self.brokers.values()))
        await wait_for(lambda: all(len(each.brokers.living()) == len(self.brokers) for each in self.brokers.values()))
        return [self.brokers[each] for each in names]

    async def run(
        self,
        name: str,
        settings: dict[str, Any],
        *,
        task_status: trio.TaskStatus[BrokerNode] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Run a broker until it is stopped. It starts again if its store was an older copy or a clone."""
        _RUNNING.set(name)
        self.disks.setdefault(name, Disk(name))
        store = {key.removeprefix("store_"): settings[key] for key in settings if key.startswith("store_")}
        support = settings.get("support", SUPPORTED)
        broker = {key: each for key, each in settings.items() if not key.startswith("store_") and key != "support"}
        config = Config().with_store(storage="memory:", **store).with_broker(**broker)
        ended = trio.Event()

        @asynccontextmanager
        async def connect(address: str) -> AsyncIterator[NodeSockets]:
            sockets = VirtualSockets(self, name, address)
            try:
                yield cast("NodeSockets", sockets)
            finally:
                self.leave(sockets)

        with trio.CancelScope() as scope, unwrap_group():
            self.scopes[name] = scope, ended
            started = task_status.started
            while True:
                try:
                    await self._run_once(name, config, connect, support, started)
                    break
                except OutdatedStoreError:
                    if self.starting[name].has_started.is_set():
                        started = partial(self.brokers.__setitem__, name)
        ended.set()

    async def _run_once(
        self, name: str, config: Config, connect: Any, support: FeatureSupport, started: Callable[[BrokerNode], None]
    ) -> None:
        with unwrap_group():
            async with trio.open_nursery() as nursery:
                node: BrokerNode = await nursery.start(run_broker, config, self.disks[name], connect, support)
                self.starting[name] = node
                await node.has_started.wait()
                started(node)

    async def hand_over(self, *names: str) -> None:
        """Have brokers hand over their logs, all at once, and stop each as soon as it is done."""

        async def hand_over_one(name: str) -> None:
            await self.brokers[name].handover.run()
            await self.stop(name)

        async with trio.open_nursery() as nursery:
            for each in names:
                nursery.start_soon(hand_over_one, each)

    async def stop(self, *names: str) -> None:
        """Stop brokers."""
        for each in names:
            scope, ended = self.scopes.pop(each)
            del self.brokers[each]
            scope.cancel()
            await ended.wait()

    def join(self, sockets: VirtualSockets) -> None:
        """Make a node and the others discover each other."""
        now, others = trio.current_time(), list(self.sockets.values())
        self.sockets[sockets.name] = sockets
        for one, other in [(sockets, each) for each in others] + [(each, sockets) for each in others]:
            assert one.node is not None
            one.node.discovered(PeerJoined(other.address, PeerEndpoint(other.endpoint)), now)

    def leave(self, sockets: VirtualSockets) -> None:
        """Make the others lose a node."""
        if self.sockets.pop(sockets.name, None) is None:
            return
        for other in self.sockets.values():
            assert other.node is not None
            report = PeerLeft(sockets.address, PeerEndpoint(sockets.endpoint), is_unwanted=True)
            other.node.discovered(report, trio.current_time())

    def cut(self, one: str, other: str, *, is_one_way: bool = False) -> None:
        """Cut the links between two groups of brokers."""
        for a in one:
            for b in other:
                self.down |= {(a, b)} if is_one_way else {(a, b), (b, a)}

    def heal(self, *links: str) -> None:
        """Make all links again, or only some, such as `AB`."""
        down = {pair for pair in self.down if not links or "".join(sorted(pair)) in links}
        self.down -= down
        for sender, receiver in sorted(down):
            if sender in self.sockets and receiver in self.sockets:
                self.sockets[receiver].reconnect(self.sockets[sender])

    # Logs

    def log(self, name: str, topic: str = "orders", number: int = 0) -> Log:
        """Return a log at a broker."""
        found = self.brokers[name].log_table.find_log(topic, number)
        assert found is not None
        return found

    def replicated(self, name: str, topic: str = "orders", number: int = 0) -> ReplicatedLog:
        """Return the replica of a log at a broker."""
        broker = self.brokers[name]
        found = broker.replicator.logs.find(name_log(broker.log_table.topics[topic].topic_id, number))
        assert found is not None
        return found

    def leader(self, topic: str = "orders", number: int = 0) -> str:
        """Return the name of the broker that leads a log; empty if there is none."""
        found = [
            name
            for name, each in self.brokers.items()
            if (log := each.log_table.find_log(topic, number)) is not None and log.leadership.is_led
        ]
        return found[0] if len(found) == 1 else ""

    async def wait_leader(self, names: str, topic: str = "orders", number: int = 0) -> str:
        """Wait until one of some brokers leads a log, and return it."""
        await wait_for(lambda: self.leader(topic, number) in set(names))
        return self.leader(topic, number)

    def transfer_leadership(self, name: str) -> None:
        """Have a broker request the leadership of the log `orders`."""
        replicator, log = self.brokers[name].replicator, self.replicated(name)
        log.replica.preference.set((name * 32,), frozenset())
        replicator.act(replicator.logs.transfer_leadership(log))

    def in_sync(self, topic: str = "orders", number: int = 0) -> str:
        """Return the names of the replicas in sync, as the leader knows them; empty without a leader."""
        leader = self.leader(topic, number)
        return "".join(sorted(each[0] for each in self.log(leader, topic, number).leadership.in_sync)) if leader else ""

    def replicas(self, topic: str = "orders", number: int = 0) -> str:
        """Return the names of the replicas, as the leader knows them; empty without a leader."""
        leader = self.leader(topic, number)
        return (
            "".join(sorted(each[0] for each in self.log(leader, topic, number).leadership.replicas)) if leader else ""
        )

    def is_metadata(self, address: str) -> bool:
        """Return whether a partition with an address is of the log of metadata."""
        return next(iter(self.brokers.values())).tables.state.cluster_id in address

    def earliest(self, name: str, *partitions: Partition) -> list[int]:
        """Return the first sequences of partitions that a broker stores."""
        return [self.brokers[name].storage.stored.earliest.get(each, 0) for each in partitions]

    async def create(self, topic: str = "orders", *placement: str, **options: Any) -> None:
        """Create a topic at the first broker, whose logs have these replicas, and wait until all are led."""
        addresses = [[each * 32 for each in replicas] for replicas in placement]
        first = next(iter(self.brokers.values()))
        await first.admin.create_topic(topic, len(placement) or 1, placement=addresses, **options)
        await wait_for(lambda: all(topic in each.log_table.topics for each in self.brokers.values()))
        await wait_for(lambda: all(self.leader(topic, number) != "" for number in range(len(placement) or 1)))

    async def append(self, name: str, *values: bytes, topic: str = "orders", number: int = 0) -> int:
        """Append records at a broker, and wait until they are committed. Return the offset of the first one."""
        with trio.fail_after(PATIENCE_S):
            return await self.brokers[name].writer.append(self.log(name, topic, number), batch(*values)).wait_offset()

    def produce(self, first_sequence: int, *values: bytes, topic: str = "orders") -> Partition:
        """Publish records as a producer whose address is `DDD...`; all brokers receive them. Return its partition."""
        partition = Partition(topic, "D" * 32)
        run = wire.RecordRun(RecordBatch(partition, first_sequence, values, timestamps=[1] * len(values)))
        for each in self.sockets.values():
            each.arrive([run])
        return partition

    async def stored(self, name: str, partition: Partition) -> list[bytes]:
        """Return the records of a partition that a broker stores."""
        info = await self.disks[name].find_partition(partition)
        ends = (0, 0) if info is None else (info.earliest_sequence, info.end_sequence)
        return [value or b"" async for data in read_range(self.disks[name], partition, *ends) for value in data.values]

    async def read(self, name: str, topic: str = "orders", number: int = 0, offset: int = 0) -> list[bytes]:
        """Return the records that clients can read at a broker."""
        log = self.log(name, topic, number)
        found = await self.brokers[name].reader.read(log, Offset(offset), log.high_watermark, 2**30)
        return [value or b"" for data in found for value in decode_batch(data, bytes_max=2**30).values]


def batch(*values: bytes, producer: tuple[int, int, int] = (-1, -1, -1), **options: Any) -> list[Any]:
    """Return records as a client sends them; of a producer with an id, an epoch and a first sequence."""
    options |= zip(("producer_id", "producer_epoch", "base_sequence"), producer, strict=True)
    data = encode_batch(0, values, timestamps=1000, **options)
    return [(check_crc(memoryview(data), 0), data)]


def running_broker() -> str:
    """Return the name of the broker that runs."""
    return _RUNNING.get()


async def wait_for(is_true: Callable[[], bool]) -> None:
    """Wait until a condition is true, by the cluster's clock."""
    deadline = trio.current_time() + PATIENCE_S
    while not is_true():
        assert trio.current_time() < deadline, "the condition does not become true"
        await trio.sleep(0.01)


@asynccontextmanager
async def open_virtual_cluster(
    names: str = "", *placement: str, topic: dict[str, str] | None = None, **settings: Any
) -> AsyncIterator[VirtualCluster]:
    """Run brokers with these names, and those that are started during the block.

    With a placement, they have the topic `orders`, whose replicas are in sync.
    """
    async with trio.open_nursery() as nursery:
        cluster = VirtualCluster(nursery)
        await cluster.start(*names, **settings)
        if placement:
            await cluster.create("orders", *placement, settings=topic or {})
            replicas = ["".join(sorted(each)) for each in placement]
            await wait_for(lambda: [cluster.in_sync("orders", n) for n in range(len(placement))] == replicas)
        yield cluster
        nursery.cancel_scope.cancel()
