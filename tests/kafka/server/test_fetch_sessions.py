"""Fetch sessions, as KIP-227 describes them."""

from __future__ import annotations

from itertools import count
from random import Random

import pytest

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.topic_partition import TopicPartition
from dafka.kafka.server.fetch_sessions import FetchSessions, LogProgress

A, B, C = (TopicPartition("orders", number) for number in range(3))
EMPTY = LogProgress(0, 0, 0)


def open_sessions(**limits: int) -> FetchSessions[int]:
    ids = count(1)
    return FetchSessions(lambda: next(ids), **limits)


def quiet(*logs: TopicPartition, end: int = 0) -> list[tuple[TopicPartition, LogProgress, bool]]:
    return [(log, LogProgress(end, end, 0), False) for log in logs]


def test_session_goes_on_with_what_has_changed() -> None:
    sessions = open_sessions()
    first = sessions.begin(0, 0, {A: 0, B: 0}, [], 0)
    assert (first.error_code, first.session_id, dict(first.wanted)) == (ErrorCode.NONE, 1, {A: 0, B: 0})
    assert first.select_news(quiet(A, B)) == [A, B]
    second = sessions.begin(1, 1, {B: 7, C: 0}, [A], 0)
    assert (second.error_code, second.session_id, dict(second.wanted)) == (ErrorCode.NONE, 1, {B: 7, C: 0})
    assert second.select_news(quiet(B, C)) == [C]
    third = sessions.begin(1, 2, {}, [], 0)
    assert dict(third.wanted) == {B: 7, C: 0}
    assert third.select_news(quiet(B, C)) == []


@pytest.mark.parametrize("news", [LogProgress(1, 0, 0), LogProgress(0, 1, 0), LogProgress(0, 0, 1)])
def test_log_that_has_advanced_is_news_once(news: LogProgress) -> None:
    sessions = open_sessions()
    sessions.begin(0, 0, {A: 0}, [], 0).select_news(quiet(A))
    assert sessions.begin(1, 1, {}, [], 0).select_news([(A, news, False)]) == [A]
    assert sessions.begin(1, 2, {}, [], 0).select_news([(A, news, False)]) == []


def test_records_and_errors_are_always_news_and_the_other_logs_come_first_then() -> None:
    sessions = open_sessions()
    sessions.begin(0, 0, {A: 0, B: 0}, [], 0).select_news(quiet(A, B))
    for epoch in (1, 2):
        found = sessions.begin(1, epoch, {}, [], 0)
        first, second = found.wanted
        assert found.select_news([(first, EMPTY, True), (second, EMPTY, False)]) == [first]
        assert list(sessions.begin(1, 99, {}, [], 0).wanted) == []
    assert list(sessions.begin(1, 3, {}, [], 0).wanted) == [A, B]


def test_epochs_begin_again_with_1() -> None:
    sessions = open_sessions()
    sessions.begin(0, 0, {A: 0}, [], 0)
    sessions._sessions[1].epoch = 2**31 - 1
    assert sessions.begin(1, 2**31 - 1, {}, [], 0).error_code == ErrorCode.NONE
    assert sessions.begin(1, 1, {}, [], 0).error_code == ErrorCode.NONE


def test_answer_to_a_request_whose_session_has_ended_meanwhile() -> None:
    sessions = open_sessions()
    first = sessions.begin(0, 0, {A: 0}, [], 0)
    sessions.begin(1, -1, {A: 0}, [], 0)
    assert first.select_news(quiet(A)) == [A]
    assert sessions.begin(0, 0, {A: 0}, [], 0).session_id == 2


LOGS = [TopicPartition("orders", number) for number in range(4)]


@pytest.mark.parametrize("seed", range(30))
def test_any_history_of_sessions_follows_a_plain_model(seed: int) -> None:
    """The model keeps what each session wants and when it was used; limits are those of KIP-227."""
    random, time_ms, opened = Random(seed), 0, 0
    sessions = open_sessions(sessions_max=3, partitions_max=8, idle_ms=50)
    model: dict[int, tuple[int, int, dict[TopicPartition, int]]] = {}  # the epoch, the time, and what it wants
    for _ in range(200):
        time_ms += random.choice((0, 1, 25))
        session_id = random.choice((0, *model, opened + 5))
        changed = {log: random.randrange(100) for log in LOGS if random.random() < 0.4}
        forgotten = [log for log in LOGS if random.random() < 0.2]
        epoch = random.choice((-1, 0, *[model.get(session_id, (1,))[0]] * 6, 2))
        size = sum(len(wanted) for _, _, wanted in model.values())
        expected: tuple[ErrorCode, int, dict[TopicPartition, int]]
        if epoch in {-1, 0}:
            size -= len(model.pop(session_id, (0, 0, {}))[2])
            expected = ErrorCode.NONE, 0, changed
            oldest = min(model, key=lambda each: (model[each][1], list(model).index(each)), default=0)
            if epoch == 0 and changed and (len(model) < 3 or time_ms - model[oldest][1] >= 50):
                if len(model) == 3:
                    size -= len(model.pop(oldest)[2])
                if size + len(changed) <= 8:
                    opened += 1
                    model[opened] = 1, time_ms, dict(changed)
                    expected = ErrorCode.NONE, opened, changed
        elif session_id not in model:
            expected = ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0, {}
        elif model[session_id][0] != epoch:
            expected = ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0, {}
        else:
            _, _, wanted = model.pop(session_id)
            if size + len(changed.keys() - wanted.keys()) > 8:
                expected = ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0, {}
            else:
                wanted = {log: at for log, at in (wanted | changed).items() if log not in forgotten}
                expected = ErrorCode.NONE, session_id if wanted else 0, wanted
                if wanted:
                    model[session_id] = epoch + 1, time_ms, wanted
        found = sessions.begin(session_id, epoch, changed, forgotten, time_ms)
        assert (found.error_code, found.session_id, dict(found.wanted)) == expected
        assert len(sessions) == len(model)
