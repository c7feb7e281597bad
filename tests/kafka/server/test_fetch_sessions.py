"""Fetch sessions, as KIP-227 describes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from random import Random
from typing import TypeAlias

import attrs
import pytest

from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.server.fetch_sessions import FetchedLog, FetchSessions, LogProgress, SessionFetch


def test_epochs_begin_again_with_1() -> None:
    sessions = FetchSessions[int](lambda: 1)
    sessions.begin(0, 0, {FetchedLog("orders", 0): 0}, [], 0)
    sessions._sessions[1].epoch = 2**31 - 1
    assert sessions.begin(1, 2**31 - 1, {}, [], 0).error_code == ErrorCode.NONE
    assert sessions.begin(1, 1, {}, [], 0).error_code == ErrorCode.NONE


Wanted: TypeAlias = dict[FetchedLog, int]

LOGS = [FetchedLog("orders", number) for number in range(4)]
SESSIONS_MAX, PARTITIONS_MAX, IDLE_MS = 3, 8, 50
PROGRESS = [LogProgress(0, 0, 0), LogProgress(1, 0, 0), LogProgress(0, 1, 0), LogProgress(0, 0, 1)]


@attrs.define
class Session:
    """A session of the model."""

    wanted: Wanted
    used_at_ms: int
    epoch: int = 1
    sent: dict[FetchedLog, LogProgress] = attrs.field(factory=dict)

    def select(self, results: list[tuple[FetchedLog, LogProgress, bool]], *, is_full: bool) -> list[FetchedLog]:
        news = [log for log, progress, is_news in results if is_full or is_news or self.sent.get(log) != progress]
        known = [each for each in results if each[0] in self.wanted]  # a later request can have forgotten the others
        self.sent.update({log: progress for log, progress, _ in known})
        for log in [log for log, _, is_news in known if is_news]:
            self.wanted[log] = self.wanted.pop(log)
        return news


class Model:
    """Sessions as KIP-227 describes them. Ids are drawn that are in use, too."""

    def __init__(self) -> None:
        self.drawn = self.ids()
        self.sessions: dict[int, Session] = {}

    @staticmethod
    def ids() -> Iterator[int]:
        return (number // 2 % 7 + 1 for number in count())

    @property
    def size(self) -> int:
        return sum(len(each.wanted) for each in self.sessions.values())

    def close(self, session_id: int) -> None:
        if session_id in self.sessions:
            self.sessions.pop(session_id).wanted.clear()

    def open(self, wanted: Wanted, time_ms: int) -> int:
        """Return the id of a new session; 0 if there can be none."""
        if wanted and len(self.sessions) == SESSIONS_MAX:
            oldest = min(self.sessions, key=lambda each: self.sessions[each].used_at_ms)
            if time_ms - self.sessions[oldest].used_at_ms < IDLE_MS:
                return 0
            self.close(oldest)
        if not wanted or self.size + len(wanted) > PARTITIONS_MAX:
            return 0
        session_id = next(each for each in self.drawn if each not in self.sessions)
        self.sessions[session_id] = Session(dict(wanted), time_ms)
        return session_id

    def begin(
        self, session_id: int, epoch: int, changed: Wanted, forgotten: list[FetchedLog], time_ms: int
    ) -> tuple[ErrorCode, int, Wanted]:
        """Return the error, the session's id, and what is read."""
        if epoch in {-1, 0}:
            self.close(session_id)
            return ErrorCode.NONE, self.open(changed, time_ms) if epoch == 0 else 0, changed
        session = self.sessions.get(session_id)
        if session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0, {}
        if session.epoch != epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0, {}
        del self.sessions[session_id]
        if self.size + len(changed.keys() | session.wanted.keys()) > PARTITIONS_MAX:
            session.wanted.clear()
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0, {}
        session.wanted = {log: at for log, at in (session.wanted | changed).items() if log not in forgotten}
        session.sent = {log: progress for log, progress in session.sent.items() if log not in forgotten}
        session.epoch, session.used_at_ms = epoch + 1, time_ms
        if session.wanted:
            self.sessions[session_id] = session  # the last one that was used
        return ErrorCode.NONE, session_id if session.wanted else 0, dict(session.wanted)


@pytest.mark.parametrize("seed", range(30))
def test_any_history_of_sessions_follows_the_model(seed: int) -> None:
    random, time_ms, model, drawn = Random(seed), 0, Model(), Model.ids()
    late: list[Callable[[], None]] = []
    sessions = FetchSessions[int](
        lambda: next(drawn), sessions_max=SESSIONS_MAX, partitions_max=PARTITIONS_MAX, idle_ms=IDLE_MS
    )
    for _ in range(200):
        time_ms += random.choice((0, 0, IDLE_MS // 2, IDLE_MS))
        session_id = random.choice((0, 9, *model.sessions, *model.sessions))
        known = model.sessions.get(session_id)
        epoch = random.choice((-1, 0, 0, *[1 if known is None else known.epoch] * 8, 2))
        changed = {log: random.randrange(100) for log in LOGS if random.random() < 0.4}
        forgotten = [log for log in LOGS if random.random() < 0.2]
        error, expected_id, wanted = model.begin(session_id, epoch, changed, forgotten, time_ms)
        found = sessions.begin(session_id, epoch, changed, forgotten, time_ms)
        assert (found.error_code, found.session_id, list(found.wanted.items())) == (
            error,
            expected_id,
            [*wanted.items()],
        )
        assert len(sessions) == len(model.sessions)
        results = [(log, random.choice(PROGRESS), random.random() < 0.3) for log in wanted]
        session = model.sessions.get(expected_id)

        def answer(
            found: SessionFetch[int] = found,
            session: Session | None = session,
            results: list[tuple[FetchedLog, LogProgress, bool]] = results,
            is_full: bool = epoch == 0,
        ) -> None:
            logs = [log for log, _, _ in results]
            news = logs if session is None else session.select(results, is_full=is_full)
            assert list(found.select_news(results)) == news

        late.append(answer)
        while late and random.random() < 0.8:  # a response can be made after a later request has come
            late.pop(0)()
