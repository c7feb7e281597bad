from __future__ import annotations

import os
from pathlib import Path

from tests.cli.harness import Dafka, open_terminal


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
