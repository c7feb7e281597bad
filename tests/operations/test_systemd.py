"""Notifications for systemd, received by a datagram socket in its place, and commands under a supervisor."""

from __future__ import annotations

import json
import os
import signal
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from click.testing import CliRunner

from dafka.cli import main
from dafka.operations import open_operations, systemd
from dafka.operations.monitor import Monitor
from dafka.operations.systemd import ALIVE, READY, Notifier
from dafka.roles import Health, Store
from tests.cli.harness import FREE, Dafka, Running, wait_for
from tests.waiting import poll_until, wait_until


class Manager:
    """A stand-in for systemd: a datagram socket."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{path[1:]}" if path.startswith("@") else path)
        self._socket.setblocking(False)
        self.received: list[str] = []

    def receive(self) -> list[list[str]]:
        """Return the assignments of each datagram sent since the last call."""
        found = []
        while True:
            try:
                found.append(self._socket.recv(4096).decode().split("\n"))
            except BlockingIOError:
                return found

    def has_received(self, *assignments: str) -> bool:
        """Return whether all these assignments are among those received so far."""
        self.received += [each for datagram in self.receive() for each in datagram]
        return {*assignments} <= {*self.received}

    async def wait_for(self, assignment: str) -> list[str]:
        """Wait for an assignment, and return all until then."""
        self.received = []
        await wait_until(lambda: self.has_received(assignment))
        return self.received

    def poll_for(self, *assignments: str) -> None:
        """Wait for assignments, in a test without Trio."""
        poll_until(lambda: self.has_received(*assignments))

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["file", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    path = str(tmp_path / "notify") if request.param == "file" else f"@dafka-test-{os.getpid()}"
    found = Manager(path)
    yield found
    found.close()


def test_the_assignments_of_one_message_are_one_datagram(manager: Manager) -> None:
    assert Notifier(manager.path).send(READY, "STATUS=well")
    assert manager.receive() == [["READY=1", "STATUS=well"]]


@pytest.mark.parametrize(
    ("environ", "is_there", "watchdog_s"),
    [
        ({}, False, None),
        ({"WATCHDOG_USEC": "1000000"}, False, None),
        ({"NOTIFY_SOCKET": "vsock:2:1234"}, False, None),
        ({"NOTIFY_SOCKET": "@a"}, True, None),
        ({"NOTIFY_SOCKET": "/a", "WATCHDOG_USEC": "3000000"}, True, 3.0),
        ({"NOTIFY_SOCKET": "/a", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "this process"}, True, 3.0),
        ({"NOTIFY_SOCKET": "/a", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, True, None),
        ({"NOTIFY_SOCKET": "/a", "WATCHDOG_USEC": "0"}, True, None),
        ({"NOTIFY_SOCKET": "/a", "WATCHDOG_USEC": "soon"}, True, None),
    ],
)
def test_a_notifier_is_configured_by_the_environment(
    environ: dict[str, str], is_there: bool, watchdog_s: float | None
) -> None:
    own = str(os.getpid())  # tests may run in another process than the one that has collected them
    notifier = Notifier.from_environment({name: value.replace("this process", own) for name, value in environ.items()})
    assert (bool(notifier), notifier.watchdog_s) == (is_there, watchdog_s)


def test_sending_to_an_unreachable_systemd_returns_false(tmp_path: Path) -> None:
    assert not Notifier(str(tmp_path / "missing")).send(READY)
    assert not Notifier("/" + "x" * 200).send(READY)
    assert not Notifier().send(READY)


def test_sending_to_a_systemd_that_does_not_read_does_not_block(tmp_path: Path) -> None:
    manager = Manager(str(tmp_path / "notify"))
    notifier = Notifier(manager.path)
    for _ in range(10_000):
        if not notifier.send("STATUS=" + "x" * 1000):
            break
    else:
        pytest.fail("every message was sent")
    manager.close()


class FakeStore(Store):
    """A store with the health that a test sets."""

    def __init__(self) -> None:
        self.state = Health(unready="the cluster is not found yet")

    def health(self) -> Health:
        return self.state


async def test_ready_is_sent_when_the_nodes_are_ready_and_stopping_at_the_end(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(systemd, "READY_POLL_S", 0.005)
    monitor, store = Monitor("store"), FakeStore()
    notifier = Notifier(manager.path, watchdog_s=0.04)
    async with open_operations(monitor, notifier=notifier):
        received = await manager.wait_for("STATUS=store has not started yet")
        assert READY not in received
        monitor.add(store)
        assert READY not in await manager.wait_for("STATUS=store: the cluster is not found yet")
        store.state = Health()
        received = await manager.wait_for("STATUS=ready")
        assert received.count(READY) == 1
        assert ALIVE in received
    assert manager.receive()[-1] == ["STOPPING=1", "STATUS=stopping"]
    assert monitor.health().unready == "stopping"


class Recorder(Notifier):
    """Notes what it sends, and when."""

    def __init__(self, watchdog_s: float | None) -> None:
        super().__init__("@none", watchdog_s)
        self.sent: list[tuple[float, tuple[str, ...]]] = []

    def send(self, *assignments: str) -> bool:
        self.sent.append((trio.current_time(), assignments))
        return True


STATES = (Health(unready="no tower"), Health(), Health("it hangs", "it hangs"), Health(unready="full"), Health())
STATE_S = 30.0
"""How long each of the states lasts."""


@pytest.mark.parametrize("watchdog_s", [None, 0.2, 12.0, 1000.0])
async def test_each_state_is_reported_in_time(watchdog_s: float | None, autojump_clock: trio.testing.MockClock) -> None:
    begun = trio.current_time() + 0.001

    def state_at(time: float) -> Health:
        return STATES[min(int((time - begun) / STATE_S), len(STATES) - 1)]

    recorder = Recorder(watchdog_s)
    with trio.move_on_after(STATE_S * len(STATES)):
        await systemd.report_state(lambda: state_at(trio.current_time()), recorder)
    interval_s = float("inf") if watchdog_s is None else watchdog_s / 4
    is_ready = False
    before = trio.current_time() - STATE_S * len(STATES)
    for time, assignments in recorder.sent:
        health = state_at(time)
        expected = [f"STATUS={health.trouble or health.unready or 'ready'}"]
        assert time - before == pytest.approx(
            0 if time == recorder.sent[0][0] else min(5.0 if is_ready else 0.1, interval_s)
        )
        if not health.unready and not is_ready:
            is_ready = True
            expected.append(READY)
        if watchdog_s is not None and not health.trouble:
            expected.append(ALIVE)
        assert list(assignments) == expected
        before = time
    assert is_ready
    assert set(STATES) == {state_at(time) for time, _ in recorder.sent}


# The commands under a supervisor: real processes and signals, and a socket in place of systemd's


def objects(errors: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in errors.splitlines()]


def wait_port(running: Running) -> int:
    """Wait for the last line that a daemon prints, and return the metrics port in it."""

    def look() -> int | None:
        lines = running.output.decode().splitlines(keepends=True)
        assert running.process.poll() is None, running.errors
        if not lines or not lines[-1].startswith("metrics at ") or not lines[-1].endswith("/metrics\n"):
            return None
        return int(lines[-1].rpartition(":")[2].partition("/")[0])

    return wait_for(look, lambda: running.errors)


def test_a_daemon_reports_its_state_from_start_to_stop(dafka: Dafka, tmp_path: Path) -> None:
    manager = Manager(f"@dafka-life-{os.getpid()}")
    running = dafka.start(
        *("up", "--sub", FREE, "--pub", FREE, "--storage", "memory:", "--metrics-listen", "0"),
        *("--log-level", "info", "--log-format", "json"),
        environment={"NOTIFY_SOCKET": manager.path, "WATCHDOG_USEC": "10000000"},
    )
    manager.poll_for("WATCHDOG=1", "READY=1")
    port = wait_port(running)
    probed = CliRunner().invoke(main, ["health", str(port)])
    assert (probed.exit_code, probed.output) == (0, "ready\n")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    assert 'dafka_ready_nodes{role="store"} 1.0' in text
    assert 'dafka_known_nodes{role="tower"} 1.0' in text
    ended = running.end(signal.SIGTERM)
    manager.poll_for("STOPPING=1")
    manager.close()
    assert ended.status == 0
    lines = objects(ended.errors)
    events = [(line["logger"], line["event"]) for line in lines]
    for logger, event in [
        ("dafka.command", "metrics_served"),
        ("dafka.tower", "started"),
        ("dafka.store", "storage_opened"),
        ("dafka.store", "started"),
        ("dafka.store", "towers_heard"),
        ("dafka.store", "cluster_found"),
        ("dafka.command", "stopping"),
        ("dafka.store", "stopped"),
        ("dafka.tower", "stopped"),
    ]:
        assert events.count((logger, event)) == 1, events
    assert events.index(("dafka.command", "stopping")) < events.index(("dafka.store", "stopped"))
    assert CliRunner().invoke(main, ["health", str(port)]).exit_code == 1


def test_a_metrics_port_that_is_in_use_ends_the_command_before_a_node_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        path = tmp_path / "store.db"
        result = CliRunner().invoke(main, ["store", "--storage", f"sqlite:{path}", "--metrics-listen", str(port)])
    assert (result.exit_code, result.stdout) == (1, "")
    problem = f"cannot serve metrics at {port}: Address already in use"
    assert result.stderr == f"Error: {problem}; choose another address or port ([metrics] listen)\n"
    assert not path.exists()
