"""The results of a benchmark run: measurements of jobs on systems, round by round, and their summary.

Ratios to the base are computed within each round, so that a machine whose speed varies affects both sides alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

import attrs

from dafka.errors import LocalError

UNITS: Mapping[str, bool] = {
    "records/s": True,
    "MiB/s": True,
    "s": False,
    "ms": False,
    "MiB": False,
    "% of a core": False,
    "descriptors": False,
    "CPU s": False,
    "CPU s per million": False,
}
"""The units of figures, and whether higher values are better."""


@attrs.frozen
class Measurement:
    """One figure that a job measured: its name, unit, value, and number of records."""

    figure: str
    unit: str
    value: float
    records: int


@attrs.frozen
class Sample:
    """A measurement of a job on a system in one round."""

    job: str
    system: str
    round: int
    measured: Measurement


@attrs.frozen
class Failure:
    """A job that failed on a system in a round, and the reason."""

    job: str
    system: str
    round: int
    reason: str


@attrs.frozen
class Spread:
    """The median, the lowest and the highest of several values."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of at least one value."""
        return cls(statistics.median(values), min(values), max(values))


@attrs.frozen
class Row:
    """The summary of a figure on one system. `ratio` is to the base; None if the base has no such figure."""

    job: str
    figure: str
    unit: str
    system: str
    records: int
    value: Spread
    ratio: Spread | None

    @property
    def is_higher_better(self) -> bool:
        """Whether higher values are better."""
        return UNITS[self.unit]


@attrs.frozen
class Results:
    """The results of a run.

    Attributes:
        settings: The settings of the run.
        machine: The description of the machine.
        systems: The names of the systems that ran, in order.
        base: The system that ratios refer to.
        left_out: The names of the systems that could not run, and the reasons.
        samples: Every measurement of every round.
        failures: The jobs that failed.
        date: When the run began, in UTC.
    """

    settings: Mapping[str, object]
    machine: Mapping[str, object]
    systems: Sequence[str]
    base: str
    left_out: Mapping[str, str]
    samples: Sequence[Sample]
    failures: Sequence[Failure]
    date: str = ""

    def rows(self) -> list[Row]:
        """Return the summary of every figure of every system, in the order of jobs, figures and systems."""
        found: dict[tuple[str, str, str], dict[str, dict[int, Measurement]]] = {}
        for sample in self.samples:
            measured = sample.measured
            by_system = found.setdefault((sample.job, measured.figure, measured.unit), {})
            by_system.setdefault(sample.system, {})[sample.round] = measured
        jobs = list(dict.fromkeys(job for job, _, _ in found))
        ordered = sorted(found.items(), key=lambda item: jobs.index(item[0][0]))
        return [
            _row(job, figure, unit, system, by_system[system], by_system.get(self.base, {}))
            for (job, figure, unit), by_system in ordered
            for system in self.systems
            if system in by_system
        ]


def _row(
    job: str, figure: str, unit: str, system: str, rounds: Mapping[int, Measurement], base: Mapping[int, Measurement]
) -> Row:
    ratios = [
        measured.value / base[number].value
        for number, measured in rounds.items()
        if number in base and base[number].value
    ]
    values = [measured.value for measured in rounds.values()]
    records = max(measured.records for measured in rounds.values())
    return Row(job, figure, unit, system, records, Spread.of(values), Spread.of(ratios) if ratios else None)


def percentiles(values: Iterable[float], shares: Sequence[float]) -> list[float]:
    """Return the values below which the given shares (0 to 1) of at least one value lie."""
    ordered = sorted(values)
    return [ordered[min(int(share * len(ordered)), len(ordered) - 1)] for share in shares]


class BenchError(LocalError):
    """A measured process failed, or the requested measurement is not possible."""
