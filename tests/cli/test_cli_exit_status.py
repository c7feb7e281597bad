"""The exit status of a command: of each way in which its program can end, and of each signal that can stop it."""

from __future__ import annotations

import errno
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from dafka import errors
from dafka.cli import runner
from dafka.cli.runner import Shutdown, run
from dafka.config import Config
from tests.cli.forks import run_python
from tests.cli.harness import FREE, Dafka, Running, open_terminal, wait_for

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def discarded(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Notes that standard output was discarded, and leaves pytest's in place."""
    noted: list[bool] = []
    monkeypatch.setattr(runner, "_discard_output", lambda: noted.append(True))
    return noted


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """A program restores the handlers of the signals that it takes."""
    before = [signal.getsignal(number) for number in STOPS]
    yield
    assert [signal.getsignal(number) for number in STOPS] == before


def status_of(program: Callable[[], Awaitable[int]], **options: Any) -> int:
    with pytest.raises(SystemExit) as caught:
        run(program, **options)
    assert isinstance(caught.value.code, int)
    return caught.value.code


async def fail(error: BaseException) -> int:
    await trio.lowlevel.checkpoint()
    raise error


async def stop_with(number: int) -> int:
    os.kill(os.getpid(), number)
    await trio.sleep_forever()
    return 99


ENDS: list[tuple[Exception, int, str, bool]] = [
    *((kind("sentence"), 2, "Error: sentence", False) for kind in (errors.ConfigError, errors.MissingExtraError)),
    *((kind("sentence"), 2, "Error: sentence", False) for kind in (errors.StorageError, errors.StorageBusyError)),
    (errors.StorageLostError("sentence"), 2, "Error: sentence", False),
    *((kind("sentence"), 1, "Error: sentence", False) for kind in (errors.DiscoveryError, errors.RecordError)),
    *((kind("sentence"), 1, "Error: sentence", False) for kind in (errors.TransportError, errors.DafkaError)),
    (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), 1, "Error: No space left on device\n", True),
    (OSError("something"), 1, "Error: something\n", True),
    (BrokenPipeError(), 0, "", True),  # a reader that has gone is no error
]
"""Each error with its status, how its only sentence begins, and whether standard output is discarded: the interpreter
would try to write the rest again."""


@pytest.mark.parametrize(("error", "status", "sentence", "is_discarded"), ENDS)
def test_an_error_is_one_sentence_and_a_status(
    error: Exception,
    status: int,
    sentence: str,
    is_discarded: bool,
    capsys: pytest.CaptureFixture[str],
    discarded: list[bool],
) -> None:
    assert status_of(lambda: fail(error)) == status
    output, found = capsys.readouterr()
    assert (output, found[: len(sentence)], found.count("\n")) == ("", sentence, 1 if sentence else 0)
    assert discarded == [True] * is_discarded


@pytest.mark.parametrize(("error", "status"), [(BrokenPipeError(), 0), (OSError(errno.ENOSPC, "full"), 1)])
def test_what_was_not_written_at_the_end_counts(
    error: OSError, status: int, monkeypatch: pytest.MonkeyPatch, discarded: list[bool]
) -> None:
    async def program() -> int:
        return 0

    class Output:
        def write(self, text: str) -> int:
            return len(text)

        def flush(self) -> None:
            raise error

    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", Output())
        assert status_of(program) == status
    assert discarded == [True]


def test_an_unexpected_error_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        run(lambda: fail(ZeroDivisionError()))


# Signals


@pytest.mark.parametrize("number", STOPS)
def test_a_signal_that_interrupts_the_job_is_the_status(number: signal.Signals) -> None:
    assert status_of(lambda: stop_with(number)) == 128 + number


@pytest.mark.parametrize("status", [0, 1])
def test_an_interrupted_command_may_have_a_result(status: int) -> None:
    assert status_of(lambda: stop_with(signal.SIGTERM), interrupted=lambda: status) == status


def test_a_graceful_program_ends_by_itself_with_its_own_status() -> None:
    began: list[str] = []
    stopping = trio.Event()

    def begin() -> None:
        began.append("stopping")
        stopping.set()

    async def program() -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        await stopping.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await trio.testing.wait_all_tasks_blocked()
        await trio.lowlevel.checkpoint()
        return 4

    interrupted: Callable[[], int] = lambda: 99  # noqa: E731 (called only if the program is cancelled)
    assert status_of(program, interrupted=interrupted, shutdown=Shutdown(begin, grace_s=1000.0)) == 4
    assert began == ["stopping"], "a second signal at once is the same one"


def test_a_later_second_signal_ends_the_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "SECOND_SIGNAL_S", 0.0)
    began = trio.Event()

    async def program() -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        await began.wait()
        os.kill(os.getpid(), signal.SIGINT)
        await trio.sleep_forever()
        return 99

    assert status_of(program, shutdown=Shutdown(began.set, grace_s=1000.0)) == 128 + signal.SIGTERM


STUCK = """
import sys, trio
from dafka.cli import runner

async def program():
    print("up", flush=True)
    with trio.CancelScope(shield=True):
        await trio.sleep_forever()

runner.SECOND_SIGNAL_S = 0.0
runner.run(program)
"""


def test_a_further_signal_ends_a_program_that_cannot_be_cancelled() -> None:
    with subprocess.Popen([sys.executable, "-c", STUCK], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
            deadline = time.monotonic() + 60
            while process.poll() is None and time.monotonic() < deadline:
                process.send_signal(signal.SIGINT)
                time.sleep(0.01)
            assert process.poll() == -signal.SIGINT
        finally:
            process.kill()


LIMITED = """
import os, signal, sys, time, trio
from dafka.cli.runner import Shutdown, run

async def program():
    os.kill(os.getpid(), signal.SIGTERM)
    await {wait}

run(program, shutdown=Shutdown(limit_s={limit_s}))
"""


def test_a_process_that_does_not_stop_is_ended_and_another_does_not_wait_for_that() -> None:
    done = run_python(LIMITED.format(wait="trio.to_thread.run_sync(time.sleep, 600)", limit_s=0.2), {**os.environ}, 60)
    assert (done.returncode, done.stderr) == (1, "Error: not stopped 0 s after the signal; exited without finishing\n")
    done = run_python(LIMITED.format(wait="trio.sleep_forever()", limit_s=600), {**os.environ}, 60)
    assert (done.returncode, done.stderr) == (128 + signal.SIGTERM, "")


@pytest.mark.parametrize("is_graceful", [True, False])
def test_a_commands_shutdown_follows_its_settings(is_graceful: bool) -> None:
    config = Config().with_node(grace_ms=7000, linger_ms=2000)
    supervisor = runner.Supervisor(config, "store")
    shutdown = supervisor.shutdown(is_graceful=is_graceful)
    assert (shutdown.grace_s, shutdown.limit_s) == (7.0 if is_graceful else 0.0, 14.0)
    assert not supervisor.is_stopping
    shutdown.begin()
    assert supervisor.is_stopping
    assert Shutdown().limit_s == math.inf


async def test_waiting_ends_when_a_command_stops() -> None:
    supervisor = runner.Supervisor(Config(), "store")
    begin = supervisor.shutdown(is_graceful=True).begin

    async def wait_stopped() -> str:
        begin()
        await trio.sleep_forever()
        return "never"

    async def wait_nothing() -> str:
        await trio.lowlevel.checkpoint()
        return "result"

    assert await supervisor.wait_unless_stopping(wait_nothing) == "result"
    assert await supervisor.wait_unless_stopping(wait_stopped) is None
    assert await supervisor.wait_unless_stopping(wait_nothing) is None


@pytest.mark.parametrize(
    ("end", "expected"), [("raise OSError('sentence')", (1, "Error: sentence\n")), ("return 3", (3, ""))]
)
def test_a_command_without_standard_output_ends_as_with_it(end: str, expected: tuple[int, str]) -> None:
    program = f"from dafka.cli import runner\nasync def program(): {end}\nrunner.run(program)"
    command = ["sh", "-c", 'exec "$0" -c "$1" >&-', sys.executable, program]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == expected


# Real processes that are stopped by signals


# Runs the installed script, after a mark. Before the mark, the interpreter itself handles an interrupt, also if the
# tests run in the background, where a shell has interrupts ignored.
HANDLED = "signal.signal(signal.SIGINT, signal.default_int_handler)"
SCRIPT = (
    sys.executable,
    "-c",
    f"import os, signal; {HANDLED}; import dafka._entry; os.write(1, b'up\\n'); dafka._entry.main()",
)

HELD = (
    sys.executable,
    "-c",
    f"""
import builtins, os, signal
import dafka._entry

def hold(name, *rest):
    if name == "dafka.cli":
        builtins.__import__ = load
        os.kill(os.getpid(), signal.SIGSTOP)
    return load(name, *rest)

{HANDLED}
load, builtins.__import__ = builtins.__import__, hold
dafka._entry.main()
""",
)
"""Runs the script until it loads its modules, and stops there."""


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
    options = [] if command[0] == "tower" else tower
    running = dafka.start(*command, *options, command=HELD, stdin=subprocess.PIPE)
    wait_for(lambda: "(stopped)" in status_line(running, "State") or None, lambda: running.errors)
    running.process.send_signal(signal.SIGINT)
    ended = running.end(signal.SIGCONT)
    assert (ended.status, ended.output, ended.errors) == (-signal.SIGINT, b"", "")
    running = dafka.start(*command, *options, command=SCRIPT, stdin=subprocess.PIPE)
    running.wait_output(1)
    wait_for(partial(is_harmless, running), lambda: "SIGINT stays caught")
    time.sleep(random.Random(command[0]).uniform(0, 0.4))
    ended = running.end(signal.SIGINT)
    assert ended.errors in ("", "Interrupted: 0 published, 0 of them not acknowledged\n")
    assert ended.status in {-signal.SIGINT, 0}


def is_harmless(running: Running) -> bool | None:
    """Return whether the interpreter's own handler, which raises, has been replaced."""
    is_caught = int(status_line(running, "SigCgt").split()[1], 16) >> (signal.SIGINT - 1) & 1
    return None if is_caught else True


def status_line(running: Running, name: str) -> str:
    """Return what the system says of a process."""
    status = Path(f"/proc/{running.process.pid}/status")
    return next(line for line in status.read_text().splitlines() if line.startswith(name))


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
