"""What producers publish, and the ledgers in which they and consumers record what they got, one JSON object per line.

A record contains its partition and its sequence; the lengths vary. Each line of a ledger is written by one system call,
so that it survives a kill. A process that is started again continues the file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs

from dafka.records import RecordBatch

_FILLER = b"the quick brown fox jumps over the lazy dog, and the dog never notices"

_SHOWN = 60
"""Bytes of a wrong content that are shown."""


def contents_of(address: str, first: int, end: int) -> list[bytes]:
    prefix = address[:8].encode() + b":%d:"
    filler = _FILLER
    return [prefix % sequence + filler[: 20 + sequence * 7919 % 50] for sequence in range(first, end)]


def find_wrong(batch: RecordBatch) -> str:
    """Return what is wrong with the contents of a batch; empty if they are right."""
    expected = contents_of(batch.partition.address, batch.first_sequence, batch.end_sequence)
    found = list(batch.values)
    if found == expected:
        return ""
    for sequence, (is_content, ought) in enumerate(zip(found, expected, strict=True), batch.first_sequence):
        if is_content != ought:
            return f"record {sequence} of {batch.partition} is {(is_content or b'')[:_SHOWN]!r}, not {ought[:_SHOWN]!r}"
    return ""


@attrs.define
class Sequel:
    """The records delivered of each partition, which must follow each other without a gap.

    Attributes:
        ends: The next sequence, by address.
    """

    ends: dict[str, int] = attrs.field(factory=dict)

    def take(self, batch: RecordBatch) -> str:
        """Return what is wrong with a batch; empty if it is right. The first one of a partition may begin anywhere."""
        address = batch.partition.address
        expected = self.ends.get(address, batch.first_sequence)
        self.ends[address] = max(expected, batch.end_sequence)
        if batch.first_sequence < expected:
            return f"record {batch.first_sequence} of {batch.partition} came again, after {expected - 1}"
        if batch.first_sequence > expected:
            return f"record {batch.first_sequence} of {batch.partition} came where {expected} was due"
        return find_wrong(batch)

    def take_all(self, batches: Iterable[RecordBatch]) -> list[str]:
        return [problem for batch in batches if (problem := self.take(batch))]


class LedgerWriter:
    """Appends lines to a ledger."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, **values: Any) -> None:
        os.write(self._fd, json.dumps(values).encode() + b"\n")

    def close(self) -> None:
        os.close(self._fd)


class LedgerReader:
    """Reads the lines that were added since the previous read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def read(self) -> list[dict[str, Any]]:
        """Return the new lines. An incomplete line is left for later."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        return [json.loads(line) for line in whole.splitlines()]


@attrs.define
class Published:
    """The entries of a producer's ledger about one partition.

    Attributes:
        acknowledged: Enough stores have acknowledged every record before this sequence.
        sent: At least this number of records was published or, with a spool, is durable.
        is_complete: Whether the producer ended in order, with nothing unacknowledged. Then no more records exist.
    """

    acknowledged: int = 0
    sent: int = 0
    is_spooled: bool = False
    is_complete: bool = False


@attrs.define
class ProducerLedger:
    """Follows the ledger of one producer through all its lives."""

    reader: LedgerReader
    partitions: dict[str, Published] = attrs.field(factory=dict)
    problems: list[str] = attrs.field(factory=list)

    def poll(self) -> None:
        for line in self.reader.read():
            address = line["address"]
            published = self.partitions.setdefault(address, Published())
            if line["kind"] == "open":
                published.is_spooled = line["spool"]
                published.is_complete = False
                if line["next"] < published.sent:
                    self.problems.append(
                        f"the spool of {address} goes on at {line['next']}, though {published.sent} records were in it"
                    )
            published.acknowledged = max(published.acknowledged, line["acknowledged"])
            published.sent = max(published.sent, line["sent"])
            published.is_complete = line["kind"] == "close"

    @property
    def acknowledged(self) -> int:
        return sum(published.acknowledged for published in self.partitions.values())


@attrs.define
class ConsumerLedger:
    """Follows the ledger of one consumer through all its lives, and compares each life with the one before.

    Attributes:
        ends: By address, the end of the records that were delivered in any life.
        saved: The positions that were saved last.
        repeated: Records that were delivered in two lives, because they were delivered before they were saved.
    """

    reader: LedgerReader
    ends: dict[str, int] = attrs.field(factory=dict)
    saved: dict[str, int] = attrs.field(factory=dict)
    problems: list[str] = attrs.field(factory=list)
    records: int = 0
    repeated: int = 0
    lives: int = 0
    _begun: Sequel = attrs.field(factory=Sequel)

    def poll(self) -> None:
        for line in self.reader.read():
            if line["kind"] == "open":
                self.lives += 1
                self._begun = Sequel()
            elif line["kind"] == "problem":
                self.problems.append(line["text"])
            elif line["kind"] == "saved":
                self.saved.update(line["positions"])
            else:
                self._take(line["address"], line["first"], line["end"])

    def _take(self, address: str, first: int, end: int) -> None:
        """Note a range of a partition. The first one of a life must continue the ranges before."""
        given = self.ends.get(address, 0)
        begun = self._begun.ends
        if address in begun and first != begun[address]:
            self.problems.append(f"record {first} of {address} came where {begun[address]} was due")
        elif first > given:
            self.problems.append(f"record {first} of {address} came first, and {given} was due")
        elif address not in begun and first < self.saved.get(address, 0):
            self.problems.append(f"record {first} of {address} came again, though {self.saved[address]} was saved")
        begun[address] = end
        self.records += end - first
        self.repeated += max(min(end, given) - first, 0)
        self.ends[address] = max(given, end)
