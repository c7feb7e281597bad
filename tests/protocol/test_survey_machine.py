"""The observer's machine: the facts that it learns, the questions that it sends, and when a round is over."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from dafka import Config, wire
from dafka.endpoints import PeerEndpoint
from dafka.protocol import (
    PartitionView,
    PeerJoined,
    PeerLeft,
    SurveyMachine,
)
from dafka.protocol.actions import Action
from dafka.protocol.observer import node_table, poll_schedule, survey_machine
from dafka.protocol.observer.cluster_survey import HolderView, NodeState
from dafka.protocol.ordering.gap_resolver import HOLDS_NOTHING
from dafka.records import Partition
from dafka.wire import Command, TowerBeacon, decode_subscription
from tests.protocol.helpers import head, published, subscription

VECTORS = Path(__file__).parents[1] / "vectors"

ME = "OBSERVER"
STORE = "STORE"
OTHER = "OTHER"
PRODUCER = Partition("orders", "PRODUCER")
TOWER = "tcp://127.0.0.1:5557"
COMMANDS = {
    "store": (
        Command.DIRECT_RECORD,
        Command.DIRECT_HEAD,
        Command.CONSUMER_HELLO,
        Command.DIRECT_EARLIEST,
        Command.GET_TOPICS,
    ),
    "libdafka store": (Command.CONSUMER_HELLO,),
    "store writer": (Command.DIRECT_RECORD,),
    "producer": (Command.ACK, Command.FETCH),
    "consumer": (Command.DIRECT_RECORD, Command.DIRECT_HEAD, Command.STORE_HELLO, Command.DIRECT_EARLIEST),
    "observer": (Command.DIRECT_EARLIEST, Command.DIRECT_TOPICS),
}


class Census:
    """A machine in a simulated cluster. Its stores answer when a test tells them to."""

    def __init__(self, config: Config | None = None, topics: Iterable[str] = ()) -> None:
        self.machine = SurveyMachine(ME, config or Config(), topics)
        self.now = 100.0
        self.machine.start(self.now)

    def join(self, address: str, role: str = "", place: str = "tcp://10.0.0.1:7000") -> None:
        self.machine.record_discovery(PeerJoined(address, PeerEndpoint.parse(place)), self.now)
        for command in COMMANDS.get(role, ()):
            self.machine.receive_subscriptions(subscription(command, address), self.now)

    def leave(self, address: str, place: str = "tcp://10.0.0.1:7000") -> None:
        self.machine.record_discovery(PeerLeft(address, PeerEndpoint.parse(place)), self.now)

    def see(self, address: str, tower: str = TOWER, endpoint: str = "tcp://10.0.0.1:7000", key: str = "") -> None:
        self.machine.node_table.record_beacon(tower, TowerBeacon(address, endpoint, key), self.now)

    def hear(self, sequence: int, partition: Partition = PRODUCER) -> None:
        self.machine.receive([head(sequence, partition)], self.now)

    def begin(self) -> list[Action]:
        return self.machine.begin_round(self.now) + self.machine.node_settled(self.now)

    def wait(self, seconds: float) -> list[Action]:
        """Let time pass; return the actions meanwhile."""
        actions: list[Action] = []
        end = self.now + seconds
        while self.machine.deadline() <= end:
            assert self.machine.deadline() > self.now - 1e-9
            self.now = max(self.machine.deadline(), self.now)
            actions += self.machine.tick(self.now)
        self.now = end
        return actions

    def tell(self, store: str, actions: Iterable[Action], ends: dict[Partition, int]) -> None:
        """Let a store answer these questions with the ends of its partitions."""
        topics = {message.subject for message in published(actions, wire.GetHeads)}
        answers: list[wire.BatchedMessage] = [
            wire.DirectHead(ME, partition.address, partition.topic, end - 1)
            for partition, end in ends.items()
            if partition.topic in topics
        ]
        if any(question.store == store for question in published(actions, wire.GetTopics)):
            answers.insert(0, wire.DirectTopics(ME, store, "", (), 0, len(ends)))
        self.machine.receive_from_store(store, answers, self.now)
        for fetch in published(actions, wire.Fetch):
            assert (fetch.partition, fetch.address) == (ME, ME)
            self.answer(store, fetch.subject)

    def answer(self, store: str, subject: str, *, requestor: str = ME, address: str = "") -> None:
        answer = wire.DirectEarliest(requestor, address or store, ME, subject, HOLDS_NOTHING, 0)
        self.machine.receive_from_store(store, [answer], self.now)

    @property
    def is_complete(self) -> bool:
        return self.machine.is_complete

    def partition(self, partition: Partition = PRODUCER) -> PartitionView:
        return next(each for each in self.machine.survey(self.now).partitions if each.partition == partition)

    def holder(self, store: str = STORE, partition: Partition = PRODUCER) -> HolderView:
        return next(each for each in self.partition(partition).holders if each.store == store)


def test_it_sends_only_questions() -> None:
    play = Census()
    play.join(STORE, "store")
    play.join(PRODUCER.address, "producer")
    said = play.begin()
    play.hear(9)
    said += play.wait(5)
    play.now += 1
    said += play.begin() + play.wait(5)
    asked = published(said, wire.GetTopics) + published(said, wire.GetHeads) + published(said, wire.Fetch)
    assert len(asked) == len(said)
    assert {(fetch.partition, fetch.count) for fetch in published(said, wire.Fetch)} == {(ME, 1)}


@pytest.mark.parametrize(
    ("role", "shown"),
    [(role, "store" if role == "libdafka store" else role) for role in COMMANDS],
)
def test_a_role_is_inferred_from_subscriptions(role: str, shown: str) -> None:
    play = Census()
    play.join("NODE", role)
    (node,) = play.machine.survey(play.now).nodes
    assert (node.roles, node.state) == ((shown,), NodeState.UP)


def test_a_head_shows_a_producer() -> None:
    play = Census()
    play.join(PRODUCER.address)
    play.hear(0)
    (node,) = play.machine.survey(play.now).nodes
    assert (node.roles, node.state) == (("producer",), NodeState.UP)


@pytest.mark.parametrize("is_answered", [True, False])
def test_a_last_question_is_asked_if_producers_have_published_meanwhile(is_answered: bool) -> None:
    play = Census()
    play.join(STORE, "store")
    play.join(PRODUCER.address, "producer")
    play.hear(99)
    play.tell(STORE, play.begin(), {PRODUCER: 100})
    play.wait(0.5)
    play.hear(1099)
    asked = play.wait(0.5)
    assert len(published(asked, wire.Fetch)) == 1
    assert not play.is_complete
    if is_answered:
        play.tell(STORE, asked, {PRODUCER: 1050})
        play.wait(0.0)
    else:
        assert play.wait(poll_schedule.LAST_S - 0.01) == []
        assert not play.is_complete
        play.wait(0.01)
    assert play.is_complete
    survey = play.machine.survey(play.now)
    assert play.holder() == (HolderView(STORE, 1050, 50) if is_answered else HolderView(STORE, 100, 0))
    assert survey.nodes[1].has_answered


def test_a_libdafka_store_gets_a_moment_for_the_last_question() -> None:
    play = Census(Config().with_node(wire="libdafka"))
    play.join(STORE, "libdafka store")
    play.join(PRODUCER.address, "producer")
    play.hear(99)
    play.begin()
    play.wait(0.5)
    play.hear(1099)
    asked = play.wait(poll_schedule.PATIENCE_S - 0.5)
    assert len(published(asked, wire.Fetch)) == 1
    assert not play.is_complete
    play.machine.receive_from_store(STORE, [wire.DirectHead(ME, PRODUCER.address, "orders", 1099)], play.now)
    play.wait(poll_schedule.ASK_AGAIN_S)
    assert play.is_complete
    assert play.holder() == HolderView(STORE, 1100, 0)


def test_a_libdafka_store_that_was_not_asked_about_a_topic_is_not_said_to_hold_nothing() -> None:
    play = Census(Config().with_node(wire="libdafka"))
    play.join(STORE, "libdafka store")
    play.join(PRODUCER.address, "producer")
    play.begin()
    play.hear(99)
    assert play.holder() == HolderView(STORE, None, None)
    play.wait(poll_schedule.ASK_S)
    assert play.holder() == HolderView(STORE, 0, 100)


def test_a_libdafka_store_is_recognized_and_asked_for_all_topics() -> None:
    for config, subjects in (Config(), {""}), (Config().with_node(wire="rfc46"), set()):
        play = Census(config)
        play.join(STORE, "store")
        play.join("READER", "libdafka store")
        asked = play.begin()
        assert {message.subject for message in published(asked, wire.GetHeads)} == subjects
        nodes = {node.address: node.lists_topics for node in play.machine.survey(play.now).nodes}
        assert nodes["READER"] is (None if subjects else False)


def test_a_store_is_asked_again_for_a_partition_that_was_unknown() -> None:
    play = Census(topics=["orders"])
    play.join(STORE, "store")
    play.join(PRODUCER.address, "producer")
    play.tell(STORE, play.begin(), {})
    play.hear(99)
    assert play.holder() == HolderView(STORE, None, None)
    play.tell(STORE, play.wait(poll_schedule.ASK_S), {PRODUCER: 100})
    assert play.holder() == HolderView(STORE, 100, 0)


def test_without_the_producer_stores_are_compared_with_each_other() -> None:
    play = Census(topics=["orders"])
    play.join(STORE, "store")
    play.join(OTHER, "store")
    asked = play.begin()
    play.tell(STORE, asked, {PRODUCER: 60})
    play.tell(OTHER, asked, {PRODUCER: 100})
    assert play.partition() == PartitionView(
        PRODUCER, False, 100, (HolderView(OTHER, 100, 0), HolderView(STORE, 60, 40))
    )
    assert play.partition().lag == 40


def test_stores_are_compared_with_each_other_before_the_producer_has_announced_itself() -> None:
    play = Census(topics=["orders"])
    play.join(STORE, "store")
    play.join(PRODUCER.address, "producer")
    play.tell(STORE, play.begin(), {PRODUCER: 60})
    assert play.holder() == HolderView(STORE, 60, 0)
    play.hear(99)
    assert play.holder() == HolderView(STORE, 60, None)
    play.tell(STORE, play.wait(poll_schedule.ASK_S), {PRODUCER: 61})
    assert play.holder() == HolderView(STORE, 61, 39)


def test_a_head_counts_for_the_store_of_its_connection() -> None:
    play = Census(topics=["orders"])
    play.join(STORE, "store")
    play.begin()
    other = wire.DirectHead("SOMEBODY", PRODUCER.address, "orders", 9)
    mine = wire.DirectHead(ME, PRODUCER.address, "orders", 9)
    play.machine.receive_from_store(STORE, [other], play.now)
    play.machine.receive_from_store("NOBODY", [mine], play.now)
    play.machine.receive_from_store(STORE, [head(9)], play.now)
    play.machine.receive([mine], play.now)
    assert play.machine.survey(play.now).partitions == ()
    assert play.machine.discarded == {"another requestor": 1, "not asked for": 1, "unexpected command": 2}


def test_only_a_stores_answer_to_the_last_question_counts() -> None:
    play = Census(topics=["orders"])
    play.join(STORE, "store")
    play.join(OTHER, "store")
    (fetch,) = published(play.begin(), wire.Fetch)
    play.answer(STORE, fetch.subject, requestor="SOMEBODY")
    play.answer(STORE, fetch.subject, address=OTHER)
    play.answer(STORE, "0")
    play.answer(STORE, "orders")
    answered = {node.address: node.has_answered for node in play.machine.survey(play.now).nodes}
    assert answered == {STORE: False, OTHER: False}
    play.answer(STORE, fetch.subject)
    answered = {node.address: node.has_answered for node in play.machine.survey(play.now).nodes}
    assert answered == {STORE: True, OTHER: False}


def test_a_silent_store_is_asked_after_growing_waits_and_then_given_up() -> None:
    play = Census(topics=["orders"])
    play.join(STORE, "store")
    play.machine.node_table.tower_heard(TOWER, play.now)
    play.begin()
    began = play.now
    times = []
    while play.machine.deadline() < float("inf"):
        play.now = play.machine.deadline()
        if play.machine.tick(play.now):
            times.append(round(play.now - began, 2))
    assert times == [0.25, 0.75]
    assert play.is_complete
    assert round(play.now - began, 2) == poll_schedule.PATIENCE_S
    (fault,) = play.machine.survey(play.now).faults(0)
    assert fault == "store STORE at tcp://10.0.0.1:7000 has not answered how much it holds"


def test_a_libdafka_store_gets_time_and_is_asked_for_all_topics() -> None:
    play = Census(Config().with_node(wire="libdafka"))
    play.join("READER", "libdafka store")
    play.join("WRITER", "store writer")
    play.join(STORE, "store")
    asked = play.begin()
    assert published(asked, wire.GetHeads) == [wire.GetHeads("", ME)]
    play.tell(STORE, asked, {})
    orders, others = wire.DirectHead(ME, "A", "orders", 9), wire.DirectHead(ME, "B", "others", 0)
    play.machine.receive_from_store("READER", [orders, others], play.now)
    # Our store has answered, but was not asked for these topics by name.
    assert play.holder(STORE, Partition("orders", "A")) == HolderView(STORE, None, None)
    asked = play.wait(poll_schedule.PATIENCE_S - 0.01)
    assert {message.subject for message in published(asked, wire.GetHeads)} == {"", "orders", "others"}
    play.tell(STORE, asked, {})
    assert play.holder(STORE, Partition("orders", "A")) == HolderView(STORE, 0, 10)
    assert not play.is_complete
    play.wait(0.02)
    assert play.is_complete
    survey = play.machine.survey(play.now)
    assert [each.partition for each in survey.partitions] == [Partition("orders", "A"), Partition("others", "B")]
    assert [node.has_answered for node in survey.nodes] == [None, True, None]
    assert [(holder.end_sequence, holder.lag) for holder in survey.partitions[0].holders] == [(10, 0), (0, 10)]


def test_a_cluster_without_nodes_is_waited_for() -> None:
    play = Census()
    play.begin()
    play.wait(poll_schedule.PATIENCE_S - 0.01)
    assert not play.is_complete
    play.wait(0.01)
    assert play.is_complete


@pytest.mark.parametrize("role", ["", "producer"])
def test_a_node_that_has_not_shown_its_role_is_waited_for(role: str) -> None:
    play = Census()
    play.join("NODE", role)
    play.begin()
    play.wait(poll_schedule.PATIENCE_S - 0.01)
    assert not play.is_complete
    play.wait(0.01)
    assert play.is_complete
    (node,) = play.machine.survey(play.now).nodes
    assert node.state is (NodeState.UP if role else NodeState.UNCONNECTED)


def test_the_first_round_takes_a_beacon_interval_and_later_ones_a_quiet_time() -> None:
    play = Census(Config().with_beacon(interval_ms=700))
    play.join("NODE", "consumer")
    play.begin()
    for seconds in (0.7, poll_schedule.QUIET_S):
        play.wait(seconds - 0.01)
        assert not play.is_complete
        play.wait(0.01)
        assert play.is_complete
        play.machine.begin_round(play.now)


def test_topics_of_consumers_and_producers_are_asked_for() -> None:
    play = Census()
    play.join(STORE, "store")
    play.begin()
    for command, topic in ((Command.RECORD, "wanted"), (Command.HEAD, "wanted"), (Command.GET_HEADS, "served")):
        play.machine.receive_subscriptions(subscription(command, topic), play.now)
    play.machine.receive_subscriptions(subscription(Command.RECORD), play.now)
    asked = published(play.wait(poll_schedule.ASK_S), wire.GetHeads)
    assert {message.subject for message in asked} == {"wanted", "served"}
    topics = {topic.name: topic.is_subscribed for topic in play.machine.survey(play.now).topics}
    assert topics == {"wanted": True, "served": False}
    for command in (Command.RECORD, Command.HEAD):
        play.machine.receive_subscriptions(subscription(command, "wanted", active=False), play.now)
    assert not any(topic.is_subscribed for topic in play.machine.survey(play.now).topics)


def test_with_named_topics_others_are_neither_asked_for_nor_shown() -> None:
    play = Census(Config().with_node(wire="libdafka"), ["named"])
    play.join(STORE, "store")
    play.join(PRODUCER.address, "producer")
    play.hear(9)
    play.machine.receive_subscriptions(subscription(Command.RECORD, "orders"), play.now)
    asked = play.begin()
    assert published(asked, wire.GetHeads) == [wire.GetHeads("named", ME)]
    play.machine.receive_from_store(STORE, [wire.DirectHead(ME, PRODUCER.address, "orders", 9)], play.now)
    survey = play.machine.survey(play.now)
    assert ([topic.name for topic in survey.topics], survey.partitions) == (["named"], ())
    play.tell(STORE, asked, {})
    play.wait(1.0)
    assert play.is_complete


def test_a_silent_node_is_shown_and_later_forgotten() -> None:
    play = Census(topics=["orders"])
    play.join(STORE, "store")
    play.see(STORE)
    play.tell(STORE, play.begin(), {PRODUCER: 60})
    play.now += 4.0
    play.leave(STORE)
    play.machine.node_table.tower_heard(TOWER, play.now)
    survey = play.machine.survey(play.now)
    (node,) = survey.nodes
    assert (node.roles, node.state) == (("store",), NodeState.SILENT)
    assert play.machine.stores == {}
    assert play.partition().holders == ()
    silent = "store STORE at tcp://10.0.0.1:7000 went silent 4 s ago"
    assert list(survey.faults(1000)) == [silent, "no store was found"]
    play.now += node_table.FORGET_S - 4.1
    play.machine.begin_round(play.now)
    assert len(play.machine.survey(play.now).nodes) == 1
    play.now += 0.1
    play.machine.begin_round(play.now)
    assert play.machine.survey(play.now).nodes == ()


def test_a_node_that_may_have_ended_before_the_observer_started_is_no_fault() -> None:
    """A tower introduces a node for a while after it has ended."""
    play = Census(topics=["orders"])
    play.join(STORE)
    play.see(STORE)
    play.now += 3.9
    play.see(STORE)
    play.leave(STORE)
    play.now += 3.9
    play.machine.begin_round(play.now)
    (node,) = play.machine.survey(play.now).nodes
    assert node.state is NodeState.UNCONNECTED
    play.now += 0.2
    play.machine.begin_round(play.now)
    assert play.machine.survey(play.now).nodes == ()


def test_a_node_that_never_connected_but_lived_for_long_is_shown_as_silent() -> None:
    play = Census(topics=["orders"])
    play.join(STORE)
    for _ in range(3):
        play.see(STORE)
        play.now += 4.0
    play.leave(STORE)
    play.machine.begin_round(play.now)
    (node,) = play.machine.survey(play.now).nodes
    assert node.state is NodeState.SILENT


def test_a_store_that_moved_is_asked_at_its_new_endpoint() -> None:
    play = Census(topics=["orders"])
    play.join(STORE, "store")
    play.tell(STORE, play.begin(), {PRODUCER: 60})
    play.leave(STORE)
    play.join(STORE, place="tcp://10.0.0.1:7001")
    assert play.machine.stores == {STORE: PeerEndpoint("tcp://10.0.0.1:7001")}
    assert play.partition().holders == (HolderView(STORE, None, None),)
    play.tell(STORE, play.wait(poll_schedule.ASK_S), {PRODUCER: 60})
    assert play.holder() == HolderView(STORE, 60, 0)


def test_a_node_that_discovery_has_not_lost_is_up_without_beacons() -> None:
    play = Census()
    play.join(STORE, "store")
    play.now += 1000.0
    assert [node.state for node in play.machine.survey(play.now).nodes] == [NodeState.UP]


def test_the_report_of_each_tower_is_kept() -> None:
    far = "tcp://10.9.9.9:5557"
    play = Census(Config().with_beacon(tower_pub=(TOWER, far)))
    play.machine.node_table.tower_heard(TOWER, play.now)
    play.join(STORE, "store", "tcp://10.0.0.1:7000")
    play.see(STORE)
    play.now += 1
    play.see(STORE)
    play.see(STORE, far, "tcp://192.0.2.1:7000")
    play.see(ME)
    play.machine.node_table.tower_refused(far, "no entry")
    survey = play.machine.survey(play.now)
    (node,) = survey.nodes
    assert node.endpoint == "tcp://10.0.0.1:7000"
    assert [(each.tower, each.endpoint, each.last_seen - each.first_seen) for each in node.sightings] == [
        (TOWER, "tcp://10.0.0.1:7000", 1.0),
        (far, "tcp://192.0.2.1:7000", 0.0),
    ]
    assert [(tower.is_heard, tower.nodes) for tower in survey.towers] == [(True, 1), (False, 1)]
    assert "no entry" in list(survey.faults(0))
    (moved,) = survey.with_time(5000.0).nodes
    assert [(each.first_seen, each.last_seen) for each in moved.sightings] == [(4999.0, 5000.0), (5000.0, 5000.0)]
    play.now += 3.0
    assert [tower.is_heard for tower in play.machine.survey(play.now).towers] == [False, False]


def test_a_beacon_with_another_key_is_ignored() -> None:
    play = Census()
    play.join(STORE, "store", "tcp://10.0.0.1:7000 KEY")
    assert play.machine.stores == {STORE: PeerEndpoint.parse("tcp://10.0.0.1:7000 KEY")}
    play.now += 1
    play.see(STORE, endpoint="tcp://10.6.6.6:7000", key="ANOTHER")
    (node,) = play.machine.survey(play.now).nodes
    assert (node.endpoint, node.sightings, node.last_seen) == ("tcp://10.0.0.1:7000", (), play.now - 1)
    play.see(STORE, key="KEY")
    assert len(play.machine.survey(play.now).nodes[0].sightings) == 1


def test_faults_are_described() -> None:
    play = Census(topics=["orders"])
    play.machine.node_table.tower_heard(TOWER, play.now)
    play.join(PRODUCER.address, "producer")
    play.hear(99)
    play.begin()
    assert list(play.machine.survey(play.now).faults(0)) == ["no store was found"]
    play.join(STORE, "store")
    play.tell(STORE, play.wait(poll_schedule.ASK_S), {PRODUCER: 90})
    assert list(play.machine.survey(play.now).faults(10)) == []
    assert list(play.machine.survey(play.now).faults(9)) == ["store STORE is 10 records behind orders/PRODUCER"]
    play.join("NODE")
    (fault,) = play.machine.survey(play.now).faults(10)
    assert fault.startswith("node NODE at tcp://10.0.0.1:7000 has not connected")


def test_memory_is_bounded_and_limits_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STORES_MAX", "TOPICS_MAX", "PARTITIONS_MAX"):
        monkeypatch.setattr(survey_machine, name, {"STORES_MAX": 2, "TOPICS_MAX": 3, "PARTITIONS_MAX": 4}[name])
    play = Census(Config().with_node(peers_max=5))
    play.begin()
    for number in range(10):
        for command in COMMANDS["store"]:
            play.machine.receive_subscriptions(subscription(command, f"EARLY{number}"), play.now)
        play.join(f"STORE{number}", "store")
        play.see(f"STRANGER{number}")
        play.hear(0, Partition("orders", f"PRODUCER{number}"))
        play.machine.receive_subscriptions(subscription(Command.RECORD, f"topic{number}"), play.now)
    survey = play.machine.survey(play.now)
    assert (len(survey.nodes), len(play.machine.stores)) == (5, 2)
    assert (len(survey.topics), len(survey.partitions)) == (3, 4)
    limits = [
        "only 5 nodes are shown: there are more",
        "only 2 stores are asked: there are more",
        "only 3 topics are shown: there are more",
        "only 4 partitions are shown: there are more",
    ]
    assert sorted(survey.limits) == sorted(limits)
    assert set(limits) <= set(survey.faults(0))
    play.machine.begin_round(play.now)
    assert play.machine.survey(play.now).limits == ()


def test_few_nodes_that_subscribe_without_a_beacon_are_remembered() -> None:
    play = Census(Config().with_node(peers_max=3))
    for number in range(4):
        for command in COMMANDS["store"]:
            play.machine.receive_subscriptions(subscription(command, f"EARLY{number}"), play.now)
    play.join("EARLY2")
    play.join("EARLY3")
    assert [node.roles for node in play.machine.survey(play.now).nodes] == [("store",), ()]


def test_subscriptions_without_a_beacon_are_forgotten_when_they_end() -> None:
    play = Census(Config().with_node(peers_max=1))
    for active in (True, False):
        for command in COMMANDS["store"]:
            play.machine.receive_subscriptions(subscription(command, "EARLY", active=active), play.now)
    for command in COMMANDS["store"]:
        play.machine.receive_subscriptions(subscription(command, STORE), play.now)
    play.join(STORE)
    assert play.machine.stores == {STORE: PeerEndpoint("tcp://10.0.0.1:7000")}


@pytest.mark.parametrize(
    ("recording", "roles", "topic", "count"),
    [
        (
            "libdafka-session",
            {"710623": "store", "BF929C": "store writer", "FC8332": "producer", "87BB96": "consumer"},
            "hello",
            5,
        ),
        (
            "libdafka-late-store",
            {"D6C435": "store", "2BCD94": "store writer", "FABBAB": "producer", "522476": "consumer"},
            "events",
            3,
        ),
    ],
)
def test_a_recorded_cluster_of_libdafka_is_understood(
    recording: str, roles: dict[str, str], topic: str, count: int
) -> None:
    events = json.loads((VECTORS / f"{recording}.json").read_text())
    recorder = next(bytes.fromhex(each["frames"][1]).decode() for each in events if len(each["frames"]) == 3)
    machine = SurveyMachine(recorder, Config())
    decoder = wire.BatchDecoder()
    for event in events:
        frames = [bytes.fromhex(frame) for frame in event["frames"]]
        if event["kind"] == "beacon" and len(frames) == 3:
            machine.node_table.record_beacon(TOWER, TowerBeacon.decode(frames), event["t"])
        elif event["kind"] == "subscription":
            found = decode_subscription(frames[0])
            assert found is not None
            machine.receive_subscriptions([found], event["t"])
        elif event["kind"] == "message" and frames[0][:1] == b"H":
            machine.receive(decoder.decode([frames]), event["t"])
    survey = machine.survey(events[-1]["t"])
    assert {node.address[:6]: " ".join(node.roles) for node in survey.nodes} == roles
    (partition,) = survey.partitions
    assert (partition.partition.topic, partition.end_sequence) == (topic, count)
