"""A writer of a file log that is killed, and readers in other processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
import trio

from dafka.errors import StorageBusyError
from dafka.records import Partition, RecordBatch
from dafka.storage.filelog import open_filelog

PARTITIONS = [Partition("orders", "A"), Partition("orders", "B")]


def batch(first_sequence: int, count: int, partition: Partition) -> RecordBatch:
    return RecordBatch(partition, first_sequence, [b"%d" % n for n in range(first_sequence, first_sequence + count)])


@contextmanager
def another_process(program: str, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def output(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdout is not None
    return process.stdout


async def read_line(process: subprocess.Popen[bytes]) -> bytes:
    with trio.fail_after(20):
        return await trio.to_thread.run_sync(output(process).readline, abandon_on_cancel=True)


READ = """
import sys, trio
from dafka.packed_bytes import count_bytes
from dafka.records import Partition
from dafka.storage.filelog import open_filelog

async def main():
    end = 0
    async with open_filelog(sys.argv[1], read_only=True) as storage:
        while end < 4000:
            for partition, info in (await storage.partitions("orders")).items():
                assert info.end_sequence >= end and info.end_sequence % 20 == 0, info
                sequence = max(end, info.earliest_sequence)
                while sequence < info.end_sequence:
                    batch = await storage.read(partition, sequence, 17)
                    if batch is None:  # trimmed meanwhile
                        before, sequence = sequence, (await storage.partitions())[partition].earliest_sequence
                        assert sequence > before
                        continue
                    for record in batch:
                        assert record.sequence == sequence and record.value == b"%d" % sequence, record
                        sequence += 1
                assert await storage.find_sequence_by_time(partition, 0) >= info.earliest_sequence
                end = info.end_sequence
            print(end, flush=True)

trio.run(main)
"""


@pytest.mark.parametrize("has_catalog", [True, False])
async def test_reader_follows_while_segments_begin_and_are_dropped(tmp_path: Path, has_catalog: bool) -> None:
    folder = tmp_path / "log"
    partition = PARTITIONS[0]
    async with open_filelog(f"{folder}?segment_bytes=700&fsync=never") as storage:
        await storage.append([batch(0, 20, partition)])
        if not has_catalog:
            (folder / "catalog.heads").unlink()
        with another_process(READ, folder) as process:
            assert await read_line(process) == b"20\n"
            for first_sequence in range(20, 4000, 20):
                await storage.append([batch(first_sequence, 20, partition)])
                if first_sequence % 300 == 0:
                    await storage.trim(partition, first_sequence - 150)
                if first_sequence % 400 == 0:
                    await read_line(process)
            lines = (await trio.to_thread.run_sync(output(process).read)).split()
            assert process.wait() == 0
    assert lines[-1] == b"4000"


HOLD = """
import sys, trio
from dafka.storage.filelog import open_filelog

async def main():
    async with open_filelog(sys.argv[1]):
        print("open", flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)

trio.run(main)
"""


async def test_lock_of_another_process_is_refused_at_once_and_ends_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    with another_process(HOLD, folder) as process:
        assert await read_line(process) == b"open\n"
        with trio.fail_after(10), pytest.raises(StorageBusyError, match="is in use by another writer; stop it first"):
            async with open_filelog(str(folder)):
                pass
        process.kill()
        process.wait()
        async with open_filelog(str(folder)) as storage:
            await storage.append([batch(0, 1, PARTITIONS[0])])


async def test_reader_continues_when_another_writer_follows(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    first, second = PARTITIONS
    async with open_filelog(str(folder)) as writer:
        await writer.append([batch(0, 3, first)])
    async with open_filelog(str(folder), read_only=True) as reader:
        assert await reader.read(first, 0, 10) == batch(0, 3, first)
        async with open_filelog(str(folder)) as writer:
            assert reader.identity == writer.identity
            await writer.append([batch(3, 2, first), batch(0, 1, second)])
            assert await reader.read(first, 0, 10) == batch(0, 5, first)
            assert await reader.read(second, 0, 10) == batch(0, 1, second)
        (folder / "catalog.names").unlink()
        async with open_filelog(str(folder)) as writer:  # rebuilds the catalog
            await writer.append([batch(5, 2, first)])
            assert await reader.read(first, 5, 10) == batch(5, 2, first)
            assert (await reader.partitions()).keys() == {first, second}
