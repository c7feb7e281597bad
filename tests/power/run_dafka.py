"""The `dafka` command, with a planted bug if the environment names one: python -m tests.power.run_dafka ARGUMENTS.

A consumer saves its positions after each batch, which it otherwise does once a second.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import trio

import dafka.cli.consume
from dafka._entry import main
from dafka.cli.consume import _Printer
from dafka.records import RecordBatch
from dafka.roles.commit_pipeline import CommitPipeline
from dafka.roles.producer import Producer
from tests.power.planted import segment_not_synced, sqlite_commits_without_sync

Patch = pytest.MonkeyPatch
PLANTED = "PLANTED_BUG"


def acknowledges_before_append(patch: Patch) -> None:
    commit = CommitPipeline._commit

    async def acknowledge_first(self: CommitPipeline) -> None:
        work = self.queue.begin_work()
        if isinstance(work, list):
            ends = {batch.partition: batch.end_sequence for batch in work}
            self._act(self.queue._machine.records_committed(ends, trio.current_time()))
        await commit(self)

    patch.setattr(CommitPipeline, "_commit", acknowledge_first)


def publishes_before_spooled(patch: Patch) -> None:
    send = Producer._send_run

    class Later:
        def __init__(self) -> None:
            self.batches: list[RecordBatch] = []

        async def append(self, batches: list[RecordBatch]) -> None:
            self.batches += batches

    async def publish_first(self: Producer, contents: Any) -> None:
        spool, later = self._spool, Later()
        assert spool is not None
        patch.setattr(self, "_spool", later)
        await send(self, contents)
        patch.setattr(self, "_spool", spool)
        await trio.sleep(0.1)
        await spool.append(later.batches)

    patch.setattr(Producer, "_send_run", publish_first)


def saves_before_output(patch: Patch) -> None:
    next_batch = _Printer._next_batch

    async def save_first(self: _Printer, count: float, idle_exit_s: float) -> RecordBatch | None:
        batch = await next_batch(self, count, idle_exit_s)
        await self._save()
        return batch

    patch.setattr(_Printer, "_next_batch", save_first)


BUGS: dict[str, Callable[[Patch], None]] = {
    "acknowledges-before-append": acknowledges_before_append,
    "publishes-before-spooled": publishes_before_spooled,
    "saves-before-output": saves_before_output,
    "sqlite-commits-without-sync": sqlite_commits_without_sync,
    "segment-not-synced": segment_not_synced,
}

if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as changes:
        changes.setattr(dafka.cli.consume, "SAVE_S", 0.0)
        if bug := os.environ.get(PLANTED):
            BUGS[bug](changes)
        main()
