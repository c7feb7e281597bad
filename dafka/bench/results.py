"""What a run of the benchmarks gives: figures of jobs on systems, round by round, and what they come to.

A figure's ratio to the base is taken within each round, so that a machine that changes speed changes both sides of it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

import attrs

from dafka.errors import LocalError

UNITS: Mapping[str, bool] = {"records/s": True, "MiB/s": True, "ms": False, "MiB": False, "CPU s per million": False}
"""Every unit of a figure, and whether more of it is better."""


@attrs.frozen
class Measurement:
    """One figure that a job found: what it is of, its unit, its value, and with how many records."""

    figure: str
    unit: str
    value: float
    records: int


@attrs.frozen
class Sample:
    """A figure of a job on a system in one round."""

    job: str
    system: str
    round: int
    measured: Measurement


@attrs.frozen
class Failure:
    """A job that a system did not finish in a round, and why."""

    job: str
    system: str
    round: int
    reason: str


@attrs.frozen
class Spread:
    """The median of several values, the lowest and the highest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of one value or more."""
        return cls(statistics.median(values), min(values), max(values))


@attrs.frozen
class Row:
    """What a figure came to on one system; `ratio` is to the base, None where the base has no such figure."""

    job: str
    figure: str
    unit: str
    system: str
    records: int
    value: Spread
    ratio: Spread | None

    @property
    def is_higher_better(self) -> bool:
        """Is more of it better?"""
        return UNITS[self.unit]


@attrs.frozen
class Results:
    """Attributes:
    settings: what the run was asked for.
    machine: what it ran on.
    systems: the names of those that ran, in order.
    base: the one that ratios are to.
    left_out: the names of those that could not run, and why.
    samples: every figure of every round.
    failures: the jobs that were not finished.
    """

    settings: Mapping[str, object]
    machine: Mapping[str, object]
    systems: Sequence[str]
    base: str
    left_out: Mapping[str, str]
    samples: Sequence[Sample]
    failures: Sequence[Failure]

    def rows(self) -> list[Row]:
        """Every figure of every system: jobs and figures in the order they were found, systems in their own."""
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
    """The values below which these shares (0 to 1) of all lie. Needs one value at least."""
    ordered = sorted(values)
    return [ordered[min(int(share * len(ordered)), len(ordered) - 1)] for share in shares]


class BenchError(LocalError):
    """A process that is measured did not do what it should, or what was asked for cannot be measured."""
