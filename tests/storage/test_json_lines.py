from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import nullcontext
from typing import Any

import pytest

from dafka.errors import StorageCorruptError, StorageError, StorageSequenceError
from dafka.records import Partition, RecordBatch
from dafka.storage import PartitionInfo, Storage
from dafka.storage.memory import MemoryStorage
from dafka.storage.tools.json_lines import ImportSummary, JsonLineError, export_lines, format_lines, import_lines
from dafka.storage.tools.partitions import read_next
from tests.storage.test_copy import BILLS, ORDERS, batch, memory

STRANGE = Partition('"\udcff\\', "\N{SNOWMAN}\n\x1b\u2028")
MISSING = object()
NO_TEXT = "expected text without lone surrogates, or null"
NO_OBJECTS = (b"{", b"7", b"[]", b'{"topic": "\xff"}', b"[" * 100_000, b'{"sequence": ' + b"1" * 10_000 + b"}")
LINE = {"topic": "orders", "partition": "A", "sequence": 3, "stored_at": 30, "value": "3"}


async def exported(storage: Storage, topics: Sequence[str] | None = None) -> list[bytes]:
    chunks = [chunk async for chunk in export_lines(storage, topics)]
    return b"".join(chunks).splitlines()


def without_missing(line: dict[str, Any]) -> dict[str, Any]:
    """Return a line without the fields whose value is MISSING."""
    return {name: value for name, value in line.items() if value is not MISSING}


async def lists(*lines: bytes | dict[str, Any]) -> AsyncGenerator[list[bytes], None]:
    """Yield two lines, then two hundred at a time."""
    data = [line if isinstance(line, bytes) else json.dumps(without_missing(line)).encode() for line in lines]
    yield data[:2]
    for start in range(2, len(data), 200):
        yield data[start : start + 200]


def test_a_line_has_every_part_of_a_record() -> None:
    contents = [b"text", b"", '"\N{SNOWMAN}\0\u2028\n'.encode(), b"\xff\x00"]
    lines = format_lines(RecordBatch(STRANGE, 7, contents, stored_at=[70, 80, 90, 100])).splitlines()
    assert all(line.isascii() for line in lines)
    values: list[dict[str, str]] = [{"value": value.decode()} for value in contents[:3]]
    assert [json.loads(line) for line in lines] == [
        {"topic": STRANGE.topic, "partition": STRANGE.address, "sequence": 7 + number, "stored_at": 70 + 10 * number}
        | each
        for number, each in enumerate([*values, {"value_base64": "/wA="}])
    ]
    where = '{"topic": "orders", "partition": "A", "sequence"'
    assert format_lines(RecordBatch(ORDERS, 7, [b"7"])) == f'{where}: 7, "value": "7"}}\n'
    parts = {"keys": [b"key", None], "headers": [(("a", b"1"), ("b", None)), ()], "timestamps": [5, 7]}
    lines = format_lines(RecordBatch(ORDERS, 0, [b"0", None], stored_at=[8, 9], **parts)).splitlines()  # type: ignore[arg-type]
    assert lines == [
        f'{where}: 0, "stored_at": 8, "timestamp": 5, "key": "key", '
        '"headers": [{"name": "a", "value": "1"}, {"name": "b", "value": null}], "value": "0"}',
        f'{where}: 1, "stored_at": 9, "timestamp": 7, "value": null}}',
    ]


async def test_lines_are_sorted() -> None:
    later = Partition("bills", "C")
    storage = await memory(batch(0, 3), batch(5, 7, later), batch(2, 4, BILLS))
    await storage.trim(ORDERS, 1)
    found = [json.loads(line) for line in await exported(storage)]
    partitions = [("bills", "B", 2), ("bills", "B", 3), ("bills", "C", 5), ("bills", "C", 6)]
    expected = [*partitions, ("orders", "A", 1), ("orders", "A", 2)]
    assert [(line["topic"], line["partition"], line["sequence"]) for line in found] == expected
    assert {json.loads(line)["topic"] for line in await exported(storage, ["orders"])} == {"orders"}
    assert await exported(storage, ["orders", "bills", "orders"]) == await exported(storage)
    with pytest.raises(StorageError, match="topic 'order' has no partition"):
        await exported(storage, ["orders", "order"])


async def test_progress() -> None:
    exporting: list[tuple[int, int | None]] = []
    importing: list[tuple[int, int | None]] = []
    storage = await memory(batch(0, 5))
    async for _ in export_lines(storage, progress=lambda done, total: exporting.append((done, total))):
        pass
    assert exporting == [(5, 5)]
    lines = lists(*await exported(storage))
    await import_lines(MemoryStorage(), lines, progress=lambda done, total: importing.append((done, total)))
    assert importing == [(5, None)]
    importing.clear()
    lines = lists(*await exported(await memory(batch(0, 7))))
    await import_lines(storage, lines, progress=lambda done, total: importing.append((done, total)))
    assert importing == [(7, None)], "lines of records that are held are done, too"


async def test_lines_are_appended_many_at_a_time() -> None:
    class Counting(MemoryStorage):
        appends = 0

        async def append(self, batches: Sequence[RecordBatch]) -> None:
            self.appends += 1
            partitions = [batch.partition for batch in batches]
            assert len(partitions) == len(set(partitions))  # although the lines of both alternate
            await super().append(batches)

    lines = [
        {"topic": topic, "partition": "A", "sequence": sequence, "value": "x", "key": "x" * 1000}
        for sequence in range(1000)
        for topic in ("a", "b")
    ]
    storage = Counting()
    assert (await import_lines(storage, lists(*lines))).records == 2000
    assert 2 <= storage.appends <= 6


async def test_a_line_without_time_is_stored_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 77_999_999)
    storage = MemoryStorage()
    await import_lines(storage, lists(*({**LINE, "sequence": each, "stored_at": MISSING} for each in range(3))))
    assert (await storage.partitions())[ORDERS] == PartitionInfo(0, 3, 3, 77, 77)
    records = RecordBatch(ORDERS, 1, [b"3"], stored_at=[77])
    assert await read_next(storage, ORDERS, 1, 2) == records, "not past the listed end"


async def test_lines_of_records_already_held_are_skipped() -> None:
    storage = await memory(batch(0, 5))
    await storage.trim(ORDERS, 2)
    await storage.reset_to(BILLS, 4)
    lines = await exported(await memory(batch(0, 7), batch(4, 6, BILLS)))
    assert await import_lines(storage, lists(*lines, b"", b"  \r")) == ImportSummary(4, 4, 5)
    assert (await storage.partitions())[ORDERS] == PartitionInfo(2, 7, 5, 20, 60)
    assert (await storage.partitions())[BILLS].earliest_sequence == 4


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        *((line, "expected a JSON object in UTF-8") for line in NO_OBJECTS),
        (
            {"time": 7},
            "unknown field 'time', expected compacted, headers, key, key_base64, partition, "
            "sequence, stored_at, timestamp, topic, value, value_base64",
        ),
        ({"topic": None}, "topic: expected text, not NoneType"),
        ({"topic": []}, "topic: expected text, not list"),
        ({"partition": 7}, "partition: expected text, not int"),
        ({"topic": "a" * 256}, "topic: expected at most 255 bytes, not 256"),
        ({"topic": "\ud800"}, "topic: expected text that can be encoded (it contains a lone surrogate)"),
        *(
            ({"sequence": wrong}, f"sequence: expected a whole number from 0 to {2**64 - 1}, not {json.dumps(wrong)}")
            for wrong in ("7", True, -1, 2**64, 3.0)
        ),
        ({"stored_at": None}, "stored_at: expected a whole number from 0 to 9223372036854775807, not null"),
        *(({name: wrong}, f"{name}: {NO_TEXT}") for name, wrong in (("value", 7), ("value", "\udcff"), ("key", 7))),
        ({"value_base64": "MQ=="}, "expected either value or value_base64"),
        ({"key": "3", "key_base64": "MQ=="}, "expected either key or key_base64"),
        ({"timestamp": 2**63}, f"timestamp: expected a whole number from {-(2**63)} to {2**63 - 1}, not {2**63}"),
        ({"headers": {}}, "headers: expected a list of objects"),
        *(
            ({"headers": [wrong]}, "headers: expected objects with a name that is text, and a value")
            for wrong in (["a", "b"], {"value": "b"})
        ),
        ({"headers": [{"name": "a"}]}, "headers: expected either value or value_base64"),
        ({"headers": [{"name": "a", "value": 7}]}, f"headers: value: {NO_TEXT}"),
        (
            {"headers": [{"name": "a", "text": "b"}]},
            "headers: unknown field 'text', expected name, value, value_base64",
        ),
        (
            {"headers": [{"name": "\ud800", "value": "b"}]},
            r"headers: expected a name without lone surrogates other than \udc80 to \udcff",
        ),
        ({"sequence": 4}, "orders/A: sequence 4 would leave a gap, expected 3"),
        *(({field: MISSING}, f"{field} is missing") for field in ("topic", "partition", "sequence")),
        ({"value": MISSING}, "expected either value or value_base64"),
        *(
            ({"value": MISSING, "value_base64": text}, "value_base64: expected text in base 64")
            for text in ("M", "MQ", "M Q==", "\N{SNOWMAN}", 7, None)
        ),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_an_invalid_line(wrong: bytes | dict[str, Any], error: str) -> None:
    """The lines before the wrong one are imported."""
    storage = await memory(batch(0, 2))
    line = wrong if isinstance(wrong, bytes) else {**LINE, **wrong}
    lines = lists(b"", {**LINE, "sequence": 2}, line, {**LINE, "topic": "after"})
    with pytest.raises(JsonLineError) as caught:
        await import_lines(storage, lines)
    assert str(caught.value) == f"line 3: {error}"
    assert {partition: info.end_sequence for partition, info in (await storage.partitions()).items()} == {ORDERS: 3}


async def test_records_that_cannot_be_read() -> None:
    class Listed(MemoryStorage):
        is_trimming = False

        async def partitions(self, topic: str | None = None) -> dict[Partition, PartitionInfo]:
            infos = await super().partitions(topic)
            if self.is_trimming:
                await self.trim(ORDERS, 4)
                return infos
            return {partition: PartitionInfo(0, 12) for partition in infos}

    storage = Listed()
    await storage.append([batch(0, 10)])
    chunks = export_lines(storage)
    assert (await anext(chunks)).count(b"\n") == 10
    with pytest.raises(StorageCorruptError, match="orders/A: sequence 10 is listed as held but is missing"):
        await anext(chunks)
    storage.is_trimming = True
    with pytest.raises(StorageSequenceError, match="orders/A: the records from sequence 0 up to 3 were dropped"):
        await exported(storage)


@pytest.mark.parametrize("last", [{**LINE, "sequence": 4}, b"rubbish"])
async def test_what_was_imported_is_durable_when_it_returns_or_fails(last: bytes | dict[str, Any]) -> None:
    calls: list[str] = []

    class Recording(MemoryStorage):
        async def append(self, batches: Sequence[RecordBatch]) -> None:
            await super().append(batches)
            calls.append("append")

        async def flush(self) -> None:
            await super().flush()
            calls.append("flush")

    storage = Recording()
    with nullcontext() if isinstance(last, dict) else pytest.raises(JsonLineError):
        await import_lines(storage, lists(LINE, last))
    assert (await storage.partitions())[ORDERS].earliest_sequence == 3
    assert calls[-1] == "flush"
    assert "append" in calls
