"""The fetch responder against a model: the answers it still owes, and its counters, after any FETCHes and reads."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dafka import wire
from dafka.protocol import FetchResponder, ReadRequest
from dafka.protocol.answering import fetch_responder
from dafka.protocol.answering.fetch_responder import (
    REQUESTOR_PARTITIONS_MAX,
    UNVERIFIED_CHUNK_RECORDS_MAX,
    UNVERIFIED_DELAY_S,
)
from dafka.records import Partition, RecordBatch

PARTITIONS = [Partition("t", "P"), Partition("t", "Q"), Partition("u", "P")]
HELD = range(2, 30)

Key = tuple[str, Partition]

reads = st.tuples(st.integers(1, 5), st.sampled_from(["A", "B", "AB", ""]))
"""How many records are read, and the requestors that are wanted."""


def to_fetch(requestor: str, partition: Partition, sequence: int, count: int) -> wire.Fetch:
    return wire.Fetch(partition.address, requestor, partition.topic, sequence, count)


fetches = st.tuples(
    st.builds(to_fetch, st.sampled_from("AB"), st.sampled_from(PARTITIONS[1:]), st.integers(0, 32), st.integers(0, 12)),
    st.booleans(),
)


def is_of(requestors: str, request: ReadRequest) -> bool:
    return request.requestor in requestors


def owed(responder: FetchResponder) -> dict[Key, set[int]]:
    pending = responder.pending_ranges()
    return {key: {each for one in ranges for each in one} for key, ranges in pending.items()}


class Model:
    """The records that each requestor was promised and has not been sent."""

    def __init__(self) -> None:
        self.promised: dict[Key, set[int]] = {}
        self._unverified: set[Key] = set()

    def fetch(self, fetch: wire.Fetch, pending: set[Key], *, is_verified: bool) -> None:
        """Note a FETCH. A requestor that is verified from now on asks anew: its earlier FETCHes are replaced."""
        key = (fetch.address, Partition(fetch.subject, fetch.partition))
        if is_verified and key in self._unverified & pending:
            self.promised[key] = set()
        if is_verified:
            self._unverified.discard(key)
        elif key not in pending:
            self._unverified.add(key)
        self.promised.setdefault(key, set()).update(range(fetch.sequence, fetch.sequence + fetch.count))


@settings(max_examples=100)
@given(st.lists(fetches | reads, max_size=40))
def test_every_record_that_was_fetched_is_sent_and_nothing_else(
    steps: list[tuple[wire.Fetch, bool] | tuple[int, str]],
) -> None:
    responder = FetchResponder(lambda _: HELD, 1000)
    model = Model()
    sent = 0
    for first, second in [*steps, *[(5, "AB")] * 100]:
        if isinstance(first, wire.Fetch):
            model.fetch(first, set(owed(responder)), is_verified=bool(second))
            assert responder.add_fetch(first, is_verified=bool(second))
            continue
        wanted = str(second)
        pending = responder.pending_ranges()
        request = responder.next_read(first, partial(is_of, wanted))
        if request is None:
            assert all(each not in HELD for key, owes in owed(responder).items() if key[0] in wanted for each in owes)
        else:
            key = (request.requestor, request.partition)
            part = range(request.first_sequence, request.first_sequence + request.count)
            assert 1 <= request.count <= first
            assert request.requestor in wanted
            oldest = next(each for each in pending[key] if max(each.start, HELD.start) < min(each.stop, HELD.stop))
            assert part.start == max(oldest.start, HELD.start), "what was asked for first is sent first"
            assert set(part) <= set(HELD)
            batch = RecordBatch(request.partition, part.start, [b"x"] * len(part))
            assert responder.complete_read(request, batch) == wire.RecordRun(batch, key[0])
            sent += len(part)
            model.promised[key] -= set(part)
        still = owed(responder)
        assert len(responder) == sum(map(len, responder.pending_ranges().values()))
        for key, sequences in model.promised.items():
            assert {each for each in sequences if each in HELD} <= still.get(key, set()), "nothing is forgotten"
    assert (len(responder), owed(responder), responder.next_read()) == (0, {}, None)
    assert (responder.records_sent, responder.bytes_sent) == (sent, sent)
    assert not responder._partitions_of, "no trace of a requestor that has been answered"


def test_unverified_requestors_have_a_limit_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_responder, "UNVERIFIED_MAX", 2)
    responder = FetchResponder(lambda _: HELD, 100)
    accepted = [responder.add_fetch(to_fetch("A", each, 2, 1), is_verified=False) for each in PARTITIONS]
    assert accepted == [True, True, False]
    assert responder.add_fetch(to_fetch("A", PARTITIONS[2], 2, 1), is_verified=True)


def test_in_a_full_responder_a_verified_requestor_displaces_the_oldest_unverified_one() -> None:
    responder = FetchResponder(lambda _: HELD, 3)
    for number, requestor in enumerate("ABC"):
        assert responder.add_fetch(to_fetch(requestor, PARTITIONS[number], 2, 1), is_verified=False)
    assert not responder.add_fetch(to_fetch("D", PARTITIONS[0], 2, 1), is_verified=False)
    assert responder.add_fetch(to_fetch("E", PARTITIONS[0], 2, 1))
    assert set(responder.pending_ranges()) == {("E", PARTITIONS[0]), ("B", PARTITIONS[1]), ("C", PARTITIONS[2])}
    assert len(responder) == 3
    for requestor in "FG":
        assert responder.add_fetch(to_fetch(requestor, PARTITIONS[0], 2, 1))
    assert not responder.add_fetch(to_fetch("H", PARTITIONS[0], 2, 1)), "all that are left are verified"
    assert {requestor for requestor, _ in responder.pending_ranges()} == set("EFG")


def test_a_further_range_beyond_the_limit_replaces_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_responder, "RANGES_MAX", 2)
    responder = FetchResponder(lambda _: range(1000), 100)
    for sequence in (0, 10, 20):
        assert responder.add_fetch(to_fetch("A", PARTITIONS[0], sequence, 2))
    assert responder.pending_ranges() == {("A", PARTITIONS[0]): [range(2), range(20, 22)]}
    assert len(responder) == 2


# Turns and limits


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


def test_requestors_take_turns() -> None:
    responder = make_responder(10)
    for requestor in "ABC":
        responder.add_fetch(fetch(0, 10, requestor))
    turns = ""
    for sent in (3, 3, 3, 6, 6, 6):
        request = take(responder)
        turns += request.requestor
        complete(responder, request, sent)
    assert turns == "ABCABC"


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
