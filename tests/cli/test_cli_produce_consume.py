"""`dafka produce` and `dafka consume` with a running cluster: what they read, print and show, and how they end."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from pathlib import Path

import pytest

from tests.cli.forks import fork_dafka
from tests.cli.harness import DEADLINE_S, MODULE, Dafka, numbered_lines, open_terminal

LINES = 20_000
TEXT = numbered_lines(LINES)

both_dialects = pytest.mark.parametrize("wire", ["rfc46", "libdafka"])


def stored(cluster: Dafka, topic: str) -> list[bytes]:
    with sqlite3.connect(f"file:{cluster.folder / 'store.db'}?mode=ro", uri=True) as connection:
        rows = connection.execute("SELECT content FROM topic_records WHERE topic = ? ORDER BY sequence", (topic,))
        contents = [row[0] for row in rows]
    connection.close()
    return contents


@both_dialects
def test_text_is_consumed_live_and_late_and_stored_unchanged(cluster: Dafka, tmp_path: Path, wire: str) -> None:
    topic = f"text-{wire}"
    path = tmp_path / "input"
    path.write_bytes(TEXT)
    live = cluster.start_consumer(topic, "--count", str(LINES), "--wire", wire)

    produced = cluster.node("produce", topic, "--file", str(path), "--wire", wire)
    assert (produced.status, produced.output) == (0, b"")
    assert "Error" not in produced.errors

    assert live.wait().output == TEXT + b"\n"
    late = cluster.node("consume", topic, "--from-beginning", "--count", str(LINES), "--wire", wire)
    assert late.output == TEXT + b"\n"
    assert (live.wait().status, late.status) == (0, 0)
    assert stored(cluster, topic) == TEXT.split(b"\n")


def test_lines_of_a_pipe_are_published_at_once(cluster: Dafka) -> None:
    live = cluster.start_consumer("pipe", "--count", "2")
    producer = cluster.start_node("produce", "pipe", stdin=subprocess.PIPE)
    pipe = producer.process.stdin
    assert pipe is not None
    pipe.write(b"0\n1 is longer")
    pipe.flush()
    assert live.wait_output(1) == ["0\n"]
    pipe.write(b" than one write\n")
    pipe.close()
    assert producer.wait().status == 0
    assert live.wait().output == b"0\n1 is longer than one write\n"


@pytest.mark.parametrize(("text", "contents"), [(b"", []), (b"0\n", [b"0"]), (b"\r\n\n", [b"\r", b""])])
def test_line_ends(cluster: Dafka, text: bytes, contents: list[bytes]) -> None:
    topic = f"ends-{text!r}"
    assert cluster.node("produce", topic, stdin=text).status == 0
    assert stored(cluster, topic) == contents


@both_dialects
def test_keys_headers_times_and_nulls_are_consumed_live_and_late(cluster: Dafka, wire: str) -> None:
    topic = f"whole-{wire}"
    template = r"%k|%s|%h|%T\n"
    live = cluster.start_consumer(topic, "--count", "4", "--wire", wire, "--format", template)
    headers = ("--header", "a=1", "--header", "a")
    options = ("--key-separator", ":", *headers, "--timestamp", "2026-01-31", "--null-as", "-")
    produced = cluster.node("produce", topic, "--wire", wire, *options, stdin=b"k:v:w\nk:-\nno key\n:\n")
    assert produced.status == 0

    late = ("--from-beginning", "--count", "4", "--wire", wire)
    rest = "a=1,a=NULL|1769817600000"
    expected = f"k|v:w|{rest}\nk|NULL|{rest}\nNULL|no key|{rest}\n||{rest}\n".encode()
    assert live.wait().output == expected
    assert cluster.node("consume", topic, *late, "--format", template).output == expected
    assert cluster.node("consume", topic, *late).output == b"v:w\nNULL\nno key\n\n"


def test_count_stops_in_the_middle_of_a_batch(cluster: Dafka) -> None:
    lines = b"".join(b"%d\n" % number for number in range(100))
    assert cluster.node("produce", "counted", stdin=lines).status == 0
    consumed = cluster.node("consume", "counted", "--from-beginning", "--count", "7")
    assert (consumed.status, consumed.output) == (0, b"0\n1\n2\n3\n4\n5\n6\n")


def test_consume_ends_when_its_reader_is_gone_and_no_records_come(cluster: Dafka) -> None:
    assert cluster.node("produce", "head", stdin=b"0\n1\n2\n").status == 0
    consumer = subprocess.Popen(
        [*MODULE, "consume", "head", "--from-beginning", *cluster.options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=cluster.environment(),
    )
    try:
        assert consumer.stdout is not None
        assert consumer.stdout.readline() == b"0\n"
        consumer.stdout.close()
        assert consumer.stderr is not None
        assert consumer.stderr.read() == b""
        assert consumer.wait(20) == 0
    finally:
        consumer.kill()
        consumer.communicate()


def test_repeated_runs_continue_one_partition(cluster: Dafka, tmp_path: Path) -> None:
    spool = str(tmp_path / "spool.db")
    for number in range(2):
        produced = cluster.node("produce", "cron", "--spool", spool, stdin=b"%d\n" % number)
        assert (produced.status, produced.errors) == (0, "")
    info = cluster.run("storage", "info", f"sqlite:{cluster.folder / 'store.db'}", "--topic", "cron", "--json")
    (partition,) = json.loads(info.output)["partitions"]
    assert partition["records"] == 2


def test_unresolvable_host_of_a_tower_is_named(dafka: Dafka) -> None:
    ended = dafka.run("status", "--tower", "nowhere.invalid", "--timeout", "2s")
    assert (ended.status, ended.output) == (1, b"")
    *_, warning, error = ended.errors.splitlines()
    assert "The tower's host name 'nowhere.invalid' cannot be resolved; retrying: " in warning
    assert error.startswith("Error: the tower's host name 'nowhere.invalid' cannot be resolved: ")
    assert error.endswith("; check the name, or name another tower with --tower")


def test_store_in_use_is_an_error(cluster: Dafka) -> None:
    path = cluster.folder / "store.db"
    ended = cluster.node("store", "--storage", f"sqlite:{path}")
    assert ended.status == 2
    assert ended.error == f"{path} is in use by another writer; stop it first"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_full_disk_is_an_error(cluster: Dafka, tmp_path: Path) -> None:
    def run_on_full_disk(*arguments: str) -> tuple[int, str]:
        errors = tmp_path / "errors"
        with open("/dev/full", "wb") as full, open(os.devnull) as nothing, errors.open("wb") as written:
            streams = nothing.fileno(), full.fileno(), written.fileno()
            status = fork_dafka([*arguments], *streams, cluster.environment()).wait(DEADLINE_S)
        return status, errors.read_text()

    assert cluster.node("produce", "full-disk", stdin=b"0\n").status == 0
    consumed = run_on_full_disk("consume", "full-disk", "--from-beginning", *cluster.options)
    assert consumed == (1, "Error: cannot write the output: No space left on device\n")
    listed = run_on_full_disk("topics", "--storage", f"sqlite:{cluster.folder / 'store.db'}")
    assert listed == (1, "Error: No space left on device\n")


def test_terminal_shows_how_much_of_a_file_is_stored(cluster: Dafka, tmp_path: Path) -> None:
    (tmp_path / "input").write_bytes(b"0\n1\n2\n")
    with open_terminal(cluster, "produce", "file", "--file", str(tmp_path / "input"), *cluster.options) as terminal:
        assert terminal.wait() == 0
        assert b"100%" in terminal.seen
        assert b"3 published, 3 stored" in terminal.seen
        assert terminal.seen.rstrip().endswith(b"\x1b[?25h")  # the cursor is visible again


def test_typed_lines_are_not_overwritten(cluster: Dafka) -> None:
    with open_terminal(cluster, "produce", "typed", *cluster.options) as terminal:
        terminal.type(b"first\nsecond\n\x04")
        assert terminal.wait() == 0
        shown = terminal.seen.replace(b"^D\b\b", b"")
        assert shown.split() == [b"first", b"second"]


def test_interrupt_restores_the_terminal(cluster: Dafka, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "input")
    with (
        open(os.open(tmp_path / "input", os.O_RDWR), "wb", buffering=0) as pipe,
        open_terminal(cluster, "produce", "cut", "--file", str(tmp_path / "input"), *cluster.options) as terminal,
    ):
        pipe.write(b"0\n")
        terminal.wait_for(b"1 published, 1 stored")
        terminal.type(b"\x03")
        assert terminal.wait() == 0
        assert b"Interrupted: 1 published, 0 of them not acknowledged" in terminal.seen
        assert b"\x1b[?25h" in terminal.seen
        assert b"Traceback" not in terminal.seen


def test_no_progress_without_a_terminal(cluster: Dafka) -> None:
    ended = cluster.node("produce", "quiet", stdin=b"0\n")
    assert (ended.status, ended.output, ended.errors) == (0, b"", "")
