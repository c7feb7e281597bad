from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from dafka_conformance.clauses import ClauseError, Clauses, UnknownClauseError
from dafka_conformance.model import Clause, Layer, Level, Role

# The sentences of RFC 46 that hold a keyword, by heading, counted by hand. A sentence with two different keywords
# counts for both. "SHALL not" is SHALL NOT; the lower-case "shall" of the version is a SHALL.
SENTENCES: dict[str, dict[Level, int]] = {
    "Node Discovery and Presence": {Level.SHALL: 2},
    "Interconnection Model": {Level.SHALL: 6, Level.MAY: 1},
    "Topics, Partitions and Records": {Level.SHALL_NOT: 1, Level.RECOMMENDED: 1, Level.MUST: 1, Level.SHALL: 5},
    "Protocol Signature": {Level.SHALL: 2},
    "Versioning": {Level.SHALL: 2},
    "Dafka Commands": {Level.MUST: 1},
    "The STORE-HELLO Command": {Level.SHALL: 1},
    "The CONSUMER-HELLO Command": {Level.SHOULD: 1, Level.MUST_NOT: 1},
    "The RECORD Command": {Level.SHALL: 1, Level.MUST_NOT: 1},
    "The ACK Command": {Level.SHALL: 1},
    "The HEAD Command": {Level.SHALL: 1},
    "The FETCH Command": {Level.SHALL: 1},
    "The DIRECT-RECORD Command": {Level.SHALL: 3},
    "The GET-HEADS Command": {Level.SHALL: 1},
    "The DIRECT-HEAD Command": {Level.SHALL: 2},
    "ZeroMQ Subscriptions": {Level.MUST: 1},
    "Producer Subscriptions": {Level.SHALL: 2},
    "Consumer Subscriptions": {Level.SHALL: 5, Level.MAY: 1},
    "Store Subscriptions": {Level.SHALL: 6},
}
BATCH_SENTENCES: dict[str, dict[Level, int]] = {
    "Record Batches": {Level.MUST: 12, Level.MUST_NOT: 1, Level.SHOULD: 3},
    "Positions by Time": {Level.MUST: 6, Level.MUST_NOT: 1},
}
"""Those of docs/spec/record-batches.md and docs/spec/positions-by-time.md."""
SECTIONS_WITHOUT_KEYWORD = {"Node Identification and Life-cycle", "Protocol Grammar"}

MESSAGES = {
    "RECORD": {Role.PRODUCER},
    "DIRECT-RECORD": {Role.PRODUCER, Role.STORE},
    "FETCH": {Role.CONSUMER, Role.STORE},
    "ACK": {Role.STORE},
    "HEAD": {Role.PRODUCER},
    "DIRECT-HEAD": {Role.PRODUCER, Role.STORE},
    "GET-HEADS": {Role.CONSUMER},
    "CONSUMER-HELLO": {Role.CONSUMER},
    "STORE-HELLO": {Role.STORE},
}

CONTRADICTIONS = {
    "signature.value": "grammar",
    "version.value": "grammar",
    "topic.FETCH": "grammar",
    "topic.HEAD": "grammar",
    "topic.DIRECT-RECORD": "grammar",
    "topic.DIRECT-HEAD": "subscription",
    "topic.any-bytes": "prose",
    "topic.length": "grammar",
    "direct-head.producer": "prose",
    "ack.address": "store",
    "ack.cumulative": "cumulative",
    "address.uuid": "hexadecimal",
    "consumer-hello.not-empty": "prose",
}

VALID = """
[[clause]]
id = "ack.sent"
section = "The ACK Command"
level = "SHALL"
text = "A store acknowledges."
roles = ["store"]
"""
READINGS = 'readings = { store = "One.", partition = "Another." }\n'


@pytest.fixture(scope="module")
def table() -> Clauses:
    return Clauses.load()


def load_text(folder: Path, text: str) -> Clauses:
    path = folder / "table.toml"
    path.write_text(text, encoding="utf-8")
    return Clauses.load(path)


# ---- The loader


def test_clause_has_the_values_of_its_table(tmp_path: Path) -> None:
    extra = READINGS + 'holds = "store"\nerratum = 7\nlayer = "form"\nuntestable = "Unseen."\n'
    (clause,) = load_text(tmp_path, VALID + extra)
    assert clause == Clause(
        "ack.sent",
        "The ACK Command",
        Level.SHALL,
        "A store acknowledges.",
        (Role.STORE,),
        untestable="Unseen.",
        readings={"store": "One.", "partition": "Another."},
        holds="store",
        erratum=7,
        layer=Layer.FORM,
    )


def test_clauses_are_found_by_id_and_keep_their_order(tmp_path: Path) -> None:
    second = VALID.replace("ack.sent", "aaa.first") + 'untestable = "Unseen."\n'
    clauses = load_text(tmp_path, VALID + second)
    assert [clause.id for clause in clauses] == ["ack.sent", "aaa.first"]
    assert len(clauses) == 2
    assert "aaa.first" in clauses
    assert "aaa" not in clauses
    assert clauses.get("aaa.first").id == "aaa.first"
    assert [clause.id for clause in clauses.testable()] == ["ack.sent"]


def test_unknown_clause_suggests_similar_ids(table: Clauses) -> None:
    with pytest.raises(UnknownClauseError, match=r"no clause 'ack.snet'; did you mean .*ack\.sent") as caught:
        table.get("ack.snet")
    assert caught.value.id == "ack.snet"
    with pytest.raises(UnknownClauseError, match="no clause 'zzzzz'; run dafka-conformance list --clauses"):
        table.get("zzzzz")


def test_error_in_the_file_is_one_sentence(tmp_path: Path) -> None:
    for text, message in [
        (VALID + VALID, "clause 'ack.sent' is defined twice"),
        (VALID + 'roels = ["store"]\n', "clause 'ack.sent' has the unknown key 'roels': expected id, section"),
        (VALID.replace("SHALL", "shall"), "unknown level 'shall': expected MUST, .* or usual"),
        (VALID + 'layer = "shape"\n', "unknown layer 'shape': expected form, connection, .* or behavior"),
        (VALID.replace('["store"]', '["shop"]'), "unknown role 'shop': expected tower, producer, consumer or store"),
        (VALID.replace('["store"]', '["store", "store"]'), "the role 'store' twice"),
        (VALID.replace('["store"]', "[]"), r"roles is \[\]: expected a list of roles"),
        (VALID.replace('["store"]', '"store"'), "roles is 'store': expected a list of roles"),
        (VALID.replace('text = "A store acknowledges."', ""), "clause 'ack.sent' has no text: add it"),
        (VALID.replace('id = "ack.sent"', ""), "clause no. 1 has no id: add it"),
        (VALID.replace("ack.sent", "ack sent"), "expected an id of words"),
        (VALID.replace("A store acknowledges.", ""), "text is '': expected a text"),
        (VALID + "erratum = true\n", "erratum is True: expected a number"),
        (VALID + "erratum = -1\n", "erratum is -1: expected a number above 0"),
        (VALID + READINGS, "has readings but no 'holds': expected store or partition"),
        (VALID + READINGS + 'holds = "stroe"\n', "'holds' is 'stroe': expected store or"),
        (VALID + 'holds = "store"\n', "'holds' is 'store': expected no 'holds'"),
        (VALID + 'readings = { store = "One." }\nholds = "store"\n', "only one reading"),
        (VALID + 'readings = { store = 1, partition = "Two." }\nholds = "store"\n', "the reading 'store' is 1"),
        ('title = "Clauses"\n' + VALID, "unknown table 'title'"),
        ("[clause]\nid = 1\n", r"expected each clause as a table \[\[clause\]\]"),
        ("[[clause]\n", "is not TOML"),
    ]:
        with pytest.raises(ClauseError, match=message) as caught:
            load_text(tmp_path, text)
        assert str(caught.value).startswith(str(tmp_path / "table.toml"))
        assert "\n" not in str(caught.value)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ClauseError, match=r"cannot read .*none\.toml"):
        Clauses.load(tmp_path / "none.toml")


def test_file_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    (tmp_path / "table.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ClauseError, match=r"table\.toml is not TOML"):
        Clauses.load(tmp_path / "table.toml")


# ---- The table of RFC 46


def test_every_sentence_with_a_keyword_has_a_clause(table: Clauses) -> None:
    assert sum(sum(levels.values()) for levels in SENTENCES.values()) == 51, "50 sentences, one with two keywords"
    found = Counter((clause.section, clause.level) for clause in table)
    lacking = {
        (section, level.value): (found[section, level], count)
        for section, levels in (SENTENCES | BATCH_SENTENCES).items()
        for level, count in levels.items()
        if found[section, level] < count
    }
    assert not lacking


def test_no_clause_has_a_keyword_that_its_section_lacks(table: Clauses) -> None:
    for clause in table:
        if clause.level not in {Level.GRAMMAR, Level.DEPLOYED, Level.USUAL}:
            assert clause.level in (SENTENCES | BATCH_SENTENCES)[clause.section], clause.id


def test_every_clause_is_from_a_section_of_the_rfc_or_about_record_batches(table: Clauses) -> None:
    assert {clause.section for clause in table} == SENTENCES.keys() | BATCH_SENTENCES.keys() | SECTIONS_WITHOUT_KEYWORD


def test_every_text_is_one_unique_sentence(table: Clauses) -> None:
    for clause in table:
        for text in (clause.text, clause.untestable, *clause.readings.values()):
            assert not text or re.fullmatch(r"[A-Z].*\.", text), clause.id
            assert not re.search(r"\. [A-Z]", text), clause.id
    texts = Counter(clause.text for clause in table)
    assert max(texts.values()) == 1, texts.most_common(1)


def test_every_message_has_a_grammar_and_a_topic_clause_for_those_that_send_it(table: Clauses) -> None:
    for message, roles in MESSAGES.items():
        for name in ("grammar", "topic"):
            clause = table.get(f"{name}.{message}")
            assert clause.level is Level.GRAMMAR
            assert set(clause.roles) == roles, clause.id
        assert f"{message.lower()}.address" in table
    assert table.get("grammar.node-beacon").level is Level.GRAMMAR
    assert table.get("grammar.tower-beacon").roles == (Role.TOWER,)


def test_every_clause_with_readings_says_which_holds(table: Clauses) -> None:
    assert {clause.id: clause.holds for clause in table if clause.readings} == CONTRADICTIONS


def test_every_erratum_is_on_the_errata_page(table: Clauses) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "errata.md").read_text(encoding="utf-8")
    numbers = {int(number) for number in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    assert {clause.erratum for clause in table} - {0} <= numbers
    # What the RFC says against itself: each of those entries belongs to a clause.
    assert set(range(1, 9)) <= {clause.erratum for clause in table}


def test_few_clauses_are_untestable(table: Clauses) -> None:
    assert {clause.id for clause in table if clause.untestable} == {
        "node.durability",
        "topic.ascii",
        "batch.subscribed-first",
        "batch.counted",
    }


def test_subscription_clauses_belong_to_the_subscribing_role(table: Clauses) -> None:
    for clause in table:
        if match := re.fullmatch(r"subscription\.(\w+)\..+", clause.id):
            assert [role.title for role in clause.roles] == [match[1]]
