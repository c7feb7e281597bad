"""The stored states of the share partitions of all share groups of a coordinator.

The leaders of the logs load and write them. A leader that has loaded a state is the only one that can write it, until a
later leader loads it. So no leader overwrites what a later one has confirmed to members.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping

import attrs

from dafka.broker.core.coordination.effects import ReplacedState
from dafka.broker.core.coordination.state_records import StateRecord
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.share.records import SHARE_PARTITION, encode_partition, encode_tombstone
from dafka.broker.core.groups.share.state import NO_STATE, SharePartitionKey, ShareState
from dafka.broker.core.metadata.log_replicas import LogKey


@attrs.frozen
class LoadedShareState:
    """The result of loading a state."""

    error_code: ErrorCode
    state: ShareState = NO_STATE


class ShareStates:
    """The states, by group and log. `make_id` returns a unique text, such as a UUID."""

    def __init__(self, make_id: Callable[[], str]) -> None:
        self._make_id = make_id
        self._states: dict[str, dict[LogKey, ShareState]] = {}
        self._replaced: dict[SharePartitionKey, str] = {}

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._states

    def of(self, group_id: str) -> Mapping[LogKey, ShareState]:
        """Return the states of a group, by log."""
        return self._states.get(group_id, {})

    def restore(self, key: SharePartitionKey, state: ShareState | None) -> None:
        """Restore a state from its record, or forget it if the record is a tombstone."""
        if state is not None:
            self._put(key, state)
        elif key.log in self.of(key.group_id):
            self._drop(key)

    def load(self, key: SharePartitionKey, leader_epoch: int) -> tuple[list[StateRecord], LoadedShareState]:
        """Return the state for the leader of a log in an epoch, and the records to write before it is answered.

        The state is that before this leader. Its error is FENCED_LEADER_EPOCH if a later leader has loaded it.
        """
        state = self.of(key.group_id).get(key.log) or attrs.evolve(NO_STATE, state_id=self._make_id())
        if leader_epoch < state.loaded_epoch:
            return [], LoadedShareState(ErrorCode.FENCED_LEADER_EPOCH)
        loaded = attrs.evolve(state, loaded_epoch=leader_epoch)
        records = [] if loaded == state else [self._put(key, loaded)]
        return records, LoadedShareState(ErrorCode.NONE, loaded)

    def write(self, key: SharePartitionKey, state: ShareState) -> tuple[list[StateRecord], ErrorCode]:
        """Replace a state. Return the records to write before the error is answered.

        The error is FENCED_LEADER_EPOCH if a later leader has loaded the state, and FENCED_STATE_EPOCH if it was
        deleted, or its start offset set.
        """
        known = self.of(key.group_id).get(key.log)
        if known is None or known.state_id != state.state_id:
            return [], ErrorCode.FENCED_STATE_EPOCH
        if state.loaded_epoch < known.loaded_epoch:
            return [], ErrorCode.FENCED_LEADER_EPOCH
        return [] if state == known else [self._put(key, state)], ErrorCode.NONE

    def set_start(self, key: SharePartitionKey, offset: int) -> list[StateRecord]:
        """Set the start offset of a share partition, and forget what it has delivered. Return the records to write."""
        known = self.of(key.group_id).get(key.log, NO_STATE)
        state = ShareState(self._make_id(), known.loaded_epoch, -1, offset, ())
        self._replaced[key] = state.state_id
        return [self._put(key, state)]

    def delete_group(self, group_id: str) -> list[StateRecord]:
        """Delete all states of a group. Return the records to write."""
        return self._delete(SharePartitionKey(group_id, *log) for log in list(self.of(group_id)))

    def delete_topics(self, topic_ids: Container[str], *group_ids: str) -> list[StateRecord]:
        """Delete the states of topics, in some groups or in all if none is named. Return the records to write."""
        found = [
            SharePartitionKey(group_id, *log)
            for group_id in group_ids or list(self._states)
            for log in self.of(group_id)
            if log.topic_id in topic_ids
        ]
        return self._delete(found)

    def take_replaced(self) -> tuple[ReplacedState, ...]:
        """Return the states that were set or deleted since the last call, which leaders can still have in memory."""
        replaced, self._replaced = self._replaced, {}
        return tuple(ReplacedState(*key, state_id) for key, state_id in replaced.items())

    def _delete(self, keys: Iterable[SharePartitionKey]) -> list[StateRecord]:
        records = list[StateRecord]()
        for key in keys:
            records.append(self._drop(key))
            self._replaced[key] = ""
        return records

    def _put(self, key: SharePartitionKey, state: ShareState) -> StateRecord:
        self._states.setdefault(key.group_id, {})[key.log] = state
        return encode_partition(key, state)

    def _drop(self, key: SharePartitionKey) -> StateRecord:
        states = self._states[key.group_id]
        del states[key.log]
        if not states:
            del self._states[key.group_id]
        return encode_tombstone(SHARE_PARTITION, *key)
