"""The fetch responder against a model: the answers it still owes, and its counters, after any FETCHes and reads."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dafka import wire
from dafka.protocol import FetchResponder
from dafka.protocol.answering import fetch_responder
from dafka.records import Partition, RecordBatch

PARTITIONS = [Partition("t", "P"), Partition("t", "Q"), Partition("u", "P")]
HELD = range(2, 30)

Key = tuple[str, Partition]

reads = st.integers(1, 5)


def to_fetch(requestor: str, partition: Partition, sequence: int, count: int) -> wire.Fetch:
    return wire.Fetch(partition.address, requestor, partition.topic, sequence, count)


fetches = st.tuples(
    st.builds(to_fetch, st.sampled_from("ABC"), st.sampled_from(PARTITIONS), st.integers(0, 32), st.integers(0, 9)),
    st.booleans(),
)


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
def test_every_record_that_was_fetched_is_sent_and_nothing_else(steps: list[tuple[wire.Fetch, bool] | int]) -> None:
    responder = FetchResponder(lambda _: HELD, 1000)
    model = Model()
    sent = 0
    for step in [*steps, *[5] * 100]:
        if isinstance(step, tuple):
            fetch, is_verified = step
            model.fetch(fetch, set(owed(responder)), is_verified=is_verified)
            assert responder.add_fetch(fetch, is_verified=is_verified)
        elif (request := responder.next_read(step)) is not None:
            key = (request.requestor, request.partition)
            part = range(request.first_sequence, request.first_sequence + request.count)
            assert 1 <= request.count <= step
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


@pytest.mark.parametrize(("sequence", "count", "expected"), [(0, 5, None), (0, 3, None), (0, 2, None), (30, 4, None)])
def test_a_range_outside_what_is_held_is_dropped(sequence: int, count: int, expected: None) -> None:
    responder = FetchResponder(lambda _: range(5, 30), 10)
    assert responder.add_fetch(to_fetch("A", PARTITIONS[0], sequence, count))
    assert responder.next_read() is expected
    assert len(responder) == 0


@pytest.mark.parametrize(("sequence", "count", "first", "read"), [(0, 6, 5, 1), (29, 4, 29, 1), (0, 99, 5, 25)])
def test_only_the_part_that_is_held_is_read(sequence: int, count: int, first: int, read: int) -> None:
    responder = FetchResponder(lambda _: range(5, 30), 10)
    responder.add_fetch(to_fetch("A", PARTITIONS[0], sequence, count))
    request = responder.next_read()
    assert request is not None
    assert (request.first_sequence, request.count, request.delay_s) == (first, read, 0.0)


def test_a_read_that_finds_nothing_ends_its_range() -> None:
    responder = FetchResponder(lambda _: HELD, 10)
    responder.add_fetch(to_fetch("A", PARTITIONS[0], 2, 9))
    request = responder.next_read()
    assert request is not None
    assert responder.complete_read(request, None) is None
    assert len(responder) == 0
    assert (responder.records_sent, responder.bytes_sent) == (0, 0)


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


def test_a_requestor_that_is_verified_now_is_not_answered_twice() -> None:
    responder = FetchResponder(lambda _: HELD, 10)
    responder.add_fetch(to_fetch("A", PARTITIONS[0], 2, 9), is_verified=False)
    responder.add_fetch(to_fetch("A", PARTITIONS[0], 2, 9), is_verified=True)
    assert responder.pending_ranges() == {("A", PARTITIONS[0]): [range(2, 11)]}
    request = responder.next_read()
    assert request is not None
    assert (request.count, request.delay_s) == (9, 0.0)
    responder.complete_read(request, RecordBatch(PARTITIONS[0], 2, [b""] * 9))
    assert (len(responder), responder.next_read()) == (0, None)
    assert not responder._partitions_of


def test_a_further_range_beyond_the_limit_replaces_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_responder, "RANGES_MAX", 2)
    responder = FetchResponder(lambda _: range(1000), 100)
    for sequence in (0, 10, 20):
        assert responder.add_fetch(to_fetch("A", PARTITIONS[0], sequence, 2))
    assert responder.pending_ranges() == {("A", PARTITIONS[0]): [range(2), range(20, 22)]}
    assert len(responder) == 2
