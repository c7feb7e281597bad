"""GET-TOPICS and DIRECT-TOPICS (erratum 27): a store lists its topics, and an observer collects the lists."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from dafka import Config, Partition, wire
from dafka.endpoints import PeerEndpoint
from dafka.protocol import PeerJoined, StoreMachine, SurveyMachine
from dafka.protocol.machines.store_answers import PAGE_BYTES_MAX
from dafka.protocol.presence.peer_limits import TOO_OFTEN
from dafka.transport.connector import MESSAGE_BYTES_MAX
from dafka.wire import Command, Dialect, encode
from tests.protocol.helpers import published, subscription

ME = "OBSERVER"
STORE = "STORE"
QUESTIONS: tuple[type[Any], ...] = (wire.GetTopics, wire.GetHeads, wire.Fetch)
LONGEST = [f"{number:05}".ljust(255, "x") for number in range(40)]


def make_store(topics: Iterable[str] = (), partitions: int = 1) -> StoreMachine:
    """Return a store that holds 10 records in each of the partitions of each topic, and that the observer hears."""
    ends = {Partition(topic, f"{number:032X}"): 10 for topic in topics for number in range(partitions)}
    store = StoreMachine(STORE, Config(), ends)
    store.receive_subscriptions(subscription(Command.DIRECT_TOPICS, ME), 0.0)
    store.receive_subscriptions(subscription(Command.DIRECT_HEAD, ME), 0.0)
    store.receive_subscriptions(subscription(Command.DIRECT_EARLIEST, ME), 0.0)
    return store


def ask(store: StoreMachine, after: str = "") -> list[wire.DirectTopics]:
    return published(store.receive([wire.GetTopics(STORE, ME, after)], 1.0), wire.DirectTopics)


def list_topics(store: StoreMachine) -> list[wire.DirectTopics]:
    """Ask for page after page until the list ends."""
    pages = ask(store)
    while pages[-1].remaining:
        pages += ask(store, pages[-1].subjects[-1])
    return pages


def test_a_store_lists_its_topics_once_each_in_pages_of_limited_size() -> None:
    pages = list_topics(make_store(reversed(LONGEST), partitions=3))
    assert len(pages) > 1
    assert [topic for page in pages for topic in page.subjects] == LONGEST
    assert {(page.requestor, page.address, page.partitions) for page in pages} == {(ME, STORE, 120)}
    listed = 0
    for page in pages:
        listed += len(page.subjects)
        assert page.remaining == len(LONGEST) - listed
        assert sum(4 + len(topic) for topic in page.subjects) <= PAGE_BYTES_MAX
        assert all(sum(map(len, encode(page, dialect))) <= MESSAGE_BYTES_MAX for dialect in Dialect)


def test_questions_beyond_the_limit_are_discarded() -> None:
    store = make_store(["a"])
    answers = [answer for _ in range(30_000) for answer in ask(store)]
    assert 100 < len(answers) < 30_000
    assert store.discarded[TOO_OFTEN] == 30_000 - len(answers)


class Play:
    """An observer and one store, whose messages reach each other unless a test drops them."""

    def __init__(self, store: StoreMachine) -> None:
        self.store = store
        self.machine = SurveyMachine(ME, Config())
        self.now = 100.0
        self.dropped = 0
        self.machine.start(self.now)
        self.machine.record_discovery(PeerJoined(STORE, PeerEndpoint("tcp://10.0.0.1:7000")), self.now)
        for command in (Command.CONSUMER_HELLO, Command.DIRECT_EARLIEST, Command.GET_TOPICS):
            self.machine.receive_subscriptions(subscription(command, STORE), self.now)

    def survey(self, drop: int = 0) -> None:
        """Carry out a round. Drop the first pages of the list."""
        actions = self.machine.begin_round(self.now) + self.machine.node_settled(self.now)
        for _ in range(10_000):
            if self.machine.is_complete:
                return
            asked = [message for kind in QUESTIONS for message in published(actions, kind)]
            told = self.store.receive(asked, self.now)
            while self.store.deadline() <= self.now + 0.01:
                self.now = max(self.now, self.store.deadline())
                told += self.store.tick(self.now)
            pages: list[wire.BatchedMessage] = list(published(told, wire.DirectTopics))
            self.dropped += len(pages[:drop])
            drop, pages = max(drop - len(pages), 0), pages[drop:]
            answers = [*pages, *published(told, wire.DirectHead), *published(told, wire.DirectEarliest)]
            actions = self.machine.receive_from_store(STORE, answers, self.now) if answers else []
            if not actions:
                self.now = max(self.now, self.machine.deadline())
                actions = self.machine.tick(self.now)
        raise AssertionError("the round does not end")

    @property
    def topics(self) -> list[str]:
        return [topic.name for topic in self.machine.survey(self.now).topics if topic.is_stored]


@pytest.mark.parametrize("drop", [0, 1, 2])
def test_an_observer_learns_all_topics_and_their_partitions(drop: int) -> None:
    play = Play(make_store(LONGEST, partitions=2))
    play.survey(drop)
    assert play.dropped == drop
    survey = play.machine.survey(play.now)
    assert play.topics == LONGEST
    assert {(each.partitions, each.is_stored) for each in survey.topics} == {(2, True)}
    assert {each.lag for each in survey.partitions} == {0}
    (node,) = survey.nodes
    assert (node.lists_topics, node.topics_held, node.partitions_held) == (True, 40, 80)
    assert [fault for fault in survey.faults(0) if "tower" not in fault] == []
