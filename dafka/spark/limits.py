"""How much of what is there a micro-batch takes: so many records, of every partition in proportion."""

from __future__ import annotations

from collections.abc import Mapping

from dafka.spark.offsets import Name


def take_rows(starts: Mapping[Name, int], ends: Mapping[Name, int], rows_max: int) -> dict[Name, int]:
    """New ends, with at most `rows_max` records before them altogether.

    Each partition gives in proportion to what it has, and none waits for ever: what rounding leaves over goes to
    those from which the most is missing.
    """
    waiting = {name: end - starts[name] for name, end in ends.items() if end > starts[name]}
    total = sum(waiting.values())
    if total <= rows_max:
        return dict(ends)
    taken = {name: count * rows_max // total for name, count in waiting.items()}
    left = rows_max - sum(taken.values())
    by_rest = sorted(waiting, key=lambda name: (-(waiting[name] * rows_max % total), name))
    for name in by_rest[:left]:
        taken[name] += 1
    return {name: starts[name] + taken.get(name, 0) for name in ends}
