# ruff: noqa: ASYNC240, PT017  (small files in tests; errors that may or may not occur)
"""Damage to the files of a file log: no wrong data, no traceback, and no unreported loss."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from dafka.batches import decode_records, encode_records, iter_batches, read_header
from dafka.errors import StorageCorruptError, StorageError, StorageFormatError
from dafka.records import Partition, RecordBatch
from dafka.storage import ReadsStoredBatches
from dafka.storage.base import PartitionInfo, RetentionPolicy, Storage
from dafka.storage.filelog import open_filelog
from tests.storage.quick import quickly

FIRST = Partition("orders", "A" * 8)
SECOND = Partition("", "B")
TIMES = [1_000_000, 1_000_500, 1_001_000]


def content(sequence: int) -> bytes:
    return b"%d." % sequence * (sequence % 4)


def batch(first_sequence: int, count: int, partition: Partition = FIRST, stored_at: int | None = None) -> RecordBatch:
    contents = [content(sequence) for sequence in range(first_sequence, first_sequence + count)]
    return RecordBatch(
        partition, first_sequence, contents, stored_at=None if stored_at is None else [stored_at] * count
    )


@attrs.define
class Files:
    """All files of a folder, kept in memory to restore them after each experiment."""

    folder: Path
    data: dict[Path, bytes]

    @classmethod
    def keep(cls, folder: Path) -> Files:
        found = (path for path in folder.rglob("*") if path.is_file() and path.name != "filelog.lock")
        return cls(folder, {path: path.read_bytes() for path in sorted(found)})

    def restore(self) -> None:
        for path in [path for path in self.folder.rglob("*") if path.is_file()]:
            if path not in self.data and path.name != "filelog.lock":
                path.unlink()
        for path, data in self.data.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    """There are thousands of experiments."""
    with quickly():
        yield


async def make_small(folder: Path) -> dict[Partition, range]:
    """Create two partitions, one of three segments whose first is partly trimmed, and close the storage."""
    async with open_filelog(f"{folder}?segment_bytes=200") as storage:
        await storage.append([batch(0, 5, stored_at=TIMES[0]), batch(7, 2, SECOND)])
        await storage.append([batch(5, 4, stored_at=TIMES[0])])
        await storage.append([batch(9, 5, stored_at=TIMES[1])])
        await storage.append([batch(14, 3, stored_at=TIMES[1])])
        await storage.append([batch(17, 4, stored_at=TIMES[2]), batch(9, 1, SECOND)])
        await storage.trim(FIRST, 2)
        await storage.save_positions("billing", {FIRST: 7})
    assert len(list(folder.rglob("*.log"))) > 3
    return {FIRST: range(2, 21), SECOND: range(7, 10)}


async def read_held(storage: Storage, partition: Partition, sequences: range) -> tuple[set[int], set[int]]:
    """Return the sequences that can be read correctly, and those that are reported as damaged."""
    good: set[int] = set()
    bad: set[int] = set()
    sequence = sequences.start
    while sequence < sequences.stop:
        assert isinstance(storage, ReadsStoredBatches)
        stored = await storage.read_batches(partition, sequence, sequences.stop, 2**20)
        data = b"" if stored is None else stored.data
        for at, header in iter_batches(data):
            whole = decode_records(partition, bytes(data[at : at + header.size]))  # checks the CRC
            assert whole.values == [content(number) for number in range(whole.first_sequence, whole.end_sequence)]
        try:
            found = await storage.read(partition, sequence, 3)
        except StorageCorruptError as error:
            assert "\n" not in str(error)
            assert error.end_sequence > sequence
            bad |= set(range(sequence, error.end_sequence))
            sequence = error.end_sequence
            continue
        assert found is not None, (partition, sequence)
        assert found.first_sequence == sequence
        assert found.values == [content(number) for number in range(sequence, found.end_sequence)]
        good |= set(range(sequence, found.end_sequence))
        sequence = found.end_sequence
    return good, bad


async def examine(
    folder: Path, expected: dict[Partition, range], *, read_only: bool = False, may_lose: bool = False
) -> None:
    """Open and read all. A record that cannot be read must be damaged, in `repairs`, or allowed by `may_lose`."""
    try:
        async with open_filelog(f"{folder}?segment_bytes=200", read_only=read_only) as storage:
            infos = await storage.partitions()
            assert infos.keys() <= expected.keys()
            for partition, sequences in expected.items():
                found = await examine_partition(storage, partition, infos.get(partition, PartitionInfo()), sequences)
                assert may_lose or set(sequences) <= found, (partition, storage.repairs)
            try:
                assert await storage.load_positions("billing") == {FIRST: 7}
            except StorageError as error:
                assert "positions/billing.json is damaged" in str(error)
            await storage.find_damage()
            if not read_only and FIRST in infos:
                end = infos[FIRST].end_sequence
                await storage.append([batch(end, 2)])
                assert await storage.read(FIRST, end, 9) == batch(end, 2)
    except StorageFormatError as error:
        assert "filelog.json" in str(error)
        assert "\n" not in str(error)


async def examine_partition(storage: Storage, partition: Partition, info: PartitionInfo, sequences: range) -> set[int]:
    """Return the sequences that are read, or reported as damaged."""
    good, bad = await read_held(storage, partition, range(info.earliest_sequence, info.end_sequence))
    assert info.end_sequence <= sequences.stop
    for time in (*TIMES, TIMES[-1] + 1):
        sequence = await storage.find_sequence_by_time(partition, time)
        assert info.earliest_sequence <= sequence <= info.end_sequence
    for damage in storage.repairs:
        if damage.partition == partition:
            bad |= set(range(damage.first_sequence, damage.end_sequence))
    return good | bad


@pytest.mark.parametrize("step", [19, pytest.param(1, marks=pytest.mark.long)])
async def test_every_damaged_byte_of_every_file(tmp_path: Path, step: int) -> None:
    folder = tmp_path / "log"
    expected = await make_small(folder)
    files = Files.keep(folder)
    generator = random.Random(4)
    for path, data in files.data.items():
        for place in range(0, len(data), step):
            changed = bytearray(data)
            changed[place] ^= 1 << generator.randrange(8)
            path.write_bytes(changed)
            read_only = bool(generator.randrange(2))
            await examine(folder, expected, read_only=read_only)
            files.restore()


@pytest.mark.parametrize("read_only", [False, True])
async def test_every_file_truncated_or_deleted(tmp_path: Path, read_only: bool) -> None:
    folder = tmp_path / "log"
    expected = await make_small(folder)
    files = Files.keep(folder)
    for path, data in files.data.items():
        for changed in (*(data[:length] for length in range(0, len(data), 31)), data[:-1], data + b"rubbish" * 9):
            path.write_bytes(changed)
            await examine(folder, expected, read_only=read_only)
            files.restore()
        if path.name != "billing.json":  # without it, there are no positions
            path.unlink()
            await examine(folder, expected, read_only=read_only)
            files.restore()


async def test_a_writer_reports_where_a_file_is_cut_or_damaged(tmp_path: Path) -> None:
    """Without a catalog: of each record batch, the records, unless nothing follows that shows that they were there."""
    folder = tmp_path / "log"
    ranges = [range(3), range(3, 4), range(4, 8)]
    async with open_filelog(str(folder)) as storage:
        for each in ranges:
            await storage.append([batch(each.start, len(each))])
    (log,) = folder.rglob("*.log")
    data, begin = log.read_bytes(), 0
    for number, each in enumerate(ranges):
        (part,) = encode_records(batch(each.start, len(each)))
        for at in (*range(0, len(part), 9), 1, len(part) - 1):
            flipped = data[: begin + at] + bytes([data[begin + at] ^ 1]) + data[begin + at + 1 :]
            is_last = number == len(ranges) - 1
            for changed, end, wanted in (
                (data[: begin + at], each.start, [("truncated", each.start)] if at else []),
                (flipped, each.start if is_last else 8, [("truncated" if is_last else "damaged", each.start)]),
            ):
                if changed is flipped and 12 <= at < 16:  # the leader epoch, which is not protected
                    continue
                for name in ("catalog.heads", "catalog.names"):
                    (folder / name).unlink()
                log.write_bytes(changed)
                async with open_filelog(str(folder)) as storage:
                    found = [(damage.reason.partition(":")[0], damage.first_sequence) for damage in storage.repairs]
                    assert found == wanted, (number, at)
                    assert (await storage.partitions())[FIRST].end_sequence == end
                    await storage.append([batch(end, 9)])
                    assert await storage.read(FIRST, end, 9) == batch(end, 9)
        begin += len(part)


async def test_a_prefix_of_the_batches_of_an_append_may_stay(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    contents = [b"%d" % sequence for sequence in range(5_000)]  # three record batches
    async with open_filelog(str(folder)) as storage:
        await storage.append([batch(0, 3, stored_at=5)])
        await storage.append([RecordBatch(FIRST, 3, contents, stored_at=[9] * len(contents))])
    (log,) = folder.rglob("*.log")
    data = log.read_bytes()
    first, second, _ = (read_header(part).count for part in encode_records(RecordBatch(FIRST, 3, contents)))
    ends = [3, 3 + first, 3 + first + second]
    flipped = bytearray(data)
    flipped[-5] ^= 1
    wanted = [(data[: len(data) // 4], ends[0]), (data[: len(data) // 2], ends[1]), (data[:-1], ends[2])]
    for changed, end in (*wanted, (bytes(flipped), ends[2])):
        files = Files.keep(folder)
        for name in ("catalog.heads", "catalog.names"):
            (folder / name).unlink()
        log.write_bytes(changed)
        for read_only in (True, False):
            async with open_filelog(str(folder), read_only=read_only) as storage:
                assert (await storage.partitions())[FIRST] == PartitionInfo(
                    0, end, content_bytes(contents, end), 5, 9 if end > 3 else 5
                )
                assert not await storage.find_damage() or read_only
                assert [damage.first_sequence for damage in storage.repairs] == ([] if read_only else [end])
                found = await storage.read(FIRST, end - 1, 9, with_times=True)
                assert found is not None
                assert found.stored_at == [9 if end > 3 else 5]
        files.restore()


def content_bytes(contents: list[bytes], end: int) -> int:
    return sum(len(content(number)) for number in range(3)) + sum(map(len, contents[: end - 3]))


async def test_wrong_index_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    large = [b"%d" % sequence * 300 for sequence in range(1000)]
    async with open_filelog(str(folder)) as storage:
        for first_sequence in range(0, 1000, 50):
            await storage.append([RecordBatch(FIRST, first_sequence, large[first_sequence : first_sequence + 50])])
        await storage.read(FIRST, 0, 1)
    (index,) = folder.rglob("*.index")
    data = index.read_bytes()
    rows = [struct.unpack(">II", data[at : at + 8]) for at in range(0, len(data), 8)]
    assert len(rows) > 3
    changes = [data[:-3], bytes(len(data))]
    for offset, position in ((0, 7), (50, -7)):
        changes.append(b"".join(struct.pack(">II", row[0] + offset, row[1] + position) for row in rows))
    for changed in changes:
        index.write_bytes(changed)
        async with open_filelog(str(folder)) as storage:
            assert [str(damage) for damage in await storage.find_damage()] == [
                f"{index}: damaged: it is not used, and can be deleted"
            ]
            for sequence in (999, 0, 50, 420, 777):
                found = await storage.read(FIRST, sequence, 1)
                assert found is not None
                assert list(found.values) == [large[sequence]]
        assert index.read_bytes() == data, "rebuilt when the storage is closed"


@pytest.mark.parametrize("missing", [0, 1, 2])
async def test_records_of_a_missing_segment_can_be_dropped(tmp_path: Path, missing: int) -> None:
    folder = tmp_path / "log"
    async with open_filelog(f"{folder}?segment_bytes=1") as storage:
        for first_sequence in range(0, 20, 5):
            await storage.append([batch(first_sequence, 5, stored_at=first_sequence)])
        sorted(folder.rglob("*.log"))[missing].unlink()
    for age_ms in (2 * 10**12, 0):
        async with open_filelog(f"{folder}?segment_bytes=1") as storage:
            with pytest.raises(StorageCorruptError, match=r"are lost, |are damaged or missing in") as caught:
                await storage.read(FIRST, 5 * missing + 1, 9)
            assert caught.value.end_sequence == 5 * missing + 5
            assert await storage.find_sequence_by_time(FIRST, 15) == 15
            assert await storage.apply_retention(RetentionPolicy(age_ms=age_ms)) == ({} if age_ms else {FIRST: 20})
            if age_ms:
                await storage.apply_retention(RetentionPolicy(records_max=19))
                await storage.trim(FIRST, 5 * missing + 1)


async def test_find_damage_names_every_file_that_does_not_belong_there(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    await make_small(folder)
    logs = sorted((folder / "topics" / "orders").rglob("*.log"))
    async with open_filelog(f"{folder}?segment_bytes=200") as storage:
        assert await storage.find_damage() == []
        (folder / "topics" / "orders" / "notes.txt").write_text("?")
        for place in (folder, logs[0].parent, folder / "positions"):
            (place / "notes.txt").write_text("?")
            (place / ".notes.tmp").write_text("an incomplete replacement of a file, which a killed writer leaves")
        (folder / "topics" / "orders" / "a b").mkdir()
        logs[0].write_bytes(logs[0].read_bytes() + b"???")
        (folder / "positions" / "billing.json").write_text("{")
        found = {str(damage).replace(str(folder), "") for damage in await storage.find_damage()}
        logs[1].unlink()
        found |= {str(damage).replace(str(folder), "") for damage in await storage.find_damage()}
        sentence = r"positions/billing.json is damaged: delete it to let the consumer 'billing' start"
        with pytest.raises(StorageError, match=sentence):
            await storage.load_positions("billing")
        await storage.save_positions("shipping", {FIRST: 8})
    assert any(re.search(sentence, each) for each in found)
    partition = f"/topics/orders/{FIRST.address}"
    assert {each for each in found if not re.search(sentence, each)} == {
        "/notes.txt: not a file of a file log",
        "/positions/notes.txt: not a file of a file log",
        "/topics/orders/notes.txt: not a file of a file log",
        "/topics/orders/a b: not a file of a file log",
        f"{partition}/notes.txt: not a file of a file log",
        f"{partition}/{logs[0].name}: 3 bytes follow the last record",
        f"orders/AAAAAAAA, sequences 5 to 8: lost or damaged ({partition}/{logs[0].name})",
    }


async def test_a_writer_without_a_catalog_reports_what_it_repairs(tmp_path: Path) -> None:
    """A damaged limit of trimming, a segment that is too short, an incomplete append, and the times of no segment."""
    folder = tmp_path / "log"
    await make_small(folder)
    first, *_, last = sorted((folder / "topics" / "orders").rglob("*.log"))
    (first.parent / "earliest").write_bytes(b"2 7 00000000\n")
    first.write_bytes(first.read_bytes()[:-1])
    last.write_bytes(last.read_bytes() + encode_records(batch(21, 9))[0][:-1] + b"?")
    stray = first.with_name(f"{99:020}.stored")
    stray.touch()
    for name in ("catalog.heads", "catalog.names"):
        (folder / name).unlink()
    async with open_filelog(f"{folder}?segment_bytes=200") as storage:
        found = {(each.reason.partition(":")[0], each.first_sequence, each.end_sequence) for each in storage.repairs}
    assert found == {("damaged", 0, 0), ("lost", 0, 5), ("truncated", 21, 30)}
    assert not stray.exists()
