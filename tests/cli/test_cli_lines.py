from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from dafka.cli import lines as lines_module
from dafka.cli.lines import StreamError, read_lines, wait_reader_gone, write_bytes


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
    with pipe() as (reader, writer), trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_reader_gone, writer)
            await trio.testing.wait_all_tasks_blocked()
            os.close(reader)
