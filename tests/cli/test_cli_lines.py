from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from dafka.cli import lines as lines_module
from dafka.cli.lines import StreamError, read_lines, wait_reader_gone, write_bytes
from dafka.cli.record_lines import LineFormat, make_formatter, parse_template
from dafka.records import NO_TIMESTAMP, Partition, ProducerRecord, RecordBatch


@contextmanager
def opened(path: Path, content: bytes) -> Iterator[int]:
    path.write_bytes(content)
    fd = os.open(path, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    try:
        yield ends
    finally:
        for fd in ends:
            try:
                os.close(fd)
            except OSError:
                continue


async def read_all(fd: int) -> list[bytes]:
    return [line async for lines in read_lines(fd) for line in lines]


@pytest.mark.parametrize("chunk_bytes", [1, 2, 3, 2**18])
async def test_only_a_line_feed_ends_a_line_wherever_chunks_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    monkeypatch.setattr(lines_module, "CHUNK_BYTES", chunk_bytes)
    for length in range(5):
        for each in itertools.product((b"\n", b"\r", b"0", b"\0\x0b\x0c\x1c\x85\xff"), repeat=length):
            content = b"".join(each)
            *expected, rest = content.split(b"\n")
            with opened(tmp_path / "file", content) as fd:
                assert await read_all(fd) == ([*expected, rest] if rest else expected), content


async def test_lines_of_a_pipe_are_read_before_it_ends() -> None:
    with pipe() as (reader, writer):
        os.write(writer, b"0\n1\nbegun")
        lines = read_lines(reader)
        assert await anext(lines) == [b"0", b"1"]
        os.write(writer, b" and ended\n")
        assert await anext(lines) == [b"begun and ended"]
        os.close(writer)
        with pytest.raises(StopAsyncIteration):
            await anext(lines)


async def test_non_blocking_input_is_read() -> None:
    with pipe() as (reader, writer):
        os.set_blocking(reader, False)
        found: list[bytes] = []

        async def read() -> None:
            found.extend(await read_all(reader))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.sleep(0.02)
            os.write(writer, b"0\n")
            os.close(writer)
    assert found == [b"0"]


def test_input_that_another_process_has_read_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with pipe() as (reader, writer):
        os.set_blocking(reader, False)

        def wait(*descriptors: list[int]) -> None:
            assert descriptors == ([reader], [], [])
            os.write(writer, b"0")

        monkeypatch.setattr(lines_module, "select", SimpleNamespace(select=wait))
        assert lines_module._read_now(reader) == b"0"


async def test_unreadable_input_is_an_error(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(StreamError, match=r"^cannot read the input: Is a directory$"):
            await read_all(fd)
    finally:
        os.close(fd)


@pytest.mark.parametrize("is_blocking", [True, False])
async def test_slow_reader_gets_everything(is_blocking: bool) -> None:
    data = b"".join(b"%d\n" % number for number in range(50_000))
    received: list[bytes] = []
    with pipe() as (reader, writer):
        os.set_blocking(writer, is_blocking)

        async def read() -> None:
            received.extend(await read_all(reader))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await write_bytes(writer, data)
            os.close(writer)
    assert received == data.split(b"\n")[:-1]


async def test_writing_without_a_reader_is_a_broken_pipe() -> None:
    with pipe() as (reader, writer):
        os.close(reader)
        with pytest.raises(BrokenPipeError):
            await write_bytes(writer, b"0\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
async def test_unwritable_output_is_an_error() -> None:
    fd = os.open("/dev/full", os.O_WRONLY)
    try:
        with pytest.raises(StreamError, match=r"^cannot write the output: No space left on device$"):
            await write_bytes(fd, b"0\n")
    finally:
        os.close(fd)


async def test_closed_pipe_is_noticed_without_writing() -> None:
    with pipe() as (reader, writer), trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_reader_gone, writer)
            await trio.testing.wait_all_tasks_blocked()
            os.close(reader)


# Lines as records, and records as lines

PARTITION = Partition("a topic", "ADDRESS")
VALUES = RecordBatch(PARTITION, 7, [b"7", b"", b"\xff\x00", '"\N{SNOWMAN}'.encode()])
WHOLE = RecordBatch(
    PARTITION,
    7,
    [b"a value", None, b""],
    keys=[b"key", b"", None],
    headers=[(("trace", b"1"), ("trace", None), ("n\N{LATIN SMALL LETTER E WITH ACUTE}", b"")), (), (("x", b"\xff"),)],
    timestamps=[1_700_000_000_123, NO_TIMESTAMP, 0],
)
"""A record with everything, a tombstone with an empty key, and an empty value without a key."""


def test_values_alone_stay_as_they_are() -> None:
    lines = [b"one", b"", b"a:b"]
    assert LineFormat().to_records(lines) is lines
    assert LineFormat(null=b"").to_records(lines) == [b"one", None, b"a:b"]


def test_the_key_comes_before_the_first_separator() -> None:
    lines = [b"k::v::w", b"no separator", b"::v", b"k::", b"", b":"]
    assert LineFormat(b"::").to_records(lines) == [
        ProducerRecord(b"v::w", b"k"),
        ProducerRecord(b"no separator"),
        ProducerRecord(b"v", b""),
        ProducerRecord(b"", b"k"),
        ProducerRecord(b""),
        ProducerRecord(b":"),
    ]


def test_a_text_stands_for_null_in_keys_and_values() -> None:
    lines = [b"k\tNULL", b"NULL\tv", b"NULL", b"NULL\tNULL", b"k\tNULL "]
    assert LineFormat(b"\t", null=b"NULL").to_records(lines) == [
        ProducerRecord(None, b"k"),
        ProducerRecord(b"v", None),
        ProducerRecord(None, None),
        ProducerRecord(None, None),
        ProducerRecord(b"NULL ", b"k"),
    ]


def test_headers_and_the_timestamp_are_those_of_every_record() -> None:
    headers = (("a", b"1"), ("a", None))
    expected = [ProducerRecord(b"one", None, headers, 5), ProducerRecord(None, None, headers, 5)]
    assert LineFormat(headers=headers, timestamp=5, null=b"-").to_records([b"one", b"-"]) == expected
    assert LineFormat(timestamp=0).to_records([b"one"]) == [ProducerRecord(b"one", timestamp=0)]


def test_value_output() -> None:
    assert make_formatter("value")(VALUES) == b'7\n\n\xff\x00\n"\xe2\x98\x83\n'
    assert make_formatter("value")(WHOLE) == b"a value\nNULL\n\n"
    assert make_formatter("value", "\N{EMPTY SET}")(WHOLE).split(b"\n")[1] == "\N{EMPTY SET}".encode()


def test_full_output_shows_all_of_each_record() -> None:
    assert make_formatter("full")(VALUES).split(b"\n") == [
        b"a topic ADDRESS 7 - NULL - 7",
        b"a topic ADDRESS 8 - NULL - ",
        b"a topic ADDRESS 9 - NULL - \xff\x00",
        b'a topic ADDRESS 10 - NULL - "\xe2\x98\x83',
        b"",
    ]
    assert make_formatter("full", "none")(WHOLE).decode("utf-8", "surrogateescape").split("\n") == [
        "a topic ADDRESS 7 2023-11-14T22:13:20.123Z key trace=1,trace=none,né= a value",
        "a topic ADDRESS 8 -  - none",
        "a topic ADDRESS 9 1970-01-01T00:00:00.000Z none x=\udcff ",
        "",
    ]


def test_json_output_is_one_ascii_object_per_line() -> None:
    text = make_formatter("json")(VALUES)
    assert re.fullmatch(rb"[ -~\n]+", text)
    assert [json.loads(line)["sequence"] for line in text.splitlines()] == [7, 8, 9, 10]


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("%s;", b"a value;NULL;;"),
        (r"%k\t%s\n", b"key\ta value\n\tNULL\nNULL\t\n"),
        ("%K,%S ", b"3,7 0,-1 -1,0 "),
        ("%t/%p/%o ", b"a topic/ADDRESS/7 a topic/ADDRESS/8 a topic/ADDRESS/9 "),
        ("%T ", b"1700000000123 -1 0 "),
        ("[%h]", b"[trace=1,trace=NULL,n\xc3\xa9=][][x=\xff]"),
        (r"100%% \\ \x41\r%s|", b"100% \\ A\ra value|100% \\ A\rNULL|100% \\ A\r|"),
        (r"\x25s", b"%s%s%s"),
        ("x", b"xxx"),
        ("", b""),
        ("%s%s", b"a valuea valueNULLNULL"),
    ],
)
def test_template(template: str, text: bytes) -> None:
    assert parse_template(template)(WHOLE) == text


def test_a_template_has_a_field_for_what_no_record_of_a_batch_has() -> None:
    assert parse_template("%T,%k,%K,%h;")(VALUES) == b"-1,NULL,-1,;" * 4


def test_lines_with_keys_are_printed_as_they_were_read() -> None:
    lines = [b"k\tv", b"\t", b"k\tNULL", b"NULL\tv"]
    records = LineFormat(b"\t", null=b"NULL").to_records(lines)
    batch = RecordBatch.from_records(PARTITION, 0, [each for each in records if isinstance(each, ProducerRecord)], 0)
    assert parse_template(r"%k\t%s\n")(batch) == b"".join(line + b"\n" for line in lines)
