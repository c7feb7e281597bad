"""Fetch sessions (KIP-227): requests and responses contain only the logs that have changed.

A request with the epoch 0 names all logs and begins a session. Later requests have the next epochs; they name new logs,
logs whose position has changed, and logs to forget. Their responses leave out unchanged logs. A request with the epoch
-1 names all logs and belongs to no session.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import attrs

from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.protocol.constants import FINAL_EPOCH, INITIAL_EPOCH
from dafka.kafka.protocol.tables import NIL

_T = TypeVar("_T")

NO_SESSION = 0
"""The session id for no session."""

_EPOCH_MAX = 2**31 - 1


class FetchedLog(NamedTuple):
    """A log as its client names it: by the name of its topic, or by the topic's id and an empty name."""

    topic: str
    partition: int
    topic_id: uuid.UUID = NIL


class LogProgress(NamedTuple):
    """The state of a log in the last response. Other values are news."""

    high_watermark: int
    last_stable_offset: int
    log_start_offset: int


@attrs.define(eq=False)
class _Session(Generic[_T]):
    """The state of a session.

    `epoch` is that of its next request. All requests name topics by id if it `uses_ids`. `wanted` has the client's
    request for each log; logs whose records were returned last come last. `sent` is the progress of each log in the
    last response that had it.
    """

    session_id: int
    epoch: int
    used_at_ms: int
    uses_ids: bool
    wanted: dict[FetchedLog, _T]
    sent: dict[FetchedLog, LogProgress] = attrs.field(factory=dict)


@attrs.define(eq=False)
class SessionFetch(Generic[_T]):
    """A request, completed from its session: the client's request for each log, in the order of reading."""

    error_code: ErrorCode
    session_id: int = NO_SESSION
    wanted: Mapping[FetchedLog, _T] = attrs.field(factory=dict)
    _session: _Session[_T] | None = None
    _is_full: bool = True

    def select_news(self, results: Sequence[tuple[FetchedLog, LogProgress, bool]]) -> Sequence[FetchedLog]:
        """Return the logs that the response must contain: all logs for a full request, otherwise the logs with news.

        Each result is a log that was read, its progress, and whether it has records or an error.
        """
        session = self._session
        if session is None:
            return [log for log, _, _ in results]
        news = []
        for log, progress, has_content in results:
            if self._is_full or has_content or session.sent.get(log) != progress:
                news.append(log)
            if log not in session.wanted:
                continue  # a later request has forgotten it
            session.sent[log] = progress
            if has_content:
                session.wanted[log] = session.wanted.pop(log)
        return news


@attrs.define(eq=False, slots=False)
class FetchSessions(Generic[_T]):
    """All sessions of a broker. `draw_id` returns a random number from 1 to 2**31 - 1.

    Beyond `sessions_max`, a new session replaces the least recently used one if that has been idle for `idle_ms`;
    otherwise clients continue without sessions. `partitions_max` limits the logs in all sessions together.
    """

    _draw_id: Callable[[], int]
    _sessions_max: int = attrs.field(default=1000, kw_only=True)
    _partitions_max: int = attrs.field(default=200_000, kw_only=True)
    _idle_ms: int = attrs.field(default=120_000, kw_only=True)
    _sessions: dict[int, _Session[_T]] = attrs.field(init=False, factory=dict)  # the least recently used one is first
    _partitions: int = attrs.field(init=False, default=0)

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self,
        session_id: int,
        epoch: int,
        changed: Mapping[FetchedLog, _T],
        forgotten: Iterable[FetchedLog],
        time_ms: int,
        *,
        uses_ids: bool = False,
    ) -> SessionFetch[_T]:
        """Complete a request with the session id and epoch from its session.

        `changed` is the client's request for each log that it names; `forgotten` logs are removed from the session. The
        request names topics by id if it `uses_ids`.
        """
        if epoch in {FINAL_EPOCH, INITIAL_EPOCH}:
            self._close(session_id)
            session = self._open(changed, time_ms, uses_ids) if epoch == INITIAL_EPOCH else None
            opened = (NO_SESSION, changed) if session is None else (session.session_id, dict(session.wanted))
            return SessionFetch(ErrorCode.NONE, *opened, session)
        session = self._sessions.get(session_id)
        if session is None:
            return SessionFetch(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if epoch != session.epoch or uses_ids is not session.uses_ids:
            invalid = ErrorCode.INVALID_FETCH_SESSION_EPOCH
            return SessionFetch(invalid if epoch != session.epoch else ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        added = len(changed.keys() - session.wanted.keys())
        if self._partitions + added > self._partitions_max:
            self._close(session_id)
            return SessionFetch(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        self._change(session, changed, forgotten)
        if not session.wanted:
            self._close(session_id)
            return SessionFetch(ErrorCode.NONE)
        session.epoch = 1 if epoch == _EPOCH_MAX else epoch + 1
        session.used_at_ms = time_ms
        self._sessions[session_id] = self._sessions.pop(session_id)
        return SessionFetch(ErrorCode.NONE, session_id, dict(session.wanted), session, False)

    def _change(self, session: _Session[_T], changed: Mapping[FetchedLog, _T], forgotten: Iterable[FetchedLog]) -> None:
        self._partitions -= len(session.wanted)
        session.wanted.update(changed)
        for log in forgotten:
            session.wanted.pop(log, None)
            session.sent.pop(log, None)
        self._partitions += len(session.wanted)

    def _open(self, wanted: Mapping[FetchedLog, _T], time_ms: int, uses_ids: bool) -> _Session[_T] | None:
        """Open a session; None if there are too many."""
        if not wanted:
            return None
        if len(self._sessions) >= self._sessions_max:
            oldest = next(iter(self._sessions.values()))
            if time_ms - oldest.used_at_ms < self._idle_ms:
                return None
            self._close(oldest.session_id)
        if self._partitions + len(wanted) > self._partitions_max:
            return None
        session_id = self._draw_id()
        while session_id in self._sessions:
            session_id = self._draw_id()
        session = self._sessions[session_id] = _Session(session_id, 1, time_ms, uses_ids, dict(wanted))
        self._partitions += len(wanted)
        return session

    def _close(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partitions -= len(session.wanted)
            session.wanted.clear()
