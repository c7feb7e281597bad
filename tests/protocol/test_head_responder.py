"""Answers to requests for heads: which heads, in which order, and how many at a time."""

from __future__ import annotations

import pytest

from dafka import wire
from dafka.protocol.actions import Action, Publish
from dafka.protocol.answering import head_responder
from dafka.protocol.answering.head_responder import (
    FOLLOWING_MAX,
    PAUSE_S,
    SLICE,
    UNVERIFIED_PAUSE_S,
    UNVERIFIED_SLICE,
    HeadResponder,
)


class Heads:
    """A responder over topics with some partitions each; it records which heads are sent to whom."""

    def __init__(self, **partitions: int) -> None:
        self.durable = {topic: {f"P{number}": 1 for number in range(count)} for topic, count in partitions.items()}
        self.calls: list[tuple[str, str, int, int]] = []
        self.responder = HeadResponder(self.durable, self._send)

    def _send(self, topic: str, requestor: str, first: int, count: int) -> list[Action]:
        self.calls.append((topic, requestor, first, count))
        addresses = list(self.durable[topic])[first : first + count]
        return [Publish(wire.DirectHead(requestor, address, topic, 0)) for address in addresses]

    def next(self) -> list[tuple[str, str, str]]:
        """Return the next heads as requestor, topic and address."""
        actions = self.responder.next_heads()
        messages = [action.message for action in actions if isinstance(action, Publish)]
        return [(each.requestor, each.subject, each.address) for each in messages if isinstance(each, wire.DirectHead)]

    def ask(self, requestor: str, *topics: str, verified: bool = True) -> bool:
        return self.responder.add_request(requestor, topics, is_verified=verified)


def all_heads(requestor: str, topic: str, first: int, end: int) -> list[tuple[str, str, str]]:
    return [(requestor, topic, f"P{number}") for number in range(first, end)]


def earliest(requestor: str, sequence: int = 0) -> wire.DirectEarliest:
    return wire.DirectEarliest(requestor, "STORE", "P", "t", sequence, 0)


def test_without_requests_there_is_nothing_to_do() -> None:
    heads = Heads(t=3)
    assert not heads.responder
    assert heads.responder.pause_s == float("inf")
    assert heads.next() == []


@pytest.mark.parametrize(
    ("verified", "slice_size", "pause_s"), [(True, SLICE, PAUSE_S), (False, UNVERIFIED_SLICE, UNVERIFIED_PAUSE_S)]
)
def test_many_heads_are_sent_a_slice_at_a_time(verified: bool, slice_size: int, pause_s: float) -> None:
    count = 2 * slice_size + 1
    heads = Heads(t=count)
    assert heads.ask("C", "t", verified=verified)
    assert heads.responder
    assert heads.responder.pause_s == pause_s
    assert heads.next() == all_heads("C", "t", 0, slice_size)
    assert heads.next() == all_heads("C", "t", slice_size, 2 * slice_size)
    assert heads.responder
    assert heads.next() == all_heads("C", "t", 2 * slice_size, count)
    assert not heads.responder
    assert heads.next() == []


def test_a_topic_that_fills_a_slice_is_finished_with_it() -> None:
    heads = Heads(t=SLICE)
    heads.ask("C", "t")
    assert len(heads.next()) == SLICE
    assert not heads.responder


def test_small_topics_of_all_requestors_share_a_slice() -> None:
    heads = Heads(a=3, b=2)
    heads.ask("C", "a", "b")
    heads.ask("D", "b")
    expected = [*all_heads("C", "a", 0, 3), *all_heads("D", "b", 0, 2), *all_heads("C", "b", 0, 2)]
    assert heads.next() == expected
    assert [call[3] for call in heads.calls] == [SLICE, SLICE - 3, SLICE - 5]
    assert not heads.responder


def test_requestors_take_turns() -> None:
    heads = Heads(t=SLICE + 1)
    heads.ask("C", "t")
    heads.ask("D", "t")
    assert heads.next() == all_heads("C", "t", 0, SLICE)
    assert heads.next() == all_heads("D", "t", 0, SLICE)
    assert heads.next() == [*all_heads("C", "t", SLICE, SLICE + 1), *all_heads("D", "t", SLICE, SLICE + 1)]


def test_a_topic_is_finished_before_the_next_one_of_its_requestor() -> None:
    heads = Heads(a=SLICE + 1, b=1)
    heads.ask("C", "a", "b")
    heads.next()
    assert heads.next() == [("C", "a", f"P{SLICE}"), ("C", "b", "P0")]


def test_unknown_topics_are_ignored_and_the_known_ones_answered() -> None:
    heads = Heads(t=1)
    assert heads.ask("C", "x", "t", "y")
    assert heads.next() == [("C", "t", "P0")]


def test_a_request_repeated_before_its_answer_begins_is_answered_once() -> None:
    heads = Heads(t=2)
    heads.ask("C", "t")
    heads.ask("C", "t", "t")
    assert heads.next() == all_heads("C", "t", 0, 2)
    assert not heads.responder


def test_a_request_repeated_during_its_answer_is_answered_once_more_from_the_beginning() -> None:
    heads = Heads(t=SLICE + 1)
    heads.ask("C", "t")
    heads.next()
    heads.ask("C", "t")
    heads.ask("C", "t")
    assert heads.next() == [("C", "t", f"P{SLICE}"), *all_heads("C", "t", 0, SLICE - 1)]
    assert heads.next() == all_heads("C", "t", SLICE - 1, SLICE + 1)
    assert not heads.responder


def test_verified_requestors_come_first_and_do_not_take_the_share_of_others() -> None:
    heads = Heads(t=SLICE + 1)
    heads.ask("U", "t", verified=False)
    heads.ask("V", "t")
    assert heads.responder.pause_s == PAUSE_S
    assert heads.next() == [*all_heads("V", "t", 0, SLICE), *all_heads("U", "t", 0, UNVERIFIED_SLICE)]


def test_a_requestor_that_is_verified_once_stays_so_while_it_is_answered() -> None:
    heads = Heads(a=1, b=1)
    heads.ask("C", "a")
    heads.ask("C", "b", verified=False)
    assert heads.responder.pause_s == PAUSE_S
    heads.next()
    assert not heads.responder


def test_a_removed_partition_repeats_only_the_answers_that_have_begun() -> None:
    heads = Heads(a=SLICE + 2, b=1)
    heads.ask("C", "a")
    heads.ask("D", "b")
    heads.next()
    del heads.durable["a"]["P0"]
    for topic in "ab":
        heads.responder.partition_removed(topic)
    rest = [found for _ in range(5) for found in heads.next()]
    assert [each for each in rest if each[1] == "b"] == all_heads("D", "b", 0, 1)
    assert {address for _, topic, address in rest if topic == "a"} == {f"P{number}" for number in range(1, SLICE + 2)}


# Limits


def test_requests_beyond_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_responder, "QUESTIONS_MAX", 3)
    heads = Heads(a=1, b=1, c=1, d=1)
    assert heads.ask("C", "a", "b")
    assert not heads.ask("D", "a", "b")
    assert heads.ask("D", "a"), "a request that is already being answered needs no room"
    assert heads.next() == [("C", "a", "P0"), ("D", "a", "P0"), ("C", "b", "P0")]
    assert heads.ask("E", "a", "b", "c"), "all room is free again"
    assert not heads.ask("E", "d")


def test_room_is_free_again_after_long_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_responder, "QUESTIONS_MAX", 1)
    heads = Heads(t=3 * SLICE)
    for _ in range(3):
        assert heads.ask("C", "t")
        heads.next()
        assert heads.ask("C", "t"), "repeated while it is answered"
        assert not heads.ask("D", "t")
        for _ in range(5):
            heads.next()
        assert not heads.responder


def test_a_verified_requestor_displaces_the_unverified_one_that_waited_longest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(head_responder, "QUESTIONS_MAX", 3)
    heads = Heads(a=1, b=1, c=1)
    assert heads.ask("U1", "a", "b", verified=False)
    assert heads.ask("U2", "a", verified=False)
    assert not heads.ask("U3", "a", verified=False), "one unverified requestor does not displace another"
    assert heads.ask("V", "a", "b")
    assert heads.next() == [("V", "a", "P0"), ("V", "b", "P0"), ("U2", "a", "P0")]
    assert heads.ask("V", "a", "b", "c")
    assert not heads.ask("W", "a"), "verified requestors are not displaced"


# Messages after the heads


def test_a_message_follows_the_heads_of_its_requestor() -> None:
    heads = Heads(t=SLICE + 1)
    heads.ask("C", "t")
    assert heads.responder.send_after_heads(earliest("C", 1))
    assert heads.responder.send_after_heads(earliest("C", 2))
    assert not heads.responder.send_after_heads(earliest("D")), "the caller sends it at once"
    assert Publish(earliest("C", 1)) not in heads.responder.next_heads()
    assert heads.responder.next_heads()[-2:] == [Publish(earliest("C", 1)), Publish(earliest("C", 2))]
    assert not heads.responder.send_after_heads(earliest("C", 3))


def test_a_message_follows_the_heads_of_an_unverified_requestor() -> None:
    heads = Heads(t=1)
    heads.ask("C", "t", verified=False)
    assert heads.responder.send_after_heads(earliest("C"))
    assert heads.responder.next_heads()[-1] == Publish(earliest("C"))


def test_messages_that_wait_for_heads_are_limited() -> None:
    heads = Heads(t=1)
    heads.ask("C", "t")
    for sequence in range(FOLLOWING_MAX + 1):
        assert heads.responder.send_after_heads(earliest("C", sequence))
    following = heads.responder.next_heads()[1:]
    assert following == [Publish(earliest("C", sequence)) for sequence in range(FOLLOWING_MAX)]


def test_messages_after_heads_count_as_work() -> None:
    heads = Heads(t=1)
    for number in range(SLICE):
        heads.ask(f"C{number}", "t")
        heads.responder.send_after_heads(earliest(f"C{number}"))
    assert len(heads.responder.next_heads()) == SLICE
    assert len(heads.responder.next_heads()) == SLICE
    assert not heads.responder
