"""Samples of everything that dafka stores or sends between brokers, as each release has written them.

`python -m tests.formats.samples NAME` records the present formats in a folder: that of a release, or `level-N` when the
feature level N is complete, since clusters of development versions have it, too. A folder is recorded once, and never
changed.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs
import trio

from dafka.broker.access.credentials import Credential, Token, hash_token
from dafka.broker.access.permissions import Permissions
from dafka.broker.access.users_file import User, write_users
from dafka.broker.core.acls import Acl, AclEffect, Operation, PatternType, ResourceType
from dafka.broker.core.client_quotas import EntityType, make_entity
from dafka.broker.core.coordination.state_records import StateRecord
from dafka.broker.core.groups.consumer import records as consumer_records
from dafka.broker.core.groups.consumer.group import ConsumerGroup, KnownTopic, StoredGroup
from dafka.broker.core.groups.consumer.members import ClassicProtocol, Member, MemberState, Subscription
from dafka.broker.core.groups.consumer.records import StoredMember
from dafka.broker.core.groups.records import CommittedOffset, OffsetKey, decode_group, decode_offset, encode_offset
from dafka.broker.core.groups.share import records as share_records
from dafka.broker.core.groups.share.members import ShareGroup, ShareMember
from dafka.broker.core.groups.share.runs import RecordState
from dafka.broker.core.groups.share.state import SharePartitionKey, ShareState, StoredRun
from dafka.broker.core.log.entries import (
    BatchEntry,
    DroppedEntry,
    EpochStartEntry,
    IndexRewriteEntry,
    LogStartEntry,
    MarkerEntry,
    MergedEntry,
    NextStartEntry,
    RunEntry,
    decode_entries,
    encode_entries,
)
from dafka.broker.core.metadata.brokers import BrokerRegistration, decode_broker, encode_broker
from dafka.broker.core.metadata.cluster_state import ClusterState
from dafka.broker.core.metadata.commands import (
    AddLogs,
    AlterClientQuota,
    AlterGroupSettings,
    AlterSettings,
    ChangeReplicas,
    CloseTopic,
    Command,
    CreateAcls,
    CreateTopic,
    DeleteAcls,
    DeleteScramCredential,
    DeleteTopic,
    DrainBroker,
    ForgetBroker,
    OpenCluster,
    Order,
    RecoverLog,
    RegisterBroker,
    ReplicasChanged,
    SetFeatureLevel,
    SetScramCredential,
    SnapshotTaken,
    decode_order,
    encode_order,
)
from dafka.broker.core.metadata.features import FeatureLevels, FeatureSupport
from dafka.broker.core.metadata.log_replicas import LogKey, Reason
from dafka.broker.core.metadata.snapshots import Snapshot, parse_snapshot
from dafka.broker.core.metadata.store_check import StoreClaim
from dafka.broker.core.metadata.store_record import StoreRecord, decode_store_record, encode_store_record
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.positions import AtOffset, Offset, ProducerSequence, RecordSequence
from dafka.broker.core.replication.checkpoints import Checkpoint, Restart, decode_checkpoint, encode_checkpoint
from dafka.broker.core.replication.records import (
    EpochEnd,
    EpochStart,
    LeaderAndEpoch,
    Vote,
    VoteRequest,
    decode_control,
    encode_control,
)
from dafka.broker.core.rounds import Round, RoundKind, RoundReply, answer_round, ask_round
from dafka.broker.core.scram_credentials import ScramCredential, ScramMechanism
from dafka.broker.core.topic_partition import TopicPartition
from dafka.broker.core.transactions.producer_ids import ProducerIds
from dafka.broker.core.transactions.transaction import (
    Transaction,
    TransactionPhase,
    decode_transaction,
    encode_transaction,
)
from dafka.protocol.groups.records import MemberRecord, Position, decode_member_record, encode_member_record
from dafka.records import Partition, RecordBatch
from dafka.storage import open_storage
from dafka.storage.opening import read_range
from dafka.wire import Ack

FOLDER = Path(__file__).parent
EPOCH = LeaderAndEpoch(1024, "A")
END = EpochEnd(EPOCH, Offset(5))
PARTITION = Partition("orders", "P" * 32)
LEVELS = FeatureLevels(1, 2)
SUPPORT = FeatureSupport(LEVELS)

COMMANDS: list[Command] = [
    RegisterBroker("A", 0, ("s1", "s2"), features=LEVELS),
    RegisterBroker("B", 1, ("t1",), "", LEVELS),
    RegisterBroker("C", 2, features=LEVELS),
    OpenCluster(),
    SetFeatureLevel(2),
    DrainBroker("B", is_draining=True),
    ForgetBroker("C", accepts_loss=True),
    CreateTopic(Topic("orders", "1D", 2, {"retention.ms": "1"}, 2, (("A", "B"), ("B", "A")), 1, 1024)),
    CreateTopic(Topic("visits", "2D", 1, placement=(("A",),)), is_assigned=True),
    CreateTopic(Topic("gone", "3D", 1, placement=(("B",),))),
    AddLogs("1D", 3, (("A",),), is_assigned=True),
    AlterSettings("1D", {"cleanup.policy": "compact"}),
    ChangeReplicas("1D", 0, ("B",), Reason.DRAINED, 1, 1),
    ReplicasChanged("1D", 0, 1, 2048),
    RecoverLog("1D", 1, "A"),
    DeleteTopic("2D", 1024),
    DeleteTopic("3D", 2048),
    CloseTopic("3D", {"P": 7}),
    SnapshotTaken(1000, "c" * 64),
]
ACL = Acl(ResourceType.TOPIC, "orders", "User:anne", Operation.READ, PatternType.PREFIXED, "::1", AclEffect.DENY)
CREDENTIAL = ScramCredential("anne", ScramMechanism.SHA_256, 4096, "YQ==", "Yg==", "Yw==")
LATER_COMMANDS: list[Command] = [
    CreateAcls((ACL, Acl(ResourceType.CLUSTER, "kafka-cluster", "User:*", Operation.ALTER))),
    SetScramCredential(CREDENTIAL),
    SetScramCredential(attrs.evolve(CREDENTIAL, mechanism=ScramMechanism.SHA_512)),
    DeleteAcls((ACL,)),
    DeleteScramCredential("anne", ScramMechanism.SHA_512),
    AlterClientQuota(make_entity({EntityType.USER: "anne", EntityType.CLIENT_ID: None}), {"x": "1"}, ("y",)),
    AlterGroupSettings("group", {"x": "1"}),
]
"""Commands of the feature level 3."""
RECORDS = [
    RecordBatch(PARTITION, 0, [b"first", None], keys=[b"key", None], timestamps=[1_700_000_000_000, 1_700_000_000_001]),
    RecordBatch(PARTITION, 2, [b"third"], headers=[(("name", b"value"),)], timestamps=[1_700_000_000_002]),
]
TOKEN = Token("t1", hash_token("secret"), 1_700_000_000_000)
USER = User(
    "anne",
    {"SCRAM-SHA-256": Credential(b"salt", 4096, b"stored", b"server")},
    Permissions(read=("orders",), admin=("*",)),
    (TOKEN,),
)


def apply_commands(*later: Command) -> ClusterState:
    """Return the state that the commands give, and later ones."""
    state = ClusterState(SUPPORT)
    state.found("D" * 32)
    for each in (*COMMANDS, *later):
        assert not state.apply(Order(each, controller_epoch=1024)).reason, each
    return state


def _order(command: Command) -> Order:
    return Order(command, "request", "anne at 127.0.0.1", 1_700_000_000_000, 1024)


Decode = Callable[[bytes], object]


def sample_snapshot(*later: Command) -> tuple[Snapshot, Callable[[Snapshot], bytes], Decode]:
    return (
        Snapshot(Offset(1000), dict(apply_commands(*later).records)),
        lambda snapshot: snapshot.text,
        lambda text: Snapshot(Offset(1000), dict(parse_snapshot(text).restore(SUPPORT).records)),
    )


VALUES: dict[str, tuple[object, Callable[[Any], bytes], Decode]] = {
    **{
        f"{number:02} {each.KIND}": (_order(each), encode_order, lambda value: decode_order(value, SUPPORT))
        for number, each in enumerate((*COMMANDS, *LATER_COMMANDS))
    },
    "snapshot": sample_snapshot(),
    "snapshot of level 3": sample_snapshot(*LATER_COMMANDS),
    "store record": (
        StoreRecord("D" * 32, ("A", "B"), 7, 1, ("s1", "s2"), "E" * 32, "A"),
        encode_store_record,
        decode_store_record,
    ),
    "registration": (
        BrokerRegistration(address="A", number=1, cluster_id="D", first_voters=("A",), is_open=True, rack="r"),
        encode_broker,
        lambda value: decode_broker("A", value),
    ),
    "vote request": (
        VoteRequest("1D/0", EPOCH, ("A", "B"), ("B",), 2, is_transfer=True),
        encode_control,
        decode_control,
    ),
    "vote": (Vote("1D/0", EPOCH, END, (("A",),), EPOCH), encode_control, decode_control),
    "epoch start": (EpochStart("1D/0", EPOCH, END, ("A", "B")), encode_control, decode_control),
    "checkpoint": (
        Checkpoint(RecordSequence(1), Offset(2), Offset(3), Offset(4), Restart(RecordSequence(1), Offset(2)), {"P": 3}),
        encode_checkpoint,
        decode_checkpoint,
    ),
    "index": (
        [
            IndexRewriteEntry(),
            RunEntry(Offset(0), "P" * 32, RecordSequence(0), 3),
            BatchEntry(RecordSequence(3), 2, 7, 0, ProducerSequence(5), 1, 1_700_000_000_000),
        ],
        encode_entries,
        decode_entries,
    ),
    "index of each kind": (
        [
            EpochStartEntry(Offset(1), 1024),
            RunEntry(Offset(1), "", RecordSequence(0), 0),
            BatchEntry(AtOffset(Offset(2)), 2, 7, 0, None, 1, 1_700_000_000_000),
            MarkerEntry(Offset(4), RecordSequence(2), 7, 1, 1, 1_700_000_000_001, AtOffset(Offset(2))),
            MarkerEntry(Offset(5), AtOffset(Offset(5)), 8, 0, 0, 1_700_000_000_002, None),
            DroppedEntry("P" * 32, RecordSequence(3)),
            NextStartEntry(Offset(3)),
            LogStartEntry(Offset(3)),
        ],
        encode_entries,
        decode_entries,
    ),
    "index with a merged end": ([MergedEntry(Offset(3), "P" * 32, RecordSequence(3))], encode_entries, decode_entries),
    "member of a group without brokers": (
        MemberRecord(lease_ms=100, topics=("orders",), stores=2, positions={PARTITION: Position(1, 2)}),
        encode_member_record,
        decode_member_record,
    ),
}
"""Values: what each says, and how it is written and read."""


def describe_group(record: StateRecord) -> object:
    """Return what a test compares of a group."""
    name, group = decode_group(record)
    assert group is not None
    return name, group.generation_id, group.state_since_ms


OFFSET = OffsetKey("readers", TopicPartition("orders", 1)), CommittedOffset(offset=5, commit_timestamp_ms=6)
TRANSACTION = Transaction(
    transactional_id="t", producer_id=7, producer_epoch=1, transaction_timeout_ms=1000, updated_at_ms=9
)
GROUP = StateRecord(
    "$groups",
    b'["group","readers"]',
    b'{"version":1,"state":"Empty","state_since_ms":5,"generation_id":3,"protocol_type":"consumer","protocol_name":null,'
    b'"leader":null,"members":[]}',
)
OWN_EPOCH = attrs.evolve(
    TRANSACTION,
    has_own_epoch=True,
    phase=TransactionPhase.PREPARE_COMMIT,
    partitions=frozenset({TopicPartition("orders", 1)}),
    groups=frozenset({"readers"}),
    started_at_ms=8,
)
HELD, OTHER = frozenset({LogKey("1D", 0), LogKey("1D", 2)}), frozenset({LogKey("1D", 1)})
MEMBER = Member(
    member_id="m",
    instance_id="i",
    rack="r",
    client_id="c",
    client_host="/10.0.0.1",
    rebalance_timeout_ms=300_000,
    subscription=Subscription(frozenset({"orders"}), "vis.*", frozenset({"visits"})),
    assignor="range",
    epoch=4,
    previous_epoch=3,
    state=MemberState.REVOKING,
    assigned=HELD,
    revoking=OTHER,
    classic=ClassicProtocol(45_000, (("range", b"metadata"),)),
)
SHARE_MEMBER = ShareMember(
    member_id="m",
    rack="r",
    client_id="c",
    client_host="/10.0.0.1",
    topics=frozenset({"orders"}),
    epoch=4,
    previous_epoch=3,
    assigned=HELD,
)
SHARE_KEY = SharePartitionKey("workers", "1D", 0)
SHARE_STATE = ShareState(
    "S" * 32, 2048, 1024, 5, (StoredRun(3, RecordState.AVAILABLE, 1), StoredRun(2, RecordState.ACKNOWLEDGED, 2))
)

ARCHIVING_STATE = ShareState("S" * 32, 2048, 1024, 5, (StoredRun(3, RecordState.ARCHIVING, 5),))


def make_consumer_group() -> ConsumerGroup:
    group = ConsumerGroup("readers", 5)
    group.epoch, group.target_epoch, group.assignor = 4, 3, "uniform"
    group.topics = {"orders": KnownTopic("1D", 3)}
    group.put(MEMBER)
    group.targets["m"] = OTHER
    return group


def make_share_group() -> ShareGroup:
    group = ShareGroup("workers", 5)
    group.epoch, group.topics = 4, {"orders": KnownTopic("1D", 3)}
    group.members["m"] = SHARE_MEMBER
    return group


def describe_share_group(record: StateRecord) -> object:
    """Return what a test compares of a share group."""
    name, group = share_records.decode_group(record)
    assert group is not None
    return name, group.epoch, group.state_since_ms, group.topics


def describe_ids(record: StateRecord) -> int:
    """Return the next producer id."""
    ids = ProducerIds(1, 2)
    ids.restore(record)
    return ids.take()[0]


STORED_GROUP = StoredGroup(4, 3, 5, "uniform", {"orders": KnownTopic("1D", 3)})
KEYED: dict[str, tuple[object, StateRecord, Callable[[StateRecord], object]]] = {
    "consumer group": (
        ("readers", STORED_GROUP),
        consumer_records.encode_group(make_consumer_group()),
        consumer_records.decode_consumer_group,
    ),
    "consumer member": (
        ("readers", "m", StoredMember(MEMBER, OTHER)),
        consumer_records.encode_member(make_consumer_group(), "m"),
        consumer_records.decode_member,
    ),
    "share group": (
        ("workers", 4, 5, {"orders": KnownTopic("1D", 3)}),
        share_records.encode_group(make_share_group()),
        describe_share_group,
    ),
    "share member": (
        ("workers", "m", SHARE_MEMBER),
        share_records.encode_member(make_share_group(), "m"),
        share_records.decode_member,
    ),
    "share partition": (
        (SHARE_KEY, SHARE_STATE),
        share_records.encode_partition(SHARE_KEY, SHARE_STATE),
        share_records.decode_partition,
    ),
    "share partition with dead letters": (
        (SHARE_KEY, ARCHIVING_STATE),
        share_records.encode_partition(SHARE_KEY, ARCHIVING_STATE),
        share_records.decode_partition,
    ),
    "transaction with an epoch of its own": (
        OWN_EPOCH,
        encode_transaction(OWN_EPOCH),
        lambda record: decode_transaction(record, "t"),
    ),
    "producer ids": (3000, ProducerIds(1, 2).take()[1][0], describe_ids),
    "group": (("readers", 3, 5), GROUP, describe_group),
    "offset": (OFFSET, encode_offset(*OFFSET), decode_offset),
    "transaction": (TRANSACTION, encode_transaction(TRANSACTION), lambda record: decode_transaction(record, "t")),
}
"""Records of coordinators: what each says, the record, and how it is read."""

ROUNDS: dict[str, tuple[object, Ack]] = {
    "round": (
        asked := Round(3, RoundKind.WRITABLE, StoreClaim(("s1", "s2"), 1, 2, 3, 4)),
        ask_round("A", asked),
    ),
    "reply": (reply := RoundReply(3, 4, 5, 6, "s1"), answer_round("A", "B", reply)),
}
"""Messages of rounds between brokers."""


async def read_all(url: str) -> tuple[list[tuple[Any, ...]], dict[Partition, int]]:
    """Return the records of a storage, and the positions of the consumer `reader`."""
    async with open_storage(url, read_only=True) as storage:
        found: list[tuple[Any, ...]] = []
        for partition, info in (await storage.partitions()).items():
            async for batch in read_range(storage, partition, info.earliest_sequence, info.end_sequence):
                for number, value in enumerate(batch.values):
                    key = None if batch.keys is None else batch.keys[number]
                    headers = () if batch.headers is None else tuple(batch.headers[number])
                    time = None if batch.timestamps is None else batch.timestamps[number]
                    found.append((partition, batch.first_sequence + number, key, headers, time, value))
        return found, await storage.load_positions("reader")


async def write_storage(url: str) -> None:
    """Write the records and positions to a new storage."""
    async with open_storage(url) as storage:
        for each in RECORDS:
            await storage.append([each])
        await storage.save_positions("reader", {PARTITION: 2})


def unpack_storages(release: Path, folder: Path) -> dict[str, str]:
    """Make the storages of a release in a folder. Return their URLs, by kind."""
    with closing(sqlite3.connect(folder / "store.db")) as connection:
        connection.executescript((release / "sqlite.sql").read_text())
    for name, content in json.loads((release / "filelog.json").read_text()).items():
        path = folder / "filelog" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b64decode(content))
    return {"sqlite": f"sqlite:{folder / 'store.db'}", "filelog": f"filelog:{folder / 'filelog'}"}


def record(release: Path) -> None:
    """Record the present formats."""
    release.mkdir()
    samples: dict[str, Any] = {name: b64encode(write(each)).decode() for name, (each, write, _) in VALUES.items()}
    for name, (_, found, _read) in KEYED.items():
        samples[name] = [found.topic, *(b64encode(each or b"").decode() for each in (found.key, found.value))]
    for name, (_, message) in ROUNDS.items():
        samples[name] = attrs.astuple(message)
    (release / "values.json").write_text(json.dumps(samples, indent=1) + "\n")
    with TemporaryDirectory() as name:
        folder = Path(name)
        trio.run(write_storage, f"sqlite:{folder / 'store.db'}")
        with closing(sqlite3.connect(folder / "store.db")) as connection:
            pragmas = [f"PRAGMA {each}={connection.execute(f'PRAGMA {each}').fetchone()[0]};" for each in PRAGMAS]
            (release / "sqlite.sql").write_text("\n".join([*pragmas, *connection.iterdump()]) + "\n")
        trio.run(write_storage, f"filelog:{folder / 'filelog'}")
        files = sorted(each for each in (folder / "filelog").rglob("*") if each.is_file())
        contents = {str(each.relative_to(folder / "filelog")): b64encode(each.read_bytes()).decode() for each in files}
        (release / "filelog.json").write_text(json.dumps(contents, indent=1) + "\n")
    write_users(release / "users.json", {"anne": USER})


PRAGMAS = ("application_id", "user_version")

if __name__ == "__main__":
    record(FOLDER / sys.argv[1])
