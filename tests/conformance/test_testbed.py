"""The testbed: what every message is checked for, and what a scenario waits for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest
import trio
import trio.testing

from dafka_conformance.grammar import Grammar, Message, Value
from dafka_conformance.model import Check, Dialect, Kind, Role
from dafka_conformance.scenarios.store_malformed import _MalformedConsumer
from dafka_conformance.targets import Delivery
from dafka_conformance.testbed.expectations import DEFAULT_TIMEOUT_S, FINDINGS_MAX, CheckLog, Expectations, UnmetError
from dafka_conformance.testbed.known_records import KnownRecords, Partition, record_content
from dafka_conformance.testbed.message_checks import MessageChecks
from dafka_conformance.testbed.network import Loopback
from dafka_conformance.testbed.scripted_peer import ScriptedPeer
from dafka_conformance.testbed.testbed import Testbed
from dafka_conformance.testbed.trace import EVENTS_MAX, ReceivedMessage, Trace


def make_trace() -> Trace:
    trace = Trace(lambda: 1.0)
    trace.name_node(b"ADDRESS", "P")
    return trace


def record(sequence: int, topic: bytes = b"hello", content: bytes = b"x") -> Message:
    values: dict[str, Value] = {"address": b"ADDRESS", "subject": topic, "sequence": sequence, "content": content}
    return Message("RECORD", topic, values)


def test_addresses_are_shown_as_labels_and_unprintable_bytes_as_escapes() -> None:
    trace = make_trace()
    shown = [trace.show(value) for value in (b"ADDRESS", b"text", b"", b"\0\xff", b"a" * 50)]
    assert shown == ["P", "text", '""', "\\x00\\xff", "a" * 48 + "… (50 bytes)"]


def test_runs_of_consecutive_records_are_one_event_until_another_one_comes() -> None:
    trace = make_trace()
    places = [trace.add_message("P", "S", record(sequence), [b"M"]) for sequence in (0, 1, 2, 4, 5)]
    places.append(trace.add_message("P", "S", record(6, b"other"), [b"M"]))
    places.append(trace.add_message("P2", "S", record(7, b"other"), [b"M"]))
    trace.add_note("something")
    places.append(trace.add_message("P2", "S", record(8, b"other"), [b"M"]))
    assert places == [0, 0, 0, 1, 1, 2, 3, 5]
    messages = [(event.count, dict(event.fields)["sequence"]) for event in trace.events if event.fields]
    assert messages == [(3, "0..2"), (2, "4..5"), (1, "6"), (1, "7"), (1, "8")]


def test_fault_is_marked_once_with_its_field() -> None:
    trace = make_trace()
    place = trace.add_message("P", "S", record(0), [b"M"])
    trace.mark_fault(place, "wrong", "sequence")
    trace.mark_fault(place, "also wrong", "topic")
    trace.mark_fault(99, "nowhere")
    assert (trace.events[0].fault, trace.events[0].fault_field) == ("wrong", "sequence")


def test_frames_are_truncated_and_events_bounded() -> None:
    trace = make_trace()
    trace.add_frames("P", "S", "rubbish", [b"\xab" * 1000] * 100)
    assert len(trace.events[0].frames) == 6
    assert trace.events[0].frames[0].endswith("AB…")
    for _ in range(EVENTS_MAX + 10):
        trace.add_event(Kind.SUBSCRIPTION, "S", "P", "subscribe", prefix=b"M")
    assert len(trace.events) == EVENTS_MAX
    trace.add_note("the end")
    assert trace.events[-1].label == "the end"


def test_reset_removes_everything() -> None:
    trace = make_trace()
    trace.add_message("P", "S", record(0), [b"M"])
    trace.reset()
    assert (trace.events, trace.show(b"ADDRESS")) == ([], "ADDRESS")
    assert trace.add_message("P", "S", record(1), [b"M"]) == 0


class Listener(Expectations):
    """Expectations of a target that runs until the test ends it."""

    death = ""

    def exit_message(self, after: str = "") -> str:
        return self.death

    def hear_ack(self, sequence: int) -> None:
        message = Message("ACK", b"P", {"subject": b"hello", "sequence": sequence})
        place = self.trace.add_message("S", "P", message, [b"K"])
        self.received.append(ReceivedMessage(message, place, 0.0))
        self.notify()

    def deliver(self, *contents: bytes) -> None:
        self.delivered += [Delivery(content) for content in contents]
        self.notify()


@pytest.fixture
async def listener() -> Listener:
    await trio.lowlevel.checkpoint()
    return Listener(Trace(trio.current_time), 1.0)


def acks(sequence: int) -> Callable[[Message], bool]:
    return lambda message: message["sequence"] == sequence


async def test_expect_waits_for_a_later_message(listener: Listener, autojump_clock: trio.testing.MockClock) -> None:
    async def later() -> None:
        for sequence in range(3):
            await trio.sleep(DEFAULT_TIMEOUT_S / 4)
            listener.hear_ack(sequence)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(later)
        received = await listener.expect("ACK", "ack.sent", acks(2))
    assert received is listener.received[2]
    assert listener.checks == [Check("ack.sent", True)]


async def test_missing_message_violates_its_clause_and_shows_the_last_one(
    listener: Listener, autojump_clock: trio.testing.MockClock
) -> None:
    listener.hear_ack(1)
    begin = trio.current_time()
    with pytest.raises(UnmetError):
        await listener.expect("ACK", "ack.sent", acks(2), what="ACK of 2")
    assert trio.current_time() - begin == DEFAULT_TIMEOUT_S
    (check,) = listener.checks
    assert check.message == ("no ACK of 2 arrived within 8 s; the last ACK was topic=P subject=hello sequence=1")
    assert (check.event, listener.trace.events[0].fault) == (0, check.message)


async def test_earlier_messages_do_not_count(listener: Listener, autojump_clock: trio.testing.MockClock) -> None:
    listener.hear_ack(2)
    assert await listener.receive("ACK", acks(2), since=1, seconds=1) is None
    assert await listener.receive("ACK", acks(2)) is listener.received[0]


async def test_patience_multiplies_time_limits(autojump_clock: trio.testing.MockClock) -> None:
    listener = Listener(Trace(trio.current_time), 3.0)
    begin = trio.current_time()
    assert await listener.receive("ACK", seconds=2) is None
    assert trio.current_time() - begin == 6


async def test_dead_target_ends_the_wait_with_its_exit_reason(
    listener: Listener, autojump_clock: trio.testing.MockClock
) -> None:
    async def die() -> None:
        await trio.sleep(1)
        listener.death = "the store ended by itself: out of luck"
        listener.notify()

    begin = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(die)
        with pytest.raises(UnmetError):
            await listener.expect("ACK", "ack.sent")
    assert trio.current_time() - begin == 1
    assert listener.checks[0].message == "the store ended by itself: out of luck"


ONE, TWO, THREE, STRANGER = b"a", b"b", b"c", b"x"


@pytest.mark.parametrize(
    ("delivered", "clause", "message"),
    [
        ((ONE, STRANGER, TWO, THREE), "", ""),
        ((ONE, THREE), "delivery.complete", "1 of 3 records were not delivered, the first is b"),
        ((ONE, TWO, ONE, THREE), "delivery.once", "1 records were delivered more than once"),
        ((ONE, THREE, TWO), "delivery.in-order", "c was delivered, expected b"),
    ],
)
async def test_deliveries(
    delivered: tuple[bytes, ...], clause: str, message: str, listener: Listener, autojump_clock: trio.testing.MockClock
) -> None:
    listener.deliver(*delivered)
    if not clause:
        await listener.expect_delivered([ONE, TWO, THREE])
        assert all(check.holds for check in listener.checks)
        return
    with pytest.raises(UnmetError):
        await listener.expect_delivered([ONE, TWO, THREE])
    assert (listener.checks[-1].clause, listener.checks[-1].message) == (clause, message)


def test_faults_are_recorded_once_and_bounded() -> None:
    findings = CheckLog(Trace(lambda: 0.0))
    for number in range(FINDINGS_MAX + 5):
        for _ in range(2):
            place = findings.trace.add_note("something")
            findings.report_fault("ack.sent", f"wrong {number}", place)
    assert [check.message for check in findings.checks] == [f"wrong {number}" for number in range(FINDINGS_MAX)]
    assert all(event.fault for event in findings.trace.events)


GRAMMAR = Grammar.load()
ANOTHER = b"B" * 32


class SlowPeer(ScriptedPeer):
    """A producer whose answers wait until they may go on, and are noted in place of sent."""

    def __init__(self) -> None:
        trace, known = Trace(lambda: 0.0), KnownRecords()
        super().__init__(
            "P",
            Role.PRODUCER,
            b"orders",
            loopback=Loopback(),
            grammar=GRAMMAR,
            dialect=Dialect.RFC46,
            trace=trace,
            message_checks=MessageChecks(GRAMMAR, Role.STORE, Dialect.RFC46, known, trace, lambda *_, **__: None),
            known_records=known,
            changed=lambda: None,
            target_label="S",
        )
        self.answered: list[tuple[str, bytes, int]] = []
        self.running: Counter[bytes] = Counter()
        self.may_go_on = trio.Event()

    async def answer_request(self, message: Message) -> None:
        requestor = message.get_bytes("address")
        self.running[requestor] += 1
        assert self.running[requestor] == 1
        await self.may_go_on.wait()
        self.running[requestor] -= 1
        self.answered.append((message.name, requestor, message.get_number("sequence")))


def fetch(peer: ScriptedPeer, sequence: int, count: int = 100, requestor: bytes = b"A" * 32) -> Message:
    values: dict[str, Value] = {"address": requestor, "subject": b"orders", "sequence": sequence, "count": count}
    return Message("FETCH", peer.address, values)


async def test_repeated_requests_are_answered_once_and_in_turn() -> None:
    """A peer that answered each repetition at once would never stop sending a busy store the same records."""
    peer = SlowPeer()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.run)
        await trio.testing.wait_all_tasks_blocked()
        for sequence in (0, 10, 20, 30):
            peer.start_answer(fetch(peer, sequence))  # the first is being answered, each other replaces the one before
            await trio.testing.wait_all_tasks_blocked()
        peer.start_answer(fetch(peer, 130))  # other records: the next page
        peer.start_answer(fetch(peer, 7, requestor=ANOTHER))
        for _ in range(2):
            peer.start_answer(Message("GET-HEADS", b"orders", {"address": ANOTHER}))
        await trio.testing.wait_all_tasks_blocked()
        peer.may_go_on.set()
        await trio.testing.wait_all_tasks_blocked()
        peer.start_answer(fetch(peer, 0))  # nothing is waiting any more
        await trio.testing.wait_all_tasks_blocked()
        peer.close()
    first = [sequence for name, requestor, sequence in peer.answered if requestor != ANOTHER]
    assert first == [0, 30, 130, 0]
    assert [(name, sequence) for name, requestor, sequence in peer.answered if requestor == ANOTHER] == [
        ("FETCH", 7),
        ("GET-HEADS", 0),
    ]


CONSUMER, PRODUCER, DEPARTED = b"C" * 32, b"P" * 32, b"D" * 32


def check_silence(producer: bytes) -> CheckLog:
    """Check the messages of a store that sent the consumer the head of this producer."""
    log = CheckLog(Trace(lambda: 0.0))
    head = Message("DIRECT-HEAD", CONSUMER, {"address": producer, "subject": b"orders", "sequence": 0})
    testbed = cast(
        Testbed,
        SimpleNamespace(received=[ReceivedMessage(head, 0, 0.0)], require_clause=log.require_clause),
    )
    consumer, asked = (
        cast(ScriptedPeer, SimpleNamespace(address=address, partition=Partition(address, b"orders")))
        for address in (CONSUMER, PRODUCER)
    )
    _MalformedConsumer(testbed, "robust.malformed")._check_silence(consumer, asked, "GET-HEADS without its last byte")
    return log


def test_a_head_that_was_asked_for_is_an_answer_and_that_of_a_producer_that_has_left_is_not() -> None:
    """A store tells the others what it has of a producer that left, when it notices that."""
    assert all(check.holds for check in check_silence(DEPARTED).checks)
    with pytest.raises(UnmetError, match="GET-HEADS without its last byte was answered with DIRECT-HEAD"):
        check_silence(PRODUCER)


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


def test_order_of_answers_and_offsets_of_records() -> None:
    answers: list[tuple[tuple[int, ...], list[str]]] = [
        ((0, 1, 2), []),
        ((0, 1, 2, 0, 1), []),
        ((2, 1, 0), ["direct-record.ascending"]),
        ((0, 2), ["direct-record.ascending"]),
        ((0, 1, 2, 3), ["fetch.count"]),
    ]
    for sequences, clauses in answers:
        bench = asked_store()
        for sequence in sequences:
            bench.receive("DIRECT-RECORD", C, address=P, sequence=sequence, content=record_content(P, sequence))
        assert bench.clauses == clauses
    offsets: list[tuple[tuple[int, ...], list[tuple[str, str]]]] = [
        ((0, 1, 2), []),
        ((1,), [("sequence.first", "RECORD has the offset 1, expected 0")]),
        ((0, 2, 3), [("sequence.increment", "RECORD has the offset 2, expected 1")]),
        ((0, 1, 1), [("sequence.increment", "RECORD has the offset 1, expected 2")]),
    ]
    for sequences, findings in offsets:
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
