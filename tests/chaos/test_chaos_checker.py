"""The checker reports records that were lost, doubled, changed or invented."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from dafka.records import Partition, RecordBatch
from dafka.storage import PartitionInfo, open_storage
from tests.chaos.checker import find_different, find_lost, find_unconsumed, find_wrong_contents
from tests.chaos.contents import Sequel, contents_of
from tests.chaos.ledger import ConsumerLedger, LedgerReader, LedgerWriter, ProducerLedger, Published
from tests.chaos.schedule import FAULTS, LOSSES, Pace, plan, plan_each

PARTITION = Partition("orders", "A" * 32)


def batch(first: int, end: int) -> RecordBatch:
    return RecordBatch(PARTITION, first, contents_of(PARTITION.address, first, end))


def held(end: int, earliest: int = 0) -> dict[str, PartitionInfo]:
    return {PARTITION.address: PartitionInfo(earliest, end)}


def published(**values: Any) -> dict[str, Published]:
    return {PARTITION.address: attrs.evolve(Published(acknowledged=10, sent=12), **values)}


class TestSequel:
    def test_runs_that_follow_each_other_are_right(self) -> None:
        assert Sequel().take_all([batch(5, 8), batch(8, 9), batch(9, 100)]) == []

    def test_doubled_record_is_found(self) -> None:
        assert "record 7 of orders/A" in Sequel().take_all([batch(5, 8), batch(7, 9)])[0]

    def test_lost_record_is_found(self) -> None:
        (problem,) = Sequel().take_all([batch(5, 8), batch(9, 12), batch(12, 13)])
        assert problem.startswith("record 9 of")
        assert problem.endswith("came where 8 was due")

    def test_wrong_content_is_found(self) -> None:
        contents = contents_of(PARTITION.address, 0, 10)
        contents[4] = contents[3]
        (problem,) = Sequel().take_all([RecordBatch(PARTITION, 0, contents)])
        assert problem.startswith("record 4 of")

    def test_content_of_another_partition_is_found(self) -> None:
        assert Sequel().take(RecordBatch(PARTITION, 0, contents_of("B" * 32, 0, 1)))


class TestStores:
    def test_what_was_acknowledged_and_more_is_right(self) -> None:
        for end in (10, 11, 12, 13):
            assert find_lost("a", held(end), published()) == []

    @pytest.mark.parametrize(
        ("holdings", "ought"),
        [
            ({}, {}),
            (held(9), {}),
            (held(12, earliest=1), {}),
            (held(11), {"is_spooled": True}),
            (held(13), {"is_complete": True}),
            (held(11), {"is_complete": True}),
        ],
    )
    def test_lost_and_invented_records_are_found(
        self, holdings: dict[str, PartitionInfo], ought: dict[str, Any]
    ) -> None:
        assert len(find_lost("a", holdings, published(**ought))) >= 1

    def test_partition_without_a_producer_is_found(self) -> None:
        assert find_lost("a", held(1), {}) == [f"a holds {PARTITION.address}, which no producer published"]

    def test_different_ranges_are_found(self) -> None:
        assert find_different({"a": held(9), "b": held(9), "c": held(9)}) == []
        assert len(find_different({"a": held(9), "b": held(9), "c": held(10)})) == 1
        assert len(find_different({"a": held(9), "b": held(9, earliest=1)})) == 1
        assert len(find_different({"a": held(9), "b": {}})) == 1

    @pytest.mark.parametrize("scheme", ["sqlite", "filelog"])
    async def test_wrong_content_in_a_storage_is_found(self, scheme: str, tmp_path: Path) -> None:
        url = f"{scheme}:{tmp_path}/store"
        async with open_storage(url) as storage:
            await storage.append([batch(0, 5000)])
        assert await find_wrong_contents("a", url) == (5000, [])
        async with open_storage(url) as storage:
            await storage.append([RecordBatch(PARTITION, 5000, [b"wrong"]), batch(5001, 5002)])
        count, problems = await find_wrong_contents("a", url)
        assert count == 5002
        assert len(problems) == 1
        assert problems[0].startswith("a: record 5000 of")


class TestConsumers:
    @pytest.fixture
    def writer(self, tmp_path: Path) -> LedgerWriter:
        return LedgerWriter(tmp_path / "ledger")

    @pytest.fixture
    def ledger(self, tmp_path: Path) -> ConsumerLedger:
        return ConsumerLedger(LedgerReader(tmp_path / "ledger"))

    def run(self, writer: LedgerWriter, first: int, end: int, saved: int | None = None) -> None:
        writer.write(kind="run", address="A", first=first, end=end)
        if saved is not None:
            writer.write(kind="saved", positions={"A": saved})

    def test_later_life_goes_on_where_the_one_before_had_saved(
        self, writer: LedgerWriter, ledger: ConsumerLedger
    ) -> None:
        writer.write(kind="open")
        self.run(writer, 0, 10, saved=10)
        self.run(writer, 10, 15)
        writer.write(kind="open")
        self.run(writer, 10, 30, saved=30)
        ledger.poll()
        assert (ledger.problems, ledger.ends, ledger.repeated, ledger.records) == ([], {"A": 30}, 5, 35)
        assert find_unconsumed("c", ledger.ends, [{"A": PartitionInfo(0, 30)}, {"A": PartitionInfo(0, 29)}]) == []
        assert len(find_unconsumed("c", ledger.ends, [{"A": PartitionInfo(0, 31)}])) == 1

    @pytest.mark.parametrize(
        ("first", "end"),
        [(11, 20), (7, 20)],
        ids=["lost between lives", "given again though it was saved"],
    )
    def test_gap_or_repetition_between_lives_is_found(
        self, first: int, end: int, writer: LedgerWriter, ledger: ConsumerLedger
    ) -> None:
        writer.write(kind="open")
        self.run(writer, 0, 10, saved=8)
        writer.write(kind="open")
        self.run(writer, first, end)
        ledger.poll()
        assert len(ledger.problems) == 1

    def test_first_record_missing_in_the_first_life_is_found(
        self, writer: LedgerWriter, ledger: ConsumerLedger
    ) -> None:
        writer.write(kind="open")
        self.run(writer, 1, 10)
        ledger.poll()
        assert ledger.problems == ["record 1 of A came first, and 0 was due"]

    def test_gap_within_a_life_and_what_a_consumer_says_are_found(
        self, writer: LedgerWriter, ledger: ConsumerLedger
    ) -> None:
        writer.write(kind="open")
        self.run(writer, 0, 10)
        ledger.poll()
        self.run(writer, 11, 12)
        writer.write(kind="problem", text="wrong")
        ledger.poll()
        assert len(ledger.problems) == 2


class TestProducers:
    def test_ledger_goes_on_through_lives_and_torn_lines(self, tmp_path: Path) -> None:
        path = tmp_path / "ledger"
        writer = LedgerWriter(path)
        ledger = ProducerLedger(LedgerReader(path))
        writer.write(kind="open", address="A", acknowledged=0, sent=0, next=0, spool=True)
        writer.write(kind="ack", address="A", acknowledged=5, sent=9, next=9, spool=True)
        ledger.poll()
        with path.open("ab") as file:
            file.write(b'{"kind": "ac')
        ledger.poll()
        with path.open("ab") as file:
            file.write(b'k", "address": "A", "acknowledged": 6, "sent": 9, "next": 9, "spool": true}\n')
        writer.write(kind="open", address="A", acknowledged=4, sent=9, next=9, spool=True)
        ledger.poll()
        assert ledger.problems == []
        assert (ledger.acknowledged, ledger.sent) == (6, 9)
        writer.write(kind="open", address="A", acknowledged=4, sent=8, next=8, spool=True)
        ledger.poll()
        assert len(ledger.problems) == 1


class TestSchedule:
    def test_seed_decides(self) -> None:
        pace = Pace()
        assert plan(7, 600, pace) == plan(7, 600, pace)
        assert plan(7, 600, pace) != plan(8, 600, pace)

    def test_every_fault_comes_in_a_long_run_and_losses_are_rare(self) -> None:
        for seed in range(20):
            faults = [fault for lane in plan(seed, 3600, Pace()) for fault in lane]
            kinds = [fault.kind for fault in faults]
            assert set(kinds) == set(FAULTS)
            assert 10 <= sum(kinds.count(kind) for kind in LOSSES) <= 15
            assert max(fault.at_s for fault in faults) < 3600

    def test_only_some_faults(self) -> None:
        lanes = plan(1, 3600, Pace(), ["kill-store", "delay"])
        assert [{fault.kind for fault in lane} for lane in lanes] == [{"kill-store"}, set(), {"delay"}]

    def test_each_once(self) -> None:
        kinds = [fault.kind for lane in plan_each(3, Pace()) for fault in lane]
        assert sorted(kinds) == sorted(FAULTS)
