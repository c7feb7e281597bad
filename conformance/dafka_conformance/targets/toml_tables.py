"""Typed access to TOML tables with precise errors, and the texts with placeholders that they contain."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import attrs

from dafka_conformance.model import Dialect
from dafka_conformance.targets.base import TargetError

_T = TypeVar("_T")


def join_names(names: Iterable[str]) -> str:
    """Return the names with commas between them."""
    return ", ".join(names)


@attrs.frozen
class Template:
    """A text with placeholders, such as `--sub={sub}`. A literal brace is written twice.

    Placeholders are filled with bytes, because topics need not be text.

    Attributes:
        parts: The literal parts, each with the placeholder that follows it, or None.
    """

    parts: tuple[tuple[bytes, str | None], ...]

    @classmethod
    def parse(cls, text: str) -> Template:
        """Return the template of a text. Raise `ValueError` if its braces do not pair or contain no name."""
        parts = []
        for literal, name, spec, conversion in string.Formatter().parse(text):
            if name is not None and (spec or conversion or not name.isidentifier()):
                raise ValueError("expected a name between { and }, or a literal brace written twice")
            parts.append((literal.encode(), name))
        return cls(tuple(parts))

    @property
    def placeholders(self) -> frozenset[str]:
        """The names of the placeholders."""
        return frozenset(name for _, name in self.parts if name is not None)

    def fill(self, values: Mapping[str, bytes]) -> bytes:
        """Return the text with its placeholders replaced. Raise `KeyError` if one has no value."""
        return b"".join(literal + (b"" if name is None else values[name]) for literal, name in self.parts)


class Table:
    """A TOML table. Each key is read with its expected type, and a key that was never read is an error."""

    def __init__(self, file: str, name: str, values: Mapping[str, Any]) -> None:
        self._file = file
        self._name = name
        self._values = values
        self._known_keys: set[str] = set()

    @property
    def names(self) -> tuple[str, ...]:
        """The keys of the table."""
        return tuple(self._values)

    def has(self, key: str) -> bool:
        """Return whether an optional key is present."""
        self._known_keys.add(key)
        return key in self._values

    def error(self, text: str) -> TargetError:
        """Return an error about the table."""
        return TargetError(f"{self._file}: [{self._name}] {text}" if self._name else f"{self._file}: {text}")

    def reject_unknown_keys(self, hint: str = "") -> None:
        """Raise `TargetError` if the table has a key that was not read."""
        for key in self._values:
            if key not in self._known_keys:
                expected = f"expected {join_names(sorted(self._known_keys))}"
                raise self.error(f"unknown key {key!r}: {hint or expected}")

    def table(self, key: str) -> Table:
        """Return the table at a key; an empty one if the key is missing."""
        values = self._read_key(key, dict, "a table", {})
        return Table(self._file, f"{self._name}.{key}" if self._name else key, values)

    def text(self, key: str, default: str | None = None) -> str:
        """Return a text. The key is required unless there is a default."""
        return self._read_key(key, str, "a text", default)

    def flag(self, key: str) -> bool:
        """Return true or false; false if the key is missing."""
        return self._read_key(key, bool, "true or false", False)

    def count(self, key: str) -> int:
        """Return a number above 0; 1 if the key is missing."""
        value = self._read_key(key, int, "a number above 0", 1)
        if value < 1:
            raise self.error(f"{key}: expected a number above 0, not {value!r}")
        return value

    def choice(self, key: str, allowed: tuple[str, ...], default: str) -> str:
        """Return one of the allowed texts."""
        value = self.text(key, default)
        if value not in allowed:
            raise self.error(f"{key}: expected one of {join_names(allowed)}, not {value!r}")
        return value

    def choices(self, key: str, allowed: type[Dialect]) -> tuple[Dialect, ...]:
        """Return one or more of the allowed values, without duplicates."""
        names = self._read_key(key, list, "a list of texts", None)
        known = {choice.value: choice for choice in allowed}
        wrong = [name for name in names if not isinstance(name, str) or name not in known]
        if wrong or not names or len(set(names)) != len(names):
            found = repr(wrong[0]) if wrong else "none" if not names else "a duplicate"
            raise self.error(f"{key}: expected one or more of {join_names(known)}, not {found}")
        return tuple(known[name] for name in names)

    def arguments(self, key: str, known: frozenset[str] | set[str]) -> tuple[Template, ...]:
        """Return a list of texts with placeholders, such as a command line."""
        texts = self._read_key(key, list, "a list of texts", None)
        for text in texts:
            if not isinstance(text, str):
                raise self.error(f"{key}: expected a list of texts, not {text!r} in the list")
        return tuple(self._parse(key, text, known) for text in texts)

    def modules(self, key: str) -> tuple[str, ...]:
        """Return a list of names of Python modules; an empty one if the key is missing."""
        names = self._read_key(key, list, "a list of texts", [])
        for name in names:
            if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
                raise self.error(f"{key}: expected names of Python modules, not {name!r} in the list")
        return tuple(names)

    def template(self, key: str, known: frozenset[str]) -> Template | None:
        """Return a text with placeholders; None if the key is missing."""
        return self._parse(key, self.text(key), known) if self.has(key) else None

    def templates(self, key: str, known: frozenset[str]) -> dict[str, Template]:
        """Return a table of texts with placeholders."""
        table = self.table(key)
        return {name: table._parse(name, table.text(name), known) for name in table._values}

    def format(self, key: str, read: Callable[[Template], _T]) -> _T | None:
        """Return a line format; None if the key is missing."""
        if not self.has(key):
            return None
        text = self.text(key)
        try:
            return read(Template.parse(text))
        except ValueError as error:
            raise self.error(f"{key}: {error}, not {text!r}") from None

    def variable(self, name: str) -> tuple[str, str | None]:
        """Return the description and the default value of a variable."""
        if isinstance(self._values[name], str):
            return self.text(name), None
        table = self.table(name)
        found = table.text("about"), table.text("default")
        table.reject_unknown_keys()
        return found

    def _read_key(self, key: str, kind: type[_T], expected: str, default: _T | None) -> _T:
        self._known_keys.add(key)
        value = self._values.get(key, default)
        if value is None:
            raise self.error(f"{key} is missing: expected {expected}")
        if type(value) is not kind:
            raise self.error(f"{key}: expected {expected}, not {value!r}")
        return value

    def _parse(self, key: str, text: str, known: frozenset[str] | set[str]) -> Template:
        try:
            template = Template.parse(text)
        except ValueError as error:
            raise self.error(f"{key}: {text!r}: {error}") from None
        for name in sorted(template.placeholders - known):
            raise self.error(f"{key}: unknown placeholder {{{name}}}: expected one of {join_names(sorted(known))}")
        return template
