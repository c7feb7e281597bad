"""The values of record batches that nobody may ever read one by one: a file log stores the batches as they came."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from dafka.batches.codec import records_codec
from dafka.batches.reading import RecordsPart
from dafka.contents import PackedContents


class UnreadContents(PackedContents):
    """The values of checked record batches, which are taken out of them when they are first accessed.

    Args:
        parts: The records of the batches. Each of them has a value, and neither a key nor headers.
        count: The number of all records.
        size: The total size of their values, in bytes.
    """

    def __init__(self, parts: Sequence[RecordsPart], count: int, size: int) -> None:
        self._parts = parts
        self._count = count
        self._size = size

    def __getattr__(self, name: str) -> bytes:
        """Read the contents when `data` or `lengths` is needed first."""
        if name not in {"data", "lengths"}:
            raise AttributeError(name)
        values, *_ = records_codec().read_records(self._parts)
        assert isinstance(values, PackedContents)
        self.data, self.lengths = values.data, values.lengths
        return self.data if name == "data" else self.lengths

    def __len__(self) -> int:
        return self._count

    def size(self) -> int:
        """See `PackedContents.size`."""
        return self._size

    def join(self, others: Sequence[PackedContents]) -> PackedContents:
        """See `PackedContents.join`. What was not read stays so."""
        unread = [each for each in (self, *others) if isinstance(each, UnreadContents)]
        if len(unread) <= len(others):
            return super().join(others)
        parts = [*chain.from_iterable(each._parts for each in unread)]
        return UnreadContents(parts, sum(map(len, unread)), sum(each.size() for each in unread))
