"""`dafka produce` continues by itself when the file of the only store is deleted while everything runs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.harness import Dafka, wait_for


def stored_records(dafka: Dafka, url: str) -> int:
    """Return how many records a running store holds; 0 while it has no storage."""
    info = dafka.run("storage", "info", url, "--json")
    records: int = json.loads(info.output)["totals"]["records"] if info.status == 0 else 0
    return records


@pytest.mark.long
def test_records_flow_again_after_the_only_stores_file_was_deleted(dafka: Dafka, tmp_path: Path) -> None:
    path = tmp_path / "store" / "s.db"
    path.parent.mkdir()
    url = f"sqlite:{path}"
    up = dafka.start_up("--storage", url)
    reader, writer = os.pipe()
    producer = dafka.start_node("produce", "orders", stdin=reader)
    os.close(reader)
    with os.fdopen(writer, "wb", buffering=0) as pipe:
        pipe.write(b"before\n")
        wait_for(lambda: stored_records(dafka, url) == 1 or None, lambda: up.errors)
        for each in path.parent.glob("s.db*"):
            each.unlink()
        pipe.write(b"while it is away\n")
        producer.wait_errors("continuing as the new partition")
        wait_for(lambda: stored_records(dafka, url) or None, lambda: up.errors)
        pipe.write(b"after\n")
    ended = producer.wait()
    assert ended.status == 0
    assert ended.errors.count("No store has the earlier records of orders/") == 1
    consumed = dafka.node("consume", "orders", "--from-beginning", "--idle-exit", "3s")
    # The first record is sent again if its ACK was on its way when the file was deleted.
    assert consumed.output.removeprefix(b"before\n") == b"while it is away\nafter\n"
    assert up.process.poll() is None
