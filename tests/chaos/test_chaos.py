"""Every fault once, on a small cluster of real processes, with a fixed seed and a low rate."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest
import trio

from dafka.events import StorageRecovered
from dafka.records import Partition, RecordBatch
from dafka.storage import PartitionInfo, open_storage
from tests.chaos.cluster import Size
from tests.chaos.faults import FAILED, FAULTS, LOSSES, LOST, Pace, plan
from tests.chaos.ledger import (
    ConsumerLedger,
    LedgerReader,
    LedgerWriter,
    ProducerLedger,
    Published,
    Sequel,
    contents_of,
)
from tests.chaos.proxy import GOOD, Conditions, Link
from tests.chaos.run import Run, find_different, find_lost, find_unconsumed, find_wrong_contents

SEED = 48
"""With this seed, stores are not killed while they recover from a full disk, which would not be said then."""

PACE = Pace(calm_s=0.0, gap_s=(0.0, 0.0), duration_s=(0.3, 1.2), losses_every_s=0.0)

SIZE = Size(stores=3, producers=2, consumers=1, rate=1000, beacon_ms=250)


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc, and all of 127.0.0.0/8")
@pytest.mark.timeout(600)
async def test_every_fault_once_and_no_promise_broken(tmp_path: Path) -> None:
    run = Run(SIZE, plan(SEED, PACE), tmp_path, SEED, caught_up_s=60.0)
    problems = await run.run(0.0)
    assert problems == [], (tmp_path / "timeline.txt").read_text()
    assert run.result["faults"] == dict.fromkeys(sorted(FAULTS), 1)
    timeline = (tmp_path / "timeline.txt").read_text()
    assert LOST in timeline
    assert FAILED in timeline
    assert str(StorageRecovered()) in timeline


# The checks of chaos find what is lost, doubled, wrong or invented


PARTITION = Partition("orders", "A" * 32)


def batch(first: int, end: int, address: str = PARTITION.address) -> RecordBatch:
    return RecordBatch(PARTITION, first, contents_of(address, first, end))


def held(end: int, earliest: int = 0) -> dict[str, PartitionInfo]:
    return {PARTITION.address: PartitionInfo(earliest, end)}


@pytest.mark.parametrize(
    ("batches", "problem"),
    [
        ([batch(5, 8), batch(8, 9), batch(9, 100)], ""),
        ([batch(5, 8), batch(7, 9)], "record 7 of"),
        ([batch(5, 8), batch(9, 12), batch(12, 13)], "record 9 of"),
        ([RecordBatch(PARTITION, 0, [*contents_of(PARTITION.address, 0, 4), b"wrong"])], "record 4 of"),
        ([batch(0, 1, "B" * 32)], "record 0 of"),
    ],
)
def test_what_does_not_follow_or_is_wrong_is_found(batches: list[RecordBatch], problem: str) -> None:
    found = Sequel().take_all(batches)
    assert len(found) == bool(problem)
    assert "".join(found).startswith(problem)


@pytest.mark.parametrize(
    ("holdings", "ought", "is_right"),
    [
        *((held(end), {}, True) for end in (10, 11, 12, 13)),
        ({}, {}, False),
        (held(9), {}, False),
        (held(12, earliest=1), {}, False),
        (held(11), {"is_spooled": True}, False),
        (held(13), {"is_complete": True}, False),
        (held(11), {"is_complete": True}, False),
    ],
)
def test_lost_and_invented_records_of_stores_are_found(
    holdings: dict[str, PartitionInfo], ought: dict[str, Any], is_right: bool
) -> None:
    published = attrs.evolve(Published(acknowledged=10, sent=12), **ought)
    assert (find_lost("a", holdings, {PARTITION.address: published}) == []) is is_right


def test_differences_between_stores_and_partitions_of_nobody_are_found() -> None:
    assert find_lost("a", held(1), {}) == [f"a holds {PARTITION.address}, which no producer published"]
    assert find_different({"a": held(9), "b": held(9), "c": held(9)}) == []
    for other in (held(10), held(9, earliest=1), {}):
        assert len(find_different({"a": held(9), "b": held(9), "c": other})) == 1
    assert find_unconsumed("c", {"A": 30}, [{"A": PartitionInfo(0, 30)}, {"A": PartitionInfo(0, 29)}]) == []
    assert len(find_unconsumed("c", {"A": 30}, [{"A": PartitionInfo(0, 31)}])) == 1


async def test_wrong_content_in_a_storage_is_found(tmp_path: Path) -> None:
    url = f"filelog:{tmp_path}/store"
    async with open_storage(url) as storage:
        await storage.append([batch(0, 5000)])
    assert await find_wrong_contents("a", url) == (5000, [])
    async with open_storage(url) as storage:
        await storage.append([RecordBatch(PARTITION, 5000, [b"wrong"]), batch(5001, 5002)])
    count, (problem,) = await find_wrong_contents("a", url)
    assert count == 5002
    assert problem.startswith("a: record 5000 of")


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([[(0, 10, 10), (10, 15, None)], [(10, 30, 30)]], []),
        ([[(0, 10, 8)], [(11, 20, None)]], ["record 11 of A came first, and 10 was due"]),
        ([[(0, 10, 8)], [(7, 20, None)]], ["record 7 of A came again, though 8 was saved"]),
        ([[(1, 10, None)]], ["record 1 of A came first, and 0 was due"]),
        ([[(0, 10, None), (11, 12, None)]], ["record 11 of A came where 10 was due"]),
    ],
)
def test_gaps_and_repetitions_of_a_consumer_are_found(
    runs: list[list[tuple[int, int, int | None]]], expected: list[str], tmp_path: Path
) -> None:
    """Each list is a life of the consumer: from which record to which it got them, and what it saved then."""
    with closing(LedgerWriter(tmp_path / "ledger")) as writer:
        ledger = ConsumerLedger(LedgerReader(tmp_path / "ledger"))
        for life in runs:
            writer.write(kind="open")
            for first, end, saved in life:
                writer.write(kind="run", address="A", first=first, end=end)
                if saved is not None:
                    writer.write(kind="saved", positions={"A": saved})
            ledger.poll()
        assert ledger.problems == expected
        if not expected:
            assert (ledger.ends, ledger.repeated, ledger.records) == ({"A": 30}, 5, 35)
        writer.write(kind="problem", text="wrong")
        ledger.poll()
        assert ledger.problems == [*expected, "wrong"]


def test_a_ledger_of_a_producer_goes_on_through_lives_and_torn_lines(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    with closing(LedgerWriter(path)) as writer:
        ledger = ProducerLedger(LedgerReader(path))
        for kind, acknowledged, sent in (("open", 0, 0), ("ack", 5, 9)):
            writer.write(kind=kind, address="A", acknowledged=acknowledged, sent=sent, next=sent, spool=True)
        ledger.poll()
        for part in (b'{"kind": "ac', b'k", "address": "A", "acknowledged": 6, "sent": 9, "next": 9, "spool": true}\n'):
            with path.open("ab") as file:
                file.write(part)
            ledger.poll()
        for sent, problems in ((9, 0), (8, 1)):
            writer.write(kind="open", address="A", acknowledged=4, sent=sent, next=sent, spool=True)
            ledger.poll()
            assert len(ledger.problems) == problems
            assert (ledger.acknowledged, ledger.partitions["A"].sent) == (6, 9)


def test_a_seed_decides_about_faults_of_every_kind() -> None:
    pace = Pace()
    assert plan(7, pace, 600) == plan(7, pace, 600) != plan(8, pace, 600)
    for seed in range(20):
        faults = [fault for lane in plan(seed, pace, 3600) for fault in lane]
        kinds = [fault.kind for fault in faults]
        assert set(kinds) == set(FAULTS)
        assert 10 <= sum(kinds.count(kind) for kind in LOSSES) <= 15
        assert all(fault.at_s < 1000 for fault in faults if fault.kind == "delete-storage")
        assert 3000 < max(fault.at_s for fault in faults) < 3900
    lanes = plan(1, pace, 3600, ["kill-store", "delay"])
    assert [{fault.kind for fault in lane} for lane in lanes] == [{"kill-store"}, set(), {"delay"}]
    assert sorted(fault.kind for lane in plan(3, pace) for fault in lane) == sorted(FAULTS)


# The faulty network of chaos delays, holds up and ends connections, and changes no byte


DEADLINE_S = 60.0
HOST = "127.0.0.1"


async def echo(stream: trio.SocketStream) -> None:
    with suppress(trio.BrokenResourceError):
        async for data in stream:
            await stream.send_all(data)


@asynccontextmanager
async def open_link() -> AsyncIterator[Link]:
    """Open a link to a server that echoes what it receives."""
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            (listener,) = await trio.open_tcp_listeners(0, host=HOST)
            nursery.start_soon(trio.serve_listeners, echo, [listener])
            link = Link((HOST, 0), (HOST, listener.socket.getsockname()[1]))
            await nursery.start(link.run)
            yield link
            nursery.cancel_scope.cancel()


async def expect_echo(stream: trio.SocketStream, sent: bytes) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.send_all, sent)
        found = b""
        while len(found) < len(sent):
            data = await stream.receive_some()
            assert data, "the connection has ended"
            found += data
    assert found == sent


@pytest.mark.parametrize(
    ("conditions", "size", "least_s"),
    [
        (Conditions(delay_s=0.001, bytes_per_s=50e6, loss=0.02), 1_000_000, 0.002),
        (Conditions(delay_s=0.1), 5, 0.2),
        (Conditions(bytes_per_s=400_000), 100_000, 0.25),
    ],
)
async def test_bytes_pass_unchanged_and_later(conditions: Conditions, size: int, least_s: float) -> None:
    async with open_link() as link, await trio.open_tcp_stream(*link.endpoint) as stream:
        link.set(conditions)
        begun = trio.current_time()
        await expect_echo(stream, bytes(range(256)) * (size // 256) + b"hello")
        assert trio.current_time() - begun >= least_s


async def test_a_stalled_link_passes_on_later() -> None:
    async with open_link() as link, await trio.open_tcp_stream(*link.endpoint) as stream:
        link.set(Conditions(is_stalled=True))
        await stream.send_all(b"hello")
        with trio.move_on_after(0.2) as scope:
            await stream.receive_some()
        assert scope.cancelled_caught
        link.set(GOOD)
        assert await stream.receive_some() == b"hello"


async def test_connections_that_are_reset_or_refused_end_with_an_error_and_new_ones_begin() -> None:
    async with open_link() as link:
        async with await trio.open_tcp_stream(*link.endpoint) as stream:
            await expect_echo(stream, b"hello")
            assert link.reset() == 1
            with pytest.raises(trio.BrokenResourceError):
                await stream.receive_some()
        link.set(Conditions(is_refusing=True))
        async with await trio.open_tcp_stream(*link.endpoint) as stream:
            with pytest.raises(trio.BrokenResourceError):
                await stream.receive_some()
        link.set(GOOD)
        async with await trio.open_tcp_stream(*link.endpoint) as stream:
            await expect_echo(stream, b"again")


def test_a_pause_follows_from_the_seed() -> None:
    conditions = Conditions(delay_s=0.5, bytes_per_s=1000, loss=0.5)
    pauses = [[conditions.pause(100, random) for _ in range(20)] for random in (Random(7), Random(7))]
    assert pauses[0] == pauses[1]
    assert min(pauses[0]) == pytest.approx(0.6)
    assert max(pauses[0]) >= 0.8
