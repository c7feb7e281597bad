"""The share groups of a coordinator: their members, and the stored states of their share partitions."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

from dafka.broker.core.coordination.effects import Action, Answer, DropReplacedStates, Token, write_state
from dafka.broker.core.coordination.state_records import StateRecord, decode_key
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.settings import GroupSettings
from dafka.broker.core.groups.share.membership import ShareMembership
from dafka.broker.core.groups.share.records import (
    SHARE_GROUP,
    SHARE_MEMBER,
    SHARE_PARTITION,
    decode_group,
    decode_member,
    decode_partition,
)
from dafka.broker.core.groups.share.state import NO_STATE, SharePartitionKey, ShareState
from dafka.broker.core.groups.share.states import LoadedShareState, ShareStates
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.metadata.log_replicas import LogKey

SHARE_KINDS = frozenset((SHARE_GROUP, SHARE_MEMBER, SHARE_PARTITION))
"""The kinds of records of share groups."""


class ShareCoordinator:
    """The share groups of one shard. `make_id` returns a unique text, such as a UUID."""

    def __init__(self, settings: GroupSettings, log_table: LogTable, make_id: Callable[[], str]) -> None:
        self.membership = ShareMembership(settings, log_table)
        self._states = ShareStates(make_id)

    def restore(self, record: StateRecord) -> None:
        """Restore a record of one of the `SHARE_KINDS`. Raise `StorageFormatError` as `GroupCoordinator.restore`."""
        kind = decode_key(record)[0]
        if kind == SHARE_GROUP:
            self.membership.restore_group(*decode_group(record))
        elif kind == SHARE_MEMBER:
            self.membership.restore_member(*decode_member(record))
        else:
            self._states.restore(*decode_partition(record))

    def has_states(self, group_id: str) -> bool:
        """Return whether a group has received records."""
        return group_id in self._states

    def load_state(self, key: SharePartitionKey, leader_epoch: int) -> tuple[list[Action], LoadedShareState]:
        """Load the state of a share partition for the leader of its log; see `ShareStates.load`.

        Return what precedes the answer, and the answer.
        """
        if key.group_id not in self.membership.groups:
            return [], LoadedShareState(ErrorCode.GROUP_ID_NOT_FOUND)
        records, loaded = self._states.load(key, leader_epoch)
        return write_state(records), loaded

    def write_state(self, key: SharePartitionKey, state: ShareState) -> tuple[list[Action], ErrorCode]:
        """Store the state of a share partition; see `ShareStates.write`.

        Return what precedes the answer, and the error.
        """
        records, error = self._states.write(key, state)
        return write_state(records), error

    def states_of(self, group_id: str) -> Mapping[LogKey, ShareState] | None:
        """Return the states of a group's share partitions, by log; None if there is no such group."""
        return dict(self._states.of(group_id)) if group_id in self.membership.groups else None

    def create_group(self, token: Token, group_id: str, offsets: Mapping[LogKey, int], now_ms: int) -> list[Action]:
        """Create a group, unless there is one, which begins at offsets in logs in which it has not begun.

        The result is an `ErrorCode`.
        """
        records, error = self.membership.create_group(group_id, now_ms)
        if not error:
            known = self._states.of(group_id)
            for log, offset in offsets.items():
                if known.get(log, NO_STATE).start_offset < 0:
                    records += self._states.set_start(SharePartitionKey(group_id, *log), offset)
        return [*write_state(records), *self.drop_replaced(), Answer(token, error)]

    def set_starts(self, token: Token, group_id: str, offsets: Mapping[LogKey, int], now_ms: int) -> list[Action]:
        """Set the start offsets of share partitions, and create the group unless there is one.

        The result is an `ErrorCode`; the group must have no members.
        """
        records, error = self.membership.create_group(group_id, now_ms)
        error = error or self._check_unused(group_id)
        if not error:
            for log, offset in offsets.items():
                records += self._states.set_start(SharePartitionKey(group_id, *log), offset)
        return [*write_state(records), *self.drop_replaced(), Answer(token, error)]

    def delete_states(self, token: Token, group_id: str, topic_ids: Container[str]) -> list[Action]:
        """Delete the states of topics. The result is an `ErrorCode`; the group must have no members."""
        error = self._check_unused(group_id)
        records = [] if error else self._states.delete_topics(topic_ids, group_id)
        return [*write_state(records), *self.drop_replaced(), Answer(token, error)]

    def drop_replaced(self) -> list[Action]:
        """Return what follows the records that set or delete states: the leaders of the logs drop the former ones."""
        replaced = self._states.take_replaced()
        return [DropReplacedStates(replaced)] if replaced else []

    def delete_topics(self, topic_ids: Container[str]) -> list[StateRecord]:
        """Delete the states of deleted topics. Return the records to write."""
        return self._states.delete_topics(topic_ids)

    def discard_group(self, group_id: str) -> list[StateRecord]:
        """Forget an unused group and its states. Return the records to write."""
        return [*self._states.delete_group(group_id), *self.membership.discard_group(group_id)]

    def _check_unused(self, group_id: str) -> ErrorCode:
        group = self.membership.groups.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.NONE if group.is_unused else ErrorCode.NON_EMPTY_GROUP
