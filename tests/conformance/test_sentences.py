from __future__ import annotations

import pytest

from dafka_conformance.grammar import Grammar, GrammarError, NamedSentence, Terminal
from dafka_conformance.grammar.notation import parse_rules
from dafka_conformance.grammar.sentences import all_sentences
from dafka_conformance.model import Role
from dafka_conformance.play.casting import Cast, cast

GRAMMAR = Grammar.load()


def sentences_of(right_side: str, *more: str) -> list[str]:
    messages = "".join(f"{name} = %d'{name}'\n" for name in "ABCD")
    rules = parse_rules(f"DAFKA = {right_side}\n" + "\n".join(more) + "\n" + messages)
    return [str(sentence) for sentence in all_sentences(rules)]


@pytest.mark.parametrize(
    ("right_side", "expected"),
    [
        ("P:A S:B", ["P:A S:B"]),
        ("P:A [ S:B ]", ["P:A", "P:A S:B"]),
        ("P:A / S:B", ["P:A", "S:B"]),
        ("*( P:A )", ["P:A", "P:A P:A", "P:A P:A P:A P:A P:A"]),
        ("1*2( P:A )", ["P:A", "P:A P:A"]),
        ("3( P:A )", []),
        (
            "1*2( P:A / S:B )",
            ["P:A", "S:B", "P:A S:B", "S:B P:A", "P:A P:A", "S:B S:B"],
        ),
        ("1*2( P:A / S:B / C:C )", ["P:A", "S:B", "C:C", "P:A S:B", "C:C P:A"]),
    ],
)
def test_expansion(right_side: str, expected: list[str]) -> None:
    assert sentences_of(right_side) == expected


def test_sentences_are_named_by_their_rule_and_unique() -> None:
    rules = parse_rules("DAFKA = one / two\none = [ P:A ]\ntwo = P:A / S:A\nA = %d'A'\n")
    assert [sentence.name for sentence in all_sentences(rules)] == ["one.01", "two.01"]


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        ("one = P:one\n", "no rule DAFKA"),
        ("DAFKA = one\none = [ DAFKA ]\n", "contains itself"),
        ('DAFKA = "a"\n', "messages with a role prefix"),
    ],
)
def test_rules_without_sentences_are_one_sentence(grammar: str, text: str) -> None:
    with pytest.raises(GrammarError, match=text):
        all_sentences(parse_rules(grammar))


def test_every_terminal_is_taken_by_every_role_that_says_it() -> None:
    for role in (Role.PRODUCER, Role.CONSUMER, Role.STORE):
        parts = [part for sentence in GRAMMAR.sentences for part in cast(sentence, role)]
        said = {line.message for part in parts for line in part.lines if line.is_target}
        mine = {t.message for sentence in GRAMMAR.sentences for t in sentence.terminals if t.role is role}
        assert said == mine


def casts(text: str, role: Role) -> list[Cast]:
    terminals = tuple(Terminal(Role(word[0]), word[2:]) for word in text.split())
    return list(cast(NamedSentence("rule", 1, terminals), role))


def script(part: Cast) -> list[str]:
    return [f"{'!' if line.is_target else line.speaker} {line.message} {line.partition}" for line in part.lines]


def test_store_is_cast_as_the_one_that_fetches_and_as_the_one_that_answers() -> None:
    fetching, answering = casts("P:RECORD S:FETCH S:DIRECT-RECORD S:ACK", Role.STORE)
    assert script(fetching) == ["P1 RECORD 0", "! FETCH 0", "S2 DIRECT-RECORD 0", "! ACK 0"]
    assert script(answering) == ["P1 RECORD 0", "S2 FETCH 0", "! DIRECT-RECORD 0", "S2 ACK 0"]
    assert [line.is_for_target for line in answering.lines] == [False, True, False, False]
    assert [line.missing for line in answering.lines] == [1, 1, 1, 1]


def test_each_direct_head_is_of_a_partition_of_its_own() -> None:
    (part,) = casts("C:GET-HEADS S:DIRECT-HEAD P:DIRECT-HEAD", Role.PRODUCER)
    assert script(part) == ["C GET-HEADS 0", "S2 DIRECT-HEAD 0", "! DIRECT-HEAD 1"]
    assert part.partition_count == 2


def test_answers_are_counted_from_their_fetch() -> None:
    text = "P:HEAD C:FETCH P:DIRECT-RECORD S:DIRECT-RECORD"
    (part,) = casts(text, Role.CONSUMER)
    assert [(line.missing, line.turn) for line in part.lines] == [(2, 0), (2, 0), (2, 0), (2, 1)]
    assert not any(line.is_for_target for line in part.lines)


def test_role_that_says_nothing_is_not_cast() -> None:
    assert casts("P:RECORD", Role.STORE) == []
