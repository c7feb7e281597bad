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


def test_a_reader_that_begins_shortly_before_the_end_finds_a_full_record() -> None:
    assert FULL_EVERY_RECORDS <= READ_BACK_RECORDS
