"""The committed offsets of groups, and the pending offsets of open transactions."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping

import attrs

from dafka.broker.core.coordination.state_records import StateRecord
from dafka.broker.core.groups.records import CommittedOffset, OffsetKey, encode_offset
from dafka.broker.core.topic_partition import TopicPartition


class CommittedOffsets:
    """The offsets of all groups. Methods that change them return the records to write."""

    def __init__(self) -> None:
        self._committed: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self._pending: dict[str, dict[int, dict[TopicPartition, CommittedOffset]]] = {}
        self._order = 0

    def __contains__(self, group_id: str) -> bool:
        """Return whether a group has committed or pending offsets."""
        return group_id in self._committed or group_id in self._pending

    def group_ids(self) -> set[str]:
        """Return the groups with committed or pending offsets."""
        return self._committed.keys() | self._pending.keys()

    def get(self, group_id: str, log: TopicPartition) -> CommittedOffset | None:
        """Return the committed offset of a group for a log; None if there is none."""
        return self._committed.get(group_id, {}).get(log)

    def all_of(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """Return all committed offsets of a group."""
        return dict(self._committed.get(group_id, {}))

    def is_unstable(self, group_id: str, log: TopicPartition) -> bool:
        """Return whether an open transaction has an offset of a group for a log."""
        return any(log in offsets for offsets in self._pending.get(group_id, {}).values())

    def unstable_logs(self, group_id: str) -> frozenset[TopicPartition]:
        """Return the logs for which open transactions have offsets of a group."""
        return frozenset(log for offsets in self._pending.get(group_id, {}).values() for log in offsets)

    def commit(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset], producer_id: int | None = None
    ) -> list[StateRecord]:
        """Commit offsets of a group, or add them to the open transaction of a producer."""
        records = []
        for log, offset in offsets.items():
            self._order += 1
            ordered = attrs.evolve(offset, order=self._order)
            self._put(OffsetKey(group_id, log, producer_id), ordered)
            records.append(encode_offset(OffsetKey(group_id, log, producer_id), ordered))
        return records

    def end_transaction(self, group_id: str, producer_id: int, is_commit: bool) -> list[StateRecord]:
        """Commit or discard the pending offsets of a producer's transaction for a group.

        Returns no records if the transaction has no offsets any more.
        """
        records = []
        for log, offset in dict(self._pending.get(group_id, {}).get(producer_id, {})).items():
            if is_commit:
                former = self.get(group_id, log)
                if former is None or former.order < offset.order:
                    self._put(OffsetKey(group_id, log), offset)
                    records.append(encode_offset(OffsetKey(group_id, log), offset))
            records.append(self._remove(OffsetKey(group_id, log, producer_id)))
        return records

    def delete(self, group_id: str, logs: Iterable[TopicPartition]) -> list[StateRecord]:
        """Delete committed offsets of a group."""
        committed = self._committed.get(group_id, {})
        return [self._remove(OffsetKey(group_id, log)) for log in logs if log in committed]

    def delete_group(self, group_id: str) -> list[StateRecord]:
        """Delete all offsets of a group."""
        return [self._remove(key) for key in list(self._keys(group_id))]

    def delete_topics(self, topic_ids: Container[str], name: str = "") -> list[StateRecord]:
        """Delete the offsets of deleted topics, by their ids.

        Offsets without an id are deleted if their topic has this name.
        """

        def is_gone(key: OffsetKey) -> bool:
            committed = self._find(key)
            return committed.topic_id in topic_ids if committed.topic_id else key.log.topic == name

        keys = [key for group_id in self.group_ids() for key in self._keys(group_id)]
        return [self._remove(key) for key in filter(is_gone, keys)]

    def expire(
        self,
        group_id: str,
        now_ms: int,
        *,
        retention_ms: int,
        unused_since_ms: int | None,
        subscribed_topics: frozenset[str] = frozenset(),
    ) -> list[StateRecord]:
        """Delete the offsets of a group that have expired. Offsets of subscribed topics stay.

        Offsets are retained for `retention_ms` since the group became empty (`unused_since_ms`), or since their commit
        if that is None or later.
        """

        def has_expired(log: TopicPartition, committed: CommittedOffset) -> bool:
            if log.topic in subscribed_topics or self.is_unstable(group_id, log):
                return False
            if committed.expire_timestamp_ms is not None:
                return committed.expire_timestamp_ms <= now_ms
            since_ms = max(committed.commit_timestamp_ms, unused_since_ms or 0)
            return since_ms + retention_ms <= now_ms

        expired = [log for log, each in self._committed.get(group_id, {}).items() if has_expired(log, each)]
        return self.delete(group_id, expired)

    def restore(self, key: OffsetKey, committed: CommittedOffset | None) -> None:
        """Restore an offset from its record, or forget it if the record is a tombstone."""
        if committed is None:
            self._remove(key)
        else:
            self._order = max(self._order, committed.order)
            self._put(key, committed)

    def _keys(self, group_id: str) -> Iterator[OffsetKey]:
        for log in self._committed.get(group_id, {}):
            yield OffsetKey(group_id, log)
        for producer_id, offsets in self._pending.get(group_id, {}).items():
            for log in offsets:
                yield OffsetKey(group_id, log, producer_id)

    def _find(self, key: OffsetKey) -> CommittedOffset:
        if key.producer_id is None:
            return self._committed[key.group_id][key.log]
        return self._pending[key.group_id][key.producer_id][key.log]

    def _put(self, key: OffsetKey, committed: CommittedOffset) -> None:
        if key.producer_id is None:
            self._committed.setdefault(key.group_id, {})[key.log] = committed
        else:
            self._pending.setdefault(key.group_id, {}).setdefault(key.producer_id, {})[key.log] = committed

    def _remove(self, key: OffsetKey) -> StateRecord:
        if key.producer_id is None:
            committed = self._committed.get(key.group_id, {})
            committed.pop(key.log, None)
            if not committed:
                self._committed.pop(key.group_id, None)
        else:
            producers = self._pending.get(key.group_id, {})
            pending = producers.get(key.producer_id, {})
            pending.pop(key.log, None)
            if not pending:
                producers.pop(key.producer_id, None)
            if not producers:
                self._pending.pop(key.group_id, None)
        return encode_offset(key, None)
