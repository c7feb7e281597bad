"""The primitive rules of RFC 46's grammar: `number-1`, `number-4`, `number-8`, `string`, `longstr` and `strings`.

Numbers are big-endian. The reader never reads beyond its frame, and checks every length and count against the bytes
that are left before it uses it.
"""

from __future__ import annotations

import struct

from dafka.errors import WireError
from dafka.records import TEXT_BYTES_MAX, decode_text, encode_text

STRINGS_MAX = 65_536
"""The maximum number of topics in one CONSUMER-HELLO; reading more would block a node for too long."""

NUMBER_4 = struct.Struct(">I")
NUMBER_8 = struct.Struct(">Q")
"""The layout of a `number-8`, such as a sequence."""


class FrameReader:
    """Reads the fields of one frame in order; `offset` is the position of the next one.

    Every method raises `WireError` with the field's name and its offset.
    """

    __slots__ = ("_data", "offset")

    def __init__(self, data: bytes, offset: int = 0) -> None:
        self._data = data
        self.offset = offset

    @property
    def has_more(self) -> bool:
        """Whether there are bytes after the fields that were read."""
        return self.offset < len(self._data)

    def read_bytes(self, count: int, field: str) -> bytes:
        """Read a number of bytes."""
        end = self.offset + count
        if end > len(self._data):
            left = len(self._data) - self.offset
            raise WireError(field, f"{count} bytes, the frame has {left} left", self.offset)
        data = self._data[self.offset : end]
        self.offset = end
        return data

    def expect_bytes(self, expected: bytes, field: str) -> None:
        """Read bytes that must equal the expected ones."""
        start = self.offset
        if self.read_bytes(len(expected), field) != expected:
            raise WireError(field, expected.hex(" ").upper(), start)

    def expect_end(self) -> None:
        """Check that no bytes are left."""
        if self.offset != len(self._data):
            raise WireError("frame", f"its end, {len(self._data) - self.offset} bytes follow", self.offset)

    def read_number_1(self, field: str) -> int:
        """Read a `number-1`."""
        return self.read_bytes(1, field)[0]

    def read_number_4(self, field: str) -> int:
        """Read a `number-4`."""
        return int(NUMBER_4.unpack(self.read_bytes(4, field))[0])

    def read_number_8(self, field: str) -> int:
        """Read a `number-8`."""
        return int(NUMBER_8.unpack(self.read_bytes(8, field))[0])

    def read_string(self, field: str) -> str:
        """Read a `string`: a `number-1` and as many bytes of text."""
        return decode_text(self.read_bytes(self.read_number_1(field), field))

    def read_longstr(self, field: str) -> str:
        """Read a `longstr`: a `number-4` and as many bytes of text, at most 255."""
        start = self.offset
        length = self.read_number_4(field)
        if length > TEXT_BYTES_MAX:
            raise WireError(field, f"at most {TEXT_BYTES_MAX} bytes, not {length}", start)
        return decode_text(self.read_bytes(length, field))

    def read_strings(self, field: str) -> tuple[str, ...]:
        """Read `strings`: a `number-4` and as many `longstr`."""
        start = self.offset
        count = self.read_number_4(field)
        if count > STRINGS_MAX:
            raise WireError(field, f"at most {STRINGS_MAX} strings, not {count}", start)
        if count * 4 > len(self._data) - self.offset:
            raise WireError(field, f"a count that the frame has room for, not {count}", start)
        # A separate loop, for speed: it stops at the first invalid text.
        data, end, position = self._data, len(self._data), self.offset
        texts: list[str] = []
        for _ in range(count):
            if position + 4 > end:
                break
            (length,) = NUMBER_4.unpack_from(data, position)
            if length > TEXT_BYTES_MAX or position + 4 + length > end:
                break
            position += 4 + length
            texts.append(decode_text(data[position - length : position]))
        self.offset = position
        if len(texts) < count:
            self.read_longstr(field)  # raises the error
        return tuple(texts)


def write_string(value: str, field: str) -> bytes:
    """Return a `string`. Raises `EncodingError` for a text that is too long, or cannot be encoded."""
    data = encode_text(value, field)
    return bytes((len(data),)) + data


def write_longstr(value: str, field: str) -> bytes:
    """Return a `longstr`. Raises `EncodingError` for a text that is too long, or cannot be encoded."""
    data = encode_text(value, field)
    return NUMBER_4.pack(len(data)) + data


def write_strings(values: tuple[str, ...], field: str) -> bytes:
    """Return `strings`. Raises `EncodingError` for a text that is too long, or cannot be encoded."""
    return NUMBER_4.pack(len(values)) + b"".join(write_longstr(value, field) for value in values)
