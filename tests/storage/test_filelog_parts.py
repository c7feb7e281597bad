"""The parts of a file log by themselves: segments, indexes, times, buffers of reads, the pool of files, the catalog."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka.batches import encode_batch, with_base_offset
from dafka.records import Partition
from dafka.storage.filelog import catalog
from dafka.storage.filelog.catalog import (
    CHANGING,
    CLOSED,
    GOOD,
    HEADS_FILE,
    IN_USE,
    NAMES_FILE,
    VACANT,
    CatalogReader,
    CatalogWriter,
    decode_slot,
)
from dafka.storage.filelog.files import (
    FilePool,
    is_temporary_file,
    make_folders,
    read_file,
    remove_folders,
    replace_file,
    write_at,
)
from dafka.storage.filelog.index import Block, SegmentIndex, decode_rows, decode_times, is_beginning
from dafka.storage.filelog.partition import Head, PartitionLog, parse_segment_name, partition_seed
from dafka.storage.filelog.segment import HEADER_READ_BYTES, ReadBuffer, Segment
from dafka.storage.filelog.stored import ROW_BYTES, StoredRow, StoredRows, decode_row, drop_replaced

SEED = PartitionLog(Partition("t", "A"), "topics").segment_seed(7)
NAMES = [(b"t", b"A"), (b"t", b"B"), (b"", b"\xff")]
HEAD = Head(earliest=3, end=9, content_bytes=5, earliest_at=1, latest_at=2, base=3, length=99, base_at=1)


# Segments


opened = ExitStack()
"""The files that a test has opened."""


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    with opened:
        yield


def open_log(path: Path, base: int = 7, end: int = 10**9) -> Segment:
    """Return a segment at its place in a file log, open."""
    log = PartitionLog(Partition("t", "A"), str(path.parent.parent.parent))
    assert log.log_path(base) == str(path)
    pool = FilePool(os.O_RDWR)
    opened.callback(pool.close)
    with pool.open_file(str(path)) as fd:
        return Segment(log, base, end, fd, path.stat().st_size, pool, build_index)


def build_index(segment: Segment) -> SegmentIndex:
    index = SegmentIndex(segment.base)
    for block in segment.iterate(segment.open_buffer(), 0, segment.base):
        index.add_block(block)
    return index


def batches(*sizes: int) -> list[bytes]:
    """Return record batches of 1, 2, ... records of these sizes, from sequence 7 on."""
    found, sequence = [], 7
    for count, size in enumerate(sizes, 1):
        found.append(encode_batch(sequence, [b"%d" % sequence + bytes(size)] * count, timestamps=100 + size))
        sequence += count
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "t" / "A" / f"{7:020}.log"
    found.parent.mkdir(parents=True)
    return found


def firsts(segment: Segment) -> list[int]:
    return [block.first_sequence for block in segment.iterate(segment.open_buffer(10), 0, 7)]


@pytest.mark.parametrize(
    "gap", [9, 60, HEADER_READ_BYTES - 1, HEADER_READ_BYTES, HEADER_READ_BYTES + 1, 3 * HEADER_READ_BYTES]
)
def test_a_block_after_a_gap_of_any_size_is_found(gap: int, path: Path) -> None:
    """The gap is searched in pieces. The block may begin with a piece, or across the border of two."""
    for more in range(0, 70, 7):
        path.write_bytes(b"?" * (gap + more) + batches(10)[0] + b"?" * 10 * more)
        segment = open_log(path)
        found = list(segment.iterate(segment.open_buffer(10), 0, 7))
        assert [(each.position, each.first_sequence, each.records) for each in found] == [(gap + more, 7, 1)]


def test_segments_have_names_of_twenty_ascii_digits() -> None:
    assert parse_segment_name(f"{7:020}.log") == (7, ".log")
    assert parse_segment_name(f"{2**64 - 1:020}.index") == (2**64 - 1, ".index")
    others = ["7.log", f"{7:020}.txt", f"{7:020}.log.tmp", f"{7:021}.log", f"{2**64:020}.log", f"{'x' * 20}.log"]
    others += [f"{digit * 20}.log" for digit in ("\N{ARABIC-INDIC DIGIT THREE}", "\N{SUPERSCRIPT TWO}")]
    assert [name for name in others if parse_segment_name(name) is not None] == []


def test_batches_after_any_damaged_byte_are_found(path: Path) -> None:
    parts = batches(40, 3, 50, 0, 20)  # from sequences 7, 8, 10, 13, 17
    begin, end = len(parts[0]) + len(parts[1]), len(b"".join(parts[:3]))
    for at in range(begin, end):
        damaged = bytearray(b"".join(parts))
        damaged[at] ^= 0x41
        path.write_bytes(bytes(damaged))
        segment = open_log(path)
        assert [first for first in firsts(segment) if first != 10] == [7, 8, 13, 17], at
        buffer = segment.open_buffer()
        for block in segment.iterate(buffer, 0, 7):
            # The leader epoch, which Kafka rewrites, is not protected.
            assert (segment.decode(buffer, block) is None) is (
                block.first_sequence == 10 and not begin + 12 <= at < begin + 16
            )


def test_a_batch_at_another_place_of_its_partition_is_damage(path: Path) -> None:
    parts = batches(40, 3, 50)
    for first_sequence in (7, 9):
        path.write_bytes(parts[0] + with_base_offset(parts[1], first_sequence) + parts[2])
        assert firsts(open_log(path)) == [7, 10]


def test_a_copy_of_batches_within_a_damaged_record_is_not_taken_for_batches(path: Path) -> None:
    copy = encode_batch(9, [b"wrong"] * 3, timestamps=0) + encode_batch(12, [b"wrong"], timestamps=0)
    first = encode_batch(7, [b"x", copy], timestamps=0)
    data = bytearray(first + encode_batch(9, [b"right"], timestamps=0) + encode_batch(10, [b"right"], timestamps=0))
    data[9] ^= 1  # the length of the first batch
    path.write_bytes(bytes(data))
    segment = open_log(path)
    buffer = segment.open_buffer()
    found = [segment.decode(buffer, block) for block in segment.iterate(buffer, 0, 7)]
    assert [(each.first_sequence, list(each.values)) for each in found if each] == [(9, [b"right"]), (10, [b"right"])]


# Indexes


def block_at(sequence: int, position: int, size: int, time: int = 0) -> Block:
    return Block(position, size, sequence, 2, 0, max_timestamp=time)


def test_an_index_is_as_kafka_has_it() -> None:
    index = SegmentIndex(7)
    for number, time in enumerate((50, 40, 60, 60, 70)):
        index.add_block(block_at(7 + 2 * number, number * 65536, 65536, time))
    assert index.rows == [(9, 65536, 10), (11, 131072, 12), (13, 196608, 14), (15, 262144, 16)]
    offsets, times = index.encode()
    assert offsets.hex(" ", 4) == "00000003 00010000 00000005 00020000 00000007 00030000 00000009 00040000"
    assert times.hex(" ", 4).replace(" ", "") == "".join(
        f"{time:016x}{last:08x}" for time, last in ((50, 1), (60, 5), (70, 9))
    )
    assert decode_rows(offsets, 7) == [(last, position) for _, position, last in index.rows]
    assert decode_times(times, 7) == [(50, 8), (60, 12), (70, 16)]
    assert decode_rows(offsets[:-1], 7) is None
    assert decode_rows(offsets + offsets, 7) is None
    assert decode_times(times[:-1], 7) is None
    assert decode_times(times + times, 7) is None
    assert is_beginning((offsets, times), index)
    index.add_block(block_at(17, 327680, 65536, 80))
    assert is_beginning((offsets, times), index)
    assert not is_beginning((offsets[8:], times), index)
    assert not is_beginning((offsets, None), index)
    index = SegmentIndex(7)
    index.add_block(block_at(7, 0, 10, 50))
    assert index.encode() == (b"", (50).to_bytes(8, "big") + (1).to_bytes(4, "big"))
    assert SegmentIndex(7).encode() == (b"", b"")


def test_an_index_locates_the_last_row_before_what_is_sought() -> None:
    index = SegmentIndex(7, 40, rows=[(10, 100, 12), (20, 200, 29), (30, 300, 34), (35, 350, 39)])
    expected = {7: (7, 0), 9: (7, 0), 10: (10, 100), 19: (10, 100), 20: (20, 200), 34: (30, 300), 99: (35, 350)}
    assert {sequence: index.locate_sequence(sequence) for sequence in expected} == expected


# Times of storing


ROWS = [StoredRow(10, 50, 30), StoredRow(20, 50, 60), StoredRow(21, 70, 61), StoredRow(40, 90, 100)]


def rows_in(path: Path, damaged: tuple[int, ...] = ()) -> StoredRows:
    data = bytearray(b"".join(row.encode(SEED) for row in ROWS))
    for number in damaged:
        data[number * ROW_BYTES + 3] ^= 1
    path.write_bytes(bytes(data))
    fd = os.open(path, os.O_RDWR)
    opened.callback(os.close, fd)
    return StoredRows(fd, 7, SEED)


KINDS = st.sampled_from(["good", "bad", "old"])


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2), st.integers(0, 9), KINDS), max_size=12),
    st.integers(0, ROW_BYTES - 1),
    st.integers(7, 40),
    st.integers(7, 40),
)
def test_rows_are_as_a_list_of_the_good_ones(
    steps: list[tuple[int, int, int, str]], cut_bytes: int, first: int, stop: int
) -> None:
    """Records of a damaged row, and of one of an earlier segment, count as those of the next good row."""
    data, good, row = b"", list[tuple[int, StoredRow]](), StoredRow(7, 50, 0)
    for number, (records, later, size, kind) in enumerate(steps):
        row = StoredRow(row.end_sequence + records, row.stored_at + later, row.content_bytes + size)
        written = (row._replace(end_sequence=7) if kind == "old" else row).encode(SEED)
        data += written[:-1] + bytes([written[-1] ^ (kind == "bad")])
        good += [(number, row)] if kind == "good" else []
    with TemporaryFile() as file:
        file.write(data + bytes(cut_bytes))
        file.flush()
        rows = StoredRows(file.fileno(), 7, SEED)
        assert rows.count == len(steps)
        assert list(rows.iterate(0)) == good
        for sequence in range(6, row.end_sequence + 2):
            expected = next((number for number, each in good if each.end_sequence > sequence), len(steps))
            assert rows.find_sequence(sequence) == expected
        for time in range(49, row.stored_at + 2):
            assert rows.find_time(time) == next((n for n, each in good if each.stored_at >= time), len(steps))
        runs, before = [], StoredRow(7, 0, 0)
        for _, each in good:
            end, size = min(each.end_sequence, stop), each.content_bytes - before.content_bytes
            if each.end_sequence > first and before.end_sequence < stop:
                runs.append((before.end_sequence, end, each.stored_at, size if end == each.end_sequence else None))
            before = each
        assert [tuple(run) for run in rows.runs(first, stop)] == runs
    assert decode_row(row.encode(SEED), SEED + 1) is None


@pytest.mark.parametrize(
    ("end", "damaged", "latest_at", "last"),
    [
        (40, (), 90, StoredRow(40, 90, 100)),
        (40, (), 95, StoredRow(40, 95, 61 + 19)),
        (20, (), 0, StoredRow(20, 50, 60)),
        (35, (), 0, StoredRow(35, 90, 61 + 14)),
        (45, (), 0, StoredRow(45, 90, 100 + 5)),
        (40, (3,), 0, StoredRow(40, 70, 61 + 19)),
        (40, (3,), 80, StoredRow(40, 80, 61 + 19)),
        (40, (0, 1, 2, 3), 0, StoredRow(40, 99, 33)),
        (40, (0, 1, 2, 3), 40, StoredRow(40, 40, 33)),
        (7, (), 0, StoredRow(7, 0, 0)),
    ],
)
def test_rows_are_made_to_fit_their_segment(
    end: int, damaged: tuple[int, ...], latest_at: int, last: StoredRow, tmp_path: Path
) -> None:
    path = tmp_path / "7.stored"
    rows = rows_in(path, damaged)
    size, found = rows.fit(end, lambda first, stop: stop - first, latest_at, lambda: 99)
    assert found == last
    assert size == path.stat().st_size
    assert end == 7 or decode_row(path.read_bytes()[-ROW_BYTES:], SEED) == last


def test_rows_that_an_append_took_back_are_dropped() -> None:
    rows = [StoredRow(10, 50, 0), StoredRow(20, 50, 0), StoredRow(21, 70, 0), StoredRow(40, 90, 0)]
    assert drop_replaced(rows) == rows
    row_of_later_append_is_lost = [rows[0], StoredRow(30, 50, 0), *rows[2:]]
    assert drop_replaced(row_of_later_append_is_lost) == [rows[0], *rows[2:]]
    truncation_is_lost = [*rows[:3], StoredRow(35, 60, 0), StoredRow(38, 60, 0)]
    assert drop_replaced(truncation_is_lost) == rows[:3]


@given(st.integers(0, 40), st.integers(1, 30), st.lists(st.tuples(st.integers(-3, 9), st.integers(0, 25))))
def test_a_buffer_finds_what_is_in_the_file_before_its_limit(
    limit: int, chunk_bytes: int, wanted: list[tuple[int, int]]
) -> None:
    data = bytes(range(40))
    with TemporaryFile() as file:
        file.write(data)
        file.flush()
        buffer = ReadBuffer(file.fileno(), limit, chunk_bytes)
        position = 20
        for step, size in wanted:
            position = max(position + step, 0)
            offset = buffer.find(position, size)
            assert (offset >= 0) == (position + size <= limit)
            if offset >= 0:
                assert buffer.data[offset : offset + size] == data[position : position + size]


def test_a_read_that_the_system_cuts_short_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(100)))
    read, sizes = os.pread, []

    def read_little(fd: int, size: int, position: int) -> bytes:
        sizes.append(size)
        return read(fd, min(size, 7), position)

    monkeypatch.setattr(os, "pread", read_little)
    with path.open("rb") as file:
        buffer = ReadBuffer(file.fileno(), 90, 5)
        assert buffer.find(10, 20) == 0
        assert buffer.data == bytes(range(10, 30))
        assert sizes == [20, 13, 6]
        assert buffer.find(15, 15) == 5, "it is not read again"
        longer = ReadBuffer(file.fileno(), 200, 5)
        assert longer.find(90, 20) == -1, "the file is shorter than it should be"


# Files


def test_a_pool_closes_the_files_that_were_not_used_lately(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in "abc"]
    for path in paths:
        Path(path).write_bytes(path[-1:].encode())
    pool = FilePool(os.O_RDONLY, files_max=2)
    for path in (paths[0], paths[1], paths[0], paths[2]):
        with pool.open_file(path) as fd:
            assert os.pread(fd, 9, 0) == path[-1:].encode()
    assert pool.open_paths() == [paths[0], paths[2]]
    with pool.open_file(paths[0]) as first, pool.open_file(paths[1]), pool.open_file(paths[2]) as third:
        pool.drop(paths[2])
        assert os.pread(third, 9, 0) == b"c", "a file that is in use stays open"
        pool.drop(paths[2])
        assert os.pread(first, 9, 0) == b"a"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(third)
    assert pool.is_in_place(paths[0])
    os.replace(paths[1], paths[0])
    assert not pool.is_in_place(paths[0])
    pool.close()
    assert pool.open_paths() == []


def test_a_write_that_the_system_cuts_short_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, at: write(fd, [b"".join(buffers)[:3]], at))
    with (tmp_path / "file").open("w+b") as file:
        write_at(file.fileno(), [b"ab", b"", b"cdef", b"g", b"hi"], 2)
        assert read_file(str(tmp_path / "file")) == b"\0\0abcdefghi"


def test_the_first_error_of_a_file_that_cannot_be_replaced_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(IsADirectoryError):
        replace_file(f"{tmp_path}/file", b"")
    assert os.listdir(tmp_path) == ["file"]

    def fail(path: str) -> None:
        raise PermissionError(path)

    monkeypatch.setattr(os, "unlink", fail)
    with pytest.raises(IsADirectoryError):
        replace_file(f"{tmp_path}/file", b"")


def test_folders_are_made_and_removed_as_far_as_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = f"{tmp_path}/a/b/c"
    assert make_folders(deep) == [f"{tmp_path}", f"{tmp_path}/a", f"{tmp_path}/a/b"]
    assert make_folders(deep) == []
    os.mkdir(f"{tmp_path}/a/other")
    assert remove_folders(deep, str(tmp_path)) == f"{tmp_path}/a"
    assert os.listdir(f"{tmp_path}/a") == ["other"]
    assert remove_folders(f"{tmp_path}/a/other", str(tmp_path)) == str(tmp_path)
    assert os.listdir(tmp_path) == []
    assert is_temporary_file(".x.tmp")
    assert not is_temporary_file("x.tmp")
    assert not is_temporary_file(".x")
    monkeypatch.chdir(tmp_path)
    assert make_folders("a/b") == [".", "a"]
    assert make_folders("a/b") == []


# The catalog


@pytest.fixture
def writer(tmp_path: Path) -> CatalogWriter:
    made = CatalogWriter(str(tmp_path))
    made.create([(name, GOOD, HEAD) for name in NAMES])
    return made


def load(folder: Path) -> CatalogReader:
    reader = CatalogReader(str(folder))
    reader.load()
    return reader


def seed_of(number: int) -> int:
    return partition_seed(*NAMES[number])


def test_after_a_restart_of_the_system_only_a_closed_catalog_is_trusted(
    writer: CatalogWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len({IN_USE, CLOSED}) == 2
    assert len({GOOD, CHANGING, VACANT}) == 3
    monkeypatch.setattr(catalog, "boot_id", lambda: b"another boot")
    reader = load(tmp_path)
    assert (reader.is_complete, reader.is_trusted) == (True, False)
    assert reader.loaded_slot(0, seed_of(0)) == (CHANGING, Head())
    writer.close(is_clean=True)
    assert load(tmp_path).is_trusted
    monkeypatch.setattr(catalog, "boot_id", lambda: b"a third boot")
    assert load(tmp_path).is_trusted
    again = CatalogWriter(str(tmp_path))
    again.open(3)
    assert load(tmp_path).is_trusted, "in use in this boot"
    monkeypatch.setattr(catalog, "boot_id", lambda: b"a fourth boot")
    assert not load(tmp_path).is_trusted, "marked as in use before anything is written"
    again.close(is_clean=False)
    assert not load(tmp_path).is_trusted
    monkeypatch.setattr(catalog, "boot_id", lambda: b"")
    assert not load(tmp_path).is_trusted, "an unknown boot is never the same"


def test_a_catalog_is_closed_once_it_is_durable(writer: CatalogWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {writer._names_fd: "names", writer._heads_fd: "heads"}
    seen: list[tuple[str, str]] = []
    sync, write = os.fsync, os.pwritev

    def record_sync(fd: int) -> None:
        seen.append(("sync", names[fd]))
        sync(fd)

    def record_write(fd: int, buffers: list[bytes], position: int) -> int:
        seen.append(("write", names[fd]))
        return write(fd, buffers, position)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(os, "pwritev", record_write)
    writer.write_slot(1, seed_of(1), CHANGING, HEAD)
    assert seen == [("write", "heads")]
    writer.close(is_clean=True)
    assert sorted(seen[1:3]) == [("sync", "heads"), ("sync", "names")], "lists before the closing mark"
    assert seen[3:] == [("write", "heads"), ("sync", "heads")]
    writer.close(is_clean=True)
    assert len(seen) == 5


def test_added_slots_are_there_or_undone(writer: CatalogWriter, tmp_path: Path) -> None:
    assert writer.add_slots([(b"u", b"C"), (b"u", b"D")]) == 3
    assert writer.add_slots([(b"u", b"E")]) == 5
    reader = load(tmp_path)
    assert reader.names == [*NAMES, (b"u", b"C"), (b"u", b"D"), (b"u", b"E")]
    assert reader.is_complete
    assert reader.loaded_slot(4, partition_seed(b"u", b"D")) == (CHANGING, Head())
    with (tmp_path / NAMES_FILE).open("ab") as names, (tmp_path / HEADS_FILE).open("ab") as heads:
        names.write(b"\0\1")
        heads.write(b"half a slot")
    assert not load(tmp_path).is_complete
    writer.undo_add_slots()
    assert load(tmp_path).is_complete
    writer.close(is_clean=False)


def test_a_reader_forgets_names_whose_slots_were_undone(writer: CatalogWriter, tmp_path: Path) -> None:
    names = (tmp_path / NAMES_FILE).read_bytes()
    writer.add_slots([(b"u", b"C")])
    added = (tmp_path / NAMES_FILE).read_bytes().removeprefix(names)
    with (tmp_path / NAMES_FILE).open("ab") as file:
        file.write(added)  # an `add_slots` that fails before it is complete
    reader = load(tmp_path)
    assert reader.names == [*NAMES, (b"u", b"C"), (b"u", b"C")]
    writer.undo_add_slots()
    assert not reader.load()
    assert reader.names == [*NAMES, (b"u", b"C")]
    assert reader.is_complete
    writer.close(is_clean=False)


def test_a_slot_is_read_only_from_a_catalog_that_is_the_same(writer: CatalogWriter, tmp_path: Path) -> None:
    reader = load(tmp_path)
    writer.write_slot(1, seed_of(1), VACANT, Head(end=77))
    data = reader.read_slot(1)
    assert data is not None
    assert decode_slot(data, seed_of(1)) == (VACANT, Head(end=77))
    assert reader.loaded_slot(1, seed_of(1)) == (GOOD, HEAD), "as of the last load"
    assert reader.read_slot(-1) is None
    writer.close(is_clean=False)
    writer.create([(NAMES[0], GOOD, HEAD)])
    assert reader.read_slot(0) is None, "the names were replaced"
    assert not reader.load()
    assert reader.names == NAMES[:1]
    assert reader.load()
    (tmp_path / HEADS_FILE).unlink()
    assert reader.read_slot(0) is None
    reader.load()
    assert (reader.is_complete, reader.is_trusted) == (False, False)
    assert CatalogReader(str(tmp_path)).read_slot(0) is None, "nothing is loaded"
    writer.close(is_clean=False)


def test_names_are_read_up_to_the_first_damaged_one(writer: CatalogWriter, tmp_path: Path) -> None:
    data = (tmp_path / NAMES_FILE).read_bytes()
    writer.close(is_clean=True)
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1
        (tmp_path / NAMES_FILE).write_bytes(bytes(damaged))
        reader = load(tmp_path)
        assert reader.names == NAMES[: len(reader.names)]
        assert len(reader.names) < 3
        assert not reader.is_complete
