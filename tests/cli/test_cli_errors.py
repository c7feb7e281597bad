from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.forks import fork_dafka
from tests.cli.harness import DEADLINE_S, Dafka


def test_unresolvable_host_of_a_tower_is_named(dafka: Dafka) -> None:
    ended = dafka.run("status", "--tower", "nowhere.invalid", "--timeout", "2s")
    assert (ended.status, ended.output) == (1, b"")
    *_, warning, error = ended.errors.splitlines()
    assert "The tower's host name 'nowhere.invalid' cannot be resolved; retrying: " in warning
    assert error.startswith("Error: the tower's host name 'nowhere.invalid' cannot be resolved: ")
    assert error.endswith("; check the name, or name another tower with --tower")


def test_store_in_use_is_an_error(cluster: Dafka) -> None:
    path = cluster.folder / "store.db"
    ended = cluster.node("store", "--storage", f"sqlite:{path}")
    assert ended.status == 2
    assert ended.error == f"{path} is in use by another writer; stop it first"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_full_disk_is_an_error(cluster: Dafka, tmp_path: Path) -> None:
    def run_on_full_disk(*arguments: str) -> tuple[int, str]:
        errors = tmp_path / "errors"
        with open("/dev/full", "wb") as full, open(os.devnull) as nothing, errors.open("wb") as written:
            streams = nothing.fileno(), full.fileno(), written.fileno()
            status = fork_dafka([*arguments], *streams, cluster.environment()).wait(DEADLINE_S)
        return status, errors.read_text()

    assert cluster.node("produce", "full-disk", stdin=b"0\n").status == 0
    consumed = run_on_full_disk("consume", "full-disk", "--from-beginning", *cluster.options)
    assert consumed == (1, "Error: cannot write the output: No space left on device\n")
    listed = run_on_full_disk("topics", "--storage", f"sqlite:{cluster.folder / 'store.db'}")
    assert listed == (1, "Error: No space left on device\n")
