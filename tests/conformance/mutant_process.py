"""This project's command with one fault: `python -m tests.conformance.mutant_process MUTATION ARGUMENT...`.

This is for faults that appear only if a whole process is killed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from dafka.cli import main
from dafka.records import RecordBatch
from dafka.roles.commit_pipeline import CommitPipeline
from dafka_conformance.targets import open_target
from dafka_conformance.targets.base import Target


def acknowledge_before_durable() -> None:
    """Acknowledge all records, but write only a few of the first ones, as if a kill always came before the others."""
    write = CommitPipeline._write

    async def write_few(self: CommitPipeline, batches: list[RecordBatch]) -> None:
        first = [batch for batch in batches if batch.first_sequence == 0 and len(batch) > 1]
        await write(self, [batch.between(0, len(batch) - 1) for batch in first])

    CommitPipeline._write = write_few  # type: ignore[method-assign]


MUTATIONS: Mapping[str, Callable[[], None]] = {"acks-before-durable": acknowledge_before_durable}


def process_target(mutation: str) -> Target:
    """Return a target whose processes have this mutation."""
    return open_target(str(Path(__file__).with_suffix(".toml")), {"mutation": mutation})


if __name__ == "__main__":
    MUTATIONS[sys.argv.pop(1)]()
    main()
