"""Control records as they are stored and published."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import Any, get_args, get_origin, get_type_hints

import attrs
import pytest

from dafka.broker.core.metadata.leader_and_isr import next_epoch
from dafka.broker.core.positions import Offset
from dafka.broker.core.replication.records import (
    ControlRecord,
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
from tests.seeds import each_seed

NAMES = ("", "a", "größe/日本", "x" * 32)


def draw_value(draw: Random, kind: Any) -> Any:
    """Return some value of the type of a field."""
    if get_origin(kind) is tuple:
        return tuple(draw_value(draw, get_args(kind)[0]) for _ in range(draw.randrange(4)))
    if hasattr(kind, "_fields"):
        return kind(*(draw_value(draw, each) for each in get_type_hints(kind).values()))
    values: dict[Any, Any] = {str: NAMES, int: (-1, 0, 2**24, 2**31 - 1), bool: (True, False)}
    return draw.choice(values.get(kind, (0, 7, 2**62)))


@each_seed(100)
def test_a_record_is_read_as_it_was_written(seed: int) -> None:
    draw = Random(seed)
    for kind in (VoteRequest, Vote, EpochStart):
        types = get_type_hints(kind)
        fields: dict[str, Any] = {each.name: draw_value(draw, types[each.name]) for each in attrs.fields(kind)}
        record = kind(**fields)
        assert decode_control(encode_control(record)) == record


def test_records_are_stored_in_their_format() -> None:
    """Brokers of other versions read them."""
    first, end = LeaderAndEpoch(1, "a"), epoch_end(LeaderAndEpoch(0, "b"), 7)
    found: dict[ControlRecord, str] = {
        VoteRequest("log", first, ("a",), ("b",), 2, is_transfer=True): '"claim":["log",[1,"a"],["a"],["b"],2,true]',
        Vote("log", first, end, (("a",),), first, Offset(3)): '"promise":["log",[1,"a"],[[0,"b"],7],[["a"]],[1,"a"],3]',
        EpochStart("log", first, end, ("a",), (), 2, Offset(3)): '"row":["log",[1,"a"],[[0,"b"],7],["a"],[],2,3]',
    }
    for record, fields in found.items():
        assert encode_control(record).decode() == f'{{"version":1,{fields}}}'


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


def test_epochs_increase_and_differ_between_brokers() -> None:
    for latest, one, other in product((-1, 0, 1, 1023, 1024, 10**6), (0, 1, 512, 1023), (0, 1, 512, 1023)):
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
