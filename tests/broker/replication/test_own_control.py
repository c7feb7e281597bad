"""A broker's own control records: written, durable in their order, removed when they are obsolete or their log is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import attrs
import pytest

from dafka.broker.core.replication.records import (
    BRANCHES_TOPIC,
    NO_EPOCH_END,
    ControlRecord,
    EpochStart,
    LeaderAndEpoch,
    Vote,
    VoteRequest,
    decode_control,
    encode_control,
    key_of,
)
from dafka.broker.replication.own_control import OwnControl

LOG, OTHER = "id/0", "id/1"


@attrs.define
class Storage:
    """A state with keys and values."""

    values: dict[bytes, bytes] = attrs.field(factory=dict)
    writes: int = 0

    def write_state(self, topic: str, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
        assert topic == BRANCHES_TOPIC
        self.writes += 1
        for key, value in changes:
            if value is None:
                del self.values[key]
            else:
                self.values[key] = value

    @property
    def records(self) -> set[ControlRecord]:
        return {decode_control(each) for each in self.values.values()}


class Logs:
    """Logs, each with the latest epoch that has begun."""

    def __init__(self) -> None:
        self.latest: dict[str, int] = {LOG: 0, OTHER: 0}

    def find(self, name: str) -> Any:
        epoch = self.latest.get(name)
        if epoch is None:
            return None
        row = EpochStart(name, LeaderAndEpoch(epoch, "a"), NO_EPOCH_END, ("a",))
        return attrs.make_class("Log", {"replica": attrs.field()})(attrs.make_class("Replica", ["latest"])(row))


def request(epoch: int, log: str = LOG) -> VoteRequest:
    return VoteRequest(log, LeaderAndEpoch(epoch, "a"), ("a", "b"))


def vote(epoch: int, log: str = LOG) -> Vote:
    return Vote(log, LeaderAndEpoch(epoch, "b"), NO_EPOCH_END, (("a", "b"),))


def start(epoch: int, log: str = LOG) -> EpochStart:
    return EpochStart(log, LeaderAndEpoch(epoch, "a"), NO_EPOCH_END, ("a", "b"))


@pytest.fixture
def parts() -> tuple[OwnControl, Storage, Logs]:
    storage, logs = Storage(), Logs()
    return OwnControl(cast("Any", logs), cast("Any", storage)), storage, logs


def test_records_are_durable_when_the_write_that_has_them_is_done(parts: tuple[OwnControl, Storage, Logs]) -> None:
    control, storage, _ = parts
    assert control.is_durable
    control.write(request(1))
    control.begin_write()
    control.write(vote(2))
    assert not control.is_durable
    assert control.write_done() == [request(1)]
    assert not control.is_durable
    control.begin_write()
    control.write(vote(3))
    control.begin_write()  # the write has failed, and comes again with more
    assert control.write_done() == [vote(2), vote(3)]
    assert control.is_durable
    assert control.write_done() == []
    assert storage.records == {request(1), vote(2), vote(3)}


def test_requests_and_votes_of_former_epochs_are_removed_with_the_next_record(
    parts: tuple[OwnControl, Storage, Logs],
) -> None:
    control, storage, logs = parts
    for each in (request(4), vote(4), start(4), vote(5), request(6), vote(4, OTHER)):
        control.write(each)
    logs.latest[LOG] = 5
    control.write(vote(7))
    assert storage.records == {start(4), vote(5), request(6), vote(7), vote(4, OTHER)}
    logs.latest[LOG] = 8
    writes = storage.writes
    control.write(start(8))
    assert storage.records == {start(4), start(8), vote(4, OTHER)}
    assert storage.writes == writes + 1, "in one write"
    del logs.latest[LOG]
    control.write(vote(1))
    assert vote(1) in storage.records, "nothing is known of the log"


def test_restored_records_are_removed_like_written_ones(parts: tuple[OwnControl, Storage, Logs]) -> None:
    control, storage, logs = parts
    for each in (request(1), vote(2), start(1)):
        storage.values[key_of(each).encode()] = encode_control(each)
        control.restore(key_of(each), each)
    control.restore(key_of(vote(2)), None)
    del storage.values[key_of(vote(2)).encode()]
    logs.latest[LOG] = 3
    control.write(vote(4))
    assert storage.records == {start(1), vote(4)}


def test_records_of_deleted_logs_are_removed(parts: tuple[OwnControl, Storage, Logs]) -> None:
    control, storage, _ = parts
    for each in (start(1), vote(2), start(1, OTHER)):
        control.write(each)
    control.forget([LOG, "unknown/0"])
    assert storage.records == {start(1, OTHER)}
    writes = storage.writes
    control.forget([LOG])
    assert storage.writes == writes, "nothing is left"
