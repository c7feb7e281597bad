"""Fetch sessions, as KIP-227 describes them."""

from __future__ import annotations

from itertools import count

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


def test_wrong_ids_and_epochs() -> None:
    sessions = open_sessions()
    sessions.begin(0, 0, {A: 0}, [], 0)
    assert sessions.begin(2, 1, {}, [], 0).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    for epoch in (2, 5):
        assert sessions.begin(1, epoch, {}, [], 0).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert sessions.begin(1, 1, {}, [], 0).error_code == ErrorCode.NONE
    assert sessions.begin(1, 1, {}, [], 0).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_full_requests_end_the_session_that_they_name() -> None:
    sessions = open_sessions()
    sessions.begin(0, 0, {A: 0}, [], 0)
    again = sessions.begin(1, 0, {B: 0}, [], 0)
    assert (again.session_id, len(sessions)) == (2, 1)
    final = sessions.begin(2, -1, {B: 0}, [], 0)
    assert (final.session_id, dict(final.wanted), len(sessions)) == (0, {B: 0}, 0)
    assert final.select_news(quiet(B)) == [B]


def test_session_that_has_forgotten_everything_ends() -> None:
    sessions = open_sessions()
    sessions.begin(0, 0, {A: 0}, [], 0)
    empty = sessions.begin(1, 1, {}, [A], 0)
    assert (empty.error_code, empty.session_id, dict(empty.wanted)) == (ErrorCode.NONE, 0, {})
    assert len(sessions) == 0


def test_epochs_begin_again_with_1() -> None:
    sessions = open_sessions()
    sessions.begin(0, 0, {A: 0}, [], 0)
    sessions._sessions[1].epoch = 2**31 - 1
    assert sessions.begin(1, 2**31 - 1, {}, [], 0).error_code == ErrorCode.NONE
    assert sessions.begin(1, 1, {}, [], 0).error_code == ErrorCode.NONE


def test_idle_session_makes_room_for_another() -> None:
    sessions = open_sessions(sessions_max=2, idle_ms=100)
    for time_ms in (0, 10):
        sessions.begin(0, 0, {A: 0}, [], time_ms)
    sessions.begin(1, 1, {}, [], 20)  # the second one is now the least recently used
    refused = sessions.begin(0, 0, {B: 0}, [], 109)
    assert (refused.session_id, dict(refused.wanted), refused.error_code) == (0, {B: 0}, ErrorCode.NONE)
    assert refused.select_news(quiet(B)) == [B]
    assert sessions.begin(0, 0, {B: 0}, [], 110).session_id == 3
    assert sessions.begin(2, 1, {}, [], 110).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert sessions.begin(1, 2, {}, [], 110).error_code == ErrorCode.NONE


def test_logs_of_all_sessions_are_limited() -> None:
    sessions = open_sessions(partitions_max=3)
    sessions.begin(0, 0, {A: 0, B: 0}, [], 0)
    assert sessions.begin(0, 0, {A: 0, B: 0}, [], 0).session_id == 0
    assert sessions.begin(0, 0, {C: 0}, [], 0).session_id == 2
    assert sessions.begin(2, 1, {A: 0}, [], 0).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert sessions.begin(1, 1, {C: 0}, [A], 0).error_code == ErrorCode.NONE
    assert sessions.begin(1, 2, {}, [B], 0).error_code == ErrorCode.NONE
    assert sessions.begin(0, 0, {A: 0, B: 0}, [], 0).session_id == 3


def test_answer_to_a_request_whose_session_has_ended_meanwhile() -> None:
    sessions = open_sessions()
    first = sessions.begin(0, 0, {A: 0}, [], 0)
    sessions.begin(1, -1, {A: 0}, [], 0)
    assert first.select_news(quiet(A)) == [A]
    assert sessions.begin(0, 0, {A: 0}, [], 0).session_id == 2
