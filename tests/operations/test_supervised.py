"""The commands under a supervisor: real processes and signals, and a socket in place of systemd's."""

from __future__ import annotations

import json
import os
import signal
import socket
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from dafka.cli import main
from tests.cli.harness import FREE, Dafka, Running, wait_for


class Manager:
    """A stand-in for systemd: an abstract socket, which leaves no file behind."""

    def __init__(self, name: str) -> None:
        self.environment = {"NOTIFY_SOCKET": f"@dafka-{name}-{os.getpid()}"}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0dafka-{name}-{os.getpid()}")
        self._socket.settimeout(0.01)
        self._received: list[str] = []

    def wait_for(self, assignment: str) -> list[str]:
        """Wait for an assignment, and return all assignments until then."""

        def look() -> bool | None:
            with suppress(TimeoutError):
                self._received += self._socket.recv(4096).decode().split("\n")
            return assignment in self._received or None

        wait_for(look, lambda: repr(self._received))
        return self._received

    def close(self) -> None:
        self._socket.close()


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
    manager = Manager("life")
    running = dafka.start(
        *("up", "--sub", FREE, "--pub", FREE, "--storage", "memory:", "--metrics-listen", "0"),
        *("--log-level", "info", "--log-format", "json"),
        environment={**manager.environment, "WATCHDOG_USEC": "10000000"},
    )
    assert "WATCHDOG=1" in manager.wait_for("READY=1")
    port = wait_port(running)
    probed = CliRunner().invoke(main, ["health", str(port)])
    assert (probed.exit_code, probed.output) == (0, "ready\n")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    assert 'dafka_ready_nodes{role="store"} 1.0' in text
    assert 'dafka_known_nodes{role="tower"} 1.0' in text
    ended = running.end(signal.SIGTERM)
    manager.wait_for("STOPPING=1")
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
