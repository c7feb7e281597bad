"""Sphinx extension: docstrings write code in single backticks, as Markdown does; Sphinx is given reStructuredText."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

CODE = re.compile(r"(?<![`:\w])`([^`]+)`(?!`)")
OPENED = {
    f"dafka.{name}" for name in ("Consumer", "EventFeed", "Observer", "Producer", "Range", "Reader", "Store", "Tower")
}
"""Classes whose objects `open_*`, `serve_*` or another object makes."""

BEFORE_NAPOLEON, AFTER_NAPOLEON = 400, 600

_attributes: dict[str, list[str]] = {}


def convert_code(_: Sphinx, what: str, name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    """Turn `code` into ``code``, also if it spans two lines; remember the text of attributes."""
    lines[:] = CODE.sub(r"``\1``", "\n".join(lines)).split("\n")
    if what in ("attribute", "property"):
        _attributes[name] = list(lines)


def keep_attributes(_: Sphinx, what: str, name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    """Undo what napoleon does to attributes: it takes a colon in their first sentence for a type."""
    if what in ("attribute", "property"):
        lines[:] = _attributes.pop(name, lines)


def simplify_signature(
    _: Sphinx, what: str, name: str, _object: Any, _options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Hide what only the library passes: arguments of classes that functions open, and attrs' marks for factories."""
    if what == "class" and name in OPENED:
        return "", None
    return signature and signature.replace("=NOTHING", "=...").replace(" = NOTHING", " = ..."), returns


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register both steps, before and after napoleon's."""
    app.connect("autodoc-process-docstring", convert_code, priority=BEFORE_NAPOLEON)
    app.connect("autodoc-process-docstring", keep_attributes, priority=AFTER_NAPOLEON)
    app.connect("autodoc-process-signature", simplify_signature)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
