"""Real processes that start in milliseconds: forks of one process that has loaded dafka's modules.

The module is both: the process, which loads nothing of the tests, and `fork_dafka` and `run_python`, which ask it for a
process. Each worker of the tests has a process that forks, which ends with it. After `load_once`, these are forks of a
single one.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from contextlib import suppress
from importlib import import_module
from typing import IO, Any

REQUEST_BYTES = 2**20
TEST = "MUTANTS_TEST"
"""The variable that names the running test while `tests/mutation` measures which lines each test runs."""

PYTHON = "python"
"""The program in place of `dafka` that is a text of Python."""
EACH_WORKER = "each-worker"
"""The argument of the process that forks the processes that fork."""

LOADED_LATER = (
    *(f"rich.{name}" for name in ("console", "logging", "progress", "table", "text")),
    *("structlog", "prometheus_client", "dafka.operations.http", "dafka.server", "dafka.asyncio", "dafka.blocking"),
    *(f"dafka.{name}.metrics" for name in ("broker", "kafka.server", "http.server")),
    *(f"dafka.storage.{name}" for name in ("sqlite", "filelog", "memory", "cold")),
)
"""What commands load when they need it."""


class Forked:
    """A process of `dafka`, with the part of `subprocess.Popen` that tests use."""

    def __init__(self, pid: int, status: int, stdin: IO[bytes] | None) -> None:
        self.pid = pid
        self.stdin = stdin
        self.returncode: int | None = None
        self._status = status

    def poll(self) -> int | None:
        """Return the exit status, or minus the number of the signal that ended it; None while it runs."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit status. Raise `subprocess.TimeoutExpired` if that takes too long."""
        status = self._look(timeout)
        if status is None:
            raise subprocess.TimeoutExpired("dafka", timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            self.returncode = int(os.read(self._status, 16) or b"-9")  # nothing: the process that forks has ended
            os.close(self._status)
        return self.returncode


def fork_dafka(
    arguments: list[str],
    stdin: int,
    stdout: int,
    stderr: int,
    environment: dict[str, str],
    *,
    on_terminal: bool = False,
    program: tuple[str, ...] = (),
) -> Forked:
    """Start `dafka`, or `program` in its place, with these descriptors and this environment.

    `stdin` may be `subprocess.PIPE` or `subprocess.DEVNULL`. With `on_terminal` it becomes the controlling terminal.
    """
    request: dict[str, Any] = {"arguments": arguments, "environment": environment, "folder": os.getcwd()}
    request |= {"program": program, "on_terminal": on_terminal}
    status, status_end = os.pipe()
    opened = [status_end]
    writer: IO[bytes] | None = None
    if stdin == subprocess.PIPE:
        stdin, pipe_end = os.pipe()
        writer = os.fdopen(pipe_end, "wb")
        opened.append(stdin)
    elif stdin == subprocess.DEVNULL:
        stdin = os.open(os.devnull, os.O_RDONLY)
        opened.append(stdin)
    forker = _forker()
    socket.send_fds(forker, [json.dumps(request).encode()], [stdin, stdout, stderr, status_end])
    for each in opened:
        os.close(each)
    return Forked(int(forker.recv(16)), status, writer)


def run_python(program: str, environment: dict[str, str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run a program in a fork, whose interpreter ends as any other, and return its output and its exit status."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        streams = subprocess.DEVNULL, output.fileno(), errors.fileno()
        process = fork_dafka([program], *streams, environment, program=(PYTHON,))
        try:
            status = process.wait(timeout_s)
        finally:
            process.kill()
        texts = []
        for file in (output, errors):
            file.seek(0)
            texts.append(file.read().decode(errors="backslashreplace"))
    return subprocess.CompletedProcess([PYTHON, program], status, *texts)


_loaded: list[socket.socket] = []
"""The process that `load_once` has started, if any."""


def load_once() -> None:
    """Start loading the modules, in a process whose forks serve the processes that are forked from this one later."""
    _loaded.append(_start(EACH_WORKER))


@functools.cache
def _forker() -> socket.socket:
    """Start the process that forks, which ends with this one."""
    if not _loaded:
        return _start()
    ours, theirs = _make_link()
    with theirs:
        socket.send_fds(_loaded[0], [b"fork"], [theirs.fileno()])
    return ours


def _start(*options: str) -> socket.socket:
    ours, theirs = _make_link()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno()), *options],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env={**os.environ, TEST: ""},
        )

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


LINKS: set[int] = set()
"""The descriptors of links to the processes that fork: they stay open."""


def _make_link() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    LINKS.add(ours.fileno())
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, REQUEST_BYTES)
    return ours, theirs


def _serve_each_worker(requests: socket.socket) -> str:
    """Fork a process for each worker, which forks in turn. What a worker has started is killed after it has ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        data, descriptors, _, _ = socket.recv_fds(requests, REQUEST_BYTES, 1)
        if not data:
            return ""
        if not os.fork():
            requests.close()
            os.setpgid(0, 0)
            program = _serve(socket.socket(fileno=descriptors[0]))
            if not program:
                os.killpg(0, signal.SIGKILL)
            return program
        os.close(descriptors[0])


def _serve(requests: socket.socket) -> str:
    """Fork a process for each request, and write its status when it has ended.

    Return in a fork, with the text of its program, and at the end, with nothing.
    """
    statuses: dict[int, int] = {}
    wakeup, wakeup_end = os.pipe()
    for end in (wakeup, wakeup_end):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wakeup_end)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([requests.fileno(), wakeup], [], [])
        if wakeup in ready:
            os.read(wakeup, 4096)
            _reap(statuses)
        if requests.fileno() not in ready:
            continue
        data, descriptors, _, _ = socket.recv_fds(requests, REQUEST_BYTES, 4)
        if not data:
            break
        *streams, status = descriptors
        process = os.fork()
        if not process:
            for each in (requests.fileno(), wakeup, wakeup_end, *statuses.values(), status):
                os.close(each)
            requests.detach()
            return _become(json.loads(data), streams)
        for each in streams:
            os.close(each)
        statuses[process] = status
        requests.send(str(process).encode())
    for process in statuses:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return ""


def _reap(statuses: dict[int, int]) -> None:
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            process, status = found
            descriptor = statuses.pop(process)
            with suppress(BrokenPipeError):  # the test has ended
                os.write(descriptor, str(os.waitstatus_to_exitcode(status)).encode())
            os.close(descriptor)


def _become(request: dict[str, Any], streams: list[int]) -> str:
    """Run the command as the interpreter would, and exit the process; return a program of Python."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if request["on_terminal"]:
        os.setsid()
        os.login_tty(streams[0])
    else:
        for target, descriptor in enumerate(streams):
            os.dup2(descriptor, target)
        for descriptor in streams:
            os.close(descriptor)
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        former = getattr(sys, name)
        buffering = 1 if number == 2 or os.isatty(number) else -1
        stream = os.fdopen(number, mode, buffering, former.encoding, former.errors, closefd=False)
        setattr(sys, name, stream)
    os.environ.clear()
    os.environ.update(request["environment"])
    _count_lines_for(os.environ.get(TEST, ""))
    time.tzset()
    os.chdir(request["folder"])
    if request["program"] == [PYTHON]:
        sys.path.insert(0, "")
        return str(request["arguments"][0])
    if request["program"]:
        os.execvp(request["program"][0], [*request["program"], *request["arguments"]])
    sys.argv = ["dafka", *request["arguments"]]
    os._exit(_run())


def _count_lines_for(test: str) -> None:
    """Have coverage.py, if it measures, count lines for the test that this fork is for."""
    current = sys.modules["coverage"].Coverage.current() if "coverage" in sys.modules else None
    if current is not None:
        current.switch_context(test)


def _run() -> int:
    from dafka._entry import main

    status = 0
    try:
        main()
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return status or 120
    return status & 0xFF


def _load() -> None:
    from dafka.cli import COMMANDS

    for name in (*dict.fromkeys(module for module, _ in COMMANDS.values()), *LOADED_LATER):
        with suppress(Exception):
            import_module(name)
    assert threading.active_count() == 1, "a fork has one thread only"
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    # A test that is interrupted ends its processes itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    del sys.path[0]
    _load()
    serve = _serve_each_worker if EACH_WORKER in sys.argv else _serve
    exec(compile(serve(socket.socket(fileno=int(sys.argv[1]))), "<program>", "exec"), globals())
