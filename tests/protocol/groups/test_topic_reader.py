"""The reader of a group's topic: it asks stores for the heads, reads the records, and counts the answers."""

from __future__ import annotations

from dafka import wire
from dafka.config import Config
from dafka.protocol.actions import Action, Subscribe, Unsubscribe
from dafka.protocol.groups import GroupReaderMachine, topic_of_group
from dafka.protocol.groups.topic_reader import RESTART_S, RETRY_S
from dafka.protocol.ordering.gap_resolver import HOLDS_NOTHING
from dafka.protocol.presence.peer_limits import ABSURD_SEQUENCE, MANY_PARTITIONS
from dafka.records import SEQUENCE_MAX, Partition
from dafka.wire import Command
from tests.protocol.helpers import asked, batches, direct, published, sequences, subscription

ME, TOPIC = "ME", "$group/team"
MEMBER = Partition(TOPIC, "MEMBER")


def make_reader(*stores: str, config: Config | None = None) -> GroupReaderMachine:
    reader = GroupReaderMachine(ME, config or Config(), TOPIC)
    reader.start(0.0)
    for store in stores:
        reader.receive_subscriptions(subscription(Command.CONSUMER_HELLO, store), 0.0)
    reader.node_settled(0.0)
    return reader


def asked_stores(actions: list[Action]) -> list[str]:
    hellos = published(actions, wire.ConsumerHello)
    assert {(hello.address, hello.subjects) for hello in hellos} <= {(ME, (TOPIC,))}
    fetches = [fetch for fetch in published(actions, wire.Fetch) if fetch.partition != MEMBER.address]
    assert [fetch.partition for fetch in fetches] == [hello.store for hello in hellos]
    return [hello.store for hello in hellos]


def answer(store: str, actions: list[Action], **changes: str) -> wire.DirectEarliest:
    """Return what a store answers after its heads."""
    (question,) = [each for each in published(actions, wire.Fetch) if each.partition == store]
    fields = {"requestor": ME, "address": store, "partition": store, "subject": question.subject, **changes}
    return wire.DirectEarliest(**fields, sequence=HOLDS_NOTHING, unrecoverable_end=0)


def head(sequence: int, partition: Partition = MEMBER, requestor: str = ME) -> wire.DirectHead:
    return wire.DirectHead(requestor, partition.address, partition.topic, sequence)


def test_a_survey_counts_the_stores_that_have_answered() -> None:
    reader = make_reader("A", "B", "C")
    assert reader.stores == 3
    assert reader.surveyed() == 0
    actions = reader.begin_survey(1.0)
    assert asked_stores(actions) == ["A", "B", "C"]
    reader.receive([answer("A", actions)], 1.1)
    assert reader.surveyed() == 1
    for wrong in ({"requestor": "YOU"}, {"subject": "another survey"}, {"address": "B"}):
        reader.receive([answer("A", actions, **wrong)], 1.2)
    assert reader.surveyed() == 1
    reader.receive([answer("B", actions), answer("B", actions)], 1.3)
    assert reader.surveyed() == 2
    again = reader.begin_survey(2.0)
    assert reader.surveyed() == 0
    reader.receive([answer("A", actions)], 2.1)
    assert reader.surveyed() == 0, "that was the answer to the former survey"
    reader.receive([answer("A", again)], 2.2)
    assert reader.surveyed() == 1


def test_only_stores_that_have_not_answered_are_asked_again_until_the_survey_begins_anew() -> None:
    reader = make_reader("A", "B")
    actions = reader.begin_survey(0.0)
    reader.receive([answer("A", actions)], 0.1)
    assert reader.deadline() == RETRY_S
    assert asked_stores(reader.tick(RETRY_S - 0.01)) == []
    assert asked_stores(reader.tick(RETRY_S)) == ["B"]
    assert reader.deadline() == 2 * RETRY_S
    assert asked_stores(reader.tick(RESTART_S)) == ["A", "B"]
    assert reader.surveyed() == 0


def test_a_survey_that_has_ended_asks_nothing_more() -> None:
    reader = make_reader("A")
    actions = reader.begin_survey(0.0)
    reader.receive([answer("A", actions)], 0.1)
    reader.end_survey()
    assert (reader.surveyed(), reader.deadline()) == (0, float("inf"))
    assert asked_stores(reader.tick(10.0)) == []
    assert topic_of_group("team") == TOPIC


def test_a_store_that_connects_or_greets_is_asked_while_a_survey_is_under_way() -> None:
    reader = make_reader("A")
    connected = subscription(Command.CONSUMER_HELLO, "B")
    assert asked_stores(make_reader("A").receive_subscriptions(connected, 0.1)) == []
    reader.begin_survey(0.0)
    assert asked_stores(reader.receive_subscriptions(connected, 0.1)) == ["B"]
    assert asked_stores(reader.receive([wire.StoreHello(ME, "B")], 0.2)) == ["B"]
    assert asked_stores(reader.receive([wire.StoreHello("YOU", "B")], 0.2)) == []


def test_a_survey_is_complete_when_all_records_of_its_heads_have_been_read() -> None:
    reader = make_reader("A")
    actions = reader.begin_survey(0.0)
    fetches = asked(reader.receive([head(4), answer("A", actions)], 0.1))
    assert fetches == [(0, 5)]
    assert reader.surveyed() == 0
    assert reader.ends() == {"MEMBER": 5}
    assert sequences(batches(reader.receive([direct(0, 3, ME, MEMBER)], 0.2))) == [0, 1, 2]
    assert reader.surveyed() == 0
    assert sequences(batches(reader.receive([direct(3, 5, ME, MEMBER)], 0.3))) == [3, 4]
    assert reader.surveyed() == 1


def test_acks_of_watched_members_show_new_records() -> None:
    reader = make_reader("A")
    ack = wire.Ack("MEMBER", TOPIC, 9, "A")
    reader.receive([ack], 0.1)
    assert reader.ends() == {}
    assert reader.watch(frozenset(["MEMBER", "X"])) == [Subscribe(b"KMEMBER"), Subscribe(b"KX")]
    assert reader.watch(frozenset(["MEMBER", "Y"])) == [Subscribe(b"KY"), Unsubscribe(b"KX")]
    assert asked(reader.receive([ack, wire.Ack("MEMBER", "other", 99, "A"), wire.Ack("X", TOPIC, 5, "A")], 0.1))
    assert reader.ends() == {"MEMBER": 10}


def test_messages_of_others_and_beyond_the_limits_are_discarded() -> None:
    reader = make_reader("A", config=Config().with_node(partitions_max=1))
    strangers: list[wire.BatchedMessage] = [
        head(4, requestor="YOU"),
        head(4, Partition("other", "MEMBER")),
        direct(0, 3, ME, MEMBER),
    ]
    assert batches(reader.receive(strangers, 0.1)) == []
    reader.receive([head(SEQUENCE_MAX), head(4), head(4, Partition(TOPIC, "SECOND"))], 0.1)
    assert reader.ends() == {"MEMBER": 5}
    assert reader.discarded == {"not asked for": 3, ABSURD_SEQUENCE: 1, MANY_PARTITIONS: 1}
