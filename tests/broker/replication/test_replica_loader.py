"""A broker loads its replicas: it reads each index record once, and lets others see only what they can need."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import product
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.partition_address import INDEX_TOPIC
from dafka.broker.core.replication.records import NO_EPOCH_END, EpochStart, LeaderAndEpoch
from dafka.broker.core.replication.settings import Availability
from dafka.broker.replication import replica_loader as loader_module
from dafka.broker.replication.replica_loader import ReplicaLoader
from dafka.errors import StorageError
from dafka.records import Partition, RecordBatch
from tests.broker.core.entries import epoch_end
from tests.seeds import each_seed

INDEXES = [Partition(INDEX_TOPIC, f"{broker}/1D/0/{epoch}") for broker, epoch in (("a", 1), ("a", 2), ("b", 3))]


class World:
    """The broker `a`, which stores indexes of a log."""

    def __init__(self) -> None:
        self.table, self.durable = LogTable("a"), trio.Event()
        self.table.add_topic(Topic("orders", "1D", 1))
        (self.state,) = self.table.logs("orders")
        self.ends, self.made = dict.fromkeys(INDEXES, 0), list[Any]()
        self.is_loaded = False
        logs = SimpleNamespace(find=lambda _: self.is_loaded or None, add=lambda *log: self.made.append(("add", *log)))
        policy = SimpleNamespace(owns=lambda partition: partition.address.startswith("a/"))
        mesh = SimpleNamespace(address="a", ask_heads=self.made.append)
        parts: dict[str, Any] = {
            "tables": SimpleNamespace(log_table=self.table, logs=logs, policy=policy),
            "own": SimpleNamespace(announce_until=lambda *what, is_announced: self.made.append((*what, is_announced))),
            "mesh": mesh,
            "checkpoints": SimpleNamespace(take=lambda topic, indexes: (topic, set(indexes))),
            "damaged": None,
        }
        storage: Any = SimpleNamespace(
            durable_end=self.ends.__getitem__,
            storage=None,
            write=lambda: self.made.append("write"),
            wait_durable=self.durable.wait,
        )
        self.loader: Any = ReplicaLoader(
            storage=storage, indexes={"1D/0": set(INDEXES)}, take_part=lambda _, state: self.made.append(state), **parts
        )


@each_seed(50)
def test_index_records_are_read_once_from_the_checkpoints_on_while_more_arrive(seed: int) -> None:
    draw, world = Random(seed), World()
    grown = draw.randint(0, 6)

    async def read_index(_storage: object, partition: Partition, first: int) -> AsyncIterator[RecordBatch]:
        nonlocal grown
        for grows in (False, True):
            if grows == (draw.random() < 0.5) and grown:
                grown -= 1
                world.ends[draw.choice(INDEXES)] += draw.randint(1, 3)
            await trio.lowlevel.checkpoint()
            if not grows and world.ends[partition] > first:
                yield RecordBatch(partition, first, [b""] * (world.ends[partition] - first))

    world.ends.update({each: draw.randint(0, 5) for each in INDEXES})
    known = {each: draw.randint(0, world.ends[each]) for each in INDEXES if draw.random() < 0.5}
    checkpoints = {each: SimpleNamespace(index_end=end) for each, end in known.items()}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loader_module, "read_index", read_index)
        found, ends = trio.run(world.loader._read_indexes, "1D/0", checkpoints)
    assert ends == world.ends
    for each in INDEXES:
        batches = [batch for batch in found if batch.partition == each]
        read = [n for batch in batches for n in range(batch.first_sequence, batch.end_sequence)]
        assert read == [*range(known.get(each, 0), ends[each])]


async def test_a_log_is_loaded_when_it_is_durable_that_others_replicate_it(autojump_clock: MockClock) -> None:
    for is_deleted in (True, False):
        world = World()
        world.loader._announce_ended, world.loader._indexes = lambda *_: None, {}
        world.loader.put(world.state)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.loader.run)
            await wait_all_tasks_blocked()
            assert (world.state.is_replicated, world.made) == (True, ["write"])
            if is_deleted:
                world.table.remove_topic("orders")
            world.durable.set()
            await wait_all_tasks_blocked()
            *loaded, heads = world.made[1:]
            assert heads == ("orders", INDEX_TOPIC)
            assert loaded[1:] == [world.state] * (not is_deleted)
            nursery.cancel_scope.cancel()


async def test_a_log_is_loaded_once_if_it_is_still_there_when_its_indexes_are_read(autojump_clock: MockClock) -> None:
    for during, is_loaded, placed in product(
        ("nothing", "deleted", "made again", "fails"), (True, False), ((), (("b", "a"),))
    ):
        world, topic = World(), Topic("orders", "1D", 1, placement=placed)
        world.is_loaded = is_loaded

        async def read(
            name: str, checkpoints: object, world: World = world, during: str = during
        ) -> tuple[list[str], dict[Partition, int]]:
            await trio.sleep(1)
            assert (name, checkpoints) == ("1D/0", ("orders", set(INDEXES)))
            if during == "fails":
                raise StorageError("no")
            if during != "nothing":
                world.table.remove_topic("orders")
            if during == "made again":
                world.table.add_topic(Topic("orders", "2D", 1))
            return ["index"], {}

        world.loader._read_indexes, world.loader._announce_ended = read, lambda *_: None
        await world.loader._load(topic, world.state)
        replicas = ("b", "a") if placed else ("a",)
        added = ("add", topic, 0, replicas, ["index"], ("orders", set(INDEXES)))
        assert world.made == [added, world.state] * (during == "nothing" and not is_loaded)
        assert list(world.loader._waiting._failed) == [world.state] * (during == "fails" and not is_loaded)


async def test_logs_of_others_are_loaded_before_they_hear_of_this_broker() -> None:
    for is_gone, leads in product((True, False), repeat=2):
        world, loaded = World(), list[Any]()

        async def load(_topic: Topic, state: Any, loaded: list[Any] = loaded) -> None:
            await trio.lowlevel.checkpoint()
            loaded.append(state)

        world.loader._load = load
        world.loader.put(world.state)
        if not leads:
            world.table.end_epoch(world.state)
        world.state.is_gone = is_gone
        await world.loader.load_first()
        assert loaded == [world.state] * (not is_gone and not leads)
        assert list(world.loader._waiting) == [world.state], "the others know of it when all are loaded"


def test_epochs_that_this_broker_led_are_announced_as_far_as_others_do_not_know_their_ends() -> None:
    first, second, third = (LeaderAndEpoch(number, broker) for number, broker in ((1, "a"), (2, "a"), (3, "b")))
    partitions = dict(zip((first, second, third), INDEXES, strict=True))
    for latest, leads, availability in product((second, third), (True, False), Availability):
        world = World()
        world.state.index_partition = INDEXES[1]
        if not leads:
            world.table.end_epoch(world.state)
        parent = NO_EPOCH_END if latest is second else epoch_end(second, 9)
        start = EpochStart("1D/0", latest, parent, ("a", "b"))
        log = SimpleNamespace(replica=SimpleNamespace(latest=start, availability=availability))
        log.index_partition = partitions.get
        world.loader._announce_ended(world.state, log, dict.fromkeys(INDEXES, 4))
        is_branch = availability is Availability.BRANCH
        expected = [(INDEXES[0], 4, is_branch)] + [(INDEXES[1], 4, True)] * (not leads)
        assert world.made == expected
