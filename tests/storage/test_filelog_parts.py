"""The parts of a file log by themselves: entries, indexes, buffers of reads, the pool of files, the catalog."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from crc32c import crc32c

from dafka.errors import StorageError
from dafka.records import Partition
from dafka.storage.filelog import catalog, entries
from dafka.storage.filelog.catalog import (
    CHANGING,
    CLOSED,
    GOOD,
    HEADS_FILE,
    IN_USE,
    NAMES_FILE,
    SLOT_BYTES,
    VACANT,
    CatalogReader,
    CatalogWriter,
    decode_slot,
    encode_slot,
)
from dafka.storage.filelog.entries import (
    FLAG_FIRST,
    FLAG_MORE,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    SEQUENCE_END_MAX,
    Run,
    check_run,
    encode_entries,
    parse_header,
    partition_seed,
    read_body,
    segment_seed,
)
from dafka.storage.filelog.files import FilePool, is_temporary_file, make_folders, read_file, remove_folders, write_at
from dafka.storage.filelog.partition import Head, is_segment_name
from dafka.storage.filelog.segment import (
    HEADER_READ_BYTES,
    ReadBuffer,
    SegmentIndex,
    extend_index,
    iterate_entries,
)

SEED = segment_seed(partition_seed(b"t", b"A"), 7)
NAMES = [(b"t", b"A"), (b"t", b"B"), (b"", b"\xff")]
HEAD = Head(earliest=3, end=9, content_bytes=5, earliest_at=1, latest_at=2, base=3, length=99, base_at=1)


def encoded(*runs: Run, position: int = 0) -> bytes:
    return b"".join(encode_entries(runs, position, SEED)[1])


def with_header(fields: tuple[int, ...], position: int = 0) -> bytes:
    """Return a header with these fields and a valid CRC."""
    data = HEADER.pack(*fields, 0)[:-4]
    return data + crc32c(data, (SEED + position) & (2**32 - 1)).to_bytes(4, "big")


# Entries


def test_an_entry_is_read_where_it_was_written_and_nowhere_else() -> None:
    data = encoded(Run(7, [b"a", b"", b"bcd"], 50), position=100)
    entry = parse_header(data, 0, 100, SEED)
    assert entry is not None
    assert (entry.first_sequence, entry.end_sequence, entry.records, entry.stored_at) == (7, 10, 3, 50)
    assert (entry.flags, entry.content_bytes, entry.next_position) == (FLAG_FIRST, 4, 100 + len(data))
    contents = read_body(entry, data, HEADER_BYTES)
    assert contents is not None
    assert list(contents) == [b"a", b"", b"bcd"]
    assert parse_header(data, 0, 101, SEED) is None
    assert parse_header(data, 0, 100, SEED + 1) is None


@pytest.mark.parametrize(
    ("fields", "is_valid"),
    [
        ((MAGIC, FLAG_FIRST | FLAG_MORE, 4, 7, 1, 50, 0), True),
        ((MAGIC + 1, FLAG_FIRST, 4, 7, 1, 50, 0), False),
        ((MAGIC, 4, 4, 7, 1, 50, 0), False),
        ((MAGIC, FLAG_FIRST, 3, 7, 1, 50, 0), False),
        ((MAGIC, FLAG_FIRST, 8, 7, 2, 50, 0), True),
        ((MAGIC, FLAG_FIRST, 4, 7, 0, 50, 0), False),
    ],
)
def test_a_header_must_be_possible_even_if_its_crc_is_right(fields: tuple[int, ...], is_valid: bool) -> None:
    assert (parse_header(with_header(fields), 0, 0, SEED) is not None) is is_valid


def test_each_byte_of_an_entry_is_protected() -> None:
    data = encoded(Run(7, [b"abc"], 50))
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1
        entry = parse_header(bytes(damaged), 0, 0, SEED)
        assert entry is None or read_body(entry, bytes(damaged), HEADER_BYTES) is None


def test_an_append_of_several_entries_names_its_first_and_its_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "ENTRY_RECORDS_MAX", 2)
    made, buffers = encode_entries([Run(7, [b"x"] * 5, 50), Run(12, [b"y"], 51)], 10, SEED)
    assert [(each.first_sequence, each.records, each.flags) for each in made] == [
        (7, 2, FLAG_FIRST | FLAG_MORE),
        (9, 2, FLAG_MORE),
        (11, 1, FLAG_MORE),
        (12, 1, 0),
    ]
    assert made[0].position == 10
    assert made[-1].next_position == 10 + len(b"".join(buffers))


@pytest.mark.parametrize(
    ("run", "is_allowed"),
    [
        (Run(0, [b""], 0), True),
        (Run(-1, [b""], 0), False),
        (Run(SEQUENCE_END_MAX - 1, [b""], 0), True),
        (Run(SEQUENCE_END_MAX, [b""], 0), False),
        (Run(0, [b""], 2**63 - 1), True),
        (Run(0, [b""], 2**63), False),
        (Run(0, [b""], -(2**63)), True),
        (Run(0, [b""], -(2**63) - 1), False),
        (Run(0, [b"12345", b"1"], 0), True),
        (Run(0, [b"1", b"123456", b"1"], 0), False),
    ],
)
def test_what_an_entry_cannot_hold_is_refused(run: Run, is_allowed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "CONTENT_BYTES_MAX", 5)
    if is_allowed:
        check_run(Partition("t", "A"), run, is_large=True)
    else:
        with pytest.raises(StorageError):
            check_run(Partition("t", "A"), run, is_large=True)


# Segments


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """A segment of five entries with two records each. The third entry has a damaged header."""
    data = b""
    for number in range(5):
        data += encoded(Run(7 + 2 * number, [b"a" * 40, b"b"], 50 + number), position=len(data))
    size = len(data) // 5
    damaged = bytearray(data)
    damaged[2 * size + 5] ^= 1
    path = tmp_path / "7.log"
    path.write_bytes(bytes(damaged))
    return path


def test_entries_after_damage_are_found(segment: Path) -> None:
    with segment.open("rb") as file:
        limit = segment.stat().st_size
        found = list(iterate_entries(ReadBuffer(file.fileno(), limit, 10), 0, 7, SEED))
        assert [each.first_sequence for each in found] == [7, 9, 13, 15]
        found = list(iterate_entries(ReadBuffer(file.fileno(), limit - 1, 10), 0, 7, SEED))
        assert [each.first_sequence for each in found] == [7, 9, 13], "an entry must end within the limit"
        assert [each.first_sequence for each in iterate_entries(ReadBuffer(file.fileno(), limit, 10), 0, 10, SEED)] == [
            13,
            15,
        ], "an entry before the expected sequence is not from this place"


@pytest.mark.parametrize(
    "gap", [1, 2, HEADER_READ_BYTES - 1, HEADER_READ_BYTES, HEADER_READ_BYTES + 1, 3 * HEADER_READ_BYTES]
)
def test_an_entry_after_a_gap_of_any_size_is_found(gap: int, tmp_path: Path) -> None:
    """The gap is searched in pieces. The entry may begin with a piece, or across the border of two."""
    path = tmp_path / "7.log"
    path.write_bytes(b"?" * gap + encoded(Run(7, [b"a", b"b"], 50), position=gap))
    with path.open("rb") as file:
        found = list(iterate_entries(ReadBuffer(file.fileno(), path.stat().st_size, 10), 0, 7, SEED))
    assert [(each.position, each.first_sequence, each.records) for each in found] == [(gap, 7, 2)]


def test_an_index_is_as_good_as_the_segment(segment: Path) -> None:
    index = SegmentIndex.empty(7)
    limit = segment.stat().st_size
    with segment.open("rb") as file:
        extend_index(index, file.fileno(), limit, SEED)
    assert (index.base, index.end_sequence, index.length, index.content_bytes) == (7, 17, limit, 4 * 41)
    assert (index.first_stored_at, index.last_stored_at) == (50, 54)
    assert SegmentIndex.decode(index.encode()) == index
    for at in range(len(index.encode())):
        damaged = bytearray(index.encode())
        damaged[at] ^= 1
        assert SegmentIndex.decode(bytes(damaged)) is None
    assert SegmentIndex.decode(b"") is None
    assert SegmentIndex.decode(index.encode()[24:]) is None


def test_an_index_locates_the_last_row_before_what_is_sought() -> None:
    index = SegmentIndex(7, 40, rows=[(10, 100, 50), (20, 200, 60), (30, 300, 60), (35, 350, 70)])
    expected = {7: (7, 0), 9: (7, 0), 10: (10, 100), 19: (10, 100), 20: (20, 200), 34: (30, 300), 99: (35, 350)}
    assert {sequence: index.locate_sequence(sequence) for sequence in expected} == expected
    by_time = {49: (7, 0), 50: (7, 0), 51: (10, 100), 60: (10, 100), 61: (30, 300), 70: (30, 300), 99: (35, 350)}
    assert {time: index.locate_time(time) for time in by_time} == by_time


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
        assert buffer.find(15, 15) == 5
        assert buffer.find(15, 16) == 0
        assert buffer.find(70, 20) == 0
        assert buffer.find(71, 20) == -1
        longer = ReadBuffer(file.fileno(), 200, 5)
        assert longer.find(90, 20) == -1, "the file is shorter than it should be"


# Files


def test_segments_have_names_of_twenty_ascii_digits() -> None:
    assert is_segment_name(f"{7:020}.log", ".log")
    assert is_segment_name(f"{2**64 - 1:020}.log", ".log")
    others = ["7.log", f"{7:020}.txt", f"{7:020}.index", f"{7:021}.log", f"{2**64:020}.log", f"{'x' * 20}.log"]
    others += [f"{digit * 20}.log" for digit in ("\N{ARABIC-INDIC DIGIT THREE}", "\N{SUPERSCRIPT TWO}")]
    assert [name for name in others if is_segment_name(name, ".log")] == []


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


def test_folders_are_made_and_removed_as_far_as_needed(tmp_path: Path) -> None:
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


def test_a_catalog_lists_its_partitions(writer: CatalogWriter, tmp_path: Path) -> None:
    reader = load(tmp_path)
    assert (reader.names, reader.is_complete, reader.is_trusted) == (NAMES, True, True)
    assert [reader.loaded_slot(number, seed_of(number)) for number in range(3)] == [(GOOD, HEAD)] * 3
    assert reader.loaded_slot(0, seed_of(1)) == (CHANGING, Head()), "a slot belongs to its partition"
    sizes = [(tmp_path / name).stat().st_size for name in (NAMES_FILE, HEADS_FILE)]
    assert writer.bytes == sum(sizes)
    writer.close(is_clean=True)


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

    def note_sync(fd: int) -> None:
        seen.append(("sync", names[fd]))
        sync(fd)

    def note_write(fd: int, buffers: list[bytes], position: int) -> int:
        seen.append(("write", names[fd]))
        return write(fd, buffers, position)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "pwritev", note_write)
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
    assert writer.bytes == sum((tmp_path / name).stat().st_size for name in (NAMES_FILE, HEADS_FILE))
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


@pytest.mark.parametrize("state", [GOOD, CHANGING, VACANT])
def test_a_slot_survives_encoding_and_each_byte_is_protected(state: int) -> None:
    data = encode_slot(5, state, HEAD)
    assert len(data) == SLOT_BYTES
    assert decode_slot(data, 5) == (state, HEAD)
    assert decode_slot(data, 6) is None
    assert decode_slot(data[:-1], 5) is None
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1
        assert decode_slot(bytes(damaged), 5) is None
