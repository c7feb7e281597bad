"""Beacon formats, compiled from the grammar: one frame for each part of the rule, matched against the part's rule."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import attrs

from dafka_conformance.grammar.formats import FrameError
from dafka_conformance.grammar.rules import (
    CORE_RULES,
    Bytes,
    Choice,
    Expression,
    GrammarError,
    Range,
    Reference,
    Repeat,
)
from dafka_conformance.grammar.rules import Sequence as InOrder

_ADDRESS = re.compile(rb"[0-9A-F]{32}")


@attrs.frozen
class BeaconFormat:
    """A beacon rule. Each part is a frame that must match a pattern."""

    name: str
    parts: tuple[tuple[str, re.Pattern[bytes]], ...]

    @classmethod
    def compile(cls, name: str, rules: Mapping[str, Expression]) -> BeaconFormat:
        """Return the format of a rule. Raise `GrammarError` if the rule is not a sequence of names."""
        expression = rules.get(name)
        if not isinstance(expression, InOrder) or not all(isinstance(part, Reference) for part in expression.parts):
            raise GrammarError(f"the rule {name}: expected a sequence of names, one for each frame")
        names = [part.rule for part in expression.parts if isinstance(part, Reference)]
        return cls(name, tuple((part, re.compile(_pattern(rules[part], rules), re.DOTALL)) for part in names))

    def decode(self, frames: Sequence[bytes]) -> dict[str, bytes]:
        """Return the parts by name. Raise `FrameError` if one is wrong; a wrong address is reported last."""
        values = self.split(frames)
        faulty = [name for name, pattern in self.parts if not pattern.fullmatch(values[name])]
        if faulty:
            name = next((each for each in faulty if each != "uuid"), faulty[0])
            raise FrameError(self.name, name, _fault_text(name, values[name]))
        return values

    def split(self, frames: Sequence[bytes]) -> dict[str, bytes]:
        """Return the parts by name without checking them. Raise `FrameError` if the number of frames is wrong."""
        if len(frames) != len(self.parts):
            names = ", ".join(name for name, _ in self.parts)
            text = f"expected the {len(self.parts)} frames of a {self.name} ({names}), not {len(frames)}"
            raise FrameError(self.name, "frames", text)
        return {name: frame for (name, _), frame in zip(self.parts, frames, strict=True)}


def describe_address_fault(address: bytes) -> str:
    """Return what is wrong with a node's address: an empty text if it is a UUID as deployed nodes write it."""
    if _ADDRESS.fullmatch(address):
        return ""
    return (
        f"the node's address is {repr(address[:64])[1:]}, expected the UUID as 32 upper-case hexadecimal digits; "
        "RFC 46 does not say in which form a node writes its UUID, but deployed nodes use this one"
    )


def _fault_text(name: str, value: bytes) -> str:
    return (
        describe_address_fault(value) if name == "uuid" else f"{value[:64]!r} does not match the grammar's rule {name}"
    )


def _pattern(expression: Expression, rules: Mapping[str, Expression]) -> bytes:
    """Return the regular expression for a rule that is not recursive."""
    if isinstance(expression, Bytes):
        return re.escape(expression.value)
    if isinstance(expression, Range):
        return b"[\\x%02x-\\x%02x]" % (expression.first, expression.last)
    if isinstance(expression, Reference):
        return _pattern({**CORE_RULES, **rules}[expression.rule], rules)
    if isinstance(expression, Repeat):
        most = b"" if expression.most is None else b"%d" % expression.most
        return b"(?:%b){%d,%b}" % (_pattern(expression.part, rules), expression.least, most)
    joint = b"|" if isinstance(expression, Choice) else b""
    return b"(?:%b)" % joint.join(_pattern(part, rules) for part in expression.parts)
