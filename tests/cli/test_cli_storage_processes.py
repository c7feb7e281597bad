"""The storage commands in real processes: pipes, signals, a terminal, a running store."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest
import trio

from dafka.records import Partition, RecordBatch
from dafka.storage import open_storage
from tests.cli.harness import Dafka, open_terminal

ORDERS = Partition("orders", "A")


@pytest.fixture
def source(tmp_path: Path) -> str:
    url = f"sqlite:{tmp_path / 'source.db'}"

    async def fill() -> None:
        async with open_storage(url) as storage:
            contents = [b"%d" % sequence for sequence in range(1000)]
            await storage.append(
                [RecordBatch(ORDERS, 5, contents, stored_at=[1000 + number for number in range(1000)])]
            )

    trio.run(fill)
    return url


def test_export_is_read_by_import(dafka: Dafka, source: str, tmp_path: Path) -> None:
    target = f"sqlite:{tmp_path / 'target.db'}"
    exported = dafka.run("storage", "export", source, "--json")
    lines = exported.output
    assert (exported.status, lines.count(b"\n")) == (0, 1000)
    assert json.loads(exported.errors) == {"records": 1000, "bytes": len(lines)}
    imported = dafka.run("storage", "import", target, "--json", stdin=lines)
    assert json.loads(imported.output) == {"records": 1000, "bytes": 2890, "skipped": 0}
    again = dafka.run("storage", "export", target)
    assert (again.status, again.output, again.errors) == (0, lines, "")


@pytest.mark.parametrize(("answer", "status", "left"), [(b"y\n", 0, 0), (b"n\n", 2, 1000)])
def test_a_terminal_is_asked_before_a_topic_is_deleted(
    dafka: Dafka, source: str, answer: bytes, status: int, left: int
) -> None:
    with open_terminal(dafka, "storage", "delete", source, "orders") as terminal:
        terminal.wait_for(b"Delete 1 partition of orders with 1,000 records")
        terminal.type(answer)
        assert terminal.wait() == status
    info = json.loads(dafka.run("storage", "info", source, "--json").output)
    assert info["totals"]["records"] == left
    assert len(info["partitions"]) == (1 if left else 0)


def test_a_terminal_shows_progress(dafka: Dafka, source: str, tmp_path: Path) -> None:
    with open_terminal(dafka, "storage", "copy", source, f"sqlite:{tmp_path / 'target.db'}") as terminal:
        assert terminal.wait() == 0
        assert b"100%" in terminal.seen
        assert b"1,000 records, " in terminal.seen
        assert terminal.seen.rstrip().endswith(b"copied into 1 partition, 0 already present")
        assert b"\x1b[?25h" in terminal.seen  # the cursor is visible again


def test_an_export_to_a_terminal_shows_the_lines_only(dafka: Dafka, source: str) -> None:
    with open_terminal(dafka, "storage", "export", source) as terminal:
        assert terminal.wait() == 0
        lines = terminal.seen.splitlines()
    assert len(lines) == 1000
    assert all(json.loads(line)["topic"] == "orders" for line in lines)


def test_a_table_fits_the_terminal(dafka: Dafka, tmp_path: Path) -> None:
    async def fill() -> None:
        async with open_storage(f"sqlite:{tmp_path / 'long.db'}") as storage:
            await storage.append([RecordBatch(Partition("a" * 100, "A"), 0, [b"0"])])

    trio.run(fill)
    with open_terminal(dafka, "storage", "info", f"sqlite:{tmp_path / 'long.db'}") as terminal:
        assert terminal.wait() == 0
        rows = [line.rstrip() for line in terminal.seen.splitlines()]
        table = [row for row in rows[: rows.index(b"")] if b"\x1b" not in row]  # without the header
        assert max(map(len, table)) <= 80
        assert "\N{HORIZONTAL ELLIPSIS}".encode() not in b"".join(table)
        assert b"".join(table).count(b"a") == 100


def test_an_interrupted_import_is_continued(dafka: Dafka, tmp_path: Path) -> None:
    target = f"sqlite:{tmp_path / 'target.db'}"
    lines = [
        json.dumps({"topic": "t", "partition": "A", "sequence": sequence, "value": "x" * 1000}).encode() + b"\n"
        for sequence in range(3000)
    ]
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as pipe:
        running = dafka.start("storage", "import", target, stdin=reading)
        os.close(reading)
        pipe.write(b"".join(lines[:2000]))
        pipe.flush()
        ended = running.end(signal.SIGINT)
    assert ended.status == 128 + signal.SIGINT
    found = re.fullmatch(r"interrupted: ([0-9,]+) records done; run the command again to continue\n", ended.errors)
    assert found, ended.errors
    imported = int(found[1].replace(",", ""))
    again = dafka.run("storage", "import", target, "--json", stdin=b"".join(lines))
    assert json.loads(again.output) == {
        "records": 3000 - imported,
        "bytes": 1000 * (3000 - imported),
        "skipped": imported,
    }
