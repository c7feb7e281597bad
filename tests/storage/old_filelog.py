"""File logs of version 1, as releases before version 2 wrote them: for tests that read, continue and migrate them."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from dafka.packed_bytes import pack
from dafka.records import Partition
from dafka.storage.filelog.entry_segment import FLAG_FIRST, FLAG_MORE, HEADER, MAGIC
from dafka.storage.filelog.partition import PartitionLog

FIXTURE = Path(__file__).with_name("old_stores") / "filelog_1.tar.gz"
"""A file log that the last release with version 1 wrote, by appending to three partitions and trimming."""

IDENTITY = "D" * 32


class Run(NamedTuple):
    """Records with the same time, for one entry."""

    first_sequence: int
    contents: Sequence[bytes]
    stored_at: int


def unpack_fixture(folder: Path) -> Path:
    """Unpack the file log of the release before version 2 into a folder, and return its own folder."""
    with tarfile.open(FIXTURE) as archive:
        archive.extractall(folder, filter="data")
    return folder / "filelog_1"


def encode_append(runs: Sequence[Run], position: int, seed: int) -> bytes:
    """Return the entries of one append to a partition, which begin at a position of a segment."""
    data = b""
    for number, run in enumerate(runs):
        flags = (FLAG_FIRST if number == 0 else 0) | (FLAG_MORE if number < len(runs) - 1 else 0)
        contents = pack(run.contents)
        body = contents.lengths + contents.data
        fields = (MAGIC, flags, len(body), run.first_sequence, len(contents), run.stored_at, crc32c(body), 0)
        header = HEADER.pack(*fields)[:-4]
        data += header + crc32c(header, (seed + position + len(data)) & (2**32 - 1)).to_bytes(4, "big") + body
    return data


def create_old_folder(folder: Path) -> None:
    """Create an empty file log of version 1."""
    crc = crc32c(f"dafka file log 1 {IDENTITY}".encode())
    document = {"format": "dafka file log", "version": 1, "identity": IDENTITY, "crc32c": crc}
    folder.mkdir(parents=True)
    (folder / "filelog.json").write_text(json.dumps(document) + "\n")


def write_old_segment(folder: Path, partition: Partition, base: int, appends: Iterable[Sequence[Run]]) -> Path:
    """Write a segment of version 1 in the folder of a file log, and return its path."""
    log = PartitionLog(partition, f"{folder}/topics")
    path = Path(log.log_path(base))
    path.parent.mkdir(parents=True, exist_ok=True)
    data = b""
    for runs in appends:
        data += encode_append(runs, len(data), log.segment_seed(base))
    path.write_bytes(data)
    return path
