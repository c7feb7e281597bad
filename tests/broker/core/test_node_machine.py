"""What the machine of a broker's store receives from other brokers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import pytest

from dafka import wire
from dafka.broker.core.broker_news import (
    HeartbeatsReceived,
    IndexesAcknowledged,
    IndexesAnnounced,
    MessagesReceived,
    RoundsReceived,
    StoreChecked,
)
from dafka.broker.core.metadata.store_check import StoreClaim, StoreMemory
from dafka.broker.core.node_machine import BrokerMachine, TopicMissing
from dafka.broker.core.partition_policy import PartitionPolicy
from dafka.broker.core.rounds import (
    CheckAnswer,
    Round,
    RoundKind,
    RoundReply,
    answer_check,
    answer_round,
    ask_round,
    tell_end,
)
from dafka.config import Config
from dafka.protocol.actions import Action, Append, Effect, Publish
from dafka.protocol.machines.stored_partitions import StoredPartitions
from dafka.records import Partition, RecordBatch

OWN, OTHER, PRODUCER = "A" * 32, "B" * 32, "C" * 32
LOG = f"{OTHER}/{'d' * 32}/0"


class Policy:
    """A broker's policy without a cluster: it stores the partitions of all brokers."""

    def __init__(self, leader: str) -> None:
        self._leader = leader
        self.is_registered = True

    def owns(self, partition: Partition) -> bool:
        return partition.address.startswith(OWN)

    def keeps(self, partition: Partition) -> bool | None:
        return True if "/" in partition.address else None

    def describes_cluster(self, partition: Partition) -> bool:
        return partition.topic == "$brokers"

    def is_client_data(self, partition: Partition) -> bool:
        return partition.topic == "orders"

    def acknowledges(self, _partition: Partition) -> bool:
        return True

    def is_background_copy(self, _partition: Partition) -> bool:
        return False

    def fetch_leader(self, _partition: Partition) -> str:
        return self._leader

    def misses_topic_of(self, partition: Partition) -> bool:
        return partition.topic == "new"


def make_machine(ends: dict[Partition, int], leader: str = "") -> BrokerMachine:
    policy = cast("PartitionPolicy", Policy(leader))
    return BrokerMachine(OWN, Config(), ends, {}, (), StoredPartitions({}), policy)


def published(actions: Iterable[Action]) -> list[wire.BatchedMessage]:
    return [each.message for each in actions if isinstance(each, Publish)]


def receive(machine: BrokerMachine, *messages: wire.BatchedMessage) -> list[Effect]:
    return [each for each in machine.receive(messages, 0.0) if isinstance(each, Effect)]


@pytest.fixture
def machine() -> BrokerMachine:
    return make_machine({})


def run(address: str, requestor: str | None = None) -> wire.RecordRun:
    return wire.RecordRun(RecordBatch(Partition("orders", address), 0, [b"x"]), requestor)


@pytest.mark.parametrize(
    ("message", "heard"),
    [
        (wire.Head(OTHER, "$brokers", 3), {OTHER}),
        (run(LOG), {OTHER}),
        (run(LOG, requestor=OWN), set()),
        (run(PRODUCER), set()),
        (wire.Head(PRODUCER, "orders", 3), set()),
    ],
    ids=["the head of its description", "records that it has ordered", "an answer", "a producer", "its head"],
)
def test_signs_of_life_are_what_a_broker_sends_by_itself(
    machine: BrokerMachine, message: wire.BatchedMessage, heard: set[str]
) -> None:
    effects = receive(machine, message)
    assert effects == ([HeartbeatsReceived(frozenset(heard))] if heard else [])


def test_rounds_are_asked_and_answered(machine: BrokerMachine) -> None:
    asked = Round(7, RoundKind.UNWRITABLE, StoreClaim(("a", "b"), 2, 3, 1, 4))
    reply, check = RoundReply(8, 12, 5, 99, "b"), CheckAnswer("b", StoreMemory("a", 2, "", 3, 4))
    end = Partition("orders", f"{OWN}/T/0/1024"), 9
    elsewhere = [answer_round(PRODUCER, OTHER, reply), answer_check(PRODUCER, OTHER, check)]
    malformed = [
        *(
            wire.Ack(f"{OWN}/{fields}", "$rounds", 9, OTHER)
            for fields in ("1", "x/1/1/b", "1/1/x/b", "1/2/3", "1/2/3/4/5")
        ),
        *(wire.Ack(f"$rounds/{fields}", "$rounds", 9, OTHER) for fields in ("", "other/1/1/a", "writable/1/x/1/1/a")),
        *(wire.Ack(f"{OWN}/{fields}", "$checks", 9, OTHER) for fields in ("b", "b/a//x/1/1", "b/a//1/1/1/1")),
        wire.Ack(OWN, "$checks/orders", 9, OTHER),
    ]
    messages = [answer_round(OWN, OTHER, reply), tell_end(end[0], OTHER, end[1]), answer_check(OWN, OTHER, check)]
    effects = receive(machine, ask_round(OTHER, asked), *elsewhere, *malformed, *messages)
    assert effects == [
        RoundsReceived([(OTHER, asked)], [(OTHER, reply)]),
        StoreChecked(frozenset(), [(OTHER, check)], dict([end])),
    ]


def test_messages_of_brokers_are_effects_unless_the_store_is_checked(machine: BrokerMachine) -> None:
    sent = [wire.BrokerMessage(OWN, OTHER, each) for each in (b"x", b"y")]
    assert receive(machine, *sent) == [MessagesReceived([(OTHER, b"x"), (OTHER, b"y")])]
    machine.hold()
    assert receive(machine, *sent) == []
    assert machine.release(0.0) == []


def test_new_topics_are_effects_of_the_records_that_arrive(machine: BrokerMachine) -> None:
    def arrive(topic: str, address: str) -> list[Effect]:
        batch = RecordBatch(Partition(topic, address), 0, [b"x", b"y"])
        return receive(machine, wire.RecordRun(batch, None))

    assert arrive("new", PRODUCER) == [TopicMissing("new")]
    assert arrive("old", PRODUCER) == []


def test_acknowledgements_and_announcements_of_indexes_are_reported_once(machine: BrokerMachine) -> None:
    index = Partition("$logs", f"{OWN}/{'d' * 32}/0")
    acks = [wire.Ack(index.address, index.topic, sequence, OTHER) for sequence in (3, 7, 5)]
    assert receive(machine, *acks) == [IndexesAcknowledged({(index, OTHER): 8})]
    announced = Partition("$logs", LOG)
    effects = receive(machine, wire.Head(announced.address, announced.topic, 4))
    assert effects == [IndexesAnnounced(frozenset({announced}))]


def test_a_broker_takes_only_what_describes_the_cluster_before_it_is_registered() -> None:
    policy, stored, control = Policy(""), Partition("orders", PRODUCER), Partition("$brokers", LOG)
    policy.is_registered = False
    ends = {stored: 2}
    machine = BrokerMachine(OWN, Config(), ends, {}, (), StoredPartitions({}), cast("PartitionPolicy", policy))

    def fetched(messages: Iterable[wire.BatchedMessage]) -> set[Partition]:
        return {Partition(each.subject, each.partition) for each in messages if isinstance(each, wire.Fetch)}

    heads = [wire.Head(each.address, each.topic, 3) for each in (stored, control)]
    new: list[wire.BatchedMessage] = [
        wire.Head(PRODUCER, "new", 3),
        wire.Head(f"{OTHER}/{'e' * 32}/0", "other", 0),
        run(OTHER),
    ]
    assert fetched(published(machine.receive([*heads, *new], 0.0))) == {control}
    machine.reassembler.record_known_end(stored, 4)
    for is_held in (True, False):
        assert published(machine.hold_client_data(0.0, is_held=is_held)) == []
    assert published(machine.apply_registration(0.0)) == []
    policy.is_registered = True
    found = published(machine.apply_registration(0.0))
    assert [each for each in found if isinstance(each, wire.GetHeads)] == [
        wire.GetHeads(topic, OWN) for topic in ("new", "orders")
    ]
    assert stored in fetched(found)
    assert published(machine.apply_registration(0.0)) == []
    machine.receive(new, 0.0)
    assert Partition("new", PRODUCER) in machine.reassembler.cursors


def test_records_that_others_are_known_to_have_are_fetched(machine: BrokerMachine) -> None:
    def fetch(end: int) -> list[tuple[int, int]]:
        found = machine.expect_records({Partition("$logs", LOG): end}, 0.0)
        fetches = published(found)
        return [(each.sequence, each.count) for each in fetches if isinstance(each, wire.Fetch)]

    assert fetch(0) == [(0, Config().fetch.page_records_first)]
    assert fetch(0) == []
    machine.receive([wire.RecordRun(RecordBatch(Partition("$logs", LOG), 0, [b"x", b"y"]), OWN)], 0.1)
    assert fetch(5) == [(2, 3)]


def test_a_broker_fetches_nothing_that_only_it_writes(machine: BrokerMachine) -> None:
    assert machine.expect_records({Partition("orders", OWN): 5}, 0.0) == []


def test_a_broker_that_was_restarted_while_it_got_back_what_it_had_deleted_gets_the_rest() -> None:
    own = Partition("orders", f"{OWN}/{'d' * 32}/0/1024")
    machine = make_machine({own: 3})
    assert machine.expect_records({own: 3}, 0.0) == []
    (fetch,) = published(machine.expect_records({own: 5}, 0.0))
    assert isinstance(fetch, wire.Fetch)
    assert (fetch.partition, fetch.sequence, fetch.count) == (own.address, 3, 2)
    actions = machine.receive([wire.RecordRun(RecordBatch(own, 3, [b"x", b"y"]), OWN)], 0.1)
    assert [each.batch.first_sequence for each in actions if isinstance(each, Append)] == [3]


@pytest.mark.parametrize(
    ("leader", "requestor", "answered"),
    [("", PRODUCER, [0, 0, 5]), (OWN, PRODUCER, [0, 0, 5]), (OTHER, OTHER, [0, 0, 5]), (OTHER, PRODUCER, [0])],
    ids=["nobody leads", "this broker leads", "the leader asks", "another one leads"],
)
def test_records_are_sent_by_the_leader_of_their_log_unless_they_are_asked_for_again(
    leader: str, requestor: str, answered: list[int]
) -> None:
    held = Partition("orders", f"{OTHER}/{'d' * 32}/0/1024")
    machine = make_machine({held: 10}, leader)
    found = []
    for sequence in (0, 0, 5):
        machine.receive([wire.Fetch(held.address, requestor, held.topic, sequence, 5)], 0.0)
        while (request := machine.responder.next_read()) is not None:
            found.append(request.first_sequence)
            machine.responder.complete_read(request, None)
    assert found == answered
