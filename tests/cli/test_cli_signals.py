from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from tests.cli.harness import FREE, Dafka, Running, open_terminal, wait_for

# Runs the installed script, after a mark. Before the mark, the interpreter itself handles an interrupt.
SCRIPT = (sys.executable, "-c", "import os, dafka._entry; os.write(1, b'up\\n'); dafka._entry.main()")


def test_produce_ends_cleanly_while_it_waits_for_input(dafka: Dafka, tower: list[str]) -> None:
    dafka.options = tower
    producer = dafka.start_node("produce", "t", "-v", stdin=subprocess.PIPE)
    producer.wait_errors("Tower heard")
    ended = producer.end(signal.SIGINT)
    assert ended.status == 0
    assert ended.errors.endswith("\nInterrupted: 0 published, 0 of them not acknowledged\n")
    assert "Traceback" not in ended.errors


def test_produce_reports_missing_acks_when_it_is_stopped(dafka: Dafka, tower: list[str], tmp_path: Path) -> None:
    dafka.options = tower
    (tmp_path / "input").write_bytes(b"0\n1\n2\n")
    producer = dafka.start_node(
        "produce",
        "t",
        "--grace-ms",
        "200ms",
        "--file",
        str(tmp_path / "input"),
        environment={"DAFKA_PRODUCER_SILENCE_MS": "100"},
    )
    producer.wait_errors("3 are unacknowledged")
    ended = producer.end(signal.SIGTERM)
    assert ended.status == 1
    assert ended.errors.endswith("\nInterrupted: 3 published, 3 of them not acknowledged\n")
    assert "Traceback" not in ended.errors


def test_produce_that_is_stopped_in_the_middle_of_a_file_is_no_success(
    dafka: Dafka, tower: list[str], tmp_path: Path
) -> None:
    """It waits for a store, which comes after the signal and acknowledges all that was published."""
    dafka.options = tower
    (tmp_path / "input").write_bytes((b"x" * 20_000 + b"\n") * 100)
    producer = dafka.start_node(
        "produce",
        "t",
        "-v",
        "--grace-ms",
        "1m",
        "--file",
        str(tmp_path / "input"),
        environment={"DAFKA_PRODUCER_SILENCE_MS": "100", "DAFKA_PRODUCER_UNACKNOWLEDGED_RECORDS_MAX": "10"},
    )
    producer.wait_errors("are unacknowledged")
    producer.process.send_signal(signal.SIGTERM)
    producer.wait_errors("SIGTERM")
    dafka.start_node("store", "--storage", "memory:")
    ended = producer.wait()
    assert ended.errors.endswith(" published, 0 of them not acknowledged\n")
    assert "Interrupted: 100 published" not in ended.errors
    assert ended.status == 1


@pytest.mark.parametrize("command", [["tower", "--sub", FREE, "--pub", FREE], ["consume", "t"], ["produce", "t"]])
def test_early_interrupt_leaves_no_traceback(dafka: Dafka, tower: list[str], command: list[str]) -> None:
    seeded = random.Random(command[0])
    options = [] if command[0] == "tower" else tower
    statuses: set[int] = set()
    for delay in (0.0, seeded.uniform(0, 0.4)):
        running = dafka.start(*command, *options, command=SCRIPT, stdin=subprocess.PIPE)
        running.wait_output(1)
        wait_for(partial(is_harmless, running), lambda: "SIGINT stays caught")
        time.sleep(delay)
        ended = running.end(signal.SIGINT)
        assert ended.errors in ("", "Interrupted: 0 published, 0 of them not acknowledged\n")
        statuses.add(ended.status)
    assert -signal.SIGINT in statuses
    assert statuses <= {-signal.SIGINT, 0}


def is_harmless(running: Running) -> bool | None:
    """Return whether the interpreter's own handler, which raises, has been replaced."""
    status = Path(f"/proc/{running.process.pid}/status")
    caught = next(line for line in status.read_text().splitlines() if line.startswith("SigCgt"))
    is_caught = int(caught.split()[1], 16) >> (signal.SIGINT - 1) & 1
    return None if is_caught else True


def test_interrupted_demo_leaves_no_process_and_no_file(dafka: Dafka, tmp_path: Path) -> None:
    """Two signals come at once, because `timeout` signals the process and then its group."""
    (tmp_path / "input").write_bytes(b"".join(b"%d\n" % sequence for sequence in range(300_000)))
    demo = dafka.start("demo", "--file", str(tmp_path / "input"))
    wait_for(lambda: any(" produce " in line for line in dafka.processes().values()) or None, lambda: demo.errors)
    demo.process.send_signal(signal.SIGTERM)
    ended = demo.end(signal.SIGINT)
    assert ended.status in (128 + signal.SIGTERM, 128 + signal.SIGINT)
    assert (ended.output, ended.errors) == (b"", "")
    assert dafka.processes() == {}
    assert list(tmp_path.glob("dafka-demo-*")) == []


def test_ctrl_c_in_a_terminal(dafka: Dafka, tower: list[str]) -> None:
    with open_terminal(dafka, "consume", "t", "-v", *tower) as terminal:
        terminal.wait_for(b"Following t")
        terminal.type(b"\x03")
        assert terminal.wait() == 0
        assert b"Traceback" not in terminal.seen


def test_nohup_is_respected(dafka: Dafka, tower: list[str]) -> None:
    dafka.options = tower
    ignoring = (sys.executable, "-c", "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); " + RUN_MODULE)
    consumer = dafka.start("consume", "t", "-v", *tower, command=ignoring)
    consumer.wait_errors("Following t")
    consumer.process.send_signal(signal.SIGHUP)
    assert dafka.start_consumer("t").end().status == 0
    assert consumer.process.poll() is None
    assert consumer.end().status == 0


RUN_MODULE = "from dafka._entry import main; main()"
