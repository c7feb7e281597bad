"""The binary of `make binary` in a root that contains the C library, zlib, an empty /tmp, and nothing else."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from tests.cli.harness import Dafka, wait_for
from tests.kafka.server.clients import Confluent, Message
from tests.operations.test_systemd import Manager, wait_port

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

PROJECT = Path(__file__).parents[2]
SIZE_MAX = 60 * 2**20
LIBRARIES = ("libc", "libdl", "libm", "libpthread", "librt", "libutil", "libz")
"""What docs/how-to/deploy.md says that the binary needs: the libraries of glibc, and zlib."""

CONSOLE = PROJECT / "dafka" / "http" / "console"
STATIC_FILES = [path for path in CONSOLE.rglob("*") if path.is_file()]

ENTER = ("unshare", "--map-root-user", "--wd=/")


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if sys.platform != "linux":
        pytest.skip("the binary is tested on Linux")
    if not sysconfig.get_config_var("Py_ENABLE_SHARED"):
        pytest.skip("PyInstaller needs a Python that is a shared library")
    folder = tmp_path_factory.mktemp("binary")
    project = folder / "project"  # as in a fresh clone, where nothing is compiled
    shutil.copytree(PROJECT / "dafka", project / "dafka", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for name in ("conformance", "deploy"):
        shutil.copytree(PROJECT / name, project / name)
    for name in ("Makefile", "LICENSE", "README.md", "hatch_build.py", "pyproject.toml"):
        shutil.copy(PROJECT / name, project)
    settings = [f"PYTHON={sys.executable}", f"BINARY_BUILD={folder / 'build'}", f"BINARY_DIST={folder}"]
    command = ["make", "--no-print-directory", "binary", *settings]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False, timeout=550)
    assert done.returncode == 0, done.stdout + done.stderr
    shutil.rmtree(folder / "build")
    return folder / "dafka"


@pytest.fixture
def root(binary: Path, tmp_path: Path) -> Path:
    """An empty root with the binary, and the libraries that it takes from the system."""
    if subprocess.run([*ENTER, "true"], capture_output=True, check=False).returncode:
        pytest.skip("a process may not change its root here, without or with a user namespace")
    root = tmp_path / "root"
    (root / "tmp").mkdir(parents=True)
    shutil.copy(binary, root)
    listed = subprocess.run(["ldd", binary], capture_output=True, text=True, check=True).stdout
    loader, folder = re.search(r"(/\S*/ld-\S+)", listed), re.search(r"libc\.so\.6 => (/\S*)/libc", listed)
    assert loader is not None
    assert folder is not None
    there = Path(folder[1])
    for path in (Path(loader[1]), *(path for name in LIBRARIES for path in there.glob(f"{name}.so.[0-9]"))):
        copy = root / path.relative_to("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    return root


@pytest.fixture
def isolated(root: Path, tmp_path: Path) -> Iterator[Dafka]:
    """The binary, started in its root."""
    dafka = Dafka(tmp_path, (*ENTER, f"--root={root}", "/dafka"))
    try:
        yield dafka
    finally:
        dafka.close()


def test_it_is_small_and_compiled(binary: Path, isolated: Dafka) -> None:
    assert binary.stat().st_size < SIZE_MAX
    done = isolated.run("--version")
    assert done.output.endswith(b"(transport: compiled, batches: compiled)\n"), done


@pytest.mark.parametrize("storage", ["sqlite:/records.db", "filelog:/records", "memory:"])
def test_records_pass_between_the_commands_and_a_client_of_kafka(isolated: Dafka, storage: str) -> None:
    up = isolated.start_up("--kafka", "0", "--storage", storage)
    servers = up.wait_output(3)[2].split()[-1]
    Confluent().write(servers, "orders", [Message(b"from a client", b"k")], "zstd")
    assert isolated.node("produce", "orders", stdin="aus dem Gerät\n".encode()).status == 0
    consumed = isolated.node("consume", "orders", "--from-beginning", "--count", "2")
    assert sorted(consumed.output.decode().splitlines()) == ["aus dem Gerät", "from a client"]
    assert len(Confluent().read(servers, "orders", 2, "shop")) == 2

    assert isolated.run("topic", "list", "--kafka", servers, "--json").output.count(b'"orders"') == 1
    assert b"shop" in isolated.run("group", "list", "--kafka", servers).output
    assert b"orders" in isolated.node("status", "--json").output
    assert up.end().status == 0
    if storage != "memory:":
        verified = isolated.run("storage", "verify", storage)
        assert verified.status == 0, verified


def test_metrics_and_json_lines_need_nothing_else(isolated: Dafka) -> None:
    up = isolated.start_up(
        "--storage", "memory:", "--metrics-listen", "0", "--log-level", "info", "--log-format", "json"
    )
    with urllib.request.urlopen(f"http://127.0.0.1:{wait_port(up)}/metrics", timeout=30) as answer:
        assert b'transport="compiled"' in answer.read()
    assert up.end().status == 0
    assert "metrics_served" in {json.loads(line)["event"] for line in up.errors.splitlines()}


def test_http_websocket_and_the_console_are_in_it(isolated: Dafka) -> None:
    up = isolated.start_up("--http", "0", "--storage", "filelog:/records")
    url = up.wait_output(3)[2].split()[-1]
    with urllib.request.urlopen(f"{url}/topics/orders/records", data=b"one", timeout=30) as answer:
        assert json.load(answer) == {"offsets": [{"log": 0, "offset": 0, "count": 1}]}
    with connect(f"ws{url.removeprefix('http')}/ws", subprotocols=[Subprotocol("dafka.json.v1")]) as socket:
        socket.send(json.dumps({"type": "subscribe", "id": 1, "topic": "orders", "from": "earliest", "credit": 1}))
        while (message := json.loads(socket.recv(timeout=30)))["type"] != "records":
            assert message["type"] != "error", message
        assert [record["value"] for record in message["records"]] == ["one"]
    for path in STATIC_FILES:
        with urllib.request.urlopen(f"{url}/console/{path.relative_to(CONSOLE)}", timeout=30) as answer:
            assert answer.read() == path.read_bytes(), path
    assert up.end().status == 0


def test_users_and_keys_are_made(isolated: Dafka, root: Path) -> None:
    assert isolated.run("user", "add", "alice", "--users", "/users", stdin=b"secret\n").status == 0
    assert b"alice" in isolated.run("user", "list", "--users", "/users").output
    assert isolated.run("keys", "new", "/node.key").status == 0
    assert (root / "node.key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_printed_without_any_shell(isolated: Dafka, shell: str) -> None:
    done = isolated.run("completion", shell)
    assert (done.status, b"_DAFKA_COMPLETE" in done.output) == (0, True)
    assert done.errors == ""


@pytest.mark.parametrize(
    ("command", "package"), [("spark", "'dafka[spark]'"), ("bench", "dafka-bench"), ("demo", "'dafka[demo]'")]
)
def test_what_needs_python_says_so(isolated: Dafka, command: str, package: str) -> None:
    done = isolated.run(command)
    assert done.status == 2
    assert f"needs Python: pip install {package}" in done.errors
    assert "Traceback" not in done.errors
    assert f"  {command} " not in isolated.run("--help").output.decode()


def test_sigterm_ends_it_and_leaves_nothing_behind(isolated: Dafka, root: Path) -> None:
    up = isolated.start_up("--storage", "memory:")
    assert list((root / "tmp").iterdir())
    assert up.end(signal.SIGTERM).status == 0
    assert not list((root / "tmp").iterdir())


def test_sigkill_ends_the_process_that_it_has_started_too(isolated: Dafka) -> None:
    up = isolated.start_up("--storage", "sqlite:/records.db")
    assert len(isolated.processes()) > 1
    up.process.kill()
    up.process.wait()
    wait_for(lambda: not isolated.processes() or None, lambda: repr(isolated.processes()))
    isolated.start_up("--storage", "sqlite:/records.db")


def test_systemd_is_notified(root: Path, tmp_path: Path) -> None:
    manager = Manager(f"@dafka-binary-{os.getpid()}")
    start = f"export WATCHDOG_PID=$$; exec {' '.join(ENTER)} --root={root} /dafka"
    dafka = Dafka(tmp_path, ("sh", "-c", f'{start} "$@"', "sh"))
    try:
        environment = {"NOTIFY_SOCKET": manager.path, "WATCHDOG_USEC": "2000000"}
        arguments = ("up", "--sub", "tcp://127.0.0.1:*", "--pub", "tcp://127.0.0.1:*", "--storage", "memory:")
        up = dafka.start(*arguments, environment=environment)
        manager.poll_for("READY=1", "WATCHDOG=1")
        assert up.end().status == 0
    finally:
        dafka.close()
        manager.close()
