"""The checks of every message in every scenario."""

from __future__ import annotations

import pytest

from dafka_conformance.grammar import Grammar, Message, Value
from dafka_conformance.model import Dialect, Role
from dafka_conformance.testbed.known_records import KnownRecords, record_content
from dafka_conformance.testbed.message_checks import MessageChecks
from dafka_conformance.testbed.trace import Trace

GRAMMAR = Grammar.load()
ME, P, C, S = b"M" * 32, b"P" * 32, b"C" * 32, b"S" * 32
TOPIC = b"hello"


class Bench:
    """Message checks with a producer, a consumer and a store, and their findings."""

    def __init__(self, role: Role, dialect: Dialect = Dialect.RFC46) -> None:
        self.role, self.dialect = role, dialect
        self.findings: list[tuple[str, str]] = []
        self.readings: list[str] = []
        self.trace = Trace(lambda: 0.0)
        self.known_records = KnownRecords()
        self.message_checks = MessageChecks(
            GRAMMAR, self.role, self.dialect, self.known_records, self.trace, self.report
        )
        self.message_checks.addresses.add(ME)
        self.message_checks.peers.update({P: Role.PRODUCER, C: Role.CONSUMER, S: Role.STORE})
        for address, label in ((ME, self.role.value), (P, "P1"), (C, "C1"), (S, "S1")):
            self.trace.name_node(address, label)

    def report(self, clause: str, message: str, event: int, field: str = "", reading: str = "") -> None:
        self.trace.mark_fault(event, message, field)
        self.findings.append((clause, message))
        self.readings.append(reading)

    def publish(self, *sequences: int, partition: bytes = P, topic: bytes = TOPIC) -> None:
        for sequence in sequences:
            content = record_content(partition, sequence)
            self.known_records.partition(partition, topic).add(sequence, content)
            values: dict[str, Value] = {
                "address": partition,
                "subject": topic,
                "sequence": sequence,
                "content": content,
            }
            self.message_checks.record_sent(Role.PRODUCER, Message("RECORD", topic, values))

    def fetch(self, sequence: int, count: int, partition: bytes = P, role: Role = Role.CONSUMER) -> None:
        self.known_records.add_fetch(C, partition, sequence, count)
        values: dict[str, Value] = {"address": C, "subject": TOPIC, "sequence": sequence, "count": count}
        self.message_checks.record_sent(role, Message("FETCH", partition, values))

    def receive(self, name: str, topic: bytes, **values: Value) -> None:
        fields: dict[str, Value] = {
            "address": ME,
            "subject": TOPIC,
            "sequence": 0,
            "count": 1,
            "content": b"",
            "subjects": (TOPIC,),
        }
        wanted = GRAMMAR.formats.by_name[name].field_names
        message = Message(name, topic, {field: (fields | values)[field] for field in wanted})
        self.message_checks.check_message(GRAMMAR.formats.encode(message, self.dialect), self.role.value)

    @property
    def clauses(self) -> list[str]:
        return [clause for clause, _ in self.findings]


def store() -> Bench:
    bench = Bench(Role.STORE)
    bench.publish(0, 1, 2)
    return bench


def reverse(number: int) -> int:
    return int.from_bytes(number.to_bytes(8, "big"), "little")


def test_sequence_in_reverse_byte_order() -> None:
    bench = store()
    bench.receive("ACK", P, sequence=reverse(2))
    assert bench.findings == [
        (
            "number.byte-order",
            "the sequence of ACK is 144,115,188,075,855,872, which is 2 with its bytes in reverse order: "
            "numbers are big-endian",
        )
    ]


def test_large_sequence_that_the_target_may_have_got_is_not_taken_for_a_reversed_one() -> None:
    bench = store()
    bench.publish(reverse(2))
    bench.receive("ACK", P, sequence=reverse(2))
    assert bench.clauses == ["ack.no-gap"]


def test_acks_up_to_the_gap_are_fine() -> None:
    bench = store()
    bench.publish(5)
    bench.receive("ACK", P, sequence=0)
    bench.receive("ACK", P, sequence=2)
    assert bench.findings == []
    assert {
        "grammar.ACK",
        "topic.ACK",
        "ack.no-gap",
        "ack.address",
        "signature.sent",
    } <= bench.message_checks.checked_clauses()


@pytest.mark.parametrize(
    ("topic", "values", "clause", "message"),
    [
        (P, {"sequence": 3}, "ack.no-gap", "ACK of 3, but only 0..2 were sent without a gap"),
        (ME, {"sequence": 1}, "topic.ACK", "the topic frame of ACK is S, which is not a partition's address"),
        (P, {"subject": b"other"}, "subject.sent", "the subject of ACK is other, not the partition's topic hello"),
        (P, {"address": P}, "ack.address", "the address of ACK is P1, not that of the store that sent it"),
    ],
)
def test_faulty_ack(topic: bytes, values: dict[str, Value], clause: str, message: str) -> None:
    bench = store()
    bench.receive("ACK", topic, **values)
    assert (clause, message) in bench.findings


def test_reading_of_a_faulty_ack_is_recorded() -> None:
    bench = store()
    bench.receive("ACK", P, address=P)
    assert bench.readings == ["partition"]


def test_ack_without_a_record_is_out_of_order() -> None:
    bench = Bench(Role.STORE)
    bench.known_records.partition(P, TOPIC)
    bench.receive("ACK", P)
    assert set(bench.clauses) == {"grammar.traffic", "ack.no-gap"}


def answers(*sequences: int, **values: Value) -> Bench:
    bench = store()
    bench.fetch(0, 3)
    for sequence in sequences:
        content = record_content(P, sequence)
        fields: dict[str, Value] = {"address": P, "sequence": sequence, "content": content}
        bench.receive("DIRECT-RECORD", C, **fields | values)
    return bench


@pytest.mark.parametrize(
    ("sequences", "clauses"),
    [
        ((0, 1, 2), []),
        ((0, 1, 2, 0, 1), []),
        ((2, 1, 0), ["direct-record.ascending"]),
        ((0, 2), ["direct-record.ascending"]),
        ((0, 1, 2, 3), ["fetch.count"]),
    ],
)
def test_order_of_answers(sequences: tuple[int, ...], clauses: list[str]) -> None:
    assert answers(*sequences).clauses == clauses


@pytest.mark.parametrize(
    ("values", "clause"),
    [
        ({"content": b"another"}, "direct-record.content"),
        ({"address": ME}, "direct-record.address"),
        ({"subject": b"other"}, "subject.sent"),
    ],
)
def test_faulty_answer(values: dict[str, Value], clause: str) -> None:
    assert clause in answers(0, **values).clauses


def test_answer_to_an_unknown_requestor_has_a_reading() -> None:
    bench = store()
    bench.fetch(0, 1)
    bench.receive("DIRECT-RECORD", P, address=P, content=record_content(P, 0))
    assert "grammar.traffic" in bench.clauses
    bench.receive("DIRECT-RECORD", ME, address=P, content=record_content(P, 0))
    assert bench.readings[bench.clauses.index("topic.DIRECT-RECORD")] == "prose"


def test_direct_head_beyond_the_head() -> None:
    bench = store()
    bench.receive("DIRECT-HEAD", C, address=P, sequence=3)
    assert bench.findings == [
        ("direct-head.last-offset", "DIRECT-HEAD has the offset 3, but the partition's head is 2")
    ]


def producer(*sequences: int) -> Bench:
    bench = Bench(Role.PRODUCER)
    for sequence in sequences:
        bench.receive("RECORD", TOPIC, sequence=sequence, content=b"%d" % sequence)
    return bench


def test_offsets_of_records() -> None:
    assert producer(0, 1, 2).findings == []
    assert producer(1).findings == [("sequence.first", "RECORD has the offset 1, expected 0")]
    assert producer(0, 2, 3).findings == [("sequence.increment", "RECORD has the offset 2, expected 1")]
    assert producer(0, 1, 1).clauses == ["sequence.increment"]


def test_head_must_have_the_last_offset() -> None:
    bench = producer(0, 1)
    bench.receive("HEAD", TOPIC, sequence=1)
    assert bench.findings == []
    bench.receive("HEAD", TOPIC, sequence=0)
    assert bench.findings == [("head.last-offset", "HEAD has the offset 0, expected 1, the last published record's")]
    early = Bench(Role.PRODUCER)
    early.receive("HEAD", TOPIC)
    assert early.clauses == ["head.after-first-record"]


def test_address_and_topic_frame_of_a_record() -> None:
    bench = Bench(Role.PRODUCER)
    bench.receive("RECORD", b"hello2", address=P)
    assert set(bench.clauses) == {"record.address", "topic.RECORD"}


def test_message_of_another_role() -> None:
    bench = producer(0)
    bench.receive("ACK", ME)
    assert ("grammar.roles", "a producer sent ACK, which the grammar allows for store") in bench.findings


def test_hello_without_topics() -> None:
    bench = Bench(Role.CONSUMER)
    bench.message_checks.record_sent(Role.STORE, Message("STORE-HELLO", ME, {"address": S}))
    bench.receive("CONSUMER-HELLO", S, subjects=())
    assert bench.clauses == ["consumer-hello.not-empty"]
    bench.receive("CONSUMER-HELLO", b"", subjects=(TOPIC,))
    assert bench.clauses[1:] == ["topic.CONSUMER-HELLO"]


def test_topic_of_a_fetch() -> None:
    bench = Bench(Role.CONSUMER)
    bench.publish(3)
    bench.receive("FETCH", P, count=3)
    assert bench.findings == []
    bench.receive("FETCH", ME, count=3)
    assert bench.readings[bench.clauses.index("topic.FETCH")] == "prose"


@pytest.mark.parametrize("subject", [TOPIC, b"hello2"])
def test_fetch_of_another_topic(subject: bytes) -> None:
    bench = Bench(Role.CONSUMER)
    bench.message_checks.consumed_topic = TOPIC
    bench.publish(3, topic=b"hello2")
    bench.receive("FETCH", P, count=3, subject=subject)
    assert bench.findings == [("subject.exact", "a consumer of hello requested records of hello2")]


def test_fetch_with_another_subject() -> None:
    bench = Bench(Role.CONSUMER)
    bench.message_checks.consumed_topic = TOPIC
    bench.publish(3)
    bench.receive("FETCH", P, count=3, subject=b"hello2")
    assert bench.findings == [("subject.sent", "the subject of FETCH is hello2, not the partition's topic hello")]


def test_wrong_dialect() -> None:
    bench = Bench(Role.PRODUCER)
    frames = GRAMMAR.formats.encode(
        Message("RECORD", TOPIC, {"address": ME, "subject": TOPIC, "sequence": 0, "content": b""}), Dialect.LIBDAFKA
    )
    bench.message_checks.check_message(frames, "P")
    assert bench.clauses == ["grammar.dialect"]


@pytest.mark.parametrize(
    ("frames", "clause"),
    [
        ([b"Mhello", b"M\1\1P", b""], "signature.sent"),
        ([b"Mhello", b"\xaa\xa5M", b""], "version.sent"),
        ([b"Zhello", b"\xaa\xa5Z\1"], "topic-frame.first"),
        ([b"Mhello", b"\xaa\xa5M\1", b""], "grammar.RECORD"),
    ],
)
def test_frames_that_are_not_a_message(frames: list[bytes], clause: str) -> None:
    bench = Bench(Role.PRODUCER)
    assert bench.message_checks.check_message(frames, "P") is None
    assert bench.clauses == [clause]
    assert bench.trace.events[0].fault


def test_messages_about_an_earlier_scenario_are_ignored() -> None:
    bench = store()
    bench.message_checks.begin_scenario()
    bench.receive("ACK", P, sequence=99)
    bench.receive("DIRECT-RECORD", C, address=P)
    assert (bench.findings, bench.trace.events) == ([], [])


def test_prose_signature_is_a_finding_with_its_reading_and_the_message_is_judged_all_the_same() -> None:
    bench = Bench(Role.PRODUCER)
    message = Message("RECORD", TOPIC, {"address": ME, "subject": TOPIC, "sequence": 1, "content": b""})
    topic, fields, content = GRAMMAR.formats.encode(message, Dialect.RFC46)
    assert bench.message_checks.check_message([topic, b"\xaa\xa0" + fields[2:], content], "P")
    assert (bench.clauses, bench.readings) == (["signature.value", "sequence.first"], ["prose", ""])
    assert "signature.sent" in bench.message_checks.checked_clauses()


def test_split_partition() -> None:
    bench = Bench(Role.PRODUCER)
    for sequence in range(10):
        bench.receive("RECORD", TOPIC, sequence=sequence)
    assert bench.findings == []
    bench.receive("RECORD", TOPIC, address=S, sequence=0)
    assert bench.findings == [("partition.one", "RECORD is in the partition S1, but earlier ones are in P")]


def test_messages_that_a_malformed_message_may_have_caused_are_left_to_the_scenario() -> None:
    bench = Bench(Role.CONSUMER)
    bench.receive("CONSUMER-HELLO", b"nobody")
    assert set(bench.clauses) == {"topic.CONSUMER-HELLO", "grammar.traffic"}
    bench.findings.clear()
    bench.message_checks.record_malformed()
    bench.receive("CONSUMER-HELLO", b"nobody")
    assert bench.findings == []
    bench.message_checks.begin_scenario()
    bench.receive("CONSUMER-HELLO", b"nobody")
    assert "topic.CONSUMER-HELLO" in bench.clauses
