"""What readers of committed records see of a log that has had twenty leaders, whose indexes were rewritten."""

from __future__ import annotations

import random

import pytest

from dafka.broker.core.log import offset_assigner as ordering
from dafka.broker.core.positions import Offset
from dafka.broker.core.replication.epoch_tree import EpochTree
from dafka.broker.core.replication.records import NO_EPOCH_END, EpochStart, LeaderAndEpoch
from tests.broker.core.entries import epoch_end
from tests.broker.core.replication.read_log import Indexed, ReadLog

LEADERS = 20


class Log:
    """A log whose leaders change; what the former one had appended last may be lost."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.rewrite_entries = self.draw.choice([0, 10, 2000])
        self.branch = LeaderAndEpoch(0, "a")
        self.table = EpochTree([EpochStart("log", self.branch, NO_EPOCH_END, ("a", "b", "c"))])
        self.branches: dict[LeaderAndEpoch, tuple[int, list[Indexed]]] = {self.branch: (0, [])}
        self.records: list[Indexed] = []
        self.begun = 0
        self.running: dict[int, int] = {}
        self.led = self.restore(is_led=True)

    def restore(self, *, is_led: bool) -> ReadLog:
        log = ReadLog(self.branch.leader, self.branch, self.rewrite_entries)
        log.restore(self.table, self.branches, is_led=is_led)
        log.state.high_watermark = log.state.index.end_offset
        assert log.state.index.end_offset == len(self.records)
        return log

    def append(self) -> None:
        producer_id = self.draw.randrange(3)
        number = self.running.get(producer_id)
        if number is not None and self.draw.random() < 0.3:
            record = Indexed.make("marker", producer_id, number, self.draw.random() < 0.5)
            del self.running[producer_id]
        elif number is not None or self.draw.random() < 0.3:
            if number is None:
                number = self.running[producer_id] = self.begun
                self.begun += 1
            record = Indexed.make("record", producer_id, number)
        else:
            record = Indexed.make("plain")
        self.led.append(record)
        self.branches[self.branch][1].append(record)
        self.records.append(record)
        self.led.state.high_watermark = Offset(len(self.records))

    def change_leader(self, epoch: int) -> None:
        """Let the next leader continue the log, perhaps not from its end."""
        lost = self.draw.choice([0, 0, 1, 3])
        start = self.branches[self.branch][0]
        end = max(len(self.records) - lost, start)
        del self.records[end:]
        ended = {each.transaction for each in self.records if each.is_commit is not None}
        self.running = {
            each.producer_id: each.transaction
            for each in self.records
            if each.transaction is not None and each.producer_id is not None and each.transaction not in ended
        }
        parent = epoch_end(self.branch, end)
        self.branch = LeaderAndEpoch(epoch * 1024, self.draw.choice("abc"))
        self.table.add(EpochStart("log", self.branch, parent, ("a", "b", "c")))
        self.branches[self.branch] = (end, [])
        self.led = self.restore(is_led=True)

    def check(self, log: ReadLog) -> None:
        decisions = {each.transaction: each.is_commit for each in self.records if each.is_commit is not None}
        undecided = [
            offset
            for offset, each in enumerate(self.records)
            if each.transaction is not None and each.transaction not in decisions
        ]
        stable = log.state.last_stable_offset
        assert stable == min([len(self.records), *undecided])
        first = self.draw.randint(0, stable)
        for offset, is_visible in log.visible(self.records, first):
            number = self.records[offset].transaction
            assert is_visible == (True if number is None else decisions[number]), f"the record at {offset}"


@pytest.mark.parametrize("seed", range(5))
def test_aborted_records_stay_hidden_through_twenty_changes_of_leaders(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(seed)
    monkeypatch.setattr(ordering, "REWRITE_EPOCHS", log.draw.choice([2, 8]))
    for leader in range(1, LEADERS + 1):
        for _ in range(log.draw.randint(0, 12)):
            log.append()
        log.check(log.led)
        log.check(log.restore(is_led=False))  # a follower
        log.led = log.restore(is_led=True)  # the leader is restarted
        log.check(log.led)
        log.change_leader(leader)
        log.check(log.led)
