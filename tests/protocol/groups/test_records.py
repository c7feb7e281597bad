"""The records that members of a group publish."""

from __future__ import annotations

import json

import pytest

from dafka.errors import StorageFormatError
from dafka.protocol.groups import GroupView
from dafka.protocol.groups.records import (
    FULL_EVERY_RECORDS,
    READ_BACK_RECORDS,
    MemberRecord,
    Position,
    decode_member_record,
    encode_member_record,
)
from dafka.records import Partition

ONE, TWO = Partition("orders", "A" * 32), Partition("orders", "B" * 32)
FULL = MemberRecord(
    lease_ms=4000,
    topics=("orders", "caf\udce9"),
    stores=3,
    is_full=True,
    claimed=frozenset((ONE, TWO)),
    positions={ONE: Position(2, 17)},
    over=frozenset(("C" * 32,)),
)


@pytest.mark.parametrize("record", [FULL, MemberRecord(lease_ms=1, is_leaving=True, released=frozenset((ONE,)))])
def test_records_return_as_they_were(record: MemberRecord) -> None:
    assert decode_member_record(encode_member_record(record)) == record


@pytest.mark.parametrize(
    "fields",
    [
        {"version": 2, "lease_ms": 1},
        {"version": 1},
        {"version": 1, "lease_ms": 0},
        {"version": 1, "lease_ms": 10**9},
        {"version": 1, "lease_ms": 1, "positions": {"orders": {"A": [1, -1]}}},
        {"version": 1, "lease_ms": 1, "positions": {"orders": {"A": [1]}}},
        {"version": 1, "lease_ms": 1, "claimed": {"orders": 7}},
        [],
        None,
    ],
)
def test_malformed_records_are_refused(fields: object) -> None:
    with pytest.raises(StorageFormatError):
        decode_member_record(json.dumps(fields).encode())


def test_malformed_records_change_nothing_and_are_counted() -> None:
    view = GroupView()
    view.receive("m", 0, [b"{", None, encode_member_record(FULL)], 1.0)
    assert view.malformed == 2
    assert view.members["m"].claimed == {ONE, TWO}
    assert view.position(ONE) == Position(2, 17)


@pytest.mark.parametrize("first", [2, 5, 0])
def test_after_a_gap_a_member_may_claim_anything_until_its_next_full_record(first: int) -> None:
    view = GroupView()
    view.receive("m", 0, [encode_member_record(MemberRecord(lease_ms=1000, is_full=True))], 1.0)
    assert not view.members["m"].may_claim(ONE)
    sign = encode_member_record(MemberRecord(lease_ms=1000))
    view.receive("m", first, [sign], 2.0)
    assert view.members["m"].may_claim(ONE)
    view.receive("m", first + 1, [encode_member_record(FULL)], 3.0)
    assert view.members["m"].may_claim(ONE)
    assert not view.members["m"].may_claim(Partition("orders", "D"))


def test_a_late_position_of_an_earlier_epoch_does_not_count() -> None:
    view = GroupView()
    later = MemberRecord(lease_ms=1000, positions={ONE: Position(4, 100)})
    late = MemberRecord(lease_ms=1000, positions={ONE: Position(3, 900)})
    view.receive("b", 0, [encode_member_record(later)], 1.0)
    view.receive("a", 0, [encode_member_record(late)], 2.0)
    assert view.position(ONE) == Position(4, 100)
    back = MemberRecord(lease_ms=1000, positions={ONE: Position(4, 50)})
    view.receive("b", 1, [encode_member_record(back)], 3.0)
    assert view.position(ONE) == Position(4, 50)


def test_a_reader_that_begins_shortly_before_the_end_finds_a_full_record() -> None:
    assert FULL_EVERY_RECORDS <= READ_BACK_RECORDS
