"""The encoding of names, entries and indexes, and that docs/reference/filelog-format.md describes it."""

from __future__ import annotations

import os
import struct
from itertools import pairwise
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from dafka.errors import StorageError
from dafka.records import Partition, RecordBatch, decode_text
from dafka.storage.filelog import open_filelog
from dafka.storage.filelog.entries import (
    CONTENT_BYTES_MAX,
    ENTRY_BYTES_MAX,
    ENTRY_RECORDS_MAX,
    FLAG_FIRST,
    FLAG_MORE,
    HEADER_BYTES,
    Run,
    check_run,
    encode_entries,
    parse_header,
    read_body,
    segment_seed,
)
from dafka.storage.filelog.layout import (
    encode_name,
    escape_name,
    name_to_parts,
    parts_to_name,
    unescape_name,
    walk_names,
)
from dafka.storage.filelog.segment import ROW_EVERY_BYTES, SegmentIndex

SAFE = set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.%")


@given(st.binary(max_size=400))
def test_any_bytes_are_escaped_and_unescaped(data: bytes) -> None:
    text = escape_name(data)
    assert set(text) <= SAFE
    assert text
    assert text[0] != "."
    assert text[-1] != "."
    assert unescape_name(text) == data
    parts = name_to_parts(data)
    assert max(map(len, parts)) <= 201
    assert not {".", "..", ""} & set(parts)
    assert all(part.endswith("+") for part in parts[:-1])
    assert parts_to_name(parts) == data


@given(st.lists(st.binary(max_size=300), unique=True))
def test_different_names_have_different_paths_and_none_is_inside_another(names: list[bytes]) -> None:
    paths = sorted("/".join(name_to_parts(name)) + "/" for name in names)
    assert not any(later.startswith(earlier) for earlier, later in pairwise(paths))


@given(st.text(alphabet=sorted(SAFE | set("+/ \0é")), max_size=6))
def test_text_that_is_not_an_escaped_name_is_refused(text: str) -> None:
    try:
        data = unescape_name(text)
    except ValueError:
        return
    assert escape_name(data) == text


@pytest.mark.parametrize(
    ("data", "text"),
    [(b"", "%"), (b"a.b-C_1", "a.b-C_1"), (b".a.", "%2Ea%2E"), (b"..", "%2E%2E"), (b"a/b", "a%2Fb"), (b"%", "%25")],
)
def test_escaped_names(data: bytes, text: str) -> None:
    assert escape_name(data) == text


def test_walk_names_finds_names_in_their_folders(tmp_path: Path) -> None:
    names = [b"", b"a", b"a" * 200, b"a" * 201, b"a" * 600, b"\xff" * 255, b"a+b"]
    for name in names:
        (tmp_path / "/".join(name_to_parts(name))).mkdir(parents=True)
    (tmp_path / "a file").touch()
    (tmp_path / "%zz").mkdir()
    unexpected: list[str] = []
    found = dict(walk_names(str(tmp_path), unexpected=unexpected))
    assert sorted(found) == sorted(names)
    assert found[b"a" * 201] == f"{tmp_path}/{'a' * 200}+/a"
    assert sorted(unexpected) == [f"{tmp_path}/%zz", f"{tmp_path}/a file"]


@pytest.mark.parametrize("name", ["\ud800", "\udcc3\udca9"])
async def test_name_that_cannot_be_encoded_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(StorageError, match="cannot be stored"):
        encode_name(name)
    async with open_filelog(str(tmp_path / "log")) as storage:
        with pytest.raises(StorageError, match="cannot be stored"):
            await storage.append([RecordBatch(Partition(name, "a"), 0, [b""])])
        with pytest.raises(StorageError, match="cannot be stored"):
            await storage.save_positions("name", {Partition("a", name): 1})
        assert await storage.partitions() == {}
        assert await storage.load_positions("name") == {}


runs = st.lists(
    st.tuples(st.lists(st.binary(max_size=9), min_size=1, max_size=9), st.integers(-(2**63), 2**63 - 1)),
    min_size=1,
    max_size=5,
)


@given(runs, st.integers(0, 2**32), st.integers(0, 2**63), st.integers(0, 2**32 - 1))
def test_entries_are_read_as_they_were_written(
    parts: list[tuple[list[bytes], int]], position: int, first_sequence: int, seed: int
) -> None:
    wanted = []
    sequence = first_sequence
    for contents, stored_at in parts:
        wanted.append(Run(sequence, contents, stored_at))
        sequence += len(contents)
    entries, buffers = encode_entries(wanted, position, seed)
    data = b"".join(buffers)
    assert entries[-1].next_position == position + len(data)
    offset = 0
    for number, (entry, run) in enumerate(zip(entries, wanted, strict=True)):
        assert parse_header(data, offset, position + offset, seed) == entry
        assert parse_header(data, offset, position + offset + 1, seed) is None
        assert parse_header(data, offset, position + offset, seed ^ 1) is None
        assert bool(entry.flags & FLAG_FIRST) == (number == 0)
        assert bool(entry.flags & FLAG_MORE) == (number < len(wanted) - 1)
        assert read_body(entry, data, offset + HEADER_BYTES) == run.contents
        assert (entry.first_sequence, entry.stored_at) == (run.first_sequence, run.stored_at)
        offset = entry.next_position - position


def test_entries_are_bounded() -> None:
    sizes = [10, ENTRY_BYTES_MAX + 1, 0, ENTRY_BYTES_MAX, 1, *([0] * (2 * ENTRY_RECORDS_MAX)), 5]
    entries, _ = encode_entries([Run(0, [bytes(size) for size in sizes], 1)], 0, 0)
    assert sum(entry.records for entry in entries) == len(sizes)
    assert [entry.records for entry in entries[:3]] == [1, 1, 2]
    for entry in entries:
        assert entry.records <= ENTRY_RECORDS_MAX
        assert entry.content_bytes <= ENTRY_BYTES_MAX or entry.records == 1


@pytest.mark.parametrize(
    "run",
    [Run(2**64 - 2, [b"", b""], 0), Run(-1, [b""], 0), Run(0, [b""], 2**63), Run(0, [b""], -(2**63) - 1)],
)
def test_records_that_an_entry_cannot_hold_are_refused(run: Run) -> None:
    with pytest.raises(StorageError, match=r"^a/b: expected (sequences|a time) .*, not"):
        check_run(Partition("a", "b"), run)


def test_content_that_is_too_large_is_refused() -> None:
    class Large(bytes):
        def __len__(self) -> int:
            return CONTENT_BYTES_MAX + 1

    with pytest.raises(StorageError, match=r"^a/b: expected contents of at most 4294967291 bytes, not 4294967292$"):
        check_run(Partition("a", "b"), Run(0, [Large()], 0), is_large=True)


def test_index_is_sparse_and_survives_encoding() -> None:
    index = SegmentIndex.empty(7)
    contents = [bytes(1000)] * 10
    position = 0
    for number in range(100):
        entries, _ = encode_entries([Run(7 + 10 * number, contents, 1000 + number)], position, 0)
        index.add_entry(entries[0])
        position = index.length
    assert len(index.rows) == 15
    assert all(later[1] - earlier[1] >= ROW_EVERY_BYTES for earlier, later in pairwise(index.rows))
    assert (index.base, index.end_sequence, index.content_bytes) == (7, 1007, 1_000_000)
    data = index.encode()
    assert SegmentIndex.decode(data) == index
    for place in range(0, len(data), 11):
        assert SegmentIndex.decode(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]) is None
    assert index.locate_sequence(7) == (7, 0)
    assert index.locate_sequence(506)[0] in range(430, 507)
    assert index.locate_time(1050)[0] in range(430, 507)
    assert index.locate_time(0) == (7, 0)


def read_by_the_page(folder: Path) -> dict[tuple[str, str], list[tuple[int, int, bytes]]]:
    """The reading program of docs/reference/filelog-format.md, extracted."""
    page = Path(__file__).parents[2] / "docs" / "reference" / "filelog-format.md"
    program = page.read_text().partition("```python\n")[2].partition("```")[0]
    names: dict[str, object] = {}
    exec(compile(program, str(page), "exec"), names)
    found: dict[tuple[str, str], list[tuple[int, int, bytes]]] = {}
    for path in sorted(folder.rglob("*.log")):
        parts = path.relative_to(folder / "topics").parts
        key = (parts[0], parts[1])
        found.setdefault(key, []).extend(names["read_segment"](str(path)))  # type: ignore[operator]
    return found


async def test_documented_program_reads_the_files(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    first, second = Partition("orders", "A"), Partition("a/b", decode_text(b"\xff"))
    async with open_filelog(f"{folder}?segment_bytes=300") as storage:
        for sequence in range(0, 60, 6):
            contents = [b"%d" % number for number in range(sequence, sequence + 6)]
            await storage.append(
                [RecordBatch(first, sequence, contents, stored_at=[10 + number // 3 for number in range(6)])]
            )
            await storage.append([RecordBatch(second, 100 + sequence, contents, stored_at=[5] * 6)])
    assert read_by_the_page(folder) == {
        ("orders", "A"): [(number, 10 + number % 6 // 3 if number < 6 else 11, b"%d" % number) for number in range(60)],
        ("a%2Fb", "%FF"): [(100 + number, 5, b"%d" % number) for number in range(60)],
    }


async def test_header_is_as_documented(tmp_path: Path) -> None:
    async with open_filelog(str(tmp_path / "log")) as storage:
        await storage.append(
            [RecordBatch(Partition("orders", "A"), 7, [b"seven", b"", b"nine"], stored_at=[99, 99, 99])]
        )
    (path,) = (tmp_path / "log").rglob("*.log")
    assert path.name == "00000000000000000007.log"
    data = path.read_bytes()
    body = struct.pack(">3I", 5, 0, 4) + b"sevennine"
    seed = crc32c(b"ordersA", crc32c(struct.pack(">HH", 6, 1)))
    seed = crc32c(struct.pack(">Q", 7), seed)
    assert seed == segment_seed(crc32c(b"ordersA", crc32c(struct.pack(">HH", 6, 1))), 7)
    header = struct.pack(">HHIQIqI", 0xDAF1, 1, len(body), 7, 3, 99, crc32c(body))
    assert data == header + struct.pack(">I", crc32c(header, seed)) + body
    assert os.stat(path).st_mode & 0o777 == 0o644 & ~_umask()


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask
