"""Share sessions (KIP-932): which logs each member of a share group reads here, so that requests need not repeat them.

A session has a member of a group. A request with the epoch 0 begins it, later requests have the next epochs, and one
with the epoch -1 ends it.
"""

from __future__ import annotations

import uuid
from collections.abc import Hashable, Iterable
from typing import NamedTuple

import attrs

from dafka.broker.core.error_codes import ErrorCode
from dafka.kafka.protocol.constants import FINAL_EPOCH, INITIAL_EPOCH

_EPOCH_MAX = 2**31 - 1


class SharedLog(NamedTuple):
    """A log, as the members of share groups name it."""

    topic_id: uuid.UUID
    number: int


class ShareMemberId(NamedTuple):
    """A member of a share group."""

    group_id: str
    member_id: str


@attrs.define(eq=False)
class ShareSession:
    """A session.

    Attributes:
        client: The connection on which it began.
        epoch: The epoch of its next request.
        logs: The logs that the member reads; those whose records were returned last come last.
    """

    client: Hashable
    epoch: int = 1
    logs: dict[SharedLog, None] = attrs.field(factory=dict)

    def delay(self, log: SharedLog) -> None:
        """Read a log after the others the next time, because its records were returned."""
        if log in self.logs:
            del self.logs[log]
            self.logs[log] = None


class ShareSessions:
    """All share sessions of a broker.

    `sessions_max` limits their number, and `logs_max` the logs in all of them together: a request that would exceed a
    limit gets no session. Each session may have its equal part of these logs in any case. So no member loses its
    session to others.
    """

    def __init__(self, sessions_max: int = 2_000, logs_max: int = 200_000) -> None:
        self._sessions_max = sessions_max
        self._logs_max = logs_max
        self._log_count = 0
        self._sessions: dict[ShareMemberId, ShareSession] = {}
        self._members: dict[Hashable, set[ShareMemberId]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self,
        member: ShareMemberId,
        epoch: int,
        client: Hashable,
        added: Iterable[SharedLog] = (),
        forgotten: Iterable[SharedLog] = (),
    ) -> tuple[ErrorCode, ShareSession | None]:
        """Find the session of a request, and change its logs; begin one in the epoch 0.

        Return the error or NONE, and the session. A session with too many logs ends.
        """
        session = self._sessions.get(member)
        if epoch == INITIAL_EPOCH:
            self.end(member)
            if len(self._sessions) >= self._sessions_max:
                return ErrorCode.SHARE_SESSION_LIMIT_REACHED, None
            session = self._sessions[member] = ShareSession(client)
            self._members.setdefault(client, set()).add(member)
        elif session is None:
            return ErrorCode.SHARE_SESSION_NOT_FOUND, None
        elif epoch not in {session.epoch, FINAL_EPOCH}:
            return ErrorCode.INVALID_SHARE_SESSION_EPOCH, None
        else:
            session.epoch = 1 if session.epoch == _EPOCH_MAX else session.epoch + 1
        before = len(session.logs)
        session.logs.update(dict.fromkeys(added))
        for log in forgotten:
            session.logs.pop(log, None)
        self._log_count += len(session.logs) - before
        if self._log_count > self._logs_max and len(session.logs) > self._logs_max // self._sessions_max:
            self.end(member)
            return ErrorCode.SHARE_SESSION_LIMIT_REACHED, None
        return ErrorCode.NONE, session

    def end(self, member: ShareMemberId) -> None:
        """End the session of a member, if there is one."""
        session = self._sessions.pop(member, None)
        if session is not None:
            self._log_count -= len(session.logs)
            members = self._members[session.client]
            members.discard(member)
            if not members:
                del self._members[session.client]

    def end_of(self, client: Hashable) -> list[ShareMemberId]:
        """End the sessions that began on a connection, which has closed. Return their members."""
        members = sorted(self._members.get(client, ()))
        for member in members:
            self.end(member)
        return members
