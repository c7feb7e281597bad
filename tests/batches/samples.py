"""Records of all shapes for the tests of batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
from hypothesis import strategies as st

from dafka.batches import Compression, Headers, RecordColumns, encode_batch
from dafka.packed_bytes import pack

BYTES_MAX = 1 << 24
TIME = 1_700_000_000_000


@attrs.frozen
class Records:
    """Records, as `encode_batch` takes them."""

    values: Sequence[bytes | None]
    timestamps: int | Sequence[int]
    keys: Sequence[bytes | None] | None = None
    headers: Sequence[Headers] | None = None

    @property
    def times(self) -> list[int]:
        times = self.timestamps
        return [times] * len(self.values) if isinstance(times, int) else list(times)

    def encode(self, base_offset: int = 0, **options: Any) -> bytes:
        return encode_batch(
            base_offset, self.values, keys=self.keys, headers=self.headers, timestamps=self.timestamps, **options
        )

    def expect(self, decoded: RecordColumns) -> None:
        """Assert that these were decoded, and that a column without anything in it is None."""
        assert decoded.values == self.values
        assert decoded.keys == (self.keys if self.keys and any(key is not None for key in self.keys) else None)
        assert decoded.headers == (self.headers if any(self.headers or ()) else None)
        assert list(decoded.timestamps) == self.times


SHAPES = {
    "one": Records([b"value"], TIME),
    "empty": Records([b""], TIME),
    "tombstone": Records([None], TIME, keys=[b"key"]),
    "alike": Records([b"%099d" % number for number in range(2_500)], TIME),
    "packed": Records(pack([b"%099d" % number for number in range(200)]), TIME),
    "growing": Records([b"y" * number for number in range(300)], TIME),
    "mixed": Records([None, b"", b"a" * 9_000, None, b"b"], TIME, keys=[b"", None, b"k" * 100, b"l", None]),
    "times": Records([b"%d" % number for number in range(300)], [TIME + number // 7 for number in range(300)]),
    "times backwards": Records([b"a", b"b", b"c"], [TIME, TIME - 86_400_000, -1]),
    "times far apart": Records([b"a", b"b"], [-(2**62), 2**62 - 1]),
    "keys": Records([b"v"] * 200, TIME, keys=[b"k%d" % (number % 5) for number in range(200)]),
    "headers": Records(
        [b"v", b"w", b"x"],
        TIME,
        headers=[(("a", b"1"), ("a", b"2"), ("ø", None)), (), (("", b""),)],
    ),
    "foreign header name": Records([b"v"], TIME, headers=[(("\udcff", b"1"),)]),
    "everything": Records(
        [b"value %d" % number if number % 7 else None for number in range(500)],
        [TIME + number for number in range(500)],
        keys=[b"key %d" % number if number % 3 else None for number in range(500)],
        headers=[(("number", b"%d" % number),) * (number % 4) for number in range(500)],
    ),
}

COMPRESSIONS = list(Compression)


def _columns(count: int) -> st.SearchStrategy[Records]:
    def column(items: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
        return st.lists(items, min_size=count, max_size=count)

    data = st.binary(max_size=100) | st.binary(max_size=3)
    nullable = data | st.none()
    headers = st.lists(st.tuples(st.text(max_size=5), nullable), max_size=3).map(tuple)
    times = st.integers(-(2**62), 2**62) | st.integers(TIME, TIME + 100)
    return st.builds(
        Records,
        column(data) | column(nullable) | column(data).map(pack),
        times | column(times),
        st.none() | column(nullable),
        st.none() | column(headers),
    )


RECORDS = st.integers(1, 6).flatmap(_columns)
