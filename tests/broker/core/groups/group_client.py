"""A coordinator of groups for tests, and members of its groups."""

import itertools
from collections.abc import Callable
from typing import Any

import attrs

from dafka.broker.core.coordination.effects import Action, Answer, WriteState
from dafka.broker.core.coordination.state_records import StateRecord
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.coordinator import GroupCoordinator
from dafka.broker.core.groups.results import (
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    SyncRequest,
    SyncResult,
)
from dafka.broker.core.groups.settings import GroupSettings
from dafka.broker.core.log.log_table import LogTable

NO_DELAY = GroupSettings(group_initial_rebalance_delay_ms=0)
RANGE = (("range", b"range metadata"),)
BOTH = (("range", b"r"), ("sticky", b"s"))


class Groups:
    """A coordinator, the time, and the answers and records so far."""

    def __init__(
        self, settings: GroupSettings = NO_DELAY, records: list[StateRecord] | None = None, now_ms: int = 0
    ) -> None:
        self.settings = settings
        self.now_ms = now_ms
        self.records = list(records or [])
        self.answers: dict[int, Any] = {}
        self._tokens = itertools.count()
        ids = itertools.count()
        self.coordinator = GroupCoordinator(settings, lambda: f"{len(self.records)}-{next(ids)}", LogTable(""))
        for record in self.records:
            self.coordinator.restore(record)
        self.coordinator.start(self.now_ms)

    def take(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, WriteState):
                self.records += action.records
            elif isinstance(action, Answer):
                assert isinstance(action.token, int)
                assert action.token not in self.answers
                self.answers[action.token] = action.result

    def call(self, method: Callable[..., list[Action]], *arguments: Any) -> int:
        token = next(self._tokens)
        self.take(method(token, *arguments, self.now_ms))
        return token

    def join(self, member_id: str = "", **fields: Any) -> int:
        given: dict[str, Any] = {
            "group_id": "g",
            "client_id": "c",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 30_000,
            "protocol_type": "consumer",
            "protocols": RANGE,
            **fields,
        }
        request = JoinRequest(member_id=member_id, **given)
        return self.call(self.coordinator.join_group, request)

    def joined(self, member_id: str = "", **fields: Any) -> JoinResult:
        result = self.answers[self.join(member_id, **fields)]
        assert isinstance(result, JoinResult)
        return result

    def sync(self, joined: JoinResult, assignments: dict[str, bytes] | None = None, **fields: Any) -> int:
        request = SyncRequest(
            group_id="g",
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=tuple((assignments or {}).items()),
        )
        return self.call(self.coordinator.sync_group, attrs.evolve(request, **fields))

    def synced(self, joined: JoinResult, assignments: dict[str, bytes] | None = None, **fields: Any) -> SyncResult:
        result = self.answers[self.sync(joined, assignments, **fields)]
        assert isinstance(result, SyncResult)
        return result

    def beat(self, joined: JoinResult, group_instance_id: str | None = None) -> ErrorCode:
        return self.coordinator.heartbeat("g", joined.generation_id, joined.member_id, group_instance_id, self.now_ms)

    def leave(self, *leaving: LeavingMember, group_id: str = "g") -> LeaveResult:
        result = self.answers[self.call(self.coordinator.leave_group, group_id, leaving)]
        assert isinstance(result, LeaveResult)
        return result

    def wait(self, duration_ms: int) -> None:
        end_ms = self.now_ms + duration_ms
        while (deadline_ms := self.coordinator.next_deadline_ms()) is not None and deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            self.take(self.coordinator.advance(self.now_ms))
        self.now_ms = end_ms

    def restart(self) -> "Groups":
        return Groups(self.settings, self.records, self.now_ms)

    @property
    def state(self) -> str:
        return self.coordinator.describe_group("g").state
