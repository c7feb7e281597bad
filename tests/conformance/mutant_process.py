"""This project's command with one fault: `python -m tests.conformance.mutant_process MUTATION ARGUMENT...`.

This is for faults that appear only if a whole process is killed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import trio

from dafka.cli import main
from dafka.records import RecordBatch
from dafka.roles.store import Store
from dafka_conformance.targets import open_target
from dafka_conformance.targets.base import Target

WRITE_DELAY_S = 2.0


def acknowledge_before_durable() -> None:
    """Acknowledge records on arrival, and write them later."""
    take, flush = Store._on_records, Store._flush

    def take_and_acknowledge(self: Store, batch: RecordBatch) -> None:
        take(self, batch)
        self._node.act(self._machine.records_committed({batch.partition: batch.end_sequence}, trio.current_time()))

    async def flush_late(self: Store) -> None:
        await trio.sleep(WRITE_DELAY_S)
        await flush(self)

    Store._on_records = take_and_acknowledge  # type: ignore[method-assign]
    Store._flush = flush_late  # type: ignore[method-assign]


MUTATIONS: Mapping[str, Callable[[], None]] = {"acks-before-durable": acknowledge_before_durable}


def process_target(mutation: str) -> Target:
    """Return a target whose processes have this mutation."""
    return open_target(str(Path(__file__).with_suffix(".toml")), {"mutation": mutation})


if __name__ == "__main__":
    MUTATIONS[sys.argv.pop(1)]()
    main()
