"""The commands of the companion specification of positions by time."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from dafka_conformance.grammar.formats import Formats
from dafka_conformance.grammar.rules import read_rules

POSITION_GRAMMAR_PATH = Path(__file__).with_name("positions-by-time.abnf")

POSITION_COMMANDS = ("GET-POSITION", "DIRECT-POSITION")

HOLDS_NONE = 2**64 - 1
"""The `sequence` in the answer of a store that holds no record of the time."""


@cache
def position_formats() -> Formats:
    """Return the formats of GET-POSITION and DIRECT-POSITION."""
    return Formats.compile(read_rules(POSITION_GRAMMAR_PATH))
