"""How much of what is there a micro-batch takes: so many records, evenly from the partitions."""

from __future__ import annotations

from collections.abc import Mapping

from dafka.spark.offsets import Name


def take_rows(starts: Mapping[Name, int], ends: Mapping[Name, int], rows_max: int | None) -> dict[Name, int]:
    """New ends, with at most `rows_max` records before them altogether; None is no limit.

    A large partition starves none: each gives the same number, but those that have fewer give all that they have.
    Where there are fewer records to take than partitions, those that have the least go first.
    """
    waiting = {name: end - starts[name] for name, end in ends.items() if end > starts[name]}
    if rows_max is None or sum(waiting.values()) <= rows_max:
        return dict(ends)
    reached = {name: starts[name] for name in ends}
    rows_left, partitions_left = rows_max, len(waiting)
    for name in sorted(waiting, key=lambda each: (waiting[each], each)):
        count = min(waiting[name], -(-rows_left // partitions_left))
        reached[name] += count
        rows_left -= count
        partitions_left -= 1
    return reached
