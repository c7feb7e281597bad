"""Filters that Spark hands over: those on topic, partition, offset and timestamp decide what is read at all.

A partition's records are in the order of their offsets and of their times, so a filter on either leaves one run of
them, which the store finds without looking at the others.
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
from dafka.spark.schema import COLUMNS

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_COMPARISONS = (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)


@attrs.define
class PushedFilters:
    """What the filters taken so far leave.

    Attributes:
        names: for topic (0) and partition (1), the names that are left, each filter's own.
        prefixes: for topic and partition, how a name must begin.
        start: the first offset that is left.
        end: the offset after the last one that is left; None for no limit.
        since_ms: the earliest time that is left, in milliseconds since 1970.
        until_ms: the first time after those that are left.
    """

    names: tuple[list[frozenset[str]], list[frozenset[str]]] = attrs.field(factory=lambda: ([], []))
    prefixes: tuple[list[str], list[str]] = attrs.field(factory=lambda: ([], []))
    start: int = 0
    end: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    def take(self, filters: Iterable[Filter]) -> list[Filter]:
        """Takes these filters in; gives those that Spark must still apply."""
        return [each for each in filters if not self._take(each)]

    def leaves(self, name: PartitionName) -> bool:
        """May a partition of this name have records that are left?"""
        return all(text in names for text, sets in zip(name, self.names, strict=True) for names in sets) and all(
            text.startswith(prefix) for text, all_of in zip(name, self.prefixes, strict=True) for prefix in all_of
        )

    def clip(self, start: int, end: int) -> tuple[int, int]:
        """What is left of these offsets."""
        start = max(start, self.start)
        return start, max(end if self.end is None else min(end, self.end), start)

    def _take(self, each: Filter) -> bool:
        """Takes one filter in; True where nothing of it is left for Spark to do."""
        path: tuple[str, ...] = getattr(each, "attribute", ())  # Not has none
        column = path[0] if len(path) == 1 else ""
        if isinstance(each, IsNotNull):
            return column in COLUMNS.names
        if column in {"topic", "partition"}:
            return self._take_name(int(column == "partition"), each)
        if column == "offset":
            return self._take_offset(each)
        return column == "timestamp" and self._take_time(each)

    def _take_name(self, which: int, each: Filter) -> bool:
        if isinstance(each, (EqualTo, EqualNullSafe)) and isinstance(each.value, str):
            self.names[which].append(frozenset([each.value]))
        elif isinstance(each, In):
            self.names[which].append(frozenset(each.value))
        elif isinstance(each, StringStartsWith):
            self.prefixes[which].append(each.value)
        else:
            return False
        return True

    def _take_offset(self, each: Filter) -> bool:
        if isinstance(each, In):
            offsets = [value for value in each.value if isinstance(value, int)]
            self._bound(min(offsets, default=0), max(offsets, default=-1) + 1)
            return False  # what lies between them is Spark's to drop
        if not isinstance(each, _COMPARISONS) or not isinstance(each.value, int):
            return False
        self._bound(*_run(each, each.value, each.value))
        return True

    def _take_time(self, each: Filter) -> bool:
        if not isinstance(each, _COMPARISONS) or not isinstance(each.value, datetime) or each.value.tzinfo is None:
            return False
        since_start = each.value - _EPOCH
        floor, rest = divmod(since_start, _MILLISECOND)
        start, end = _run(each, floor, floor + bool(rest))
        if start is not None:
            self.since_ms = start if self.since_ms is None else max(start, self.since_ms)
        if end is not None:
            self.until_ms = end if self.until_ms is None else min(end, self.until_ms)
        return True

    def _bound(self, start: int | None, end: int | None) -> None:
        if start is not None:
            self.start = max(self.start, start)
        if end is not None:
            self.end = end if self.end is None else min(self.end, end)


def _run(each: Filter, floor: int, ceiling: int) -> tuple[int | None, int | None]:
    """The whole numbers that a comparison leaves, from and up to; its value lies between `floor` and `ceiling`."""
    if isinstance(each, GreaterThan):
        return floor + 1, None
    if isinstance(each, GreaterThanOrEqual):
        return ceiling, None
    if isinstance(each, LessThan):
        return None, ceiling
    if isinstance(each, LessThanOrEqual):
        return None, floor + 1
    return ceiling, floor + 1
