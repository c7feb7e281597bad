"""The names and files of a file log: as docs/reference/filelog-format.md describes them, and as others read them."""

from __future__ import annotations

import os
import struct
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dafka.batches import Compression, check_crc, decode_records, read_header
from dafka.errors import StorageError
from dafka.records import Partition, RecordBatch, decode_text, join
from dafka.storage.filelog import open_filelog
from dafka.storage.filelog.layout import (
    encode_name,
    escape_name,
    name_to_parts,
    parts_to_name,
    unescape_name,
    walk_names,
)
from tests.batches.samples import BYTES_MAX, SHAPES, Records
from tests.batches.test_foreign import NAMES, rows

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # importing kafka-python uses what Python deprecates

SAFE = set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.%")


@settings(max_examples=40)
@given(st.binary(max_size=400))
@example(b".a.")
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


@settings(max_examples=40)
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


def test_walk_names_finds_names_in_their_folders(tmp_path: Path) -> None:
    names = [b"", b"a", b"a" * 200, b"a" * 201, b"a" * 600, b"\xff" * 255, b"a+b"]
    for name in names:
        (tmp_path / "/".join(name_to_parts(name))).mkdir(parents=True)
    wrong = ["a file", "file", "%2", "%zz", "Ä"]
    for number, each in enumerate(wrong):
        (tmp_path / each).touch() if number < 2 else (tmp_path / each).mkdir()
    unexpected: list[str] = []
    found = dict(walk_names(str(tmp_path), unexpected=unexpected))
    assert sorted(found) == sorted(names)
    assert found[b"a" * 201] == f"{tmp_path}/{'a' * 200}+/a"
    assert sorted(unexpected) == sorted(f"{tmp_path}/{each}" for each in wrong)
    assert dict(walk_names(str(tmp_path))) == found


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


def programs_of_the_page() -> dict[str, Any]:
    """The reading program of docs/reference/filelog-format.md, extracted."""
    page = Path(__file__).parents[2] / "docs" / "reference" / "filelog-format.md"
    program = page.read_text().partition("```python\n")[2].partition("```")[0]
    names: dict[str, Any] = {}
    exec(compile(program, str(page), "exec"), names)
    return names


def read_by_the_page(folder: Path, suffix: str = ".log") -> dict[tuple[str, str], list[Any]]:
    """Return what the program of the page reads, by topic and address."""
    read = programs_of_the_page()["read_segment" if suffix == ".log" else "read_times"]
    found: dict[tuple[str, str], list[Any]] = {}
    for path in sorted(folder.rglob(f"*{suffix}")):
        topic, address, _ = path.relative_to(folder / "topics").parts
        found.setdefault((topic, address), []).extend(read(str(path)))
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
        ("orders", "A"): [(number, -1, None, b"%d" % number, []) for number in range(60)],
        ("a%2Fb", "%FF"): [(100 + number, -1, None, b"%d" % number, []) for number in range(60)],
    }
    assert read_by_the_page(folder, ".stored") == {
        ("orders", "A"): [(3, 10), (6, 11), *((number, 11) for number in range(12, 61, 6))],
        ("a%2Fb", "%FF"): [(100 + number, 5) for number in range(6, 61, 6)],
    }


async def test_documented_program_reads_every_part_of_a_record(tmp_path: Path) -> None:
    expected: list[Any] = []
    async with open_filelog(str(tmp_path / "log")) as storage:
        for name in NAMES:
            records = SHAPES[name]
            first = len(expected)
            await storage.append([make_batch(Partition("orders", "A"), first, records)])
            expected += rows(records, first)
    assert read_by_the_page(tmp_path / "log") == {("orders", "A"): expected}


def make_batch(partition: Partition, first: int, records: Records) -> RecordBatch:
    return RecordBatch(
        partition, first, records.values, keys=records.keys, headers=records.headers, timestamps=records.times
    )


async def test_rows_of_times_are_as_documented(tmp_path: Path) -> None:
    async with open_filelog(str(tmp_path / "log")) as storage:
        await storage.append(
            [RecordBatch(Partition("orders", "A"), 7, [b"seven", None, b"nine"], stored_at=[99, 99, 100])]
        )
    (path,) = (tmp_path / "log").rglob("*.log")
    assert path.name == "00000000000000000007.log"
    assert os.stat(path).st_mode & 0o777 == 0o644 & ~_umask()
    seed = crc32c(struct.pack(">Q", 7), crc32c(b"ordersA", crc32c(struct.pack(">HH", 6, 1))))
    expected = b""
    for row in ((9, 99, 5), (10, 100, 9)):
        data = struct.pack(">QqQ", *row)
        expected += data + struct.pack(">I", crc32c(data, seed))
    assert path.with_suffix(".stored").read_bytes() == expected


async def test_batches_are_stored_and_read_as_they_came(tmp_path: Path) -> None:
    partition = Partition("orders", "A")
    encoded: list[bytes] = []
    first = 0
    for compression in Compression:
        encoded.append(SHAPES["everything"].encode(first, compression=compression, leader_epoch=7))
        first += 500
    batch = join([decode_records(partition, data, bytes_max=BYTES_MAX) for data in encoded])
    async with open_filelog(str(tmp_path / "log")) as storage:
        await storage.append([batch])
        found = await storage.read(partition, 0, 10_000)
        assert found is not None
        assert found == batch
        assert found.encoded == tuple(encoded)
        middle = await storage.read(partition, 700, 1000)
        assert middle is not None
        assert middle == batch.between(700, 1700)
        assert [check_crc(data).base_offset for data in middle.encoded] == [700, 1000, 1500]
        assert [read_header(data).compression for data in middle.encoded] == [*Compression][1:4]
        assert middle.encoded[1] == encoded[2]
    (path,) = (tmp_path / "log").rglob("*.log")
    assert path.read_bytes() == b"".join(encoded)


async def test_batches_that_do_not_continue_the_partition_are_refused(tmp_path: Path) -> None:
    partition = Partition("orders", "A")
    first, second = (SHAPES["one"].encode(offset) for offset in (0, 2))
    async with open_filelog(str(tmp_path / "log")) as storage:
        for encoded, count, message in (
            ((first, second), 2, "begins at 2, expected 1"),
            ((first[:-1],), 1, "is malformed"),
            ((first,), 2, "end at 1, not at 2"),
        ):
            with pytest.raises(StorageError, match=message):
                await storage.append([RecordBatch(partition, 0, [b"value"] * count, encoded=encoded)])
        assert await storage.partitions() == {}


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask
