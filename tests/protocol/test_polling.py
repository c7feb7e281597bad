"""Polls: which stores have answered, when a question is repeated, and when its patience runs out."""

from __future__ import annotations

import math

from dafka.protocol.polling import LASTING_INTERVAL_S, RETRY_WAITS_S, LastingQuestion, RetrySchedule, StorePoll


def make_poll(retry_factor: float = 1.0) -> StorePoll:
    return StorePoll(patience_s=2.0, retry_s=0.5, retry_factor=retry_factor, quiet_s=1.0)


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


def test_the_deadline_names_each_time_to_look_again_once() -> None:
    poll = make_poll()
    poll.restart_patience(0.0)
    poll.restart_quiet(0.0)
    assert poll.deadline() == 1.0
    poll.take_retry(1.0)
    assert poll.deadline() == 2.0
    poll.take_retry(2.0)
    assert poll.deadline() == math.inf


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


def test_a_question_that_is_asked_anew_is_soon_repeated_again() -> None:
    question = LastingQuestion("ME", (1.0, 4.0))
    for begin in (0.0, 1000.0):
        question.record_asked(begin)
        waits, now = [], begin
        for _ in range(4):
            waits.append(question.deadline() - now)
            assert not question.take_due(question.deadline() - 0.001)
            now = question.deadline()
            assert question.take_due(now)
        assert all(
            0.75 * wait <= found <= 1.25 * wait
            for found, wait in zip(waits, (1.0, 4.0, LASTING_INTERVAL_S, LASTING_INTERVAL_S), strict=True)
        )
    question.stop()
    assert (question.is_asked, question.deadline()) == (False, math.inf)
