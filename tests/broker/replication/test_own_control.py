"""A broker's own control records: written, durable in their order, removed when they are obsolete or their log is."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from types import SimpleNamespace
from typing import Any

import attrs

from dafka.broker.core.replication.records import (
    BRANCHES_TOPIC,
    NO_EPOCH_END,
    ControlRecord,
    EpochStart,
    LeaderAndEpoch,
    Vote,
    VoteRequest,
    decode_control,
    key_of,
)
from dafka.broker.replication.own_control import OwnControl
from tests.seeds import each_seed

LOG, OTHER = "id/0", "id/1"


@attrs.define
class Storage:
    """A state with keys and values."""

    values: dict[bytes, bytes] = attrs.field(factory=dict)
    writes: int = 0

    def write_state(self, topic: str, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
        assert topic == BRANCHES_TOPIC
        self.writes += 1
        for key, value in changes:
            if value is None:
                del self.values[key]
            else:
                self.values[key] = value

    @property
    def records(self) -> set[ControlRecord]:
        return {decode_control(each) for each in self.values.values()}


class Logs:
    """Logs, each with the latest epoch that has begun."""

    def __init__(self) -> None:
        self.latest: dict[str, int] = {LOG: 0, OTHER: 0}

    def find(self, name: str) -> Any:
        epoch = self.latest.get(name)
        if epoch is None:
            return None
        row = EpochStart(name, LeaderAndEpoch(epoch, "a"), NO_EPOCH_END, ("a",))
        return SimpleNamespace(replica=SimpleNamespace(latest=row))


class History:
    """What happens to a broker's records, and which of them it must have."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        self.storage, self.logs = Storage(), Logs()
        self.control = self.make()
        self.kept: dict[str, dict[str, ControlRecord]] = {LOG: {}, OTHER: {}}
        self.waiting: list[ControlRecord] = []
        self.writing: list[ControlRecord] = []
        self.writes = 0

    def make(self) -> OwnControl:
        parts: Any = self.logs, self.storage
        return OwnControl(*parts)

    def write(self, log: str) -> None:
        """Write a record. Requests and votes of epochs before the latest one of its log are removed with it."""
        epoch, kept = LeaderAndEpoch(self.draw.randrange(9), "a"), self.kept[log]
        request, vote = VoteRequest(log, epoch, ("a", "b")), Vote(log, epoch, NO_EPOCH_END, (("a", "b"),))
        rows: list[ControlRecord] = [request, vote, EpochStart(log, epoch, NO_EPOCH_END, ("a", "b"))]
        record = self.draw.choice(rows)
        self.control.write(record)
        kept[key_of(record)] = record
        for key, each in list(kept.items()):
            if not isinstance(each, EpochStart) and each.leader_epoch.epoch < self.logs.latest.get(log, 0):
                del kept[key]
        self.waiting.append(record)
        self.writes += 1

    def begin(self, _log: str) -> None:
        self.control.begin_write()
        self.waiting, self.writing = [], self.writing + self.waiting  # the last write can have failed

    def done(self, _log: str) -> None:
        assert self.control.write_done() == self.writing
        self.writing = []

    def advance(self, log: str) -> None:
        self.logs.latest[log] = self.draw.randrange(9)
        if self.logs.latest[log] == 8:
            del self.logs.latest[log]  # nothing is known of the log

    def forget(self, log: str) -> None:
        self.control.forget([log, "unknown/0"])
        self.writes += bool(self.kept[log])
        self.kept[log] = {}

    def restart(self, _log: str) -> None:
        self.control, self.waiting, self.writing = self.make(), [], []
        for each in self.storage.records:
            self.control.restore(key_of(each), each)

    def remove(self, log: str) -> None:
        """Restore a record that another process of the broker has removed."""
        if self.kept[log]:
            key = self.draw.choice(sorted(self.kept[log]))
            self.control.restore(key, None)
            del self.kept[log][key], self.storage.values[key.encode()]


@each_seed(100)
def test_any_history_of_records_follows_a_model(seed: int) -> None:
    history = History(seed)
    actions = [*[history.write] * 4, history.begin, history.done, history.advance, history.forget, history.restart]
    for _ in range(60):
        history.draw.choice([*actions, history.remove])(history.draw.choice([LOG, OTHER]))
        assert history.storage.records == {each for records in history.kept.values() for each in records.values()}
        assert history.control.is_durable == (not history.waiting and not history.writing)
        assert history.storage.writes == history.writes
