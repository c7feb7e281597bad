"""What a beacon's frames must look like: a frame for each part of its rule, each held against the part's own rule."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import attrs

from dafka_conformance.grammar.formats import FrameError
from dafka_conformance.grammar.rules import (
    CORE_RULES,
    Choice,
    Expression,
    GrammarError,
    Octets,
    Range,
    Reference,
    Repeat,
)
from dafka_conformance.grammar.rules import Sequence as InOrder


@attrs.frozen
class BeaconFormat:
    """A beacon rule: each part is a frame, and must match a pattern."""

    name: str
    parts: tuple[tuple[str, re.Pattern[bytes]], ...]

    @classmethod
    def compile(cls, name: str, rules: Mapping[str, Expression]) -> BeaconFormat:
        """The format of the rule `name`. Raises `GrammarError`."""
        expression = rules.get(name)
        if not isinstance(expression, InOrder) or not all(isinstance(part, Reference) for part in expression.parts):
            raise GrammarError(f"the rule {name} must be a row of names, one for each frame")
        names = [part.rule for part in expression.parts if isinstance(part, Reference)]
        return cls(name, tuple((part, re.compile(_pattern(rules[part], rules), re.DOTALL)) for part in names))

    def decode(self, frames: Sequence[bytes]) -> dict[str, bytes]:
        """The beacon's parts by name. Raises `FrameError`: of several faults, for one that is not the address's."""
        values = self.split(frames)
        faulty = [name for name, pattern in self.parts if not pattern.fullmatch(values[name])]
        if faulty:
            name = next((each for each in faulty if each != "uuid"), faulty[0])
            raise FrameError(self.name, name, f"{values[name][:64]!r} is no {name} as the grammar has it")
        return values

    def split(self, frames: Sequence[bytes]) -> dict[str, bytes]:
        """The parts by name, whatever they are. Raises `FrameError` where there are too few or too many."""
        if len(frames) != len(self.parts):
            names = ", ".join(name for name, _ in self.parts)
            text = f"a {self.name} has {len(self.parts)} frames ({names}), this one has {len(frames)}"
            raise FrameError(self.name, "frames", text)
        return {name: frame for (name, _), frame in zip(self.parts, frames, strict=True)}


def _pattern(expression: Expression, rules: Mapping[str, Expression]) -> bytes:
    """The regular expression for a rule that refers to no rule that contains itself."""
    if isinstance(expression, Octets):
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
