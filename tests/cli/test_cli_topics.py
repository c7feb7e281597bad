from __future__ import annotations

import json
from pathlib import Path

from dafka.records import Partition, RecordBatch
from dafka.storage import open_storage
from tests.cli.harness import Dafka, open_terminal


def test_store_in_use_is_listed(dafka: Dafka, tmp_path: Path) -> None:
    storage = f"sqlite:{tmp_path / 'store.db'}"
    up = dafka.start_up("--storage", storage)
    assert dafka.node("produce", "orders", stdin=b"0\n1\n2\n").status == 0
    assert dafka.node("produce", "a b", stdin=b"12345\n").status == 0

    listed = dafka.run("topics", "--storage", storage)
    assert (listed.status, listed.errors) == (0, "")
    heading, first, second = listed.output.decode().splitlines()
    assert heading.split() == ["topic", "partition", "earliest", "head", "records", "size"]
    assert first.startswith("a b ")
    assert first.split()[3:] == ["0", "0", "1", "5", "bytes"]
    assert second.split()[0] == "orders"
    assert second.split()[2:] == ["0", "2", "3", "3", "bytes"]

    as_json = dafka.run("topics", "--storage", storage, "--json")
    records = [
        {"topic": "a b", "partition": first.split()[2], "earliest": 0, "head": 0, "records": 1, "bytes": 5},
        {"topic": "orders", "partition": second.split()[1], "earliest": 0, "head": 2, "records": 3, "bytes": 3},
    ]
    assert [json.loads(line) for line in as_json.output.splitlines()] == records

    assert up.end().status == 0
    afterwards = dafka.run("topics", "--storage", storage, "--json")
    assert [json.loads(line) for line in afterwards.output.splitlines()] == records


async def test_unprintable_names_are_escaped(dafka: Dafka, tmp_path: Path) -> None:
    storage = f"sqlite:{tmp_path / 'store.db'}"
    topics = ["[red]markup", "\x1b[31mred", "\udcff", "a" * 255]
    async with open_storage(storage) as opened:
        await opened.append([RecordBatch(Partition(topic, "A"), 5, [b"5"]) for topic in topics])

    listed = dafka.run("topics", "--storage", storage)
    rows = [line.split() for line in listed.output.decode().splitlines()]
    assert [row[0] for row in rows[1:]] == [r"\x1b[31mred", "[red]markup", "a" * 255, r"\udcff"]
    assert {tuple(row[1:]) for row in rows[1:]} == {("A", "5", "5", "1", "1", "byte")}
    as_json = dafka.run("topics", "--storage", storage, "--json").output
    assert [json.loads(line)["topic"] for line in as_json.splitlines()] == sorted(topics)


async def test_table_fits_the_terminal(dafka: Dafka, tmp_path: Path) -> None:
    storage = f"sqlite:{tmp_path / 'store.db'}"
    async with open_storage(storage) as opened:
        await opened.append([RecordBatch(Partition("a" * 100, "A"), 0, [b"0"])])
    with open_terminal(dafka, "topics", "--storage", storage) as terminal:
        assert terminal.wait() == 0
        rows = [line.rstrip() for line in terminal.seen.splitlines()[1:]]
        assert max(map(len, rows)) <= 80
        assert b"".join(rows).count(b"a") == 100


async def test_store_without_records(dafka: Dafka, tmp_path: Path) -> None:
    storage = f"sqlite:{tmp_path / 'store.db'}"
    async with open_storage(storage):
        pass
    listed = dafka.run("topics", "--storage", storage)
    assert listed.status == 0
    assert len(listed.output.splitlines()) == 1
