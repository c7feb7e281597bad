"""Records of brokers and groups that any node can publish: malformed ones are refused by one kind of error."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from dafka.broker.core.metadata.brokers import BrokerRegistration, decode_broker, encode_broker
from dafka.broker.core.metadata.commands import (
    ChangeReplicas,
    CreateTopic,
    Order,
    RegisterBroker,
    decode_order,
    encode_order,
)
from dafka.broker.core.metadata.log_replicas import Reason
from dafka.broker.core.metadata.store_record import StoreRecord, decode_store_record, encode_store_record
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.positions import Offset, RecordSequence
from dafka.broker.core.replication.checkpoints import Checkpoint, Restart, decode_checkpoint, encode_checkpoint
from dafka.broker.core.replication.records import (
    EpochStart,
    LeaderAndEpoch,
    Vote,
    VoteRequest,
    decode_control,
    encode_control,
)
from dafka.errors import StorageFormatError
from dafka.protocol.groups.records import MemberRecord, Position, decode_member_record, encode_member_record
from dafka.records import Partition
from tests.broker.core.entries import epoch_end
from tests.spoiled import spoil_fields

BRANCH = LeaderAndEpoch(3, "a")
TIP = epoch_end(BRANCH, 5)
TOPIC = Topic("orders", "1D", 2, {"retention.ms": "1"}, 2, (("a", "b"), ("b", "a")), 1, 2)
PARTITION = Partition("orders", "p")
MEMBER = MemberRecord(
    lease_ms=100, topics=("orders",), stores=2, claimed=frozenset([PARTITION]), positions={PARTITION: Position(1, 2)}
)

Decode = Callable[[bytes], object]
SAMPLES: dict[str, tuple[bytes, Decode]] = {
    "topic": (encode_order(Order(CreateTopic(TOPIC), "1")), decode_order),
    "replicas": (encode_order(Order(ChangeReplicas("1D", 0, ("a",), Reason.DEAD, generation=1), "2")), decode_order),
    "registration": (encode_order(Order(RegisterBroker("a", 1), "2", "anne", 3, 4)), decode_order),
    "store": (encode_store_record(StoreRecord("C", ("a", "b"), 3)), decode_store_record),
    "broker": (encode_broker(BrokerRegistration(address="a", number=1)), lambda value: decode_broker("a", value)),
    "claim": (encode_control(VoteRequest("1D/0", BRANCH, ("a", "b"), ("b",))), decode_control),
    "promise": (encode_control(Vote("1D/0", BRANCH, TIP, (("a",),), BRANCH)), decode_control),
    "row": (encode_control(EpochStart("1D/0", BRANCH, TIP, ("a", "b"))), decode_control),
    "checkpoint": (
        encode_checkpoint(
            Checkpoint(
                RecordSequence(1), Offset(2), Offset(3), Offset(4), Restart(RecordSequence(1), Offset(2)), {"p": 3}
            )
        ),
        decode_checkpoint,
    ),
    "member": (encode_member_record(MEMBER), decode_member_record),
}


def test_a_malformed_record_is_refused_or_read_without_any_other_error() -> None:
    for kind, (sample, decode) in SAMPLES.items():
        decode(sample)
        wrong = [
            b"",
            b"\xff",
            b"[]",
            b"[" * 100_000,
            *(json.dumps(each).encode() for each in spoil_fields(json.loads(sample))),
        ]
        refused = []
        for value in wrong:
            try:
                decode(value)
            except StorageFormatError as error:
                refused.append(str(error))
        assert len(refused) > 4, kind
        assert not [each for each in refused if re.search(r"Error\b|'\w+' object|unpack|argument|field \d", each)]
