"""Fixtures for tests of the command: the command alone, with a tower, and with a cluster."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.harness import Dafka


@pytest.fixture(scope="session", autouse=True)
def hangup_not_ignored() -> Iterator[None]:
    """Commands inherit how pytest handles SIGHUP; nohup, for one, ignores it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def dafka(tmp_path: Path) -> Iterator[Dafka]:
    command = Dafka(tmp_path)
    try:
        yield command
    finally:
        command.close()


@pytest.fixture(scope="session")
def tower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The options with which nodes use a tower that has no store."""
    command = Dafka(tmp_path_factory.mktemp("tower"))
    try:
        command.start_tower()
        yield command.options
    finally:
        command.close()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dafka]:
    """The command with `dafka up`, which runs for all tests. Each test uses its own topics."""
    command = Dafka(tmp_path_factory.mktemp("cluster"))
    try:
        command.start_up("--storage", f"sqlite:{command.folder / 'store.db'}")
        yield command
    finally:
        command.close()
