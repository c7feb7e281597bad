from __future__ import annotations

from dafka_conformance.grammar import Message, Value
from dafka_conformance.model import Kind
from dafka_conformance.testbed.trace import EVENTS_MAX, Trace


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


def test_runs_of_consecutive_records_are_one_event() -> None:
    trace = make_trace()
    places = [trace.add_message("P", "S", record(sequence), [b"M"]) for sequence in (0, 1, 2, 4, 5)]
    places.append(trace.add_message("P", "S", record(6, b"other"), [b"M"]))
    places.append(trace.add_message("P2", "S", record(7, b"other"), [b"M"]))
    assert places == [0, 0, 0, 1, 1, 2, 3]
    assert [(event.count, dict(event.fields)["sequence"]) for event in trace.events] == [
        (3, "0..2"),
        (2, "4..5"),
        (1, "6"),
        (1, "7"),
    ]


def test_other_event_ends_a_run() -> None:
    trace = make_trace()
    trace.add_message("P", "S", record(0), [b"M"])
    trace.add_note("something")
    trace.add_message("P", "S", record(1), [b"M"])
    assert len(trace.events) == 3


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
