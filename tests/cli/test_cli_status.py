"""`dafka status` in real processes, and its page."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dafka.cli import main
from tests.cli.harness import DEADLINE_S, Dafka, Running, wait_until

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "status.md"


def block(language: str) -> str:
    """Return the page's first code block in this language."""
    found = re.search(rf"```{language}\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


def shape_of_text(text: str) -> list[str]:
    """Return the lines without addresses, ports, times and widths."""
    for pattern, name in (
        (r"\b[0-9A-F]{32}\b", "ADDRESS"),
        (r"\d{4}-\d\d-\d\dT[0-9:]+Z", "TIME"),
        (r":\d+\b", ":PORT"),
        (r"[0-9.]+ s ago", "AGO"),
        (r" +", " "),
    ):
        text = re.sub(pattern, name, text)
    return [line.strip() for line in text.splitlines()]


def shape_of_json(value: Any) -> Any:
    """Return the fields, and the type of each value."""
    if isinstance(value, dict):
        return {name: shape_of_json(each) for name, each in value.items()}
    if isinstance(value, list):
        return [shape_of_json(each) for each in value[:1]]
    return type(value).__name__


def last_json(running: Running) -> dict[str, Any] | None:
    lines = running.output.decode().splitlines(keepends=True)
    whole = [line for line in lines if line.endswith("\n")]
    found: dict[str, Any] | None = json.loads(whole[-1]) if whole else None
    return found


def feed(producer: Running, count: int) -> None:
    """Publish records, and leave the producer running."""
    assert producer.process.stdin is not None
    producer.process.stdin.write(b"".join(b"%d\n" % number for number in range(count)))
    producer.process.stdin.flush()


def test_page_shows_the_real_output(dafka: Dafka) -> None:
    """The page's cluster has a store, a producer that is gone, one that runs, and a consumer."""
    dafka.start_up("--storage", "memory:")
    assert dafka.node("produce", "orders", stdin=b"0\n" * 1000).status == 0
    payments = dafka.start_node("produce", "payments", stdin=subprocess.PIPE)
    feed(payments, 250)
    dafka.start_consumer("orders", "refunds")

    def look() -> dict[str, Any] | None:
        ended = dafka.node("status", "payments", "--json", "--max-lag", "0", "--timeout", f"{DEADLINE_S}s")
        assert ended.errors == ""
        seen: dict[str, Any] = json.loads(ended.output)
        assert ended.status == (1 if seen["faults"] else 0)
        return seen if [each["head"] for each in seen["partitions"]] == [249] and not seen["faults"] else None

    found = wait_until(look, lambda: payments.errors)
    example = json.loads(block("json"))
    for each in (found, example):
        # The page shows the store alone.
        each["nodes"] = [node for node in each["nodes"] if node["roles"] == ["store"]]
    assert shape_of_json(found) == shape_of_json(example)
    assert found["topics"] == example["topics"]
    (partition,) = found["partitions"]
    assert (partition["lag"], len(partition["stores"])) == (0, 1)
    assert abs(found["time"] / 1000 - time.time()) < 2 * DEADLINE_S

    ended = dafka.node("status")
    assert (ended.status, ended.errors) == (0, "")
    assert shape_of_text(ended.output.decode()) == shape_of_text(block("text"))


def test_stopped_store_is_a_fault_until_it_continues(dafka: Dafka) -> None:
    dafka.start_tower()
    store = dafka.start_node("store", "--storage", "memory:")
    store.wait_output(1)
    assert dafka.node("produce", "orders", stdin=b"0\n1\n").status == 0
    watch = dafka.start_node(
        "status",
        *("orders", "--watch", "100ms", "--max-lag", "0", "--json"),
        environment={"DAFKA_BEACON_TIMEOUT_MS": "2000"},
    )

    def faults() -> str:
        found = last_json(watch)
        return "nothing seen" if found is None else " ".join(found["faults"])

    wait_until(lambda: not faults() or None, lambda: watch.errors + faults())
    os.kill(store.process.pid, signal.SIGSTOP)
    try:
        wait_until(lambda: "went silent" in faults() or None, faults)
    finally:
        os.kill(store.process.pid, signal.SIGCONT)
    wait_until(lambda: not faults() or None, faults)
    store.end(signal.SIGKILL)
    wait_until(lambda: "went silent" in faults() or None, faults)
    ended = watch.end()
    assert (ended.status, ended.errors) == (1, "")


def test_missing_store_is_a_fault_with_max_lag(dafka: Dafka) -> None:
    dafka.start_tower()
    producer = dafka.start_node("produce", "orders", "--min-stores", "0", stdin=subprocess.PIPE)
    feed(producer, 1)

    def look() -> str | None:
        ended = dafka.node("status", "--max-lag", "0")
        assert ended.errors == ""
        assert (ended.status == 1) == (b"fault: " in ended.output)
        return ended.output.decode() if b"fault: no store was found" in ended.output else None

    output = wait_until(look, lambda: producer.errors)
    assert re.search(r"^orders +[0-9A-F]{32} +up +- +0 +- +\?$", output, re.MULTILINE)


def test_no_tower_is_an_error() -> None:
    nowhere = ("--tower-sub", "tcp://127.0.0.1:9", "--tower-pub", "tcp://127.0.0.1:9")
    ended = CliRunner().invoke(main, ["status", *nowhere, "--timeout", "300ms"])
    assert (ended.exit_code, ended.stdout) == (1, "")
    problem = r"no tower answered at tcp://127\.0\.0\.1:9 within \d+ s: nothing listens at tcp://127\.0\.0\.1:9"
    sentence = rf"Error: {problem}; start one with `dafka up`, or .*\n"
    assert re.fullmatch(sentence, ended.stderr)


def test_wrong_key_is_an_error_and_an_authorized_one_is_accepted(
    dafka: Dafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("hub", "operator", "stranger"):
        shown = CliRunner().invoke(main, ["keys", "new", f"{name}.key"])
        (tmp_path / f"{name}.pub").write_text(shown.stdout)
        if name != "stranger":
            CliRunner().invoke(main, ["keys", "authorize", f"{name}.pub", "--authorized-keys", "list"])
    dafka.start_up("--key-file", "hub.key", "--authorized-keys", "list", "--storage", "memory:")
    member = ("--authorized-keys", "list", "--tower-keys", "hub.pub")
    ended = dafka.node("status", "--key-file", "stranger.key", *member)
    assert (ended.status, ended.output) == (1, b"")
    assert ended.errors.splitlines()[-1].startswith("Error: no tower accepts this node")
    ended = dafka.node("status", "--key-file", "operator.key", *member, "--json", "--max-lag", "0")
    assert (ended.status, ended.errors) == (0, "")
    assert [node["roles"] for node in json.loads(ended.output)["nodes"]] == [["store"]]


def test_status_needs_tower_discovery() -> None:
    ended = CliRunner().invoke(main, ["status"], env={"DAFKA_NODE_DISCOVERY": "static:tcp://127.0.0.1:9"})
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert ended.stderr.startswith("Error: [node] discovery is 'static:tcp://127.0.0.1:9': expected 'tower'")
    assert ended.stderr.count("\n") == 1
