"""Polls: which stores have answered, when a question is repeated, and when its patience runs out."""

from __future__ import annotations

import math

from dafka.protocol.polling import LASTING_INTERVAL_S, LastingQuestion


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
