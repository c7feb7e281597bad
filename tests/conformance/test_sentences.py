from __future__ import annotations

import re
from collections.abc import Iterator

import attrs
import pytest

from dafka_conformance.grammar import Grammar, GrammarError, NamedSentence, Terminal
from dafka_conformance.grammar.rules import Choice, Expression, Reference, Repeat, Sequence, parse_rules
from dafka_conformance.grammar.sentences import all_sentences
from dafka_conformance.interpreters.sentence_parts import SentencePart, assign_parts
from dafka_conformance.model import Role

GRAMMAR = Grammar.load()


def sentences_of(right_side: str, *more: str) -> list[str]:
    messages = "".join(f"{name} = %d'{name}'\n" for name in "ABCD")
    rules = parse_rules(f"DAFKA = {right_side}\n" + "\n".join(more) + "\n" + messages)
    return [str(sentence) for sentence in all_sentences(rules)]


def test_expansion() -> None:
    cases: list[tuple[str, list[str]]] = [
        ("P:A S:B", ["P:A S:B"]),
        ("P:A [ S:B ]", ["P:A", "P:A S:B"]),
        ("P:A / S:B", ["P:A", "S:B"]),
        ("*( P:A )", ["P:A", "P:A P:A", "P:A P:A P:A P:A P:A"]),
        ("1*2( P:A )", ["P:A", "P:A P:A"]),
        ("3( P:A )", []),
        ("1*2( P:A / S:B )", ["P:A", "S:B", "P:A S:B", "S:B P:A", "P:A P:A", "S:B S:B"]),
        ("1*2( P:A / S:B / C:C )", ["P:A", "S:B", "C:C", "P:A S:B", "C:C P:A"]),
    ]
    for right_side, expected in cases:
        assert sentences_of(right_side) == expected


def pattern_of(expression: Expression) -> str:
    """Return a regular expression for the sentences of a traffic expression, each terminal followed by a space."""
    if isinstance(expression, Reference):
        is_message = expression.role is not None
        return re.escape(f"{expression}") if is_message else pattern_of(GRAMMAR.rules[expression.rule])
    if isinstance(expression, Repeat):
        most = "" if expression.most is None else expression.most
        return f"(?:{pattern_of(expression.part)}){{{expression.least},{most}}}"
    assert isinstance(expression, (Choice, Sequence))
    return f"(?:{('|' if isinstance(expression, Choice) else '').join(map(pattern_of, expression.parts))})"


def narrower(expression: Expression) -> Iterator[Expression]:
    """Yield the expression without one alternative at a time."""
    if isinstance(expression, Reference) and expression.role is None:
        yield from narrower(GRAMMAR.rules[expression.rule])
    elif isinstance(expression, (Choice, Sequence)):
        for place, part in enumerate(expression.parts):
            before, after = expression.parts[:place], expression.parts[place + 1 :]
            if isinstance(expression, Choice):
                yield Choice((*before, *after))
            yield from (type(expression)((*before, less, *after)) for less in narrower(part))
    elif isinstance(expression, Repeat):
        yield from (attrs.evolve(expression, part=less) for less in narrower(expression.part))


def traffic_rules() -> list[str]:
    return sorted({sentence.rule for sentence in GRAMMAR.sentences})


@pytest.mark.parametrize("name", traffic_rules())
def test_sentences_have_every_alternative_of_their_rule_and_nothing_else(name: str) -> None:
    rule = GRAMMAR.rules[name]
    spoken = ["".join(f"{Reference(t.message, t.role)}" for t in sentence.terminals) for sentence in GRAMMAR.sentences]
    own = [text for text, sentence in zip(spoken, GRAMMAR.sentences, strict=True) if sentence.rule == name]
    assert all(re.fullmatch(pattern_of(rule), text) for text in own)
    in_rule = [text for text in spoken if re.fullmatch(pattern_of(rule), text)]
    for less in narrower(rule):
        assert any(not re.fullmatch(pattern_of(less), text) for text in in_rule), f"{name}: all are in {less}"


def test_every_rule_of_the_start_rule_has_sentences_and_every_message_is_sent() -> None:
    start = GRAMMAR.rules["DAFKA"]
    assert isinstance(start, Choice)
    assert traffic_rules() == sorted(part.rule for part in start.parts if isinstance(part, Reference))
    sent = {terminal.message for sentence in GRAMMAR.sentences for terminal in sentence.terminals}
    assert sent == GRAMMAR.formats.by_name.keys()


def test_sentences_are_named_by_their_rule_and_unique() -> None:
    rules = parse_rules("DAFKA = one / two\none = [ P:A ]\ntwo = P:A / S:A\nA = %d'A'\n")
    assert [sentence.name for sentence in all_sentences(rules)] == ["one.01", "two.01"]


def test_wrong_traffic_rule_is_one_sentence() -> None:
    for grammar, text in [
        ("one = P:one\n", "no rule DAFKA"),
        ("DAFKA = one\none = [ DAFKA ]\n", "contains itself"),
        ('DAFKA = "a"\n', "messages with a role prefix"),
    ]:
        with pytest.raises(GrammarError, match=text):
            all_sentences(parse_rules(grammar))


def test_every_terminal_of_a_role_is_in_one_of_its_parts() -> None:
    for role in (Role.PRODUCER, Role.CONSUMER, Role.STORE):
        parts = [part for sentence in GRAMMAR.sentences for part in assign_parts(sentence, role)]
        sent = {step.message for part in parts for step in part.steps if step.is_target}
        mine = {t.message for sentence in GRAMMAR.sentences for t in sentence.terminals if t.role is role}
        assert sent == mine


def parts_of(text: str, role: Role) -> list[SentencePart]:
    terminals = tuple(Terminal(Role(word[0]), word[2:]) for word in text.split())
    return list(assign_parts(NamedSentence("rule", 1, terminals), role))


def script(part: SentencePart) -> list[str]:
    return [f"{'!' if step.is_target else step.sender} {step.message} {step.partition}" for step in part.steps]


def test_store_takes_the_fetching_part_and_the_answering_part() -> None:
    fetching, answering = parts_of("P:RECORD S:FETCH S:DIRECT-RECORD S:ACK", Role.STORE)
    assert script(fetching) == ["P1 RECORD 0", "! FETCH 0", "S2 DIRECT-RECORD 0", "! ACK 0"]
    assert script(answering) == ["P1 RECORD 0", "S2 FETCH 0", "! DIRECT-RECORD 0", "S2 ACK 0"]
    assert [step.is_for_target for step in answering.steps] == [False, True, False, False]
    assert [step.missing for step in answering.steps] == [1, 1, 1, 1]


def test_each_direct_head_has_its_own_partition() -> None:
    (part,) = parts_of("C:GET-HEADS S:DIRECT-HEAD P:DIRECT-HEAD", Role.PRODUCER)
    assert script(part) == ["C GET-HEADS 0", "S2 DIRECT-HEAD 0", "! DIRECT-HEAD 1"]
    assert part.partition_count == 2


def test_answers_are_counted_from_their_fetch() -> None:
    text = "P:HEAD C:FETCH P:DIRECT-RECORD S:DIRECT-RECORD"
    (part,) = parts_of(text, Role.CONSUMER)
    assert [(step.missing, step.answer_count) for step in part.steps] == [(2, 0), (2, 0), (2, 0), (2, 1)]
    assert not any(step.is_for_target for step in part.steps)


def test_role_that_sends_nothing_has_no_part() -> None:
    assert parts_of("P:RECORD", Role.STORE) == []
