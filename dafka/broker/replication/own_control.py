"""The control records that a broker has written: its votes, vote requests and epoch starts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import attrs

from dafka.broker.core.replication.records import BRANCHES_TOPIC, ControlRecord, encode_control, key_of
from dafka.broker.core.replication.replicated_logs import ReplicatedLogs, is_obsolete
from dafka.broker.log.broker_storage import BrokerStorage


@attrs.define(eq=False, slots=False)
class OwnControl:
    """The control records of one broker, of which it removes the obsolete ones."""

    _logs: ReplicatedLogs
    _storage: BrokerStorage
    _records: defaultdict[str, dict[str, ControlRecord]] = attrs.field(init=False, factory=lambda: defaultdict(dict))
    _waiting: list[ControlRecord] = attrs.field(init=False, factory=list)
    _writing: list[ControlRecord] = attrs.field(init=False, factory=list)

    @property
    def is_durable(self) -> bool:
        """Whether all records are durable."""
        return not self._waiting and not self._writing

    def write(self, record: ControlRecord) -> None:
        """Write a record, and remove the records of its log that it makes obsolete."""
        key = key_of(record)
        self._waiting.append(record)
        own = self._records[record.log]
        own[key] = record
        changes: list[tuple[bytes, bytes | None]] = [(key.encode(), encode_control(record))]
        log = self._logs.find(record.log)
        if log is not None:
            epoch = log.replica.latest.leader_epoch.epoch
            for obsolete in [key for key, each in own.items() if is_obsolete(each, epoch)]:
                del own[obsolete]
                changes.append((obsolete.encode(), None))
        self._storage.write_state(BRANCHES_TOPIC, changes)

    def begin_write(self) -> None:
        """Record that the records so far are being written."""
        self._writing += self._waiting
        self._waiting = []

    def write_done(self) -> list[ControlRecord]:
        """Return the records that are durable now."""
        written, self._writing = self._writing, []
        return written

    def restore(self, key: str, record: ControlRecord | None) -> None:
        """Restore a record from the storage; None if it was removed."""
        if record is None:
            self._records[key.partition("/")[2].rpartition("/")[0]].pop(key, None)
        else:
            self._records[record.log][key] = record

    def forget(self, logs: Iterable[str]) -> None:
        """Remove the records of logs that are deleted."""
        removed: list[tuple[bytes, bytes | None]] = [
            (key.encode(), None) for log in logs for key in self._records.pop(log, {})
        ]
        if removed:
            self._storage.write_state(BRANCHES_TOPIC, removed)
