"""Values of record batches that are decoded only when needed: a file log stores the batches unchanged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

from dafka.batches.reading import Columns, RecordsPart
from dafka.packed_bytes import PackedContents


class UnreadContents(PackedContents):
    """The values of checked record batches, decoded at the first access.

    Args:
        read_records: Reads the columns of the batches, as their codec does.
        parts: The records of the batches. Each of them has a value, and neither a key nor headers.
        size: The total size of their values, in bytes.
    """

    def __init__(
        self, read_records: Callable[[Sequence[RecordsPart]], Columns], parts: Sequence[RecordsPart], size: int
    ) -> None:
        self._read_records = read_records
        self._parts = parts
        self._count = sum(part.record_count for part in parts)
        self._size = size

    def __getattr__(self, name: str) -> bytes:
        """Read the contents when `data` or `lengths` is needed first."""
        if name not in {"data", "lengths"}:
            raise AttributeError(name)
        values, *_ = self._read_records(self._parts)
        assert isinstance(values, PackedContents)
        self.data, self.lengths = values.data, values.lengths
        return self.data if name == "data" else self.lengths

    def __len__(self) -> int:
        return self._count

    def size(self) -> int:
        """See `PackedContents.size`."""
        return self._size

    def join(self, others: Sequence[PackedContents]) -> PackedContents:
        """See `PackedContents.join`. Unread contents stay unread."""
        unread = [each for each in (self, *others) if isinstance(each, UnreadContents)]
        if len(unread) <= len(others):
            return super().join(others)
        parts = [*chain.from_iterable(each._parts for each in unread)]
        return UnreadContents(self._read_records, parts, sum(each.size() for each in unread))
