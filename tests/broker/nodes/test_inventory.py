"""What is stored is listed as it is; sizes are measured once for all who ask, and not all the time."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.metadata.cluster_state import ClusterState
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.inventory import MEASUREMENTS_MAX, REUSED_FACTOR, SLOW_S, Inventory, StoredPartition, StoredTopic
from dafka.records import Partition
from dafka.storage import PartitionInfo
from tests.seeds import each_seed

WATCHES = 20


class SlowStorage:
    """A storage that takes long to say what it has."""

    def __init__(self, takes_s: float) -> None:
        self.measured = 0
        self._takes_s = takes_s

    async def partitions(self, _topic: str | None = None) -> dict[Any, Any]:
        self.measured += 1
        await trio.sleep(self._takes_s)
        return {}


@pytest.mark.parametrize("takes_s", [2 * SLOW_S, 1.0])
async def test_watches_of_sizes_share_measurements(autojump_clock: trio.testing.MockClock, takes_s: float) -> None:
    storage: Any = SlowStorage(takes_s)
    inventory, watched_s = Inventory(None, storage, None, ClusterState()), 200 * takes_s  # type: ignore[arg-type]

    async def watch() -> None:
        while True:
            await inventory.stored_topics()
            await trio.sleep(takes_s)

    async with trio.open_nursery() as nursery:
        for _ in range(WATCHES):
            nursery.start_soon(watch)
        await trio.sleep(watched_s)
        nursery.cancel_scope.cancel()
    assert 1 < storage.measured <= watched_s / (REUSED_FACTOR * takes_s) + 1


async def test_what_is_measured_at_once_is_new(autojump_clock: trio.testing.MockClock) -> None:
    storage: Any = SlowStorage(SLOW_S / 10)
    inventory = Inventory(None, storage, None, ClusterState())  # type: ignore[arg-type]
    for number in range(5):
        await inventory.stored_topics()
        assert storage.measured == number + 1


async def test_who_is_cancelled_leaves_the_measurement_to_the_next(autojump_clock: trio.testing.MockClock) -> None:
    storage: Any = SlowStorage(1.0)
    inventory = Inventory(None, storage, None, ClusterState())  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        with trio.move_on_after(0.5):
            await inventory.stored_topics()
        nursery.start_soon(inventory.stored_topics)
    assert storage.measured == 2


DELETED, UNKNOWN = "3D", "4D"
ADDRESSES = [
    *(f"{broker}/{topic}/{log}/0" for broker in "ab" for topic in ("1D", "3D", "4D") for log in (0, 1)),
    "P",
    "Q",
]
NAMES = ["orders", "visits", "a b", "$state"]


@each_seed(30)
def test_the_inventory_lists_what_is_stored_without_the_logs_of_deleted_topics(seed: int) -> None:
    draw, table = Random(seed), LogTable("a")
    table.add_topic(Topic("orders", "1D", 2))
    table.add_topic(Topic("visits", "2D", 3))
    for number, log in enumerate(table.logs("orders")):
        table.led[Partition("orders", f"a/1D/{number}/0")] = log
    stored, durable, earliest, known = {}, dict[Partition, int](), dict[Partition, int](), dict[Partition, int]()
    for each in [Partition(name, address) for name in NAMES for address in ADDRESSES if draw.random() < 0.4]:
        first, count = draw.randrange(3), draw.randrange(5)
        stored_at = draw.choice([None, draw.randrange(1000)])
        stored[each] = PartitionInfo(first, first + count, draw.randrange(100), None, stored_at)
        durable[each], earliest[each] = first + draw.randrange(6), first
        if draw.random() < 0.5:
            known[each] = draw.randrange(12)
    by_topic = {name: {each.address: end for each, end in durable.items() if each.topic == name} for name in NAMES}

    async def partitions(topic: str | None = None) -> dict[Partition, PartitionInfo]:
        return {each: info for each, info in stored.items() if topic in {None, each.topic}}

    machine: Any = SimpleNamespace(
        stored=SimpleNamespace(durable=by_topic, earliest=earliest, durable_end=durable.__getitem__),
        reassembler=SimpleNamespace(cursors={each: SimpleNamespace(known_end=end) for each, end in known.items()}),
    )
    state: Any = SimpleNamespace(
        is_deleted=lambda address: f"/{DELETED}/" in address, is_orphan=lambda each: f"/{UNKNOWN}/" in each.address
    )
    storage: Any = SimpleNamespace(partitions=partitions)
    inventory = Inventory(machine, storage, table, state)
    kept = {each: info for each, info in stored.items() if f"/{DELETED}/" not in each.address}
    infos = {name: [info for each, info in kept.items() if each.topic == name] for name in NAMES}

    orphans = [each for each in stored if f"/{UNKNOWN}/" in each.address]
    assert inventory.orphans() == {each: durable[each] - earliest[each] for each in orphans}
    counts = {name: sum(durable[each] for each in kept if each.topic == name) for name in NAMES}
    assert {name: inventory.record_count(name) for name in NAMES} == counts
    assert inventory.topics_without_logs() == ["a b"] * (counts["a b"] > 0)
    assert inventory.record_count("nothing") == 0
    listed = trio.run(inventory.stored_topics)
    sizes = [(-each.content_bytes, each.name) for each in listed]
    assert sizes == sorted(sizes)
    assert {each.name: each for each in listed} == {
        name: StoredTopic(
            name,
            len(found),
            sum(each.end_sequence - each.earliest_sequence for each in found),
            sum(each.content_bytes for each in found),
            max((each.latest_stored_at for each in found if each.latest_stored_at is not None), default=None),
        )
        for name, found in infos.items()
        if found
    }
    expected = []
    for each in sorted(kept, key=lambda each: each.address):
        if each.topic == "orders":
            end = max(durable[each], stored[each].end_sequence)
            is_own = each.address in {"a/1D/0/0", "a/1D/1/0"}
            ahead = max(end, known.get(each, 0))
            expected.append(StoredPartition(each.address, is_own, stored[each], ahead, ahead - end))
    assert trio.run(inventory.partitions, "orders") == expected
    of_logs = [
        sum(stored[each].content_bytes for each in kept if each.topic == "orders" and f"/1D/{number}/" in each.address)
        for number in (0, 1)
    ]
    shared = sum(each.content_bytes for each in infos["orders"]) - sum(of_logs)
    assert trio.run(inventory.log_bytes, "orders") == [each + shared // 2 for each in of_logs]


async def test_the_topics_that_were_measured_last_are_remembered(autojump_clock: trio.testing.MockClock) -> None:
    storage: Any = SlowStorage(1.0)
    inventory = Inventory(None, storage, LogTable("a"), ClusterState())  # type: ignore[arg-type]
    names = [f"topic-{number}" for number in range(MEASUREMENTS_MAX + 1)]
    async with trio.open_nursery() as nursery:
        for name in names[1:]:
            nursery.start_soon(inventory.partitions, name)
    assert storage.measured == MEASUREMENTS_MAX
    await inventory.partitions(names[1])
    assert storage.measured == MEASUREMENTS_MAX
    await inventory.partitions(names[0])
    await inventory.partitions(names[1])
    assert storage.measured == MEASUREMENTS_MAX + 1, "it was used again"
    assert len(inventory._measurements) == MEASUREMENTS_MAX
