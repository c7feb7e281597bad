"""Control records as they are stored and published."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dafka.broker.core.metadata.leader_and_isr import next_epoch
from dafka.broker.core.positions import Offset
from dafka.broker.core.replication.records import (
    EpochEnd,
    EpochStart,
    LeaderAndEpoch,
    Vote,
    VoteRequest,
    decode_control,
    encode_control,
    key_of,
)
from dafka.errors import StorageFormatError
from tests.broker.core.entries import epoch_end

NAMES = st.text(max_size=20)
BRANCHES = st.builds(LeaderAndEpoch, st.integers(-1, 2**31 - 1), NAMES)
TIPS = st.builds(EpochEnd, BRANCHES, st.integers(0, 2**63 - 1))
OFFSETS = st.integers(0, 2**62).map(Offset)
REPLICAS = st.lists(NAMES, max_size=5).map(tuple)
RECORDS = st.one_of(
    st.builds(VoteRequest, NAMES, BRANCHES, REPLICAS, REPLICAS, st.booleans()),
    st.builds(Vote, NAMES, BRANCHES, TIPS, st.lists(REPLICAS, max_size=3).map(tuple), BRANCHES, OFFSETS),
    st.builds(EpochStart, NAMES, BRANCHES, TIPS, REPLICAS, REPLICAS, OFFSETS),
)


@settings(max_examples=50)
@given(RECORDS)
def test_a_record_is_read_as_it_was_written(record: VoteRequest | Vote | EpochStart) -> None:
    assert decode_control(encode_control(record)) == record


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"[]",
        b"{}",
        b'{"version":1}',
        b'{"version":1,"claim":[]}',
        b'{"version":1,"row":["log",[1,"a"],[[1],2],["a"]]}',
        b'{"version":1,"other":["log",[1,"a"],[[1,"a"],2],["a"]]}',
        b'{"version":1,"claim":["log",[1,"a"],["a"]],"row":[]}',
        b"\xff",
    ],
)
def test_a_malformed_record_is_refused(value: bytes) -> None:
    with pytest.raises(StorageFormatError):
        decode_control(value)


def test_a_later_version_is_refused_with_what_to_do() -> None:
    with pytest.raises(StorageFormatError, match="newer version"):
        decode_control(encode_control(VoteRequest("log", LeaderAndEpoch(1, "a"), ("a",))).replace(b":1,", b":2,", 1))


@given(st.integers(-1, 10**6), st.integers(0, 1023), st.integers(0, 1023))
def test_epochs_increase_and_differ_between_brokers(latest: int, one: int, other: int) -> None:
    assert next_epoch(latest, one) > latest
    assert (next_epoch(latest, one) == next_epoch(latest, other)) == (one == other)


def test_keys_differ_between_kinds_logs_and_epochs_and_not_between_leaders() -> None:
    parts = [(log, LeaderAndEpoch(epoch, "a")) for log in ("x/0", "x/1") for epoch in (1, 1024)]
    end = epoch_end(LeaderAndEpoch(0, "b"), 7)
    made = [
        each
        for log, epoch in parts
        for each in (VoteRequest(log, epoch, ()), Vote(log, epoch, end, ()), EpochStart(log, epoch, end, ()))
    ]
    assert len({key_of(each) for each in made}) == len(made) == 12
    assert key_of(VoteRequest("x/0", LeaderAndEpoch(1, "b"), ("c",))) == key_of(made[0])
    assert all(key_of(each).split("/", 1)[1] == f"{each.log}/{each.leader_epoch.epoch}" for each in made)
