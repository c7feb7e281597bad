"""`check_storage` accepts every storage, also that of a plugin, and finds what is wrong with broken ones."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from dafka.errors import StorageError, StorageSequenceError, StorageUnsupportedError
from dafka.packed_bytes import count_bytes
from dafka.records import Partition, RecordBatch, new_address
from dafka.storage import PartitionInfo, Storage, StorageStatistics, open_storage, read_range
from dafka.storage.cold.tiered import TieredStorage
from dafka.storage.memory import MemoryStorage
from dafka.storage.plugin_helpers import require_only_values
from dafka.testing import check_storage
from dafka.testing.storage.expectations import make_contents
from tests.storage.quick import quickly

_ALL = 2**63

THIRD_PARTY = Path(__file__).with_name("third_party") / "dafka_pickle.py"


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the plugin as pip would: a module, and metadata with its entry point."""
    site = tmp_path / "site"
    metadata = site / "dafka_pickle-1.0.dist-info"
    metadata.mkdir(parents=True)
    shutil.copy(THIRD_PARTY, site)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: dafka-pickle\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[dafka.storage]\npickle = dafka_pickle:open_pickle\n")
    monkeypatch.syspath_prepend(site)


@pytest.mark.usefixtures("third_party")
@pytest.mark.parametrize("url", ["memory:", "sqlite:{}/store.db", "filelog:{}/log", "pickle:{}/pickles"])
async def test_every_storage_keeps_the_contract(url: str, tmp_path: Path) -> None:
    with quickly():
        await check_storage(lambda: open_storage(url.format(tmp_path)), reopens=url != "memory:")


async def test_a_tiered_storage_keeps_the_contract_when_records_move_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = TieredStorage.append

    async def append_and_move(self: TieredStorage, batches: Sequence[RecordBatch]) -> None:
        for name in ("find_compactable", "compact"):  # what has moved is not compacted
            vars(self).pop(name, None)
        await append(self, batches)
        await self.move_due()

    monkeypatch.setattr(TieredStorage, "append", append_and_move)
    options = "cold_interval_ms=3600000&local_retention_bytes=0&cold_segment_bytes=20000"
    url = f"tiered:memory:?cold=memory://{tmp_path.name}&{options}"
    await check_storage(lambda: open_storage(url), reopens=False)


@pytest.mark.usefixtures("third_party")
@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nope:x", r"^unknown storage 'nope': installed are filelog, .*, pickle, sqlite, tiered$"),
        *((url, r"expected SCHEME:LOCATION, such as sqlite:dafka\.db$") for url in ("", "dafka.db", "sqlite")),
        ("memory:here", "'memory:' takes no path"),
    ],
)
async def test_a_url_that_names_no_storage_is_refused(url: str, message: str) -> None:
    with pytest.raises(StorageError, match=message):
        async with open_storage(url):
            pass


class ValuesOnly(MemoryStorage):
    async def append(self, batches: Sequence[RecordBatch]) -> None:
        require_only_values(batches, "it")
        await super().append(batches)


async def test_a_storage_that_holds_only_values_keeps_the_contract() -> None:
    storage = ValuesOnly()

    @asynccontextmanager
    async def opened() -> AsyncIterator[Storage]:
        yield storage

    await check_storage(opened, reopens=True)


# Broken storages: functions that take the place of a method. They get the storage, and the method that is right.


async def write_valid_batches(it: Storage, append: Any, batches: Sequence[RecordBatch]) -> None:
    await trio.lowlevel.checkpoint()
    for batch in batches:
        await append([batch])


async def accept_gaps(it: Storage, append: Any, batches: Sequence[RecordBatch]) -> None:
    joined = []
    for batch in batches:
        end = (await it.partitions()).get(batch.partition, PartitionInfo()).end_sequence
        is_gap = end and batch.first_sequence > end and len(batches) == 1
        joined.append(attrs.evolve(batch, first_sequence=end if is_gap else batch.first_sequence))
    await append(joined)


async def append_new_part(it: Storage, append: Any, batches: Sequence[RecordBatch]) -> None:
    try:
        await append(batches)
    except StorageSequenceError:
        for batch in batches:
            end = (await it.partitions()).get(batch.partition, PartitionInfo()).end_sequence
            if batch.first_sequence < end < batch.end_sequence:
                await append([batch.between(end, batch.end_sequence)])
        raise


async def split_cancelled_appends(it: Storage, append: Any, batches: Sequence[RecordBatch]) -> None:
    if not batches or len(batches[0]) < 500:
        await append(batches)
        return
    with trio.CancelScope(shield=True):
        await append(batches[:1])
    await trio.sleep_forever()


async def refuse_late(it: Storage, append: Any, batches: Sequence[RecordBatch]) -> None:
    await append(batches)
    require_only_values(batches, "it")


async def refuse_keys_only(it: Storage, append: Any, batches: Sequence[RecordBatch]) -> None:
    require_only_values([attrs.evolve(batch, headers=None) for batch in batches], "it")
    await append(batches)


async def refuse_empty_columns(it: Storage, append: Any, batches: Sequence[RecordBatch]) -> None:
    if any(batch.keys is not None for batch in batches):
        raise StorageUnsupportedError("no keys")
    require_only_values(batches, "it")
    await append(batches)


async def let_times_decrease(it: MemoryStorage, append: Any, batches: Sequence[RecordBatch]) -> None:
    for batch in batches:
        if batch.partition in it._logs:
            it._logs[batch.partition].latest_stored_at = 0
    await append(batches)


def changing(change: Callable[[RecordBatch], dict[str, Any]]) -> Callable[..., Awaitable[None]]:
    """Return what appends each batch with some changed fields."""

    async def append_changed(it: Storage, append: Any, batches: Sequence[RecordBatch]) -> None:
        await append([attrs.evolve(each, **change(each)) for each in batches])

    return append_changed


def reversing(count: int, size: int = 0) -> Callable[..., Awaitable[None]]:
    """Return what appends the values of batches of this count and size in reverse."""
    values = make_contents(0, count, size)
    return changing(lambda batch: {"values": values[::-1]} if batch.values == values else {})


async def read_from_the_earliest(
    it: Storage, read: Any, partition: Partition, first: int, *rest: Any, **options: Any
) -> RecordBatch | None:
    earliest = (await it.partitions()).get(partition, PartitionInfo()).earliest_sequence
    found: RecordBatch | None = await read(partition, max(first, earliest), *rest, **options)
    return found


async def read_deleted_records(
    it: Storage, read: Any, partition: Partition, first: int, count: int, *rest: Any, **options: Any
) -> RecordBatch | None:
    """Keep the rest of a read, and return it in the next one."""
    kept: dict[tuple[Partition, int], RecordBatch] = vars(it).setdefault("kept", {})
    found: RecordBatch | None = kept.pop((partition, first), None)
    if found is not None and count == 1 and not options.get("with_times"):
        await trio.lowlevel.checkpoint()
        return found
    found = await read(partition, first, count, *rest, **options)
    after = None if found is None else await read(partition, found.end_sequence, 1)
    if found is not None and after is not None and count == 3:
        kept[partition, found.end_sequence] = after
    return found


def listing(change: Callable[[Partition, PartitionInfo], PartitionInfo | None]) -> Callable[..., Awaitable[Any]]:
    """Return what lists the partitions of a topic after a change, without those of which it leaves nothing."""

    async def list_changed(it: Storage, partitions: Any, topic: str | None = None) -> dict[Partition, PartitionInfo]:
        found = {each: change(each, info) for each, info in (await partitions(topic)).items()}
        return {each: info for each, info in found.items() if info is not None}

    return list_changed


async def mix_topics(it: Storage, partitions: Any, topic: str | None = None) -> dict[Partition, PartitionInfo]:
    return {each: info for each, info in (await partitions()).items() if each.topic.startswith(topic or "")}


async def count_values_only(it: Storage, partitions: Any, topic: str | None = None) -> dict[Partition, PartitionInfo]:
    infos: dict[Partition, PartitionInfo] = await partitions(topic)
    for partition, info in infos.items():
        batches = [batch async for batch in read_range(it, partition, info.earliest_sequence, info.end_sequence)]
        size = sum(count_bytes(batch.values) for batch in batches)
        infos[partition] = attrs.evolve(info, content_bytes=size)
    return infos


async def find_only_held_records(it: Storage, find: Any, partition: Partition) -> PartitionInfo | None:
    found: PartitionInfo | None = await find(partition)
    return found if found is not None and found.count else None


async def count_trimmed_records(it: Storage, statistics: Any) -> StorageStatistics:
    records = sum(info.end_sequence for info in (await it.partitions()).values())
    found: StorageStatistics = await statistics()
    return attrs.evolve(found, records=records)


async def subtract_values_only(it: MemoryStorage, trim: Any, partition: Partition, earliest_sequence: int) -> None:
    info = (await it.partitions()).get(partition, PartitionInfo())
    end = min(earliest_sequence, info.end_sequence)
    batches = [each async for each in read_range(it, partition, info.earliest_sequence, end)]
    await trim(partition, earliest_sequence)
    if info.content_bytes > sum(count_bytes(each.values) for each in batches):
        it._logs[partition].content_bytes = info.content_bytes - sum(count_bytes(each.values) for each in batches)


async def create_by_trimming(it: MemoryStorage, trim: Any, partition: Partition, earliest_sequence: int) -> None:
    await trim(partition, earliest_sequence)
    if partition not in it._logs:
        await it.reset_to(partition, earliest_sequence)


async def reset_back(it: MemoryStorage, reset_to: Any, partition: Partition, next_sequence: int) -> None:
    await it.trim(partition, _ALL)
    it._logs.pop(partition, None)
    await reset_to(partition, next_sequence)


async def keep_records_on_reset(it: MemoryStorage, reset_to: Any, partition: Partition, next_sequence: int) -> None:
    await trio.lowlevel.checkpoint()
    log = it._logs.get(partition)
    if log is None or next_sequence < log.end_sequence:
        await reset_to(partition, next_sequence)
    else:
        log.end_sequence = next_sequence


async def keep_one_too_few(
    it: Storage, apply: Any, retention: object, topic: str | None = None
) -> dict[Partition, int]:
    moved: dict[Partition, int] = await apply(retention, topic)
    for partition, earliest in moved.items():
        await it.trim(partition, earliest + 1)
    return {partition: earliest + 1 for partition, earliest in moved.items()}


async def retain_every_topic(it: Storage, apply: Any, retention: object, topic: str | None = None) -> object:
    moved = await apply(retention)
    return {partition: end for partition, end in moved.items() if topic in {None, partition.topic}}


async def return_every_partition(it: Storage, apply: Any, retention: object, topic: str | None = None) -> object:
    await apply(retention, topic)
    return {partition: info.earliest_sequence for partition, info in (await it.partitions(topic)).items()}


async def delete_records_only(it: Storage, delete: Any, partitions: Collection[Partition]) -> None:
    for partition in partitions:
        await it.trim(partition, _ALL)


async def delete_topics(it: MemoryStorage, delete: Any, partitions: Collection[Partition]) -> None:
    topics = {partition.topic for partition in partitions}
    await delete([each for each in it._logs if each.topic in topics])


async def delete_positions(it: MemoryStorage, delete: Any, partitions: Collection[Partition]) -> None:
    await delete(partitions)
    it._positions.clear()


async def load_all_positions(it: MemoryStorage, load: Any, name: str) -> dict[Partition, int]:
    await trio.lowlevel.checkpoint()
    return {partition: end for saved in it._positions.values() for partition, end in saved.items()}


async def replace_positions(it: MemoryStorage, save: Any, name: str, positions: dict[Partition, int]) -> None:
    it._positions[name] = {}
    await save(name, positions)


async def do_nothing(it: Storage, method: Any, *arguments: object) -> dict[Partition, int]:
    await trio.lowlevel.checkpoint()
    return {}


async def never_yield(it: Storage, load: Any, name: str) -> dict[Partition, int]:
    return {}


BROKEN: list[tuple[str, Callable[..., Awaitable[Any]], str]] = [
    ("append", write_valid_batches, "a refused append wrote the valid batches of the list"),
    ("append", accept_gaps, "append with a gap did not raise StorageSequenceError"),
    ("append", append_new_part, "5 records were appended, 6 are read"),
    ("append", split_cancelled_appends, "a cancelled append of 500 to 0 left ends"),
    ("append", let_times_decrease, "times that go back are read as"),
    ("append", changing(lambda batch: {"stored_at": None}), "returned {}, expected 25|records are within"),
    ("append", changing(lambda batch: {"keys": None}), "its key is read as None, was appended as"),
    (
        "append",
        changing(lambda it: {"keys": None} if it.first_sequence and it.headers and it.timestamps else {}),
        "its key is read as None, was appended as",
    ),
    ("append", changing(lambda it: {} if it.keys else {"headers": None}), "its headers is read as"),
    ("append", changing(lambda batch: {"timestamps": None}), "its timestamp is read as None, was"),
    (
        "append",
        changing(lambda it: {"values": [each or b"" for each in it.values]}),
        "its value is read as b'', was appended as None",
    ),
    (
        "append",
        changing(lambda it: {"headers": [(*dict(each).items(),) for each in it.headers or ()] or None}),
        "its headers is read as",
    ),
    ("append", reversing(500, size=100), "the record at sequence 0 is read as b'499"),
    ("append", reversing(500), "the record at sequence 0 is read as b'499"),
    ("append", refuse_late, "an append that raised StorageUnsupportedError created"),
    ("append", refuse_keys_only, "a storage that refuses some records accepts"),
    ("append", refuse_empty_columns, "no keys"),
    ("read", read_from_the_earliest, "read from sequence 0 returned|which is not held"),
    ("read", read_deleted_records, "of a partition that was deleted and began again is read as"),
    ("read", lambda it, read, *some, **_: read(*some, with_times=True), "returned times that were not requested"),
    (
        "read",
        lambda it, read, partition, first, count, *_, **options: read(partition, first, count, 2**40, **options),
        "read of about 10000 bytes returned 300000",
    ),
    (
        "read",
        lambda it, read, partition, first, count, *rest, **options: read(partition, first, count + 1, *rest, **options),
        "read of at most 3 records returned 4",
    ),
    ("partitions", mix_topics, "returned partitions of another topic"),
    ("partitions", listing(lambda partition, info: info if info.count else None), "which holds records"),
    ("partitions", listing(lambda each, info: attrs.evolve(info, last_append_at=1)), "were last appended at 1"),
    ("partitions", count_values_only, "bytes are listed as"),
    ("find_partition", find_only_held_records, "find_partition returned None, partitions lists"),
    ("find_sequence_by_time", lambda it, find, partition, at: find(partition, at + 1), r"find_sequence_by_time\("),
    ("statistics", count_trimmed_records, "50 records in 2 partitions are counted as"),
    ("trim", create_by_trimming, "trimming an unknown partition created it"),
    ("trim", subtract_values_only, "trimmed to records of"),
    ("trim", do_nothing, r"after trim\(5\) expected"),
    ("reset_to", reset_back, r"reset_to\(0\) of a partition that ends at 10 did not raise"),
    ("reset_to", keep_records_on_reset, r"after reset_to\(50\) it is listed as"),
    ("apply_retention", do_nothing, "expected 25 for each of three"),
    ("apply_retention", keep_one_too_few, "left 29 of 40 records, 30 are within the limits"),
    ("apply_retention", retain_every_topic, "read returned None for sequence 0"),
    ("apply_retention", return_every_partition, "and returned|returned partitions"),
    ("delete_partitions", delete_records_only, "after delete_partitions of the others, found"),
    ("delete_partitions", delete_topics, "after delete_partitions of the others, found"),
    ("delete_partitions", delete_positions, "changed a consumer's positions"),
    ("load_positions", load_all_positions, "positions of 'alice|a name never used has positions"),
    ("load_positions", never_yield, "did not yield"),
    ("save_positions", replace_positions, "positions of 'alice"),
    ("position_names", do_nothing, "position_names is not sorted|position_names lacks"),
]


@asynccontextmanager
async def broken(name: str, how: Callable[..., Awaitable[Any]]) -> AsyncIterator[Storage]:
    """Open a storage in memory of which one method is wrong."""
    storage = MemoryStorage()
    setattr(storage, name, partial(how, storage, getattr(storage, name)))
    yield storage


def lose_records(it: MemoryStorage) -> None:
    it._logs.clear()
    it._order.clear()


def lose_later_records(it: MemoryStorage) -> None:
    for log in it._logs.values():
        if (log.earliest_sequence, log.end_sequence) == (4, 12):
            log.end_sequence = log.runs.pop().first_sequence


def losing(change: Callable[[RecordBatch], dict[str, Any]]) -> Callable[[MemoryStorage], None]:
    """Return what changes fields of all batches."""

    def lose(it: MemoryStorage) -> None:
        for log in it._logs.values():
            log.runs = type(log.runs)(attrs.evolve(run, **change(run)) for run in log.runs)

    return lose


LOST: list[tuple[Callable[[MemoryStorage], None], str]] = [
    (lose_records, "opened again, expected"),
    (lose_later_records, "8 records were appended, 6 are read"),
    (losing(lambda batch: {"keys": None}), "its key is read as None"),
    (losing(lambda batch: {"stored_at": [7] * len(batch)}), r"records stored at 1000 and 2000 have \[7, 7, 7\]"),
    (lambda it: it._positions.clear(), "positions are lost"),
    (lambda it: setattr(it, "identity", new_address()), "opened three times, the storage had the identities"),
]


def reopened(lose: Callable[[MemoryStorage], None]) -> Callable[[], AbstractAsyncContextManager[Storage]]:
    """Return what opens one storage in memory again and again, which loses something each time."""
    storage = MemoryStorage()

    @asynccontextmanager
    async def opened() -> AsyncIterator[Storage]:
        lose(storage)
        yield storage

    return opened


@pytest.mark.parametrize(
    ("opened", "message", "reopens"),
    [
        *((partial(broken, name, how), message, False) for name, how, message in BROKEN),
        *((reopened(lose), message, True) for lose, message in LOST),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_check_storage_detects(
    opened: Callable[[], AbstractAsyncContextManager[Storage]], message: str, reopens: bool
) -> None:
    with pytest.raises((AssertionError, StorageUnsupportedError), match=message):
        await check_storage(opened, reopens=reopens)
