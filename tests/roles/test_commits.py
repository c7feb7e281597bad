"""A store's commits in any order of failures and cancellation: nothing is acknowledged before it is durable."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from dafka import Config
from dafka.errors import StorageError, StorageLostError, StorageUnsupportedError
from dafka.protocol import CommitQueue, ResetPosition
from dafka.records import Partition, RecordBatch
from dafka.roles.commit_pipeline import Commit, CommitPipeline, CommitStage
from dafka.roles.logging_events import CommitSlow

A, B = Partition("t", "A" * 32), Partition("t", "B" * 32)
RETRY_MS = 1000


class Machine:
    """What a `CommitQueue` needs of a store's machine: it notes what became durable, and acknowledges it."""

    def __init__(self, storage: Disk) -> None:
        self.pending_bytes = 0
        self.acknowledged: dict[Partition, int] = {}
        self._storage = storage

    def records_queued(self, memory_bytes: int) -> None:
        self.pending_bytes += memory_bytes

    def records_unqueued(self, memory_bytes: int) -> None:
        self.pending_bytes -= memory_bytes
        assert self.pending_bytes >= 0

    def records_committed(self, ends: dict[Partition, int], now: float) -> list[Any]:
        return [("ack", partition, end) for partition, end in ends.items()]

    def position_reset(self, partition: Partition, next_sequence: int) -> list[Any]:
        return [("ack", partition, next_sequence)]


@attrs.define(eq=False)
class Disk:
    """A storage that takes several steps for each transaction, and fails in those whose numbers are in `errors`."""

    errors: dict[int, Exception] = attrs.field(factory=dict)
    log: list[tuple[Any, ...]] = attrs.field(factory=list)
    ends: dict[Partition, int] = attrs.field(factory=dict)
    written: list[tuple[Partition, int]] = attrs.field(factory=list)
    duration_s: float = 0.0
    on_append: Callable[[Sequence[RecordBatch]], None] = lambda _: None
    _transactions: Iterator[int] = attrs.field(factory=itertools.count)

    async def append(self, batches: Sequence[RecordBatch]) -> None:
        number = next(self._transactions)
        if self.duration_s:
            await trio.sleep(self.duration_s)
        self.on_append(batches)
        await trio.lowlevel.checkpoint()
        if number in self.errors:
            raise self.errors[number]
        with trio.CancelScope(shield=True):  # as a thread that writes
            for batch in batches:
                assert batch.first_sequence == self.ends.get(batch.partition, batch.first_sequence), "a gap or a repeat"
                self.ends[batch.partition] = batch.end_sequence
                self.written += [(batch.partition, each) for each in range(batch.first_sequence, batch.end_sequence)]
            self.log.append(("written", *((each.partition, each.end_sequence) for each in batches)))
            await trio.lowlevel.checkpoint()

    async def reset_to(self, partition: Partition, next_sequence: int) -> None:
        await trio.lowlevel.checkpoint()
        self.ends[partition] = next_sequence
        self.log.append(("reset", partition, next_sequence))


class Stage(CommitStage):
    """Adds one record of its own to each transaction while it has any."""

    def __init__(self, disk: Disk, own: int, *, is_first: bool) -> None:
        self.left = own
        self.added = 0
        self._disk = disk
        self._mark = "" if is_first else " last"

    def has_work(self) -> bool:
        return bool(self.left)

    def prepare(self, commit: Commit) -> None:
        if self.left:
            commit.added.append(RecordBatch(B, self.added, [b"own"]))
        self._disk.log.append((f"prepare{self._mark}",))

    def done(self, commit: Commit) -> None:
        for batch in (*commit.batches, *commit.added):
            assert self._disk.ends[batch.partition] >= batch.end_sequence, "done before it is durable"
        if self.left:
            self.added += len(commit.added)
            self.left -= len(commit.added)
        self._disk.log.append((f"done{self._mark}",))

    def acknowledged(self, commit: Commit) -> None:
        self._disk.log.append((f"acknowledged{self._mark}",))

    def failed(self, commit: Commit, error: BaseException) -> None:
        self._disk.log.append((f"failed{self._mark}",))


class Node:
    """A pipeline, what it writes to and what it acknowledges."""

    def __init__(self, errors: dict[int, Exception] | None = None, own: int = 0) -> None:
        self.disk = Disk(errors or {})
        self.machine = Machine(self.disk)
        machine: Any = self.machine
        storage: Any = self.disk
        self.slow: list[tuple[float, float, int]] = []
        log: Any = self
        config = Config().with_store(retry_ms=RETRY_MS).store
        self.pipeline = CommitPipeline(CommitQueue(machine), storage, config, self.act, log)
        self.stage = Stage(self.disk, own, is_first=True)
        self.pipeline.stages = [self.stage, Stage(self.disk, 0, is_first=False)]

    def write(self, event: CommitSlow, level: int) -> None:
        assert level == logging.WARNING
        self.slow.append((trio.current_time(), event.seconds, event.records))

    def act(self, actions: Iterable[Any]) -> None:
        for action in actions:
            if isinstance(action, tuple):
                _, partition, end = action
                assert self.disk.ends.get(partition, 0) >= end, "an acknowledgement before the records are durable"
                assert end > self.machine.acknowledged.get(partition, 0)
                self.machine.acknowledged[partition] = end
                self.disk.log.append(("ack", partition, end))
            else:
                self.disk.log.append((type(action.event).__name__,))

    def put(self, first: int, end: int, partition: Partition = A) -> None:
        self.pipeline.queue.put_records(RecordBatch(partition, first, [b"%d" % each for each in range(first, end)]))
        self.pipeline.wake()


class CancelAt(trio.abc.Instrument):
    """Cancels a scope when its task has been continued a number of times."""

    def __init__(self, scope: trio.CancelScope, step: int) -> None:
        self._scope = scope
        self._task = trio.lowlevel.current_task()
        self.left = step

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._task:
            self.left -= 1
            if self.left == 0:
                self._scope.cancel()


async def run_until(node: Node, step: int) -> bool:
    """Run the pipeline in this task, and cancel it at a checkpoint; return whether it came that far."""
    with trio.move_on_after(10 * RETRY_MS / 1000) as scope:
        instrument = CancelAt(scope, step)
        trio.lowlevel.add_instrument(instrument)
        try:
            await node.pipeline.run()
        finally:
            trio.lowlevel.remove_instrument(instrument)
    return instrument.left <= 0


@pytest.mark.parametrize("own", [0, 2])
@pytest.mark.parametrize("failures", [(), (0,), (1,), (0, 1, 2)])
async def test_nothing_acknowledged_is_lost_wherever_a_store_is_cancelled(
    failures: tuple[int, ...], own: int, autojump_clock: trio.testing.MockClock
) -> None:
    for step in itertools.count(1):
        node = Node({number: StorageError("the disk is full") for number in failures}, own)
        node.put(0, 3)
        came_so_far = await run_until(node, step)
        assert node.disk.ends.get(A, 0) in {0, 3}
        node.put(3, 5)
        node.put(5, 6)
        for _ in range(len(failures) + 1):
            try:
                await node.pipeline.finish()
            except StorageError:
                assert node.pipeline.refusal == "the disk is full"
            else:
                break
        assert node.disk.written.count((B, 0)) == min(own, 1)
        assert sorted(each for each in node.disk.written if each[0] == A) == [(A, number) for number in range(6)]
        assert node.machine.acknowledged == {A: 6}, step
        assert (node.machine.pending_bytes, node.stage.left, node.pipeline.has_work()) == (0, 0, False)
        assert (node.pipeline.refusal, node.pipeline.in_flight, node.pipeline.writing_since) == ("", (), None)
        assert (node.pipeline.queue.records, node.pipeline.queue.bytes) == (6, 6)
        check_order(node.disk.log)
        if not came_so_far:
            break
    assert step > 3


def check_order(log: list[tuple[Any, ...]]) -> None:
    """Each transaction is prepared, written, done, acknowledged to peers and then to stages; or it failed."""
    begun = ""
    for entry in log:
        expected = {
            "prepare": ("", "acknowledged last", "failed", "StorageFailed"),
            "prepare last": ("prepare",),
            "written": ("prepare last",),
            "done": ("written",),
            "done last": ("done",),
            "StorageRecovered": ("done last",),
            "ack": ("done last", "StorageRecovered", "ack"),
            "acknowledged": ("done last", "ack", "StorageRecovered"),
            "acknowledged last": ("acknowledged",),
            "failed last": ("prepare last", "written"),
            "failed": ("failed last",),
            "StorageFailed": ("failed",),
        }[entry[0]]
        assert begun in expected, log
        begun = entry[0]


async def test_what_arrives_during_a_transaction_forms_the_next_one(autojump_clock: trio.testing.MockClock) -> None:
    node = Node()

    def receive(batches: Sequence[RecordBatch]) -> None:
        if not node.disk.written:
            node.put(1, 2)
            node.put(0, 4, B)
        assert node.pipeline.in_flight == batches
        assert node.pipeline.writing_since == trio.current_time()

    node.disk.on_append = receive
    node.put(0, 1)
    await node.pipeline.finish()
    assert [entry for entry in node.disk.log if entry[0] in {"written", "ack"}] == [
        ("written", (A, 1)),
        ("ack", A, 1),
        ("written", (A, 2), (B, 4)),
        ("ack", A, 2),
        ("ack", B, 4),
    ]


async def test_a_failure_is_repeated_after_the_pause_and_reported_once(autojump_clock: trio.testing.MockClock) -> None:
    node = Node({number: StorageError(f"full {number}") for number in range(3)})
    began = trio.current_time()
    node.put(0, 1)
    with trio.move_on_after(3.5 * RETRY_MS / 1000):
        await node.pipeline.run()
    assert node.pipeline.timer.histogram().counts
    assert [entry[0] for entry in node.disk.log].count("StorageFailed") == 1
    assert [entry[0] for entry in node.disk.log].count("prepare") == 4
    assert node.machine.acknowledged == {A: 1}
    assert trio.current_time() - began == pytest.approx(3.5 * RETRY_MS / 1000)


async def test_a_failed_transaction_of_the_stages_alone_is_repeated_before_others() -> None:
    node = Node({0: StorageError("full")}, own=1)
    with pytest.raises(StorageError):
        await node.pipeline.finish()
    node.put(0, 1)
    await node.pipeline.finish()
    assert [entry for entry in node.disk.log if entry[0] == "written"] == [("written", (B, 1)), ("written", (A, 1))]


@pytest.mark.parametrize(("duration_s", "logged"), [(2.0, []), (2.5, [0, 60, 120])])
async def test_slow_commits_are_logged_once_a_minute(
    duration_s: float, logged: list[float], autojump_clock: trio.testing.MockClock
) -> None:
    node = Node()
    node.disk.duration_s = duration_s
    for number in range(55):
        node.put(number, number + 1)
        await node.pipeline.finish()
    first = node.slow[0][0] if node.slow else 0.0
    expected: list[Any] = [pytest.approx((after, duration_s, 1)) for after in logged]
    assert [(time - first, seconds, records) for time, seconds, records in node.slow] == expected
    assert node.pipeline.timer.histogram().total == pytest.approx(55 * duration_s)


async def test_the_loss_of_the_storage_ends_the_pipeline_and_keeps_what_was_received() -> None:
    node = Node({0: StorageLostError("it was removed")})
    node.put(0, 3)
    with pytest.raises(StorageLostError):
        await node.pipeline.run()
    assert (node.pipeline.refusal, node.machine.acknowledged, node.pipeline.has_work()) == ("", {}, True)
    assert [entry[0] for entry in node.disk.log] == ["prepare", "prepare last", "failed last", "failed"]


async def test_a_reset_drops_what_waits_before_it_and_is_acknowledged() -> None:
    node = Node()
    node.put(0, 2)
    node.pipeline.queue.put_reset(ResetPosition(A, 7))
    node.put(7, 8)
    await node.pipeline.finish()
    steps = [entry for entry in node.disk.log if entry[0] in {"written", "ack", "reset", "acknowledged"}]
    assert steps == [
        *(("reset", A, 7), ("ack", A, 7), ("acknowledged",)),
        *(("written", (A, 8)), ("ack", A, 8), ("acknowledged",)),
    ]


async def test_compacted_records_need_a_storage_that_keeps_their_places() -> None:
    node = Node()
    node.pipeline.queue.put_records(RecordBatch.removed(A, 0, 3))
    with pytest.raises(StorageUnsupportedError, match="use sqlite: or filelog:"):
        await node.pipeline.finish()
    assert node.disk.written == []
