from __future__ import annotations

from pathlib import Path

import pytest

from dafka_conformance.grammar import Grammar, Message
from dafka_conformance.interpreters.script_runner import read_scenarios, tamper
from dafka_conformance.interpreters.script_steps import ScriptError, read_step
from dafka_conformance.model import Dialect, Role
from dafka_conformance.targets.base import Ability, Reset

FORMATS = Grammar.load().formats


def test_step_is_read() -> None:
    cases: list[tuple[str, str, dict[str, object]]] = [
        ("given P holds 0..9", "holds", {"node": "P", "first": 0, "last": 9}),
        ("given S2 holds 3 of P2", "holds", {"node": "S2", "first": 3, "last": 3, "of": "P2"}),
        ("given S stored 0..9 of P", "stored", {"node": "S", "last": 9, "of": "P"}),
        ("given P published 10", "published", {"count": 10}),
        ('given P2 on "other"', "on", {"node": "P2", "values": {"topic": '"other"'}}),
        ("given C2", "joins", {"node": "C2"}),
        ("when P publishes 3", "publishes", {"count": 3}),
        ("when P2 leaves", "leaves", {"node": "P2"}),
        ("when S is killed", "killed", {"node": "S"}),
        ("when S restarts", "restarts", {"node": "S"}),
        ("when the tower restarts", "tower", {}),
        ("when 1.5 s pass", "pass", {"seconds": 1.5}),
        ("when P:RECORD 0..9", "send", {"node": "P", "message": "RECORD", "first": 0, "last": 9}),
        ('when P:HEAD 3 subject="a b"', "send", {"first": 3, "values": {"subject": '"a b"'}}),
        ("then S:ACK 9 topic=P [ack.sent, topic.ACK]", "send", {"clauses": ("ack.sent", "topic.ACK")}),
        ("then C delivers 0..9 of P2", "delivers", {"of": "P2", "last": 9}),
        (
            "then S subscribes CONSUMER-HELLO topic=S",
            "subscribes",
            {"message": "CONSUMER-HELLO", "values": {"topic": "S"}},
        ),
        ("then S lives [robust.malformed]", "lives", {"clauses": ("robust.malformed",)}),
        ("never S:ACK topic=P2", "send", {"keyword": "never"}),
    ]
    for text, action, fields in cases:
        step = read_step(text)
        assert step.action == action
        assert {name: getattr(step, name) for name in fields} == fields


def test_wrong_step_is_one_sentence() -> None:
    for text, message in [
        ("P:RECORD 0", "expected given, when, then or never"),
        ("when P dances", "is not a step that can follow 'when'"),
        ("given P leaves", "is not a step that can follow 'given'"),
        ("never S lives", "is not a step that can follow 'never'"),
        ("when P:RECORD 0 now", "expected a sequence such as 3 or 0..9, or field=value, not 'now'"),
        ("when Q:RECORD 0", "is not a step that can follow 'when'"),
    ]:
        with pytest.raises(ScriptError, match=message):
            read_step(text)


SCENARIO = """
[[scenario]]
name = "store.one"
title = "One."
clauses = ["ack.sent"]
steps = ["when P:RECORD 0", "then S:ACK 0 [ack.no-gap]", "when S is killed"]
dialects = ["rfc46"]
topic = "odd"

[[scenario]]
name = "consumer.two"
title = "Two."
clauses = ["delivery.once"]
steps = ["then C delivers 0 of P"]
reset = "latest"
"""


def test_scenarios_know_what_they_need(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(SCENARIO)
    one, two = read_scenarios(path)
    assert (one.role, one.clauses, one.dialects, one.topic) == (
        Role.STORE,
        ("ack.sent", "ack.no-gap"),
        (Dialect.RFC46,),
        b"odd",
    )
    assert one.needs == {Ability.KILL, Ability.CHOOSE_TOPIC}
    assert (two.reset, two.topic) == (Reset.LATEST, None)
    assert two.needs == {Ability.COLLECT, Ability.LATEST}


def test_faulty_file_is_one_sentence(tmp_path: Path) -> None:
    for old, new, message in [
        ('title = "One."', "", "store.one: the key title is missing"),
        ('title = "One."', 'title = "One."\nspeed = 1', "store.one: the key speed is unknown"),
        ('name = "store.one"', 'name = "shop.one"', "shop.one: expected a name that begins with a role"),
        ("when P:RECORD 0", "when P:RECORD x", "expected a sequence"),
        ("[[scenario]]", "[[scenario", "cannot read the scenarios of"),
    ]:
        path = tmp_path / "s.toml"
        path.write_text(SCENARIO.replace(old, new))
        with pytest.raises(ScriptError, match=message):
            read_scenarios(path)


RECORD = Message("RECORD", b"t", {"address": b"A", "subject": b"t", "sequence": 1, "content": b"c"})
FIELDS = "01 41 01 74 0000000000000001"


def test_tampering() -> None:
    cases: list[tuple[dict[str, str], list[str], list[str]]] = [
        ({"version": "02"}, ["4D74", f"AAA54D 02 {FIELDS}", "63"], [f"4D7400 02 {FIELDS}", "63"]),
        ({"signature": "AAA0"}, ["4D74", f"AAA04D 01 {FIELDS}", "63"], [f"4D7400 01 {FIELDS}", "63"]),
        ({"id": "5A"}, ["5A74", f"AAA55A 01 {FIELDS}", "63"], [f"5A7400 01 {FIELDS}", "63"]),
        ({"cut": "2"}, ["4D74", f"AAA54D 01 {FIELDS[:-4]}", "63"], [f"4D7400 01 {FIELDS[:-4]}", "63"]),
        ({"append": "1"}, ["4D74", f"AAA54D 01 {FIELDS}FF", "63"], [f"4D7400 01 {FIELDS}FF", "63"]),
        ({"frames": "1"}, ["4D74", f"AAA54D 01 {FIELDS}", "63", "6D6F7265"], [f"4D7400 01 {FIELDS}", "63", "6D6F7265"]),
        ({"frames": "-1"}, ["4D74", f"AAA54D 01 {FIELDS}"], [f"4D7400 01 {FIELDS}"]),
    ]
    for how, rfc46, libdafka in cases:
        for dialect, expected in ((Dialect.RFC46, rfc46), (Dialect.LIBDAFKA, libdafka)):
            assert tamper(FORMATS.encode(RECORD, dialect), how) == [bytes.fromhex(frame) for frame in expected]
