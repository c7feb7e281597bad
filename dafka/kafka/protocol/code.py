"""The source of a reader or a writer, line by line, and the function that it becomes.

Each line knows the field that it handles. So the functions need no bookkeeping: if one fails, the number of the line
that failed names the field.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dafka.kafka.protocol.tables import NUMBERS, Field, Kind, Message, fields_of

_INDENT = "    "


class Code:
    """The lines of a function, which is called `run`. They may use `names`; errors in them name the current `field`."""

    def __init__(self, head: str) -> None:
        self.names: dict[str, Any] = {}
        self.field = ""
        self._lines: list[str] = [head]
        self._fields: list[str] = [""]
        self._depth = 1

    def add(self, *lines: str) -> None:
        """Add lines."""
        for line in lines:
            self._lines.append(_INDENT * self._depth + line)
            self._fields.append(self.field)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Add a line that begins a block. What is added until the context ends is in the block."""
        self.add(head)
        self._depth += 1
        yield
        self._depth -= 1

    def layout(self, codes: str, method: str) -> str:
        """Return a name for a method of the `struct.Struct` with big-endian numbers of these codes."""
        name = f"{method}_{codes.replace('?', 'o')}"
        self.names[name] = getattr(struct.Struct(f">{codes}"), method)
        return name

    def compile(self, filename: str) -> Any:
        """Return the function. `filename` is the name that tracebacks show for its file."""
        fields = self._fields
        self.names["field_of"] = lambda error: fields[error.__traceback__.tb_lineno - 1]
        exec(compile("\n".join(self._lines), filename, "exec"), self.names)
        return self.names["run"]


def groups_of(fields: list[Field]) -> Iterator[list[Field]]:
    """Yield fields one by one, but consecutive numbers together."""
    numbers: list[Field] = []
    for each in fields:
        if each.kind in NUMBERS and not each.is_array:
            numbers.append(each)
            continue
        if numbers:
            yield numbers
            numbers = []
        yield [each]
    if numbers:
        yield numbers


def min_size(each: Field, version: int, *, is_flexible: bool) -> int:
    """Return the size of the smallest value of a field, in an array: of the smallest item, in bytes."""
    if each.kind in NUMBERS:
        return NUMBERS[each.kind]
    if each.struct is not None:
        present = [field for field in fields_of(each.struct) if field.versions.has(version) and field.tag is None]
        return is_flexible + sum(
            _length_size(field.kind, is_flexible=is_flexible, is_array=True)
            if field.is_array
            else 1
            if field.struct is not None and field.nullable.has(version)
            else min_size(field, version, is_flexible=is_flexible)
            for field in present
        )
    return 16 if each.kind is Kind.UUID else _length_size(each.kind, is_flexible=is_flexible)


def _length_size(kind: Kind, *, is_flexible: bool, is_array: bool = False) -> int:
    return 1 if is_flexible else 2 if kind is Kind.STRING and not is_array else 4


def split_fields(fields: tuple[Field, ...], version: int) -> tuple[list[Field], list[Field], list[Field]]:
    """Return the plain, the tagged and the absent fields of a table in a version; tagged ones by their tags."""
    plain = [each for each in fields if each.versions.has(version) and each.tag is None]
    tagged = [each for each in fields if each.versions.has(version) and each.tag is not None]
    absent = [each for each in fields if not each.versions.has(version)]
    return plain, sorted(tagged, key=lambda each: each.tag or 0), absent


def check_version(message: type[Message], version: int) -> None:
    """Raise ValueError if the table of a message does not describe a version."""
    if not message.VERSIONS.has(version):
        raise ValueError(f"{message.__name__} has versions {message.VERSIONS}, not {version}")
