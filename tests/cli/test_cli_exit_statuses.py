"""The exit status of each command in each way to end: 0, 1, 2, and 128 with the number of a signal."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner

from dafka.cli import main
from dafka.records import Partition, RecordBatch
from dafka.storage import open_storage
from tests.cli.harness import FREE, Dafka, Running
from tests.cli.test_every_option import leaves

NOWHERE = ("--tower", "127.0.0.1:9")
IMPATIENT = {"DAFKA_NODE_TOWER_TIMEOUT_MS": "100", "DAFKA_PRODUCER_CLOSE_TIMEOUT_MS": "100"}

Run = Callable[[str, list[str], dict[str, object]], tuple[int, str]]

DONE = {
    "topics": ["--storage", "sqlite:{folder}/store.db"],
    "storage info": ["sqlite:{folder}/store.db"],
    "storage verify": ["sqlite:{folder}/store.db"],
    "storage copy": ["sqlite:{folder}/store.db", "sqlite:{folder}/copy.db"],
    "storage export": ["sqlite:{folder}/store.db"],
    "storage import": ["sqlite:{folder}/imported.db"],
    "storage trim": ["sqlite:{folder}/store.db", "--records", "1", "--yes"],
    "keys new": ["{folder}/new.key"],
    "keys show": ["{folder}/node.key"],
    "keys authorize": ["{folder}/node.pub", "--authorized-keys", "{folder}/list"],
    "completion": ["zsh"],
}
"""Arguments with which a command does its job."""

FAILED = {
    "tower": ["--sub", "{taken}", "--pub", FREE],
    "up": ["--sub", "{taken}", "--pub", FREE, "--storage", "memory:"],
    "store": ["--storage", "memory:", "--bind", "{taken}", *NOWHERE],
    "produce": ["t", "--file", "{folder}/node.pub", *NOWHERE],
    "consume": ["t", "--from-beginning", *NOWHERE],
    "status": [*NOWHERE],
    "health": ["{port}"],
    "storage verify": ["filelog:{folder}/damaged"],
    "broker": ["--storage", "memory:", "--kafka", "127.0.0.1:0", "--bind", "{taken}", *NOWHERE],
    "topic list": ["--kafka", "127.0.0.1:{port}"],
    "group list": ["--kafka", "127.0.0.1:{port}"],
}
"""Arguments with which a command cannot do its job: a port is taken, no tower answers, a store is damaged."""

REFUSED = {
    "up": ["--storage", "redis:x"],
    "tower": ["--sub", "tcp://127.0.0.1:8001", "--pub", "tcp://127.0.0.1:8001"],
    "store": ["--storage", "sqlite:{folder}/none/store.db"],
    "produce": ["t", "--file", "{folder}/none"],
    "consume": ["t", "--config", "{folder}/none"],
    "status": ["--key-file", "{folder}/none", "--authorized-keys", "{folder}/list"],
    "topics": ["--storage", "sqlite:{folder}/none"],
    "storage info": ["sqlite:{folder}/none"],
    "storage verify": ["sqlite:{folder}/none"],
    "storage copy": ["sqlite:{folder}/none", "sqlite:{folder}/copy.db"],
    "storage export": ["sqlite:{folder}/none"],
    "storage import": ["sqlite:{folder}/none/store.db"],
    "storage trim": ["sqlite:{folder}/none", "--records", "1", "--yes"],
    "storage move": ["sqlite:{folder}/none"],
    "storage objects": ["sqlite:{folder}/none"],
    "keys new": ["{folder}/node.key"],
    "keys show": ["{folder}/none"],
    "keys authorize": ["{folder}/none", "--authorized-keys", "{folder}/list"],
    "health": ["no port"],
    "spark": ["{folder}/none.py"],
    "demo": ["--file", "{folder}/none"],
    "bench": ["--json", "{folder}/none/results.json"],
    "broker": ["--storage", "sqlite:{folder}/none/store.db"],
    "topic create": ["t", "--kafka", "nowhere"],
    "topic list": ["--kafka", "nowhere"],
    "topic describe": ["t", "--kafka", "nowhere"],
    "topic alter": ["t", "--kafka", "nowhere"],
    "topic delete": ["t", "--yes", "--kafka", "nowhere"],
    "topic epochs": ["t", "--http", "ftp://x"],
    "topic move": ["t", "--log", "0", "--replicas", "x"],
    "topic moves": ["--http", "ftp://x"],
    "topic elect": ["t", "--kafka", "nowhere"],
    "cluster brokers": ["--http", "ftp://x"],
    "cluster status": ["--http", "ftp://x"],
    "cluster drain": ["x"],
    "cluster undrain": ["x"],
    "group list": ["--kafka", "nowhere"],
    "group describe": ["g", "--kafka", "nowhere"],
    "group reset": ["g", "--to", "earliest", "--kafka", "nowhere"],
    "group delete": ["g", "--yes", "--kafka", "nowhere"],
    "user add": ["name", "--users", "{folder}/none/users"],
    "user change": ["name", "--users", "{folder}/none"],
    "user list": ["--users", "{folder}/none"],
    "user remove": ["name", "--users", "{folder}/none"],
    "user token": ["name", "--users", "{folder}/none"],
    "user revoke-token": ["name", "0", "--users", "{folder}/none"],
    "completion": ["csh"],
}
"""Arguments that name something wrong."""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[dict[str, object]]:
    """The names in the arguments above: a folder with a store and keys, and a port that is taken and never answers."""

    async def fill() -> None:
        for url in (f"sqlite:{tmp_path / 'store.db'}", f"filelog:{tmp_path / 'damaged'}"):
            async with open_storage(url) as storage:
                await storage.append([RecordBatch(Partition("t", "P"), 0, [b"0" * 100, b"1" * 100, b"2" * 100])])

    trio.run(fill)
    (segment,) = (
        path for path in (tmp_path / "damaged").rglob("*") if path.is_file() and b"1" * 100 in path.read_bytes()
    )
    content = segment.read_bytes()
    segment.write_bytes(content.replace(b"1" * 100, b"x" * 100))
    shown = CliRunner().invoke(main, ["keys", "new", str(tmp_path / "node.key")])
    (tmp_path / "node.pub").write_text(shown.stdout)
    (tmp_path / "list").touch()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            yield {"folder": tmp_path, "taken": f"tcp://127.0.0.1:{port}", "port": unused.getsockname()[1]}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Run]:
    """Return a function that runs a command in this process, and returns its exit status and its errors."""
    for name, value in IMPATIENT.items():
        monkeypatch.setenv(name, value)

    def run_here(command: str, arguments: list[str], place: dict[str, object]) -> tuple[int, str]:
        given = [*command.split(), *(argument.format(**place) for argument in arguments)]
        with pytest.raises(SystemExit) as ended:
            main.main(given, prog_name="dafka")
        status = ended.value.code
        assert isinstance(status, int)
        return status, capfd.readouterr().err

    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        yield run_here


@pytest.mark.parametrize("command", DONE)
def test_status_0_for_a_job_that_is_done(command: str, place: dict[str, object], run: Run) -> None:
    status, errors = run(command, DONE[command], place)
    assert status == 0
    assert "Error" not in errors


@pytest.mark.parametrize("command", FAILED)
def test_status_1_for_a_job_that_cannot_be_done(command: str, place: dict[str, object], run: Run) -> None:
    status, errors = run(command, FAILED[command], place)
    assert status == 1
    assert "Traceback" not in errors


@pytest.mark.parametrize("command", REFUSED)
def test_status_2_for_a_command_that_is_used_wrongly(command: str, place: dict[str, object], run: Run) -> None:
    status, errors = run(command, REFUSED[command], place)
    assert status == 2
    assert errors.splitlines()[-1].startswith("Error: ")


def test_every_command_is_tested_with_a_mistake() -> None:
    assert {" ".join(name) for name, _ in leaves()} - REFUSED.keys() <= {"storage delete"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_job_is_done(
    dafka: Dafka, tower: list[str], tmp_path: Path, number: signal.Signals
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        no_tower = ["--tower-sub", f"tcp://127.0.0.1:{port}", "--tower-pub", f"tcp://127.0.0.1:{port}"]
        health = dafka.start("health", f"{port}", "--timeout", "1h")
        status = dafka.start("status", "-v", "--max-lag", "0", "--timeout", "1h", *no_tower)
        watch = dafka.start("status", "--watch", "1h", "--json", *tower)
        imported = dafka.start("storage", "import", f"sqlite:{tmp_path / 'imported.db'}", stdin=subprocess.PIPE)
        silent.settimeout(90)
        with silent.accept()[0]:
            status.wait_errors("Listening at")
            watch.wait_output(1)
            assert shell_status(health, number) == 128 + number
            assert shell_status(status, number) == 128 + number
            assert shell_status(watch, number) == 0
            assert shell_status(imported, number) == 128 + number


def shell_status(running: Running, number: signal.Signals) -> int:
    """Stop a process, and return the exit status that a shell shows, whether it was killed or has exited."""
    status = running.end(number).status
    return 128 - status if status < 0 else status
