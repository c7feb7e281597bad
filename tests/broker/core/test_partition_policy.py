"""Which partitions a broker stores, writes and creates topics for, and the addresses of partitions."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.metadata.brokers import BROKERS_TOPIC, BrokerRegistration
from dafka.broker.core.metadata.cluster_state import METADATA_TOPIC
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.partition_address import INDEX_TOPIC, EpochAddress, name_log, parse_address
from dafka.broker.core.positions import AtOffset, Offset, Position, RecordSequence, log_order, sequence_of
from dafka.broker.core.replication.records import BRANCHES_TOPIC, NO_EPOCH_END, EpochEnd, EpochStart, LeaderAndEpoch
from dafka.broker.core.tables import BrokerTables, make_tables
from dafka.config import Config
from dafka.protocol.machines.stored_partitions import StoredPartitions
from dafka.protocol.rendezvous import rank_nodes
from dafka.records import Partition

OWN, OTHER, THIRD, PRODUCER = ("A" * 32, "B" * 32, "C" * 32, "D" * 32)
CLUSTER = "7" * 32
KEPT, ELSEWHERE = Topic("kept", "1" * 32, 2), Topic("elsewhere", "2" * 32, 1)


def make(*, is_alone: bool = False, creates: bool = True, **settings: Any) -> BrokerTables:
    """Return the tables of a broker that keeps one of the logs of a topic, and none of another topic."""
    config = Config().with_broker(**settings).with_kafka(auto_create_topics="on" if creates else "off")
    tables = make_tables(OWN, config, StoredPartitions({}), LogTable(OWN))
    tables.state.found(CLUSTER)
    if not is_alone:
        for number, each in enumerate((OTHER, THIRD), 1):
            tables.brokers.record_registration(BrokerRegistration(address=each, number=number))
            tables.brokers.record_heartbeat(each, 10.0)
        tables.brokers.check_alive(10.1)
    for topic in (KEPT, ELSEWHERE):
        tables.log_table.add_topic(topic)
    for topic, number, replicas in ((KEPT, 0, (OWN, OTHER)), (KEPT, 1, (OTHER, THIRD)), (ELSEWHERE, 0, (OTHER, THIRD))):
        tables.logs.add(topic, number, replicas, [])
    return tables


def address(leader: str, topic: Topic, log: int = 0, epoch: int = 0) -> str:
    return str(EpochAddress(leader, topic.topic_id, log, epoch))


KEEPS: list[tuple[str, str, bool | None]] = [
    *((topic, OTHER, True) for topic in (BROKERS_TOPIC, BRANCHES_TOPIC)),
    (METADATA_TOPIC, f"{OTHER}/{CLUSTER}/0", True),
    (INDEX_TOPIC, f"{OTHER}/{CLUSTER}/0", True),
    (METADATA_TOPIC, f"{OTHER}/{'9' * 32}/0", False),
    (METADATA_TOPIC, PRODUCER, False),
    ("kept", address(OTHER, KEPT), True),
    ("kept", address(OTHER, KEPT, 1), False),
    ("elsewhere", address(OTHER, ELSEWHERE), False),
    (INDEX_TOPIC, address(OTHER, KEPT, 0, 1024), True),
    (INDEX_TOPIC, address(OTHER, KEPT, 1), False),
    (INDEX_TOPIC, f"{OTHER}/{'9' * 32}/0", False),
    ("kept", PRODUCER, None),
    ("elsewhere", PRODUCER, False),
    ("kept", f"{OTHER}/{'9' * 32}/0", False),
    ("new", f"{OTHER}/{'9' * 32}/0", False),
]
"""Partitions, and whether the broker keeps them; None if the limits for peers decide."""


@pytest.mark.parametrize(("topic", "partition", "keeps"), KEEPS)
def test_a_broker_stores_control_records_and_the_logs_that_it_replicates(
    topic: str, partition: str, keeps: bool | None
) -> None:
    tables = make()
    assert tables.policy.keeps(Partition(topic, partition)) is keeps
    alone = make(is_alone=True).policy
    is_always = topic in {METADATA_TOPIC, BROKERS_TOPIC, BRANCHES_TOPIC} or CLUSTER in partition
    assert alone.keeps(Partition(topic, partition)) is (keeps if is_always else None)


def test_partitions_of_deleted_topics_are_not_stored() -> None:
    for tables in (make(), make(is_alone=True)):
        tables.state.deleted_ids.add(KEPT.topic_id)
        for topic in ("kept", INDEX_TOPIC):
            assert tables.policy.keeps(Partition(topic, address(OTHER, KEPT))) is False
        assert tables.policy.keeps(Partition(BRANCHES_TOPIC, OTHER)) is True


def test_learners_store_a_log_in_the_background() -> None:
    tables = make()
    log = tables.logs.find(name_log(ELSEWHERE.topic_id, 0))
    assert log is not None
    partition = Partition("elsewhere", address(OTHER, ELSEWHERE))
    first = LeaderAndEpoch(0, OTHER)
    for learners, replicas in (((OWN,), (OTHER, THIRD, OWN)), ((), (OTHER, THIRD))):
        epoch = LeaderAndEpoch(1024 if learners else 2048, OTHER)
        row = EpochStart(log.name, epoch, EpochEnd(first, Offset(5)), replicas, learners)
        tables.logs.record_control(OTHER, row)
        tables.logs.set_alive({OWN, OTHER, THIRD}, 10.0)
        assert tables.policy.keeps(partition) is bool(learners)
        assert tables.policy.is_background_copy(partition) is bool(learners)
    assert not tables.policy.is_background_copy(Partition("kept", address(OTHER, KEPT)))
    assert row.parent != NO_EPOCH_END


def test_the_broker_that_comes_first_in_the_order_of_a_topic_creates_it() -> None:
    for creates, name in product((True, False), [f"new-{number}" for number in range(12)]):
        tables = make(creates=creates)
        is_first = rank_nodes(name, (OWN, OTHER, THIRD))[0] == OWN
        assert tables.policy.creates(name) == is_first
        for partition, is_producer in ((PRODUCER, True), (f"{OTHER}/{'9' * 32}/0", False)):
            found = Partition(name, partition)
            assert tables.policy.creates_topic_of(found) == (creates and is_first and is_producer)
            assert tables.policy.misses_topic_of(found) == (creates and is_first and is_producer)
            if is_producer:
                expected = None if not creates or is_first else False
                assert tables.policy.keeps(found) is expected
    tables = make()
    assert not tables.policy.misses_topic_of(Partition("kept", PRODUCER)), "it exists"
    assert not make(is_alone=True).policy.creates_topic_of(Partition("$state", PRODUCER)), "no name for clients"


def test_a_broker_owns_what_it_writes_and_acknowledges_indexes_only_with_their_records() -> None:
    policy = make().policy
    assert policy.owns(Partition("kept", address(OWN, KEPT)))
    assert policy.owns(Partition(BROKERS_TOPIC, OWN))
    assert not policy.owns(Partition("kept", address(OTHER, KEPT)))
    assert not policy.acknowledges(Partition(INDEX_TOPIC, address(OTHER, KEPT)))
    assert policy.acknowledges(Partition(INDEX_TOPIC, f"{OTHER}/{'9' * 32}/0"))
    assert policy.acknowledges(Partition("kept", address(OTHER, KEPT)))


def test_records_are_fetched_from_a_leader_that_is_alive() -> None:
    tables = make()
    partition = Partition("elsewhere", address(OTHER, ELSEWHERE))
    assert tables.policy.fetch_leader(partition) == OTHER
    assert tables.policy.fetch_leader(Partition("kept", PRODUCER)) == ""
    tables.brokers.check_alive(20.0)
    assert tables.policy.fetch_leader(partition) == ""


def test_a_broker_that_starts_says_what_its_settings_say() -> None:
    own = make(number=7, rack="r", initial_brokers=3).brokers.own
    assert (own.address, own.number, own.rack, own.initial_brokers) == (OWN, -1, "r", 3), "it is not registered yet"
    slow = make(leader_timeout_ms=2000, preferred_leader_after_ms=5000)
    slow.brokers.record_heartbeat(OTHER, 20.0)
    slow.brokers.check_alive(21.9)
    assert slow.brokers.is_alive(OTHER)
    slow.brokers.check_alive(22.0)
    assert not slow.brokers.is_alive(OTHER)
    assert slow.logs._settings.preferred_leader_after_s == 5.0
    assert slow.log_table.producer_starts is slow.state.producer_starts


ADDRESSES = [
    ("A/T/0", EpochAddress("A", "T", 0, 0)),
    ("A/T/12/1024", EpochAddress("A", "T", 12, 1024)),
    *((each, None) for each in ("A", "A/T", "A/T/0/1/2", "A/T/x", "A/T/0/x", "A/T/-1", "A/T/", "A/T/²", "A/T/0/٣", "")),
]


@pytest.mark.parametrize(("text", "parsed"), ADDRESSES)
def test_addresses_of_partitions_that_leaders_write(text: str, parsed: EpochAddress | None) -> None:
    assert parse_address(text) == parsed
    if parsed is not None:
        assert str(parsed) == text
        assert parsed.log_name == name_log(parsed.topic_id, parsed.log) == f"{parsed.topic_id}/{parsed.log}"


def test_records_of_other_leaders_come_before_those_of_the_own_one() -> None:
    positions: list[Position] = [RecordSequence(2), AtOffset(Offset(9)), RecordSequence(0), AtOffset(Offset(1))]
    expected = [AtOffset(Offset(1)), AtOffset(Offset(9)), RecordSequence(0), RecordSequence(2)]
    assert sorted(positions, key=log_order) == expected
    assert sequence_of(RecordSequence(5)) == 5
    with pytest.raises(AssertionError):
        sequence_of(AtOffset(Offset(5)))
