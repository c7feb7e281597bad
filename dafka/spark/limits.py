"""How much of what is there a micro-batch takes: so many records, of every partition in proportion."""

from __future__ import annotations

from collections.abc import Mapping

from dafka.spark.offsets import Name


def take_rows(starts: Mapping[Name, int], ends: Mapping[Name, int], rows_max: int | None) -> dict[Name, int]:
    """New ends, with at most `rows_max` records before them altogether; None is no limit.

    Partitions give in proportion to what they have, as those of Spark's Kafka source do: so those that cover the same
    hours are read through them side by side, and none is late for the others' watermark. Each gives at least one
    record, so that a large partition starves none; where there are more partitions than records to take, those that
    have the most give one.
    """
    waiting = {name: end - starts[name] for name, end in ends.items() if end > starts[name]}
    total = sum(waiting.values())
    if rows_max is None or total <= rows_max:
        return dict(ends)
    largest_first = sorted(waiting, key=lambda name: (-waiting[name], name))
    taken = dict.fromkeys(largest_first[:rows_max], 1)
    rows_left, rows_waiting = rows_max - len(taken), total - len(taken)
    if rows_left:
        shares = {name: divmod((waiting[name] - 1) * rows_left, rows_waiting) for name in taken}
        for name, (share, _) in shares.items():
            taken[name] += share
        largest_rest_first = sorted(shares, key=lambda name: (-shares[name][1], name))
        for name in largest_rest_first[: rows_max - sum(taken.values())]:
            taken[name] += 1
    return {name: starts[name] + taken.get(name, 0) for name in ends}
