"""A store announces records of producers that have left to nodes of libdafka that lack them (erratum 32)."""

from __future__ import annotations

import pytest

from dafka import wire
from dafka.config import Config
from dafka.protocol import ConsumerMachine, PartitionSilent, StoreMachine
from dafka.protocol.actions import Action, Notify
from dafka.protocol.answering import announced_heads
from dafka.protocol.answering.announced_heads import (
    ORPHAN_HEADS_MAX,
    ORPHAN_INTERVAL_S,
    ORPHAN_PAUSE_S,
    ORPHANS_MAX,
    OrphanHeads,
)
from dafka.records import Partition
from dafka.wire import Command
from tests.protocol.helpers import HELLO, direct_head, published, subscription

ME, FOREIGN, OURS = "STORE", "FOREIGN", "OURS"
END = 250_000
ANNOUNCED = [wire.Head(HELLO.address, "hello", END - 1)]


def make_store(*stores: str, retention: int = 0) -> StoreMachine:
    """Return a store that holds records of a producer that has left, and to which these stores are connected."""
    config = Config().with_store(retention_records=retention)
    store = StoreMachine(ME, config, {HELLO: END})
    store.start(0.0)
    for address in stores:
        if address == OURS:
            store.receive_subscriptions(subscription(Command.DIRECT_EARLIEST, address), 0.0)
        store.receive_subscriptions(subscription(Command.CONSUMER_HELLO, address), 0.0)
    return store


def lagging(sequence: int = 999) -> wire.DirectHead:
    return wire.DirectHead(ME, HELLO.address, "hello", sequence)


def fetch(first: int, count: int, requestor: str = "WRITER") -> wire.Fetch:
    return wire.Fetch(HELLO.address, requestor, "hello", first, count)


def heads(store: StoreMachine, begin: float = 0.0, end: float = 4.0) -> list[wire.Head]:
    """Return the HEADs that a store publishes in a time."""
    actions: list[Action] = []
    now = begin
    while (now := max(store.deadline(), now)) <= end:
        actions += store.tick(now)
    return published(actions, wire.Head)


def test_a_lagging_libdafka_store_hears_of_the_rest_erratum_32() -> None:
    store = make_store(FOREIGN, OURS)
    assert heads(store) == []
    for _ in range(3):
        assert published(store.receive([lagging()], 10.0), wire.Head) == []
    assert heads(store, 10.0, 10.0 + ORPHAN_PAUSE_S - 0.01) == []
    assert heads(store, 10.0, 14.0) == ANNOUNCED, "several answers make one announcement"
    store.receive([lagging()], 20.0)
    assert heads(store, 20.0, 24.0) == ANNOUNCED, "it still lags"


def test_stores_that_have_everything_hear_nothing() -> None:
    store = make_store(FOREIGN)
    store.receive([lagging(END - 1), lagging(END + 10)], 10.0)
    assert heads(store, 10.0, 14.0) == []


def test_stores_of_this_project_get_no_head() -> None:
    store = make_store(OURS)
    store.receive([lagging()], 10.0)
    store.peer_left(HELLO.address, 10.0)
    assert heads(store, 10.0, 40.0) == []


def test_a_producer_that_is_there_speaks_for_itself() -> None:
    store = make_store(FOREIGN)
    store.receive_subscriptions(subscription(Command.ACK, HELLO.address), 5.0)
    store.receive([lagging(), fetch(1000, 99_000)], 10.0)
    assert heads(store, 10.0, 14.0) == []
    store.receive_subscriptions(subscription(Command.ACK, HELLO.address, active=False), 20.0)
    store.receive([lagging()], 20.0)
    store.receive_subscriptions(subscription(Command.ACK, HELLO.address), 20.5)
    assert heads(store, 20.0, 24.0) == [], "it came back in time"


@pytest.mark.parametrize(("listener", "is_there"), [("B/", True), ("B/1", True), ("B", False), ("B/2", False)])
def test_a_broker_takes_the_acks_of_all_its_partitions(listener: str, is_there: bool) -> None:
    partition = Partition("hello", "B/1")
    store = StoreMachine(ME, Config(), {partition: END})
    store.receive_subscriptions(subscription(Command.CONSUMER_HELLO, FOREIGN), 0.0)
    store.receive_subscriptions(subscription(Command.ACK, listener), 0.0)
    store.receive([wire.DirectHead(ME, partition.address, "hello", 999)], 10.0)
    assert (heads(store, 10.0, 14.0) == []) is is_there


def test_the_next_page_is_announced_to_a_node_that_asks_for_one_page_erratum_17() -> None:
    store = make_store()
    store.receive([fetch(1000, 99_000)], 10.0)
    assert heads(store, 10.0, 14.0) == ANNOUNCED
    store.receive([fetch(200_000, 100_000)], 20.0)
    assert heads(store, 20.0, 24.0) == [], "this page is the last one"
    store.receive_subscriptions(subscription(Command.DIRECT_EARLIEST, OURS), 30.0)
    store.receive([fetch(0, 1000, OURS)], 30.0)
    assert heads(store, 30.0, 34.0) == [], "nodes of this project go on by themselves"


def test_the_leaving_of_a_producer_is_told_to_libdafka_stores() -> None:
    store = make_store(FOREIGN)
    store.peer_joined(HELLO.address, 5.0)
    store.peer_left(HELLO.address, 10.0)
    assert heads(store, 10.0, 10.0 + ORPHAN_PAUSE_S + 0.1) == ANNOUNCED


def test_records_that_become_durable_after_their_producer_left_are_announced() -> None:
    store = make_store(FOREIGN)
    late = Partition("hello", "LATE")
    store.receive([wire.Head("LATE", "hello", 2)], 10.0)
    store.records_committed({late: 3}, 10.0)
    assert heads(store, 10.0, 14.0) == [wire.Head("LATE", "hello", 2)]


def test_dropped_records_are_not_announced() -> None:
    store = make_store(FOREIGN, retention=1)
    store.receive([lagging()], 10.0)
    store.records_trimmed({HELLO: END})
    assert heads(store, 10.0, 14.0) == []


@pytest.mark.parametrize(("node", "is_silent"), [(HELLO.address, True), ("", True), ("OTHER", False)])
def test_a_head_of_a_producer_that_has_left_is_no_sign_of_life(node: str, is_silent: bool) -> None:
    consumer = ConsumerMachine(OURS, Config().with_consumer(offset_reset="earliest"))
    consumer.start(0.0)
    consumer.subscribe("hello", 0.0)
    consumer.peer_joined(node, 0.0)
    consumer.receive([*ANNOUNCED, direct_head(END - 1, OURS)], 1.0)
    events = [action.event for action in consumer.tick(100.0) if isinstance(action, Notify)]
    assert any(isinstance(event, PartitionSilent) for event in events) is is_silent
    assert consumer.reassembler.cursors[HELLO].known_end == END


def test_few_heads_are_sent_at_a_time() -> None:
    waiting = OrphanHeads()
    partitions = [Partition("hello", str(number)) for number in range(2 * ORPHAN_HEADS_MAX + 1)]
    for partition in partitions:
        waiting.schedule(partition, 0.0)
    taken, rounds, now = [], 0, 0.0
    while (due := waiting.deadline()) < float("inf"):
        assert rounds == 0 or due == now + ORPHAN_INTERVAL_S
        assert waiting.take_due(due - 0.001) == []
        now = due
        found = waiting.take_due(now)
        assert 0 < len(found) <= ORPHAN_HEADS_MAX
        taken += found
        rounds += 1
    assert (taken, rounds) == (partitions, 3)


def test_a_limited_number_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ORPHANS_MAX > ORPHAN_HEADS_MAX
    monkeypatch.setattr(announced_heads, "ORPHANS_MAX", 2)
    waiting = OrphanHeads()
    for name in "ABC":
        waiting.schedule(Partition("hello", name), 0.0)
    assert [partition.address for partition in waiting.take_due(ORPHAN_PAUSE_S)] == ["A", "B"]
