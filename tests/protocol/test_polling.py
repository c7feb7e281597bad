"""Polls: which stores have answered, when a question is repeated, and when its patience runs out."""

from __future__ import annotations

import math

from dafka.protocol.polling import RETRY_WAITS_S, PendingPeers, RetrySchedule, StorePoll


def make_poll(retry_factor: float = 1.0) -> StorePoll:
    return StorePoll(patience_s=2.0, retry_s=0.5, retry_factor=retry_factor, quiet_s=1.0)


def test_a_poll_is_answered_when_every_store_has_answered() -> None:
    poll = make_poll()
    poll.restart_patience(0.0)
    poll.add_answer("A")
    assert poll.unanswered(["A", "B"]) == ["B"]
    assert not poll.is_answered(["A", "B"], 0.1, is_pending=False)
    poll.add_answer("B")
    assert poll.is_answered(["A", "B"], 0.1, is_pending=False)
    assert not poll.is_answered(["A", "B"], 0.1, is_pending=True)


def test_a_silent_store_is_waited_for_until_the_patience_runs_out() -> None:
    poll = make_poll()
    assert not poll.is_answered(["A"], 100.0, is_pending=True), "the patience has not begun"
    poll.restart_patience(0.0)
    assert not poll.is_answered(["A"], 1.9, is_pending=True)
    assert poll.is_answered(["A"], 2.0, is_pending=True)


def test_an_answer_counts_for_its_question_and_earlier_ones() -> None:
    poll = make_poll()
    poll.question = 2
    poll.add_answer("A", 1)
    assert (poll.has_answered("A", 1), poll.has_answered("A")) == (True, False)
    poll.add_answer("A", 3)
    poll.add_answer("A", 1)
    assert poll.has_answered("A", 3), "an earlier answer that arrives late takes nothing back"
    poll.forget_answers("A")
    assert not poll.has_answered("A", 1)


def test_a_question_is_repeated_once_it_is_due() -> None:
    poll = make_poll()
    assert not poll.take_retry(100.0), "nothing was asked"
    poll.record_asked(0.0)
    assert poll.deadline() == 0.5
    assert not poll.take_retry(0.4)
    assert poll.take_retry(0.5)
    assert not poll.take_retry(0.6), "it was not asked again"
    poll.record_asked(1.0, 5.0)
    assert poll.deadline() == 6.0


def test_waits_between_repetitions_grow_until_they_are_restarted() -> None:
    poll = make_poll(retry_factor=2.0)
    waits = []
    for restart in (False, False, False, True):
        if restart:
            poll.restart_retries()
        poll.record_asked(0.0)
        waits.append(poll.retry_due)
    assert waits == [0.5, 1.0, 2.0, 0.5]


def test_news_extend_the_quiet_time_but_never_shorten_it() -> None:
    poll = make_poll()
    assert poll.is_quiet(0.0)
    poll.restart_quiet(0.0)
    assert (poll.is_quiet(0.9), poll.is_quiet(1.0)) == (False, True)
    poll.restart_quiet(0.0, 3.0)
    poll.restart_quiet(1.0)
    assert poll.quiet_until == 3.0


def test_the_deadline_names_each_time_to_look_again_once() -> None:
    poll = make_poll()
    poll.restart_patience(0.0)
    poll.restart_quiet(0.0)
    assert poll.deadline() == 1.0
    poll.take_retry(1.0)
    assert poll.deadline() == 2.0
    poll.take_retry(2.0)
    assert poll.deadline() == math.inf


def test_a_discovered_node_is_pending_until_it_connects_or_leaves() -> None:
    pending = PendingPeers(10)
    for address in ("A", "B", ""):
        pending.add_node(address)
    assert pending.addresses == {"A", "B"}
    pending.record_subscription("A")
    pending.remove_node("B")
    assert pending.addresses == set()
    pending.add_node("A")
    assert pending.addresses == set(), "it is still connected"


def test_a_message_is_repeated_a_few_times() -> None:
    schedule = RetrySchedule[str]()
    schedule.schedule("A", 0.0)
    first, second = RETRY_WAITS_S
    assert schedule.deadline() == first
    assert schedule.take_due(first - 0.1) == []
    assert schedule.take_due(first) == ["A"]
    assert schedule.take_due(first + second) == ["A"]
    assert schedule.deadline() == math.inf


def test_several_messages_are_repeated_each_in_time() -> None:
    schedule = RetrySchedule[str]()
    schedule.schedule("A", 0.0)
    schedule.schedule("B", 0.25)
    first, _ = RETRY_WAITS_S
    assert schedule.deadline() == first
    assert schedule.take_due(first) == ["A"]
    assert schedule.deadline() == first + 0.25
    assert schedule.take_due(first + 0.25) == ["B"]


def test_a_canceled_message_is_not_repeated() -> None:
    schedule = RetrySchedule[str]()
    schedule.schedule("A", 0.0)
    schedule.cancel("A")
    schedule.cancel("B")
    assert schedule.take_due(100.0) == []
