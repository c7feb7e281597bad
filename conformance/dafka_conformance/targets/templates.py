"""Texts with placeholders, as in `--sub={sub}`. What stands for a placeholder is octets: topics need not be text.

A brace that is meant is written twice.
"""

from __future__ import annotations

import string
from collections.abc import Mapping

import attrs


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
