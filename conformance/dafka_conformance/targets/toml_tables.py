"""A TOML table, taken apart key by key: each with the type it must have, and no key that nobody asked for."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import attrs

from dafka_conformance.model import Dialect
from dafka_conformance.targets.base import TargetError

_T = TypeVar("_T")


def join_names(names: Iterable[str]) -> str:
    """The names, with commas."""
    return ", ".join(names)


@attrs.frozen
class Template:
    """A text with placeholders.

    Attributes:
        parts: what the text is made of: octets as they are, and behind each the placeholder that follows, if any.
    """

    parts: tuple[tuple[bytes, str | None], ...]

    @classmethod
    def parse(cls, text: str) -> Template:
        """Reads a text. Raises `ValueError` for braces that do not pair, or that hold no name."""
        parts = []
        for literal, name, spec, conversion in string.Formatter().parse(text):
            if name is not None and (spec or conversion or not name.isidentifier()):
                raise ValueError("expected a name within { and }, and a brace that is meant written twice")
            parts.append((literal.encode(), name))
        return cls(tuple(parts))

    @property
    def placeholders(self) -> frozenset[str]:
        """The names of its placeholders."""
        return frozenset(name for _, name in self.parts if name is not None)

    def fill(self, values: Mapping[str, bytes]) -> bytes:
        """The text with its placeholders replaced. Raises `KeyError` for one that has no value."""
        return b"".join(literal + (b"" if name is None else values[name]) for literal, name in self.parts)


class Table:
    """A table of the file, taken apart key by key; what is left over in the end is unknown."""

    def __init__(self, file: str, name: str, values: Mapping[str, Any]) -> None:
        self._file = file
        self._name = name
        self._values = values
        self._taken: set[str] = set()

    @property
    def names(self) -> tuple[str, ...]:
        """The keys that are there."""
        return tuple(self._values)

    def has(self, key: str) -> bool:
        """Is a key there that may be?"""
        self._taken.add(key)
        return key in self._values

    def error(self, text: str) -> TargetError:
        """The error that says this of the table."""
        return TargetError(f"{self._file}: [{self._name}] {text}" if self._name else f"{self._file}: {text}")

    def finish(self, hint: str = "") -> None:
        """Raises `TargetError` for a key that was not taken."""
        for key in self._values:
            if key not in self._taken:
                expected = f"expected {join_names(sorted(self._taken))}"
                raise self.error(f"unknown key {key!r}: {hint or expected}")

    def table(self, key: str) -> Table:
        """The table of this name; an empty one where there is none."""
        values = self._take(key, dict, "a table", {})
        return Table(self._file, f"{self._name}.{key}" if self._name else key, values)

    def text(self, key: str, default: str | None = None) -> str:
        """A text; needed, unless there is a default."""
        return self._take(key, str, "a text", default)

    def flag(self, key: str) -> bool:
        """True or false; false by default."""
        return self._take(key, bool, "true or false", False)

    def count(self, key: str) -> int:
        """A number above 0; 1 where it is not there."""
        value = self._take(key, int, "a number above 0", 1)
        if value < 1:
            raise self.error(f"{key}: expected a number above 0, not {value!r}")
        return value

    def choice(self, key: str, allowed: tuple[str, ...], default: str) -> str:
        """One of several texts."""
        value = self.text(key, default)
        if value not in allowed:
            raise self.error(f"{key}: expected one of {join_names(allowed)}, not {value!r}")
        return value

    def choices(self, key: str, allowed: type[Dialect]) -> tuple[Dialect, ...]:
        """At least one of several texts, each once."""
        names = self._take(key, list, "a list of texts", None)
        known = {choice.value: choice for choice in allowed}
        wrong = [name for name in names if not isinstance(name, str) or name not in known]
        if wrong or not names or len(set(names)) != len(names):
            found = repr(wrong[0]) if wrong else "none" if not names else "one twice"
            raise self.error(f"{key}: expected one or more of {join_names(known)}, not {found}")
        return tuple(known[name] for name in names)

    def arguments(self, key: str, known: frozenset[str] | set[str]) -> tuple[Template, ...]:
        """A command line, or a part of one."""
        texts = self._take(key, list, "a list of texts", None)
        for text in texts:
            if not isinstance(text, str):
                raise self.error(f"{key}: expected a list of texts, not one with {text!r} in it")
        return tuple(self._parse(key, text, known) for text in texts)

    def template(self, key: str, known: frozenset[str]) -> Template | None:
        """A text with placeholders; None where there is none."""
        return self._parse(key, self.text(key), known) if self.has(key) else None

    def templates(self, key: str, known: frozenset[str]) -> dict[str, Template]:
        """A table of texts with placeholders."""
        table = self.table(key)
        return {name: table._parse(name, table.text(name), known) for name in table._values}

    def format(self, key: str, read: Callable[[Template], _T]) -> _T | None:
        """A line's format; None where there is none."""
        if not self.has(key):
            return None
        text = self.text(key)
        try:
            return read(Template.parse(text))
        except ValueError as error:
            raise self.error(f"{key}: {error}, not {text!r}") from None

    def variable(self, name: str) -> tuple[str, str | None]:
        """What a variable is for, and the value that it has if none is given."""
        if isinstance(self._values[name], str):
            return self.text(name), None
        table = self.table(name)
        found = table.text("about"), table.text("default")
        table.finish()
        return found

    def _take(self, key: str, kind: type[_T], expected: str, default: _T | None) -> _T:
        self._taken.add(key)
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
