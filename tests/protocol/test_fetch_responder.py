from __future__ import annotations

from dafka import wire
from dafka.protocol import FetchResponder, ReadRequest
from dafka.protocol.answering.fetch_responder import (
    REQUESTOR_PARTITIONS_MAX,
    UNVERIFIED_CHUNK_RECORDS_MAX,
    UNVERIFIED_DELAY_S,
)
from dafka.records import Partition, RecordBatch

HELLO = Partition("hello", "PRODUCER")


def fetch(sequence: int, count: int, requestor: str = "A") -> wire.Fetch:
    return wire.Fetch(HELLO.address, requestor, HELLO.topic, sequence, count)


def make_responder(ranges_max: int, **options: int) -> FetchResponder:
    """Return a responder that holds every record."""
    return FetchResponder(lambda _: range(2**70), ranges_max, **options)


def take(responder: FetchResponder) -> ReadRequest:
    """Return the read whose turn it is, of a whole range."""
    request = responder.next_read(2**70)
    assert request is not None
    return request


def request_of(first_sequence: int, end_sequence: int) -> ReadRequest:
    return ReadRequest(HELLO, first_sequence, end_sequence - first_sequence, "A")


def end_of(request: ReadRequest) -> int:
    return request.first_sequence + request.count


def complete(responder: FetchResponder, request: ReadRequest, end_sequence: int | None) -> None:
    """Read a request up to a sequence, or find no records at all."""
    batch = None
    if end_sequence is not None:
        batch = RecordBatch(request.partition, request.first_sequence, [b""] * (end_sequence - request.first_sequence))
    responder.complete_read(request, batch)


def test_a_read_does_not_advance_a_range_that_was_rewound_meanwhile() -> None:
    responder = make_responder(10)
    responder.add_fetch(fetch(0, 10))
    being_sent = take(responder)
    complete(responder, being_sent, 4)
    responder.add_fetch(fetch(2, 5))
    complete(responder, being_sent, 8)
    complete(responder, being_sent, None)
    assert take(responder) == request_of(2, 10)


def test_a_fetch_of_four_billion_records_is_one_limited_range() -> None:
    responder = make_responder(10, fetch_records_max=1000)
    assert responder.add_fetch(fetch(2**64 - 1, 2**32 - 1))
    assert end_of(take(responder)) == 2**64 + 999
    assert len(responder) == 1


def test_a_full_responder_drops_new_fetches_but_extends_its_ranges() -> None:
    responder = make_responder(2)
    assert responder.add_fetch(fetch(0, 10, "A"))
    assert responder.add_fetch(fetch(0, 10, "B"))
    assert not responder.add_fetch(fetch(0, 10, "C"))
    assert responder.add_fetch(fetch(10, 10, "A"))
    complete(responder, take(responder), 20)
    assert responder.add_fetch(fetch(0, 10, "C"))


def test_unverified_requestors_are_served_last_with_smaller_chunks_and_a_delay() -> None:
    responder = make_responder(10)
    responder.add_fetch(fetch(0, 100_000, "UNVERIFIED"), is_verified=False)
    responder.add_fetch(fetch(0, 5))
    assert [take(responder).requestor for _ in range(2)] == ["A", "A"]
    complete(responder, take(responder), 5)
    request = responder.next_read()
    assert request is not None
    assert (request.requestor, request.count) == ("UNVERIFIED", UNVERIFIED_CHUNK_RECORDS_MAX)
    assert request.delay_s == UNVERIFIED_DELAY_S


def test_one_requestor_has_a_share_of_the_partitions() -> None:
    responder = make_responder(10_000)
    for number in range(REQUESTOR_PARTITIONS_MAX):
        assert responder.add_fetch(wire.Fetch(f"{number}", "A", "hello", 0, 5))
    assert not responder.add_fetch(wire.Fetch("ANOTHER", "A", "hello", 0, 5))
    assert responder.add_fetch(wire.Fetch("ANOTHER", "B", "hello", 0, 5))
