"""A producer leaves when libdafka's consumers have everything, which fetch only when a HEAD comes (erratum 17).

Stores of libdafka send no HEADs, so that a consumer that is behind when its producer leaves never gets the rest.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from dafka import wire
from dafka.config import ProducerConfig
from dafka.protocol import ProducerMachine
from dafka.protocol.actions import Action, Publish
from dafka.protocol.machines.producer import FOLLOWED_S
from dafka.wire import BatchDecoder, BatchEncoder, Command, Dialect, codec
from dafka.wire.batch import iter_frames
from tests.protocol.helpers import HELLO, contents, next_batch, subscription
from tests.roles.libdafka_consumer import LibdafkaConsumer
from tests.roles.libdafka_store import LibdafkaStore

STEP_S = 0.05


class Cluster:
    """A producer, a store and a consumer of libdafka, and the messages between them, which take a while."""

    def __init__(self, latency_s: float) -> None:
        self.now = 0.0
        self.producer = ProducerMachine(HELLO, ProducerConfig(), 10)
        self.producer.watch_listeners(lambda: True)
        self.store = LibdafkaStore()
        self.consumer: LibdafkaConsumer | None = None
        self.is_producer_there = True
        self._latency_s = latency_s
        self._numbers = count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._encoder = BatchEncoder(Dialect.LIBDAFKA)
        self.producer.start(0.0)
        self.producer.node_settled(0.0)

    def join(self) -> None:
        """Let the consumer connect to the producer and the store."""
        self.consumer = LibdafkaConsumer("hello")
        found = [
            *subscription(Command.DIRECT_RECORD, self.consumer.address),
            *subscription(Command.RECORD, "hello"),
            *subscription(Command.HEAD, "hello"),
        ]
        self.act(self.producer.receive_subscriptions(found, self.now))
        heads = self.store._heads(self.consumer.address, "hello")
        self._to_consumer(self._encode(heads))

    def publish(self, records: int) -> None:
        first = self.producer.next_sequence
        self.act(self.producer.publish(next_batch(self.producer, contents(first, first + records)), self.now))

    def act(self, actions: Iterable[Action]) -> None:
        """Send what the producer publishes to the store and the consumer."""
        frames = self._encode([action.message for action in actions if isinstance(action, Publish)])
        for each in frames:
            if each[0][:1] in b"MH":
                self._later(partial(self._store, each))
        self._to_consumer(frames)

    def run(self, until: float) -> None:
        """Deliver messages, and tick the producer, until a time."""
        while self.now < until:
            self.now += STEP_S
            while self._due and self._due[0][0] <= self.now:
                heapq.heappop(self._due)[2]()
            if self.is_producer_there and self.producer.deadline() <= self.now:
                self.act(self.producer.tick(self.now))
            self.answer_fetches()

    def answer_fetches(self) -> None:
        """Send what the producer still holds of what was fetched."""
        while self.is_producer_there and (request := self.producer.responder.next_read()) is not None:
            batch = self.producer.retransmit_buffer.read(request.first_sequence, request.count, 2**20)
            run = self.producer.responder.complete_read(request, batch)
            if run is not None:
                self._to_consumer(self._encode([run]))

    def _encode(self, messages: Sequence[wire.Message | wire.RecordRun]) -> list[Sequence[bytes]]:
        encoded: list[Sequence[bytes]] = []
        for each in messages:
            if isinstance(each, wire.RecordRun):
                encoded += iter_frames(self._encoder.encode([each]))
            else:
                encoded.append(codec.encode(each, Dialect.LIBDAFKA))
        return encoded

    def _store(self, frames: Sequence[bytes]) -> None:
        self._to_producer(self.store.store(frames))

    def _answer(self, fetch: Sequence[bytes]) -> None:
        self._to_consumer(self._encode(self.store.answer(fetch)))

    def _to_consumer(self, frames: Iterable[Sequence[bytes]]) -> None:
        for each in frames:
            if self.consumer is not None and each[0][:1] in b"MHDE":
                self._later(partial(self._from_consumer, each))

    def _from_consumer(self, frames: Sequence[bytes]) -> None:
        assert self.consumer is not None
        for fetch in self.consumer.answer(frames, self.now):
            self._to_producer([fetch])
            (encoded,) = self._encode([fetch])
            self._later(partial(self._answer, encoded))

    def _to_producer(self, messages: Sequence[wire.Message]) -> None:
        if messages:
            self._later(partial(self._take, messages))

    def _take(self, messages: Sequence[wire.Message]) -> None:
        if self.is_producer_there:
            decoded = BatchDecoder().decode(self._encode(messages))
            self.act(self.producer.receive(decoded, self.now))

    def _later(self, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now + self._latency_s, next(self._numbers), action))


@settings(max_examples=12)
@given(
    latency_s=st.sampled_from([0.0, 0.1, 0.7]),
    joins_at=st.sampled_from([0.0, 0.5, 1.9, 2.0, 3.0, 3.9, 4.0]),
    records=st.integers(1, 30),
)
def test_a_consumer_that_joins_in_the_middle_gets_everything_erratum_17(
    latency_s: float, joins_at: float, records: int
) -> None:
    cluster = Cluster(latency_s)
    while cluster.now < 4.0:
        cluster.publish(records)
        if cluster.consumer is None and cluster.now >= joins_at:
            cluster.join()
        cluster.run(cluster.now + 0.1)
    if cluster.consumer is None:
        cluster.join()
    while cluster.producer.unacknowledged:
        cluster.run(cluster.now + STEP_S)
    cluster.act(cluster.producer.begin_leaving(cluster.now))
    left_from = cluster.now
    while cluster.producer.followed_at() > cluster.now:
        cluster.run(cluster.now + STEP_S)
    cluster.is_producer_there = False
    assert cluster.now - left_from <= FOLLOWED_S + 3.0
    cluster.run(cluster.now + 5.0)
    assert cluster.consumer is not None
    assert cluster.consumer.records == {HELLO: contents(0, cluster.producer.next_sequence)}
