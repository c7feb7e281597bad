"""The checks of every message in every scenario."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

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

    def fetch(self, sequence: int, count: int) -> None:
        self.known_records.add_fetch(C, P, sequence, count)
        values: dict[str, Value] = {"address": C, "subject": TOPIC, "sequence": sequence, "count": count}
        self.message_checks.record_sent(Role.CONSUMER, Message("FETCH", P, values))

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
    """A store that was sent the first three records."""
    bench = Bench(Role.STORE)
    bench.publish(0, 1, 2)
    return bench


def asked_store() -> Bench:
    """A store that was also asked for them."""
    bench = store()
    bench.fetch(0, 3)
    return bench


def empty_store() -> Bench:
    bench = Bench(Role.STORE)
    bench.known_records.partition(P, TOPIC)
    return bench


def producer(*sequences: int) -> Bench:
    """A producer that has sent these records."""
    bench = Bench(Role.PRODUCER)
    for sequence in sequences:
        bench.receive("RECORD", TOPIC, sequence=sequence, content=b"%d" % sequence)
    return bench


def consumer() -> Bench:
    """A consumer of a topic that knows of later records and has greeted a store."""
    bench = Bench(Role.CONSUMER)
    bench.message_checks.consumed_topic = TOPIC
    bench.message_checks.record_sent(Role.STORE, Message("STORE-HELLO", ME, {"address": S}))
    bench.publish(3)
    return bench


def consumer_of_a_prefix() -> Bench:
    bench = Bench(Role.CONSUMER)
    bench.message_checks.consumed_topic = TOPIC
    bench.publish(3, topic=b"hello2")
    return bench


def reverse(number: int) -> int:
    return int.from_bytes(number.to_bytes(8, "big"), "little")


ASKED: dict[str, Value] = {"address": P, "content": record_content(P, 0)}
OTHER: dict[str, Value] = {"count": 3, "subject": b"hello2"}


def test_message_is_held_against_its_clauses() -> None:
    """Each finding is a clause with the beginning of its sentence. Most also violate the order, `grammar.traffic`."""
    cases: list[tuple[Callable[[], Bench], str, bytes, dict[str, Value], str]] = [
        (store, "ACK", P, {"sequence": 2}, ""),
        (store, "ACK", P, {"sequence": 3}, "ack.no-gap: ACK of 3, but only 0..2 were sent without a gap"),
        (store, "ACK", P, {"sequence": reverse(2)}, "number.byte-order: the sequence of ACK is 144,115,188,075,855,87"),
        (store, "ACK", ME, {}, "topic.ACK: the topic frame of ACK is S, which is not a partition's address"),
        (store, "ACK", P, {"subject": b"other"}, "subject.sent: the subject of ACK is other, not the partition's topi"),
        (store, "ACK", P, {"address": P}, "ack.address: the address of ACK is P1, not that of the store that sent it"),
        (empty_store, "ACK", P, {}, "ack.no-gap: & grammar.traffic: "),
        (store, "DIRECT-RECORD", P, ASKED, "grammar.traffic: "),
        (asked_store, "DIRECT-RECORD", C, ASKED, ""),
        (asked_store, "DIRECT-RECORD", ME, ASKED, "topic.DIRECT-RECORD: "),
        (asked_store, "DIRECT-RECORD", C, ASKED | {"content": b"another"}, "direct-record.content: "),
        (asked_store, "DIRECT-RECORD", C, ASKED | {"address": ME}, "direct-record.address: "),
        (asked_store, "DIRECT-RECORD", C, ASKED | {"subject": b"other"}, "subject.sent: "),
        (store, "DIRECT-HEAD", C, {"address": P, "sequence": 3}, "direct-head.last-offset: DIRECT-HEAD has the offset"),
        (producer, "RECORD", b"hello2", {"address": P}, "record.address: & topic.RECORD: "),
        (producer, "HEAD", TOPIC, {}, "head.after-first-record: "),
        (partial(producer, 0), "ACK", ME, {}, "grammar.roles: a producer sent ACK, which the grammar allows for store"),
        (partial(producer, 0, 1), "HEAD", TOPIC, {}, "head.last-offset: HEAD has the offset 0, expected 1, the last p"),
        (partial(producer, 0, 1), "HEAD", TOPIC, {"sequence": 1}, ""),
        (partial(producer, 0), "RECORD", TOPIC, {"address": S}, "partition.one: RECORD is in the partition S1, but"),
        (consumer, "CONSUMER-HELLO", S, {}, ""),
        (consumer, "CONSUMER-HELLO", S, {"subjects": ()}, "consumer-hello.not-empty: "),
        (consumer, "CONSUMER-HELLO", b"", {}, "topic.CONSUMER-HELLO: "),
        (consumer, "FETCH", P, {"count": 3}, ""),
        (consumer, "FETCH", ME, {"count": 3}, "topic.FETCH: "),
        (consumer, "FETCH", P, {"address": P}, "fetch.address: the address of FETCH is P1, not the sender's own"),
        (consumer, "FETCH", P, OTHER, "subject.sent: the subject of FETCH is hello2, not the partition's topic hello"),
        (consumer_of_a_prefix, "FETCH", P, OTHER, "subject.exact: a consumer of hello requested records of hello2"),
        (consumer_of_a_prefix, "FETCH", P, {"count": 3}, "subject.exact: a consumer of hello requested records of h"),
    ]
    for bench, name, topic, values, findings in cases:
        made = bench()
        made.receive(name, topic, **values)
        wanted = findings.split("& ") if findings else []
        found = sorted(f"{clause}: {message}" for clause, message in made.findings)
        found = [text for text in found if "grammar.traffic" in findings or not text.startswith("grammar.traffic")]
        assert len(found) == len(wanted), found
        assert all(text.startswith(beginning.strip()) for text, beginning in zip(found, wanted, strict=True)), found
        if not findings:
            checked = {f"grammar.{name}", f"topic.{name}", "signature.sent"}
            assert checked <= made.message_checks.checked_clauses()


def test_finding_has_the_reading_that_the_message_follows() -> None:
    cases: list[tuple[Callable[[], Bench], str, bytes, dict[str, Value], str, str]] = [
        (store, "ACK", P, {"address": P}, "ack.address", "partition"),
        (asked_store, "DIRECT-RECORD", ME, ASKED, "topic.DIRECT-RECORD", "prose"),
        (consumer, "FETCH", ME, {"count": 3}, "topic.FETCH", "prose"),
    ]
    for bench, name, topic, values, clause, reading in cases:
        made = bench()
        made.receive(name, topic, **values)
        assert made.readings[made.clauses.index(clause)] == reading


def test_large_sequence_that_the_target_may_have_got_is_not_taken_for_a_reversed_one() -> None:
    bench = store()
    bench.publish(reverse(2))
    bench.receive("ACK", P, sequence=reverse(2))
    assert bench.clauses == ["ack.no-gap"]


def test_order_of_answers() -> None:
    cases: list[tuple[tuple[int, ...], list[str]]] = [
        ((0, 1, 2), []),
        ((0, 1, 2, 0, 1), []),
        ((2, 1, 0), ["direct-record.ascending"]),
        ((0, 2), ["direct-record.ascending"]),
        ((0, 1, 2, 3), ["fetch.count"]),
    ]
    for sequences, clauses in cases:
        bench = asked_store()
        for sequence in sequences:
            bench.receive("DIRECT-RECORD", C, address=P, sequence=sequence, content=record_content(P, sequence))
        assert bench.clauses == clauses


def test_offsets_of_records() -> None:
    cases: list[tuple[tuple[int, ...], list[tuple[str, str]]]] = [
        ((0, 1, 2), []),
        ((1,), [("sequence.first", "RECORD has the offset 1, expected 0")]),
        ((0, 2, 3), [("sequence.increment", "RECORD has the offset 2, expected 1")]),
        ((0, 1, 1), [("sequence.increment", "RECORD has the offset 1, expected 2")]),
    ]
    for sequences, findings in cases:
        assert producer(*sequences).findings == findings


def frames_of_record(dialect: Dialect, sequence: int = 0) -> list[bytes]:
    values: dict[str, Value] = {"address": ME, "subject": TOPIC, "sequence": sequence, "content": b""}
    return GRAMMAR.formats.encode(Message("RECORD", TOPIC, values), dialect)


def test_frames_that_are_not_a_message_of_the_dialect() -> None:
    cases: list[tuple[list[bytes], str]] = [
        ([b"Mhello", b"M\1\1P", b""], "signature.sent"),
        ([b"Mhello", b"\xaa\xa5M", b""], "version.sent"),
        ([b"Zhello", b"\xaa\xa5Z\1"], "topic-frame.first"),
        ([b"Mhello", b"\xaa\xa5M\1", b""], "grammar.RECORD"),
        (frames_of_record(Dialect.LIBDAFKA), "grammar.dialect"),
    ]
    for frames, clause in cases:
        bench = Bench(Role.PRODUCER)
        bench.message_checks.check_message(frames, "P")
        assert bench.clauses == [clause]
        assert bench.trace.events[0].fault


def test_prose_signature_is_a_finding_with_its_reading_and_the_message_is_judged_all_the_same() -> None:
    bench = Bench(Role.PRODUCER)
    topic, fields, content = frames_of_record(Dialect.RFC46, sequence=1)
    assert bench.message_checks.check_message([topic, b"\xaa\xa0" + fields[2:], content], "P")
    assert (bench.clauses, bench.readings) == (["signature.value", "sequence.first"], ["prose", ""])
    assert "signature.sent" in bench.message_checks.checked_clauses()


def test_messages_about_an_earlier_scenario_are_ignored() -> None:
    bench = store()
    bench.message_checks.begin_scenario()
    bench.receive("ACK", P, sequence=99)
    bench.receive("DIRECT-RECORD", C, address=P)
    assert (bench.findings, bench.trace.events) == ([], [])


def test_messages_that_a_malformed_message_may_have_caused_are_left_to_the_scenario() -> None:
    bench = Bench(Role.CONSUMER)

    def clauses() -> set[str]:
        bench.findings.clear()
        bench.receive("CONSUMER-HELLO", b"nobody")
        return set(bench.clauses)

    assert clauses() == {"topic.CONSUMER-HELLO", "grammar.traffic"}
    bench.message_checks.record_malformed()
    assert clauses() == set()
    bench.message_checks.begin_scenario()
    assert clauses() == {"topic.CONSUMER-HELLO", "grammar.traffic"}
