from __future__ import annotations

from pathlib import Path

import pytest

from dafka_conformance.grammar.rules import (
    Bytes,
    Choice,
    GrammarError,
    Range,
    Reference,
    Repeat,
    Sequence,
    parse_rules,
    read_rules,
)
from dafka_conformance.model import Role

A, B = Bytes(b"a"), Bytes(b"b")


def test_expression_is_read() -> None:
    cases: list[tuple[str, object]] = [
        ('"a"', A),
        ("%d'M'", Bytes(b"M")),
        ("%xAA.A5", Bytes(b"\xaa\xa5")),
        ("%d65", Bytes(b"A")),
        ("%x30-39", Range(0x30, 0x39)),
        ('"a" "b"', Sequence((A, B))),
        ('"a" / "b"', Choice((A, B))),
        ('[ "a" ]', Repeat(A, 0, 1)),
        ('*"a"', Repeat(A, 0, None)),
        ('1*"a"', Repeat(A, 1, None)),
        ('2*3"a"', Repeat(A, 2, 3)),
        ('4"a"', Repeat(A, 4, 4)),
        ('"a" / "b" "a"', Choice((A, Sequence((B, A))))),
        ('("a" / "b") "a"', Sequence((Choice((A, B)), A))),
        ("4OCTET", Repeat(Reference("OCTET"), 4, 4)),
        ("S:other", Reference("other", Role.STORE)),
        (
            "P:other *( C:other )",
            Sequence((Reference("other", Role.PRODUCER), Repeat(Reference("other", Role.CONSUMER), 0, None))),
        ),
    ]
    for right_side, expression in cases:
        assert parse_rules(f'rule = {right_side} ; a comment with S:"quotes"\nother = "b"\n')["rule"] == expression


def test_rules_keep_their_order_and_may_be_repeated() -> None:
    rules = parse_rules('one = two ; first\n\n; between\ntwo = "a"\n      "b" ; goes on\none = two\n')
    assert list(rules) == ["one", "two"]
    assert rules["two"] == Sequence((A, B))


def test_faulty_grammar_is_one_sentence() -> None:
    for text, message in [
        ('one = "a"\ntwo = ( "a"\nthree = "b"\n', "grammar is not ABNF: two = ("),
        ('one = "a"\none = "b"\n', "grammar has two different definitions of one"),
        ("one = two\n", "the rule one refers to two, which is not defined"),
        ("one = S:two\n", "the rule one refers to two, which is not defined"),
    ]:
        with pytest.raises(GrammarError, match=message.replace("(", r"\(")):
            parse_rules(text)


def test_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(GrammarError, match="cannot read the grammar"):
        read_rules(tmp_path / "none.abnf")
