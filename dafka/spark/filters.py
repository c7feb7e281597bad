"""Pushed-down filters on topic, partition, offset and time of storing, which limit the records that are read.

Within a partition, records are ordered by offset and by time of storing. A filter on either therefore selects one
range, which the store finds without reading other records. Timestamps have no order, so Spark applies filters on them.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import attrs
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from dafka.spark.offsets import PartitionName

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_NEVER_NULL = {"topic", "partition", "offset", "timestamp", "timestampType", "stored_at"}
_COMPARISONS = (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)


@attrs.define
class PushedFilters:
    """The records that pass all filters pushed so far.

    Names and prefixes are those that each filter allows, for topics (index 0) and for partitions (index 1). Offsets and
    times of storing, in milliseconds since 1970, are limited by the first that passes, and the first after it that does
    not.
    """

    names: tuple[list[frozenset[str]], list[frozenset[str]]] = attrs.field(factory=lambda: ([], []))
    prefixes: tuple[list[str], list[str]] = attrs.field(factory=lambda: ([], []))
    start: int = 0
    end: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    def push(self, filters: Iterable[Filter]) -> list[Filter]:
        """Add filters, and return the filters that Spark must still apply to the rows."""
        return [each for each in filters if not self._push(each)]

    def allows_partition(self, name: PartitionName) -> bool:
        """Return whether a partition may have records that pass the filters."""
        return all(text in names for text, sets in zip(name, self.names, strict=True) for names in sets) and all(
            text.startswith(prefix) for text, all_of in zip(name, self.prefixes, strict=True) for prefix in all_of
        )

    def clip_range(self, start: int, end: int) -> tuple[int, int]:
        """Return the part of a range of offsets that passes the filters."""
        start = max(start, self.start)
        return start, max(end if self.end is None else min(end, self.end), start)

    def _push(self, each: Filter) -> bool:
        """Add one filter, and return whether it is applied completely here."""
        path: tuple[str, ...] = getattr(each, "attribute", ())  # `Not` has no attribute
        column = path[0] if len(path) == 1 else ""
        if isinstance(each, IsNotNull):
            return column in _NEVER_NULL
        if column in {"topic", "partition"}:
            return self._push_name(int(column == "partition"), each)
        if column == "offset":
            return self._push_offset(each)
        return column == "stored_at" and self._push_time(each)

    def _push_name(self, which: int, each: Filter) -> bool:
        if isinstance(each, (EqualTo, EqualNullSafe)) and isinstance(each.value, str):
            self.names[which].append(frozenset([each.value]))
        elif isinstance(each, In):
            self.names[which].append(frozenset(each.value))
        elif isinstance(each, StringStartsWith):
            self.prefixes[which].append(each.value)
        else:
            return False
        return True

    def _push_offset(self, each: Filter) -> bool:
        if isinstance(each, In):
            offsets = [value for value in each.value if isinstance(value, int)]
            self._limit_offsets(min(offsets, default=0), max(offsets, default=-1) + 1)
            return False  # Spark must drop the offsets between them
        if not isinstance(each, _COMPARISONS) or not isinstance(each.value, int):
            return False
        self._limit_offsets(*_to_range(each, each.value, each.value))
        return True

    def _push_time(self, each: Filter) -> bool:
        if not isinstance(each, _COMPARISONS) or not isinstance(each.value, datetime) or each.value.tzinfo is None:
            return False
        since_epoch = each.value - _EPOCH
        floor, remainder = divmod(since_epoch, _MILLISECOND)
        start, end = _to_range(each, floor, floor + bool(remainder))
        if start is not None:
            self.since_ms = start if self.since_ms is None else max(start, self.since_ms)
        if end is not None:
            self.until_ms = end if self.until_ms is None else min(end, self.until_ms)
        return True

    def _limit_offsets(self, start: int | None, end: int | None) -> None:
        if start is not None:
            self.start = max(self.start, start)
        if end is not None:
            self.end = end if self.end is None else min(self.end, end)


def _to_range(each: Filter, floor: int, ceiling: int) -> tuple[int | None, int | None]:
    """Return the start and the end of the whole numbers that satisfy a comparison; None is no limit."""
    # `floor` and `ceiling` are the value of the comparison, rounded down and up.
    if isinstance(each, GreaterThan):
        return floor + 1, None
    if isinstance(each, GreaterThanOrEqual):
        return ceiling, None
    if isinstance(each, LessThan):
        return None, ceiling
    if isinstance(each, LessThanOrEqual):
        return None, floor + 1
    return ceiling, floor + 1
