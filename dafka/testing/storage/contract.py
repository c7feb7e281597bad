"""`check_storage`, which runs every check of a storage plugin, without pytest.

Every check creates its own topics, so that all of them can share one storage, which can hold other records. One check
drops every record of the storage by retention.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from types import ModuleType
from typing import TypeAlias

from trio.testing import assert_checkpoints

from dafka.records import Partition, RecordBatch, encode_text, new_address
from dafka.storage import DeletesPartitions, PartitionInfo, RetentionPolicy, Storage
from dafka.testing.storage import columns, records, times, trims
from dafka.testing.storage.columns import expect_records, holds_whole_records, make_records, to_batch
from dafka.testing.storage.expectations import (
    expect_contents,
    expect_refused,
    list_partitions,
    make_batch,
    make_contents,
    new_partition,
    read_times,
)

OpenStorage: TypeAlias = Callable[[], AbstractAsyncContextManager[Storage]]
_Check: TypeAlias = Callable[[Storage], Awaitable[None]]


async def check_storage(open_storage_fn: OpenStorage, *, reopens: bool) -> None:
    """Check that a storage plugin keeps the contract of `dafka.storage.Storage`. This takes seconds.

    A plugin that holds only values passes if it refuses other records with `StorageUnsupportedError`.

    Args:
        open_storage_fn: Opens the storage for the duration of an `async with` block. It is called a few dozen times.
        reopens: Whether every block opens the same storage again; false if each block opens a new one.

    Raises:
        AssertionError: If a check fails. The message says what was expected.
    """
    for check in _CHECKS:
        async with open_storage_fn() as storage:
            await check(storage)
    if reopens:
        await _check_records_are_kept_when_closed(open_storage_fn)
        await _check_identity_is_kept_when_closed(open_storage_fn)


def _checks_of(module: ModuleType) -> list[_Check]:
    """Return the checks of a module, in order."""
    return [check for name, check in vars(module).items() if name.startswith("_check_")]


async def _check_every_call_is_a_checkpoint(storage: Storage) -> None:
    partition = new_partition()
    calls: tuple[Callable[[], Awaitable[object]], ...] = (
        lambda: storage.append([make_batch(partition, 0, 2)]),
        lambda: storage.append([]),
        lambda: storage.read(partition, 0, 2),
        lambda: storage.find_sequence_by_time(partition, 0),
        storage.partitions,
        lambda: storage.find_partition(partition),
        storage.statistics,
        lambda: storage.trim(partition, 1),
        lambda: storage.reset_to(partition, 5),
        lambda: storage.apply_retention(RetentionPolicy(records_max=10**9), partition.topic),
        storage.flush,
        storage.find_damage,
        lambda: storage.save_positions(new_address(), {partition: 1}),
        lambda: storage.load_positions(new_address()),
        storage.position_names,
    )
    for call in calls:
        with assert_checkpoints():
            await call()


async def _check_nothing_is_damaged(storage: Storage) -> None:
    partition = new_partition()
    await storage.append([make_batch(partition, 0, 100)])
    await storage.trim(partition, 30)
    await storage.flush()
    assert list(storage.repairs) == [], f"an undamaged storage was repaired: {storage.repairs!r}"
    damages = await storage.find_damage()
    assert damages == [], f"find_damage returned damage of an undamaged storage: {damages!r}"


async def _check_positions(storage: Storage) -> None:
    first, second, third = (new_partition() for _ in range(3))
    alice, bob = f"alice {new_address()}", f"bób {new_address()}"
    assert await storage.load_positions(alice) == {}, "a name never used has positions"
    await storage.save_positions(alice, {first: 5, second: 0})
    await storage.save_positions(bob, {first: 7})
    await storage.save_positions(alice, {second: 2**40, third: 1})
    await storage.save_positions(alice, {})
    await storage.save_positions(bob, {first: 6})
    for name, expected in ((alice, {first: 5, second: 2**40, third: 1}), (bob, {first: 6})):
        positions = await storage.load_positions(name)
        assert positions == expected, f"positions of {name!r}: expected {expected!r}, loaded {positions!r}"
    assert await list_partitions(storage, first.topic) == {}, "saving a position created a partition"
    names = await storage.position_names()
    assert names == sorted(names), f"position_names is not sorted: {names!r}"
    assert {alice, bob} <= set(names), f"position_names lacks {alice!r} or {bob!r}: {names!r}"


async def _check_identity(storage: Storage) -> None:
    assert encode_text(storage.identity), "the identity is empty, expected a node address"
    assert storage.identity == storage.identity, "the identity changes"


_CHECKS: tuple[_Check, ...] = (
    _check_every_call_is_a_checkpoint,
    *(check for part in (records, trims, times, columns) for check in _checks_of(part)),
    _check_nothing_is_damaged,
    _check_positions,
    _check_identity,
)


async def _check_records_are_kept_when_closed(open_storage_fn: OpenStorage) -> None:
    partition, trimmed, skipped, timed, deleted = (new_partition() for _ in range(5))
    whole = make_records(100)
    name = new_address()
    async with open_storage_fn() as storage:
        await storage.append([make_batch(partition, 0, 10), make_batch(trimmed, 0, 10)])
        await storage.trim(partition, 4)
        await storage.trim(trimmed, 10)
        await storage.reset_to(skipped, 30)
        await storage.append([make_batch(deleted, 0, 10)])
        if isinstance(storage, DeletesPartitions):
            await storage.delete_partitions([deleted])
        await storage.append([RecordBatch(timed, 0, make_contents(0, 3), stored_at=[1_000, 1_000, 2_000])])
        await storage.save_positions(name, {partition: 6})
        is_whole = await holds_whole_records(storage)
        if is_whole:
            await storage.append([to_batch(whole)])
    async with open_storage_fn() as storage:
        infos: dict[Partition, PartitionInfo] = {}
        for each in (partition, trimmed, skipped):
            infos.update(await list_partitions(storage, each.topic))
        expected = {
            partition: PartitionInfo(4, 10, 6),
            trimmed: PartitionInfo(10, 10, 0),
            skipped: PartitionInfo(30, 30, 0),
        }
        assert infos == expected, f"opened again, expected {expected!r}, found {infos!r}"
        if isinstance(storage, DeletesPartitions):
            found = await list_partitions(storage, deleted.topic)
            assert found == {}, f"opened again, a deleted partition is listed: {found!r}"
        await expect_contents(storage, partition, make_contents(4, 6), 4)
        if is_whole:
            await expect_records(storage, whole[0].partition, whole)
        stored_at = await read_times(storage, timed, 0)
        assert stored_at == [1_000, 1_000, 2_000], f"opened again, records stored at 1000 and 2000 have {stored_at!r}"
        assert await storage.load_positions(name) == {partition: 6}, (
            "positions are lost when the storage is opened again"
        )
        for known in (partition, trimmed):
            await expect_refused(storage, [make_batch(known, 11, 1)], "a gap to what an earlier block appended")
            await expect_refused(storage, [make_batch(known, 0, 1)], "an overlap with what an earlier block appended")
            await storage.append([make_batch(known, 10, 2)])
    async with open_storage_fn() as storage:
        await expect_contents(storage, partition, make_contents(4, 8), 4)
        await expect_contents(storage, trimmed, make_contents(10, 2), 10)


async def _check_identity_is_kept_when_closed(open_storage_fn: OpenStorage) -> None:
    identities = set()
    for _ in range(3):
        async with open_storage_fn() as storage:
            identities.add(storage.identity)
    assert len(identities) == 1, f"opened three times, the storage had the identities {sorted(identities)}"
