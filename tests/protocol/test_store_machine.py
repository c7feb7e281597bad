from __future__ import annotations

import pytest

from dafka import wire
from dafka.config import Config
from dafka.protocol import FetchUnanswered, StoreMachine
from dafka.protocol.actions import Action, Publish, Subscribe
from dafka.protocol.polling import RETRY_WAITS_S
from dafka.records import Partition
from dafka.wire import Command
from tests.protocol.helpers import (
    HELLO,
    asked,
    batches,
    direct,
    direct_head,
    events,
    head,
    live,
    published,
    sequences,
    subscription,
)

ME = "STORE"
OTHER = Partition("hello", "OTHER")
LONGER = Partition("hello2", "PRODUCER")


def make_store(ends: dict[Partition, int] | None = None, config: Config | None = None) -> StoreMachine:
    store = StoreMachine(ME, config or Config(), ends or {})
    store.start(0.0)
    return store


def receive(store: StoreMachine, *messages: wire.BatchedMessage, now: float = 0.1) -> list[Action]:
    return store.receive(messages, now)


def appended(actions: list[Action]) -> list[int]:
    return sequences(batches(actions))


def acks(actions: list[Action]) -> list[wire.Ack]:
    return published(actions, wire.Ack)


def ack(sequence: int, partition: Partition = HELLO) -> wire.Ack:
    return wire.Ack(partition.address, partition.topic, sequence, ME)


def fetch(sequence: int, count: int, partition: Partition = HELLO, requestor: str = "CONSUMER") -> wire.Fetch:
    return wire.Fetch(partition.address, requestor, partition.topic, sequence, count)


def test_start_subscribes_to_what_a_store_hears_erratum_12() -> None:
    prefixes = [b"M", b"H", b"F", b"G", b"W", b"DSTORE", b"ESTORE", b"SSTORE", b"WSTORE", b"TSTORE", b"QSTORE"]
    assert StoreMachine(ME, Config(), {}).start(0.0) == [Subscribe(prefix) for prefix in prefixes]


@pytest.mark.parametrize("message", [head(6), direct_head(6, ME)])
def test_a_head_is_fetched_up_to(message: wire.BatchedMessage) -> None:
    assert asked(receive(make_store(), message)) == [(0, 7)]


def test_a_restarted_store_continues_where_its_storage_ends() -> None:
    store = make_store({HELLO: 5})
    actions = receive(store, live(3, 7), live(9, 10))
    assert (appended(actions), asked(actions)) == ([5, 6], [(7, 2)])


def test_a_duplicate_of_a_durable_record_is_acknowledged_again_erratum_9() -> None:
    store = make_store({HELLO: 5})
    actions = receive(store, live(1, 3))
    assert (appended(actions), acks(actions)) == ([], [ack(4)])


def test_a_producer_that_connects_late_gets_acks_for_durable_records_erratum_9() -> None:
    store = make_store({HELLO: 5, LONGER: 7, OTHER: 9})
    actions = store.receive_subscriptions(subscription(Command.ACK, "PRODUCER"), 0.1)
    assert acks(actions) == [ack(4), ack(6, LONGER)]
    assert store.receive_subscriptions(subscription(Command.ACK, "PRODUCER", active=False), 0.2) == []
    assert store.receive_subscriptions(subscription(Command.ACK, "PRO"), 0.2) == []


def test_a_head_of_durable_records_is_acknowledged_again_erratum_9() -> None:
    store = make_store({HELLO: 5})
    assert receive(store, head(4)) == [Publish(ack(4))]
    assert acks(receive(store, head(5))) == []
    assert acks(receive(store, direct_head(4, ME))) == []


def test_a_consumer_that_connects_is_greeted() -> None:
    greeting = Publish(wire.StoreHello("CONSUMER", ME))
    assert make_store().receive_subscriptions(subscription(Command.STORE_HELLO, "CONSUMER"), 0.1) == [greeting]
    assert make_store().receive_subscriptions(subscription(Command.STORE_HELLO), 0.1) == []


def test_a_consumers_hello_is_answered_with_the_durable_heads_of_its_topics() -> None:
    store = make_store({HELLO: 5, OTHER: 9, LONGER: 7})
    receive(store, live(5, 8))
    actions = receive(store, wire.ConsumerHello(ME, "CONSUMER", ("hello", "nothing")))
    assert actions == [Publish(direct_head(4, "CONSUMER")), Publish(direct_head(8, "CONSUMER", OTHER))]


def test_a_hello_to_another_store_is_not_answered() -> None:
    assert receive(make_store({HELLO: 5}), wire.ConsumerHello("STORE2", "CONSUMER", ("hello",))) == []


def test_get_heads_is_answered_for_the_exact_topic_erratum_14() -> None:
    store = make_store({HELLO: 5, LONGER: 7})
    assert receive(store, wire.GetHeads("hello", "CONSUMER")) == [Publish(direct_head(4, "CONSUMER"))]


def test_a_store_that_connects_gets_every_head_erratum_13() -> None:
    store = make_store({HELLO: 5, LONGER: 7})
    actions = store.receive_subscriptions(subscription(Command.CONSUMER_HELLO, "STORE2"), 0.1)
    assert published(actions, wire.DirectHead) == [direct_head(4, "STORE2"), direct_head(6, "STORE2", LONGER)]
    assert store.receive_subscriptions(subscription(Command.CONSUMER_HELLO), 0.1) == []


def test_a_libdafka_store_that_connects_is_asked_for_all_heads_erratum_13() -> None:
    store = make_store({HELLO: 5})
    assert store.receive_subscriptions(subscription(Command.GET_HEADS), 0.1) == [Publish(wire.GetHeads("", ME))]
    assert store.receive_subscriptions(subscription(Command.GET_HEADS, "hello"), 0.1) == []
    assert receive(store, wire.GetHeads("", "STORE2")) == []


def test_a_producer_that_leaves_may_have_left_records_with_other_stores_erratum_13() -> None:
    store = make_store({HELLO: 5, LONGER: 7})
    assert published(store.peer_left(HELLO.address, 9.0), wire.GetHeads)
    assert store.peer_left("CONSUMER", 9.0) == []


def test_a_store_never_answers_itself() -> None:
    store = make_store({HELLO: 5})
    own: list[wire.BatchedMessage] = [
        wire.GetHeads("hello", ME),
        wire.GetHeads("unknown", ME),
        wire.ConsumerHello(ME, ME, ("hello",)),
        fetch(0, 5, requestor=ME),
    ]
    assert receive(store, *own) == []
    assert store.discarded == {"own message": 4}
    assert len(store.responder) == 0


def test_a_fetch_is_answered_with_durable_records_only() -> None:
    store = make_store({HELLO: 5})
    receive(store, live(5, 8), fetch(5, 3))
    assert store.discarded == {"beyond the head": 1}
    receive(store, fetch(4, 100))
    assert store.responder.pending_ranges() == {("CONSUMER", HELLO): [range(4, 104)]}
    assert store.stored.durable_end(HELLO) == 5
    assert store.answers.fetches_received == 1


@pytest.mark.parametrize("partition", [OTHER, LONGER])
def test_a_fetch_of_an_unknown_partition_is_discarded(partition: Partition) -> None:
    store = make_store({HELLO: 5})
    assert receive(store, fetch(0, 5, partition)) == []
    assert len(store.responder) == 0


def test_fetches_beyond_the_limit_are_discarded() -> None:
    store = make_store({HELLO: 5}, Config().with_fetch(replies_max=1))
    receive(store, *(fetch(0, 5, requestor=name) for name in "ABC"))
    assert store.discarded == {"too many fetches": 2}


def test_an_unanswered_fetch_is_reported_and_repeated() -> None:
    store = make_store()
    receive(store, head(9), now=0.0)
    actions = [action for now in (0.5, 1.5, 3.5) for action in store.tick(now)]
    assert asked(actions) == [(0, 10)] * 3
    assert events(actions) == [FetchUnanswered(HELLO, 0, 3)]


def test_unanswered_fetches_are_sent_to_a_node_that_connects() -> None:
    store = make_store()
    receive(store, head(9), now=0.0)
    assert asked(store.receive_subscriptions(subscription(Command.FETCH, "PRODUCER"), 0.1)) == [(0, 10)]


def test_direct_messages_to_another_requestor_are_discarded() -> None:
    store = make_store()
    assert receive(store, direct(0, 3, "STORE2"), direct_head(20, "STORE2")) == []
    assert store.discarded == {"another requestor": 4}


def test_partitions_beyond_the_limit_are_discarded_and_counted() -> None:
    store = make_store({HELLO: 5}, Config().with_node(partitions_max=1))
    assert receive(store, live(0, 1, OTHER), head(3, LONGER)) == []
    assert store.discarded == {"too many partitions": 2}


def test_heads_are_sent_to_another_store_again_because_they_may_be_lost() -> None:
    store = make_store({HELLO: 10})
    told = [wire.DirectHead("STORE2", HELLO.address, HELLO.topic, 9)]
    assert (
        published(store.receive_subscriptions(subscription(Command.CONSUMER_HELLO, "STORE2"), 0.0), wire.DirectHead)
        == told
    )
    assert published(store.tick(RETRY_WAITS_S[0]), wire.DirectHead) == told
    assert published(store.tick(sum(RETRY_WAITS_S)), wire.DirectHead) == told
    assert published(store.tick(1000.0), wire.DirectHead) == []


def test_heads_of_a_producer_that_left_are_asked_for_again() -> None:
    store = make_store({HELLO: 10})
    wanted = [wire.GetHeads(HELLO.topic, ME)]
    assert published(store.peer_left(HELLO.address, 0.0), wire.GetHeads) == wanted
    assert store.deadline() == RETRY_WAITS_S[0]
    assert published(store.tick(RETRY_WAITS_S[0]), wire.GetHeads) == wanted


def test_records_durable_after_their_producer_left_are_announced_to_all_subscribers() -> None:
    store = make_store()
    store.receive_subscriptions(subscription(Command.DIRECT_HEAD, "CONSUMER"), 0.0)
    store.receive_subscriptions(subscription(Command.ACK, HELLO.address), 0.0)
    receive(store, live(0, 10))
    assert published(store.records_committed({HELLO: 5}, 0.1), wire.DirectHead) == []
    store.receive_subscriptions(subscription(Command.ACK, HELLO.address, active=False), 0.2)
    assert published(store.records_committed({HELLO: 8}, 0.3), wire.DirectHead) == []
    told = [wire.DirectHead("CONSUMER", HELLO.address, HELLO.topic, 9)]
    assert published(store.records_committed({HELLO: 10}, 0.4), wire.DirectHead) == told
    store.receive_subscriptions(subscription(Command.DIRECT_HEAD, "CONSUMER", active=False), 0.5)
    assert published(store.records_committed({HELLO: 10}, 0.6), wire.DirectHead) == []
