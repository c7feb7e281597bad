"""When records leave a producer's spool: many together, or when there is nothing else to do."""

from __future__ import annotations

from dafka.protocol.machines.producer import ProducerMachine

TRIM_RECORDS = 10_000
"""Records that stay in a spool though they may go, before they are trimmed together."""


class SpoolTrim:
    """All that may go goes, but the last record, which tells where to resume."""

    def __init__(self, machine: ProducerMachine, trim_records: int = TRIM_RECORDS) -> None:
        self._machine = machine
        self._trim_records = trim_records
        self._trimmed_end = machine.disposable_end

    def due(self) -> int | None:
        """The first record that is to stay, if those before are to go now; they count as trimmed then."""
        end = self._machine.disposable_end
        if end - self._trimmed_end < (1 if self._machine.is_all_stored else self._trim_records):
            return None
        self._trimmed_end = end
        return end - 1
