"""A whole cluster of machines, without I/O: a virtual clock, and a network that loses, repeats and reorders."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import pytest

from dafka import wire
from dafka.config import Config
from dafka.protocol import (
    ConsumerMachine,
    ProducerMachine,
    ReadRequest,
    StoreMachine,
)
from dafka.protocol.actions import Action, Publish, Subscribe
from dafka.records import Partition, RecordBatch
from tests.protocol.helpers import batches, contents, sequences
from tests.seeds import each_seed

Machine: TypeAlias = ProducerMachine | StoreMachine | ConsumerMachine

CONFIG = Config().with_consumer(offset_reset="earliest").with_fetch(page_records_first=8)
PARTITIONS = [Partition("hello", "PRODUCER1"), Partition("hello", "PRODUCER2")]
FAULTS_END, CONVERGED = 6.0, 13.0
RECORDS, RUN, CHUNK = 300, 3, 7


def topic_frame(message: wire.BatchedMessage) -> bytes:
    if not isinstance(message, wire.RecordRun):
        return wire.subscription_prefix(message.COMMAND, getattr(message, message.TOPIC))
    if message.requestor is None:
        return wire.subscription_prefix(wire.Command.RECORD, message.batch.partition.topic)
    return wire.subscription_prefix(wire.Command.DIRECT_RECORD, message.requestor)


class Node:
    def __init__(self, machine: Machine, min_stores: int) -> None:
        self.machine = machine
        self.min_stores = min_stores
        self.prefixes: list[bytes] = []
        self.durable: dict[Partition, int] = {}
        self.held: dict[Partition, list[bytes | None]] = {}

    def hold(self, batch: RecordBatch) -> None:
        held = self.held.setdefault(batch.partition, [])
        assert batch.first_sequence == len(held), "a gap or a duplicate"
        sequences([batch])
        held.extend(batch.values)


class Cluster:
    def __init__(self, seed: int, min_stores: int) -> None:
        self.min_stores = min_stores
        self.now = 0.0
        self.nodes: list[Node] = []
        self._random = random.Random(seed)
        self._agenda: list[tuple[float, int, Callable[[], object]]] = []
        self._ticket = itertools.count()

    def at(self, time: float, act: Callable[[], object]) -> None:
        heapq.heappush(self._agenda, (time, next(self._ticket), act))

    def later(self, time: float, node: Node, step: Callable[[float], list[Action]]) -> None:
        self.at(time, lambda: self.act(node, step(self.now)))

    def add(self, machine: Machine) -> Node:
        """Connect a node; the nodes receive each other's subscriptions."""
        node = Node(machine, self.min_stores)
        self.nodes.append(node)
        self.act(node, machine.start(self.now))
        for other in self.nodes[:-1]:
            for prefix in other.prefixes:
                self._subscribe(node, prefix)
        return node

    def join(self, machine: ConsumerMachine) -> Node:
        node = self.add(machine)
        self.act(node, machine.subscribe("hello", self.now))
        return node

    def act(self, node: Node, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Publish):
                self._publish(node, action.message)
            elif isinstance(action, Subscribe):
                node.prefixes.append(action.prefix)
                for other in self.nodes:
                    if other is not node:
                        self._subscribe(other, action.prefix)
        for batch in batches(actions):
            node.hold(batch)
            if isinstance(node.machine, StoreMachine):
                self.later(self.now + 0.005, node, partial(self._commit, node, batch))

    def _commit(self, node: Node, batch: RecordBatch, now: float) -> list[Action]:
        assert isinstance(node.machine, StoreMachine)
        node.durable[batch.partition] = batch.end_sequence
        return node.machine.records_committed({batch.partition: batch.end_sequence}, now)

    def check_acknowledged(self) -> None:
        """Check that enough stores have each record that its producer counts as acknowledged."""
        stores = [node for node in self.nodes if isinstance(node.machine, StoreMachine)]
        for node in self.nodes:
            if isinstance(node.machine, ProducerMachine):
                ends = sorted((each.durable.get(node.machine.partition, 0) for each in stores), reverse=True)
                assert node.machine.acknowledged_end <= [*ends, 0, 0][node.min_stores - 1]

    def fetches_sent(self) -> list[int]:
        machines = [node.machine for node in self.nodes]
        return [machine.reassembler.fetches_sent for machine in machines if not isinstance(machine, ProducerMachine)]

    def run(self, until: float) -> None:
        while True:
            ticking = min(self.nodes, key=lambda node: node.machine.deadline())
            tick_time = ticking.machine.deadline()
            if min(tick_time, self._agenda[0][0] if self._agenda else tick_time) > until:
                return
            if self._agenda and self._agenda[0][0] <= tick_time:
                self.now, _, act = heapq.heappop(self._agenda)
                act()
            else:
                self.now = max(self.now, tick_time)
                self.act(ticking, ticking.machine.tick(self.now))
                assert ticking.machine.deadline() > self.now, "busy"

    def _subscribe(self, node: Node, prefix: bytes) -> None:
        found = wire.decode_subscription(b"\1" + prefix)
        assert found is not None
        self.later(self.now + 0.01, node, partial(node.machine.receive_subscriptions, [found]))

    def _publish(self, sender: Node, message: wire.BatchedMessage) -> None:
        topic = topic_frame(message)
        for node in self.nodes:
            if node is not sender and topic.startswith(tuple(node.prefixes)):
                is_faulty = self.now < FAULTS_END
                for _ in range(self._random.choice((0, 0, 1, 1, 1, 2)) if is_faulty else 1):
                    delay = self._random.uniform(0.001, 0.2 if is_faulty else 0.002)
                    self.at(self.now + delay, partial(self._receive, node, message))

    def _receive(self, node: Node, message: wire.BatchedMessage) -> None:
        if isinstance(message, wire.Ack):
            self.check_acknowledged()
        self.act(node, node.machine.receive([message], self.now))
        if isinstance(node.machine, ConsumerMachine):
            return
        responder = node.machine.responder
        while (request := responder.next_read(CHUNK)) is not None:
            run = responder.complete_read(request, self._read(node, request))
            if run is not None:
                self._publish(node, run)

    def _read(self, node: Node, request: ReadRequest) -> RecordBatch | None:
        first, count = request.first_sequence, request.count
        if isinstance(node.machine, ProducerMachine):
            return node.machine.retransmit_buffer.read(first, count, 2**20)
        assert isinstance(node.machine, StoreMachine)
        end = min(first + count, node.machine.stored.durable_end(request.partition))
        held = node.held[request.partition][first:end]
        return RecordBatch(request.partition, first, held) if held else None


def converge(seed: int, min_stores: int) -> Cluster:
    cluster = Cluster(seed, min_stores)
    config = CONFIG.with_producer(min_stores=min_stores)
    producers = [ProducerMachine(partition, config.producer, 100) for partition in PARTITIONS]
    for producer in producers:
        node = cluster.add(producer)
        cluster.later(0.1, node, producer.node_settled)
        for first in range(0, RECORDS, RUN):
            cluster.later(
                5.0 * first / RECORDS,
                node,
                partial(producer.publish, RecordBatch(producer.partition, first, contents(first, first + RUN))),
            )
    cluster.add(StoreMachine("STORE1", config, {}))
    cluster.join(ConsumerMachine("CONSUMER1", config))
    cluster.at(3.0, lambda: cluster.add(StoreMachine("STORE2", config, {})))
    cluster.at(4.0, lambda: cluster.join(ConsumerMachine("CONSUMER2", config)))
    cluster.run(CONVERGED)
    assert [producer.unacknowledged for producer in producers] == [0, 0]
    return cluster


EVERYTHING = {partition: contents(0, RECORDS) for partition in PARTITIONS}


@pytest.mark.parametrize("min_stores", [1, 2])
@pytest.mark.parametrize("seed", range(5))
def test_every_node_gets_every_record_once_and_in_order(seed: int, min_stores: int) -> None:
    cluster = converge(seed, min_stores)
    assert [node.held for node in cluster.nodes[2:]] == [EVERYTHING] * 4
    fetches_sent = cluster.fetches_sent()
    assert max(fetches_sent) <= 120
    cluster.run(CONVERGED + 60.0)
    assert cluster.fetches_sent() == fetches_sent


@each_seed(3)
def test_new_nodes_get_every_record_after_the_producers_have_left(seed: int) -> None:
    cluster = converge(seed, min_stores=1)
    cluster.nodes = [node for node in cluster.nodes if isinstance(node.machine, StoreMachine)]
    store = cluster.add(StoreMachine("STORE3", CONFIG, {}))
    consumer = cluster.join(ConsumerMachine("CONSUMER3", CONFIG))
    cluster.run(CONVERGED + 2.0)
    assert [store.held, consumer.held] == [EVERYTHING, EVERYTHING]
