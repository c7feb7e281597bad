"""The sentences of the traffic rules: all expansions, with each option both ways and a few repetitions.

A sentence is a sequence of terminals, such as `P:RECORD S:FETCH P:DIRECT-RECORD S:ACK`. A repetition occurs 0, 1, 2 and
`MANY` times, as far as its bounds allow. With one repetition, each alternative gives a sentence. With more, the
alternatives alternate, so that each occurs at each count; if there are few, each also fills a whole repetition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from typing import TypeAlias

import attrs

from dafka_conformance.grammar.rules import (
    Choice,
    Expression,
    GrammarError,
    Reference,
    Repeat,
    Sequence,
)
from dafka_conformance.model import Role

START_RULE = "DAFKA"
MANY = 5
"""The number of times that stands for "many" in a repetition."""


@attrs.frozen
class Terminal:
    """A message and the role that sends it."""

    role: Role
    message: str

    def __str__(self) -> str:
        return f"{self.role.value}:{self.message}"


Sentence: TypeAlias = tuple[Terminal, ...]


@attrs.frozen
class NamedSentence:
    """A sentence with the alternative of the start rule that it belongs to."""

    rule: str
    number: int
    terminals: Sentence

    @property
    def name(self) -> str:
        """The name, such as `publish.07`."""
        return f"{self.rule}.{self.number:02}"

    def __str__(self) -> str:
        return " ".join(map(str, self.terminals))


def all_sentences(rules: Mapping[str, Expression]) -> list[NamedSentence]:
    """Expand all alternatives of the start rule.

    Args:
        rules: The rules of the grammar.

    Returns:
        The sentences, without duplicates.

    Raises:
        GrammarError: There is no start rule, or a traffic rule is wrong.
    """
    start = rules.get(START_RULE)
    if start is None:
        raise GrammarError(f"the grammar has no rule {START_RULE}: expected it as the start rule")
    alternatives = start.parts if isinstance(start, Choice) else (start,)
    named: list[NamedSentence] = []
    seen: set[Sentence] = set()
    for alternative in alternatives:
        rule = alternative.rule if isinstance(alternative, Reference) else START_RULE
        new = [sentence for sentence in expand(alternative, rules) if sentence and sentence not in seen]
        seen.update(new)
        named += [NamedSentence(rule, number, sentence) for number, sentence in enumerate(new, 1)]
    return named


def expand(expression: Expression, rules: Mapping[str, Expression], above: tuple[str, ...] = ()) -> list[Sentence]:
    """Return the sentences of one traffic expression, without duplicates. Raise `GrammarError` if it is wrong."""
    if isinstance(expression, Reference):
        if expression.role is not None:
            return [(Terminal(expression.role, expression.rule),)]
        if expression.rule in above:
            raise GrammarError(f"the traffic rule {expression.rule} contains itself")
        return expand(rules[expression.rule], rules, (*above, expression.rule))
    if isinstance(expression, Choice):
        return _unique(sentence for part in expression.parts for sentence in expand(part, rules, above))
    if isinstance(expression, Sequence):
        parts = [expand(part, rules, above) for part in expression.parts]
        return _unique(sum(chosen, ()) for chosen in product(*parts))
    if isinstance(expression, Repeat):
        alternatives = expand(expression.part, rules, above)
        return _unique(sentence for count in _counts(expression) for sentence in _repeated(alternatives, count))
    raise GrammarError(
        "a traffic rule is wrong: expected messages with a role prefix, such as S:ACK, and other such rules"
    )


def _counts(repeat: Repeat) -> list[int]:
    return [
        count for count in (0, 1, 2, MANY) if count >= repeat.least and (repeat.most is None or count <= repeat.most)
    ]


def _repeated(alternatives: list[Sentence], count: int) -> Iterable[Sentence]:
    if count == 0:
        yield ()
        return
    size = len(alternatives)
    for start in range(0, size, 1 if size <= count else count):
        yield sum((alternatives[(start + turn) % size] for turn in range(count)), ())
    if size <= count:
        yield from (alternative * count for alternative in alternatives)


def _unique(sentences: Iterable[Sentence]) -> list[Sentence]:
    return list(dict.fromkeys(sentences))
