"""The commands under a supervisor: real processes and signals, and a socket in place of systemd's."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio
from click.testing import CliRunner

from dafka import BeaconConfig, Config, NodeConfig, Partition, open_producer
from dafka.cli import main
from dafka.records import RecordBatch
from dafka.storage import open_storage
from tests.cli.harness import FREE, Dafka, Running, wait_for

NOWHERE = ("--tower-sub", "tcp://127.0.0.1:9", "--tower-pub", "tcp://127.0.0.1:9")
LINES = [b"%d" % number for number in range(100_000)]


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


def held(url: str) -> dict[Partition, list[bytes]]:
    """Return all records of a storage. It may be in use."""

    async def read() -> dict[Partition, list[bytes]]:
        found: dict[Partition, list[bytes]] = {}
        async with open_storage(url, read_only=True) as storage:
            for partition, info in (await storage.partitions()).items():
                contents = found.setdefault(partition, [])
                while len(contents) < info.end_sequence:
                    batch = await storage.read(partition, len(contents), 100_000)
                    assert isinstance(batch, RecordBatch)
                    contents += [value for value in batch.values if value is not None]
        return found

    return trio.run(read)


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


def test_the_error_that_ends_a_command_is_its_last_log_line(dafka: Dafka) -> None:
    ended = dafka.run(
        "consume", "t", "--log-format", "json", *NOWHERE, environment={"DAFKA_NODE_TOWER_TIMEOUT_MS": "200"}
    )
    *_, last = objects(ended.errors)
    assert (ended.status, last["event"], last["level"], last["role"]) == (1, "failed", "error", "command")
    assert last["message"] == last["reason"]
    assert last["reason"].startswith("no tower answered at tcp://127.0.0.1:9")


async def test_a_store_that_is_stopped_holds_every_record_that_it_acknowledged(
    dafka: Dafka, tower: list[str], tmp_path: Path
) -> None:
    """Stop the store twice during a stream. The producer sends unacknowledged records again when it is back."""
    storage = f"sqlite:{tmp_path / 'store.db'}"
    dafka.options = tower
    config = Config(beacon=BeaconConfig(tower_sub=(tower[1],), tower_pub=(tower[3],)), node=NodeConfig(bind=FREE))
    sent = 0

    async with open_producer("t", config) as producer, trio.open_nursery() as nursery:

        async def keep_sending() -> None:
            nonlocal sent
            while True:
                await producer.send_many([b"%d" % number for number in range(sent, sent + 500)])
                sent = producer.statistics().records

        sending = trio.CancelScope()

        async def send() -> None:
            with sending:
                await keep_sending()

        nursery.start_soon(send)
        for _ in range(2):
            store = await trio.to_thread.run_sync(lambda: start_store(dafka, storage))
            goal = acknowledged(producer) + 20_000
            with trio.fail_after(60):
                while acknowledged(producer) < goal:  # noqa: ASYNC110 (there is no event to wait for)
                    await trio.sleep(0.005)
            store.process.send_signal(signal.SIGTERM)
            ended = await trio.to_thread.run_sync(store.wait)
            assert (ended.status, ended.errors) == (0, "")
            await trio.testing.wait_all_tasks_blocked(0.05)
            contents = (await trio.to_thread.run_sync(held, storage))[producer.partition]
            assert goal <= acknowledged(producer) <= len(contents)
        sending.cancel()
        store = await trio.to_thread.run_sync(lambda: start_store(dafka, storage))
        with trio.fail_after(60):
            await producer.wait_stored()
        total = producer.statistics().records
    assert (await trio.to_thread.run_sync(held, storage))[producer.partition] == [b"%d" % n for n in range(total)]


def acknowledged(producer: Any) -> int:
    counts = producer.statistics()
    return int(counts.records - counts.unacknowledged)


def start_store(dafka: Dafka, storage: str) -> Running:
    store = dafka.start_node("store", "--storage", storage)
    store.wait_output(1)
    return store


def test_a_producer_that_is_stopped_waits_for_the_acks_of_the_lines_it_has_read(
    dafka: Dafka, tower: list[str], tmp_path: Path
) -> None:
    """Read from a file, which is then incomplete, and from a pipe. The store acknowledges only after the signal."""
    dafka.options = tower
    manager = Manager("producing")
    (tmp_path / "input").write_bytes(b"\n".join(LINES))
    storage = f"sqlite:{tmp_path / 'store.db'}"
    store = start_store(dafka, storage)
    store.process.send_signal(signal.SIGSTOP)
    impatient = {"DAFKA_PRODUCER_SILENCE_MS": "100", "DAFKA_PRODUCER_UNACKNOWLEDGED_RECORDS_MAX": "1"}
    grace = ("--grace-ms", "60s")
    from_file = dafka.start_node("produce", "file", "--file", str(tmp_path / "input"), *grace, environment=impatient)
    from_pipe = dafka.start_node(
        "produce", "pipe", *grace, environment={**impatient, **manager.environment}, stdin=subprocess.PIPE
    )
    assert from_pipe.process.stdin is not None
    from_pipe.process.stdin.write(b"0\n1\n2\n")
    from_pipe.process.stdin.flush()
    for producer in (from_file, from_pipe):
        producer.wait_errors("are unacknowledged")
        producer.process.send_signal(signal.SIGTERM)
    manager.wait_for("STOPPING=1")
    manager.close()
    assert (from_file.process.poll(), from_pipe.process.poll()) == (None, None)
    store.process.send_signal(signal.SIGCONT)
    file_ended, pipe_ended = from_file.wait(), from_pipe.wait()
    published = {partition.topic: contents for partition, contents in held(storage).items()}
    assert pipe_ended.status == 0
    assert pipe_ended.errors.endswith("\nInterrupted: 3 published, 0 of them not acknowledged\n")
    assert published["pipe"] == [b"0", b"1", b"2"]
    count = len(published["file"])
    assert 0 < count < len(LINES)
    assert file_ended.status == 1
    assert file_ended.errors.endswith(f"\nInterrupted: {count:,} published, 0 of them not acknowledged\n")
    assert published["file"] == LINES[:count]


def test_a_second_signal_ends_the_grace_period(dafka: Dafka, tower: list[str], tmp_path: Path) -> None:
    dafka.options = tower
    (tmp_path / "input").write_bytes(b"0\n1\n2\n")
    producer = dafka.start_node(
        *("produce", "t", "--file", str(tmp_path / "input"), "--grace-ms", "10m"),
        environment={"DAFKA_PRODUCER_SILENCE_MS": "100"},
    )
    producer.wait_errors("3 are unacknowledged")
    signals = 0
    while producer.process.poll() is None and signals < 10:
        producer.process.send_signal(signal.SIGTERM)
        signals += 1
        with suppress(subprocess.TimeoutExpired):
            producer.process.wait(5)  # longer than the time until a second signal counts, and longer than ending takes
    assert (producer.process.poll(), signals) == (1, 2)
    assert producer.errors.endswith("\nInterrupted: 3 published, 3 of them not acknowledged\n")


def test_a_consumer_continues_where_it_was_stopped(cluster: Dafka, tmp_path: Path) -> None:
    environment = {"DAFKA_CONSUMER_NAME": "printer", "DAFKA_CONSUMER_POSITIONS": f"sqlite:{tmp_path / 'positions.db'}"}
    lines = LINES[:100]
    assert cluster.node("produce", "resumed", stdin=b"\n".join(lines)).status == 0
    options = ("consume", "resumed", "--from-beginning")
    first = cluster.node(*options, "--count", "30", environment=environment)
    second = cluster.start_node(*options, environment=environment)
    second.wait_output(70)
    ended = second.end(signal.SIGTERM)
    third = cluster.node(*options, "--idle-exit", "300ms", environment=environment)
    assert [each.status for each in (first, ended, third)] == [0, 0, 0]
    assert [each.output.splitlines() for each in (first, ended, third)] == [lines[:30], lines[30:], []]


def test_a_metrics_port_that_is_in_use_ends_the_command_before_a_node_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        path = tmp_path / "store.db"
        result = CliRunner().invoke(main, ["store", "--storage", f"sqlite:{path}", "--metrics-listen", str(port)])
    assert (result.exit_code, result.stdout) == (1, "")
    problem = f"cannot serve metrics at {port}: Address already in use"
    assert result.stderr == f"Error: {problem}; choose another address or port ([metrics] listen)\n"
    assert not path.exists()
