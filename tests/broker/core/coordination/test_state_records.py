"""The records in which coordinators keep their state."""

import json
import random

import pytest

from dafka.broker.core.coordination import deadlines as deadlines_module
from dafka.broker.core.coordination.deadlines import Deadlines
from dafka.broker.core.coordination.state_records import (
    GROUPS_TOPIC,
    OFFSETS_TOPIC,
    SHARD_KIND,
    TRANSACTIONS_TOPIC,
    StateRecord,
    read_state,
)
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.coordinator import GroupCoordinator
from dafka.broker.core.groups.results import CommitRequest, FetchedOffset, OffsetToCommit
from dafka.broker.core.groups.settings import GroupSettings
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.topic_partition import TopicPartition
from dafka.broker.core.transactions.coordinator import TransactionCoordinator, TransactionSettings
from dafka.errors import StorageFormatError
from tests.broker.core.groups.group_client import Groups

ORDERS = TopicPartition("orders", 0)
OPTIONAL = "topic_id"
"""The field of committed offsets that former versions have not written."""


def restore(record: StateRecord) -> None:
    if record.topic == TRANSACTIONS_TOPIC:
        TransactionCoordinator(TransactionSettings()).restore(record)
    else:
        GroupCoordinator(GroupSettings(), str, LogTable("")).restore(record)


def transaction_records() -> list[StateRecord]:
    coordinator = TransactionCoordinator(TransactionSettings())
    actions = coordinator.init_producer_id(0, "payments", 60_000, None, 1_000)
    return [record for action in actions for record in getattr(action, "records", ())]


def samples() -> list[StateRecord]:
    groups = Groups()
    alone = groups.joined()
    groups.synced(alone, {alone.member_id: b"left"})
    request = CommitRequest(group_id="simple", offsets={ORDERS: OffsetToCommit(5, 3, "note", "2D")})
    groups.call(groups.coordinator.commit_offsets, request)
    return [groups.records[-2], groups.records[-1], *transaction_records()]


def test_records_are_readable() -> None:
    group, offset, ids, transaction = records = samples()
    assert [read_state(each.key, each.value) for each in records] == records
    assert read_state(json.dumps([SHARD_KIND]).encode(), b"") is None
    assert (group.topic, group.key) == (GROUPS_TOPIC, b'["group","g"]')
    assert group.value is not None
    assert json.loads(group.value)["members"][0]["assignment"] == "bGVmdA=="
    assert (offset.topic, offset.key) == (OFFSETS_TOPIC, b'["offset","simple","orders",0]')
    assert offset.value is not None
    assert json.loads(offset.value) == {
        "version": 1,
        "offset": 5,
        "leader_epoch": 3,
        "metadata": "note",
        "commit_timestamp_ms": 0,
        "expire_timestamp_ms": None,
        "order": 1,
        "topic_id": "2D",
    }
    assert (ids.key, ids.value) == (b'["producer-ids"]', b'{"version":1,"next_producer_id":1000}')
    assert (transaction.topic, transaction.key) == (TRANSACTIONS_TOPIC, b'["transaction","payments"]')


def test_unknown_fields_are_ignored_and_newer_versions_and_missing_fields_refused() -> None:
    for record in samples():
        fields = json.loads(record.value or b"")
        restore(record._replace(value=json.dumps(fields | {"later": True}).encode()))
        newer = json.dumps(fields | {"version": 2}).encode()
        with pytest.raises(StorageFormatError, match="has version 2, and this dafka reads versions up to 1"):
            restore(record._replace(value=newer))
        for name in fields.keys() - {OPTIONAL}:
            fewer = {key: value for key, value in fields.items() if key != name}
            with pytest.raises(StorageFormatError):
                restore(record._replace(value=json.dumps(fewer).encode()))
        for value in (b"", b"\xff", b"[]", b"{}", b'{"version":"1"}', b'{"version":0}', b'{"version":1}'):
            with pytest.raises(StorageFormatError):
                restore(record._replace(value=value))


def test_committed_offsets_of_former_versions_have_no_topic_id() -> None:
    record = samples()[1]
    fields = json.loads(record.value or b"")
    del fields[OPTIONAL]
    coordinator = GroupCoordinator(GroupSettings(), str, LogTable(""))
    coordinator.restore(record._replace(value=json.dumps(fields).encode()))
    assert coordinator.fetch_offsets("simple", [ORDERS])[ORDERS] == FetchedOffset(5, 3, "note", ErrorCode.NONE, "")


def test_other_topics_and_keys_are_refused() -> None:
    for topic in (GROUPS_TOPIC, OFFSETS_TOPIC, TRANSACTIONS_TOPIC):
        for key in (b"", b"\xff", b"{}", b"[]", b"[1]", b'["other"]', b'["group",1]', b'["offset","g"]'):
            with pytest.raises(StorageFormatError):
                restore(StateRecord(topic, key, None))
    with pytest.raises(StorageFormatError, match="has an unknown kind"):
        read_state(b'["other"]', b"")
    with pytest.raises(StorageFormatError, match="orders has no records of groups"):
        restore(StateRecord("orders", b'["group","g"]', None))


@pytest.mark.parametrize("superseded_max", [deadlines_module.SUPERSEDED_MAX, 0, -100])
def test_the_earliest_deadline_comes_first_and_exactly_when_it_is_due(
    superseded_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when obsolete entries are removed now and then, or each time."""
    monkeypatch.setattr(deadlines_module, "SUPERSEDED_MAX", superseded_max)
    for seed in range(50):
        draw = random.Random(seed)
        deadlines, expected = Deadlines[int](), dict[int, int]()
        for _ in range(60):
            key, at_ms = draw.randrange(6), draw.randrange(30)
            match draw.choice(["set", "set", "cancel", "pop"]):
                case "set":
                    deadlines.set(key, at_ms)
                    expected[key] = at_ms
                case "cancel":
                    deadlines.cancel(key)
                    expected.pop(key, None)
                case "pop":
                    found, earliest = deadlines.pop_due(at_ms), min(expected.values(), default=99)
                    assert (found is None) == (earliest > at_ms)
                    assert found is None or expected.pop(found) == earliest
            assert deadlines.next_deadline_ms() == min(expected.values(), default=None)
            assert [each in deadlines for each in range(6)] == [each in expected for each in range(6)]


def test_cancelled_deadlines_take_no_memory() -> None:
    deadlines = Deadlines[int]()
    for number in range(10_000):
        deadlines.set(number, number)
        if number % 100:
            deadlines.cancel(number)
    assert len(deadlines._heap) < 1_300
    due = [deadlines.pop_due(10_000) for _ in range(101)]
    assert due == [*range(0, 10_000, 100), None]
