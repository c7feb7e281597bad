"""Routes for the cluster as a whole: its state, and the changes that were made to it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any

import trio

from dafka.broker.broker import Broker
from dafka.broker.core.cluster_status import explain_leaderless, explain_under_replication
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.metadata.commands import Command
from dafka.broker.core.metadata.history import Change
from dafka.broker.core.metadata.restoring import list_stages, take_restored
from dafka.broker.core.metadata.snapshots import Snapshot, write_snapshot_file
from dafka.broker.core.partition_address import name_log
from dafka.broker.node import BrokerNode
from dafka.errors import ConfigError, LocalError, NoControllerError, StorageError, StorageFormatError
from dafka.http.api.brokers import (
    BrokerNumber,
    ClusterBroker,
    Move,
    Replicas,
    count_leaderless,
    describe_brokers,
    describe_leadership,
    find_moves,
    number_of,
)
from dafka.http.api.registry import Parameter, RequiredPermission, Route
from dafka.http.server.documents import Count, Document, doc, encode_document
from dafka.http.server.errors import WebError
from dafka.http.server.messages import Request

LOGS_SHOWN = 100
"""The maximum number of under-replicated logs that each broker lists, and of listed moves."""


class Voter(Document):
    """A broker that votes on metadata."""

    number: Annotated[BrokerNumber | None, doc("The number of the broker; null if it is not known.")]
    address: Annotated[str, doc("Its node address.")]
    is_heard: Annotated[bool, doc("Whether it was heard recently.")]


class UnderReplicatedLog(Replicas):
    """A log with fewer living replicas in sync than it should have."""

    topic: Annotated[str, doc("The name of the topic.")]
    log: Annotated[Count, doc("The number of the log.")]
    reason: Annotated[str, doc("Why the log has too few replicas in sync.")]


class LeaderlessLog(Document):
    """A log that no broker leads at present."""

    topic: Annotated[str, doc("The name of the topic.")]
    log: Annotated[Count, doc("The number of the log.")]
    reason: Annotated[str, doc("Why it has no leader, with the command that helps, if there is one.")]


class Cluster(Document):
    """The state of the cluster."""

    cluster_id: Annotated[str, doc("The id of the cluster, as clients of Kafka see it.")]
    is_open: Annotated[bool, doc("Whether the cluster serves clients: as many brokers as it begins with have joined.")]
    feature_level: Annotated[Count, doc("The feature level of the cluster; 0 until it is open.")]
    feature_level_max: Annotated[Count, doc("The highest level that all of its brokers support.")]
    controller: Annotated[BrokerNumber | None, doc("The number of the controller; null if none is heard.")]
    voters: Annotated[list[Voter], doc("The brokers that vote on metadata.")]
    voters_needed: Annotated[Count, doc("How many of them must be heard for changes of topics, replicas and brokers.")]
    metadata_committed: Annotated[Count, doc("The offset up to which the log of metadata is committed.")]
    metadata_applied: Annotated[Count, doc("The offset up to which the broker that answers has applied it.")]
    brokers: list[ClusterBroker]
    log_count: Annotated[Count, doc("The number of logs of all topics, internal ones among them.")]
    leaderless_logs: Annotated[Count, doc("How many of them no broker leads at present.")]
    leaderless: Annotated[list[LeaderlessLog], doc(f"The first {LOGS_SHOWN} of these logs.")]
    under_replicated_logs: Annotated[Count, doc("How many logs have too few living replicas in sync.")]
    under_replicated: Annotated[
        list[UnderReplicatedLog], doc(f"Some of these logs: up to {LOGS_SHOWN} of each broker that leads any.")
    ]
    move_count: Annotated[Count, doc("How many logs are getting other replicas.")]
    moves: Annotated[list[Move], doc(f"The first {LOGS_SHOWN} of these logs.")]


@Route("GET /cluster", RequiredPermission.ADMINISTRATOR, name="describeCluster", tag="Cluster")
async def describe_cluster(request: Request) -> Cluster:
    """Describe the cluster: its controller and voters, its brokers, and the logs that need attention.

    Only the leader of a log knows which replicas are in sync. So the broker asks the others about the logs that they
    lead. `under_replicated_logs` of a broker is null if it has not answered.
    """
    node = request.broker.node
    quorum = node.quorum
    voters = [Voter(number_of(node, each), each, is_heard) for each, is_heard in quorum.voters.items()]
    brokers, moves = describe_brokers(request.broker), find_moves(node)
    under_replicated = _find_under_replicated(request.broker)
    if not request.is_forwarded:
        others = await request.web.other_brokers.get_all("/cluster")
        for each in brokers:
            if each.address in others:
                each.under_replicated_logs = others[each.address]["under_replicated_logs"]
        for document in others.values():
            under_replicated += (UnderReplicatedLog(**each) for each in document["under_replicated"])
    return Cluster(
        cluster_id=node.cluster_id,
        is_open=node.tables.state.is_open,
        feature_level=node.tables.state.members.feature_level,
        feature_level_max=node.tables.state.members.levels.highest,
        controller=number_of(node, quorum.controller),
        voters=sorted(voters, key=lambda each: (each.number is None, each.number or 0, each.address)),
        voters_needed=quorum.needed,
        metadata_committed=quorum.committed,
        metadata_applied=quorum.applied,
        brokers=brokers,
        log_count=sum(1 for _ in node.all_logs()),
        leaderless_logs=count_leaderless(node),
        leaderless=_find_leaderless(node),
        under_replicated_logs=sum(each.under_replicated_logs or 0 for each in brokers if each.is_alive),
        under_replicated=sorted(under_replicated, key=lambda each: (each.topic, each.log)),
        move_count=len(moves),
        moves=moves[:LOGS_SHOWN],
    )


def _find_leaderless(node: BrokerNode) -> list[LeaderlessLog]:
    found = (each for each in node.all_logs() if not each.leadership.leader)
    return [
        LeaderlessLog(each.topic, each.number, explain_leaderless(each, node.tables))
        for each in islice(found, LOGS_SHOWN)
    ]


def _find_under_replicated(broker: Broker) -> list[UnderReplicatedLog]:
    """Return the first under-replicated logs that this broker leads."""
    node, found = broker.node, []
    for log in node.replicator.reassigner.under_replicated()[:LOGS_SHOWN]:
        wanted = node.replicator.reassigner.wanted_count(log)
        topic = node.log_table.topics[log.topic]
        name = name_log(topic.topic_id, log.number)
        reason = explain_under_replication(name, log.leadership, wanted, node.brokers)
        found.append(
            UnderReplicatedLog(topic=log.topic, log=log.number, reason=reason, **describe_leadership(node, log))
        )
    return found


class NewFeatureLevel(Document):
    """The feature level that a cluster gets."""

    level: Annotated[Count, doc("The level.")]
    dry_run: Annotated[bool, doc("Whether only to check that the level can be raised.")] = False


class FeatureLevel(Document):
    """The feature level of the cluster."""

    feature_level: Annotated[Count, doc("The level.")]


@Route(
    "POST /cluster/feature-level",
    RequiredPermission.ADMINISTRATOR,
    name="raiseFeatureLevel",
    tag="Cluster",
    errors=("controller_unavailable",),
)
async def raise_feature_level(request: Request, document: NewFeatureLevel) -> FeatureLevel:
    """Raise the feature level of the cluster, when all brokers run a version of dafka that supports it.

    It is never lowered: brokers of versions that do not support it can no longer join.
    """
    node = request.broker.node
    await node.admin.set_feature_level(document.level, is_dry_run=document.dry_run, ordered_by=request.requester)
    return FeatureLevel(node.tables.state.members.feature_level)


class ClusterSnapshot(Document):
    """The metadata of the cluster at one moment."""

    cluster_id: Annotated[str, doc("The id of the cluster.")]
    offset: Annotated[Count, doc("The offset in the log of metadata up to which its commands are applied.")]
    file: Annotated[str, doc("A file for `dafka cluster restore`: JSON lines, the last one with a checksum.")]


@Route("GET /cluster/snapshot", RequiredPermission.ADMINISTRATOR, name="takeClusterSnapshot", tag="Cluster")
async def take_snapshot(request: Request) -> ClusterSnapshot:
    """Take a snapshot of the metadata: topics, settings, replicas, brokers, users, ACLs and quotas.

    It has salted and hashed passwords. It has no records.
    """
    state = request.broker.node.tables.state
    snapshot = Snapshot(state.applied, dict(state.records))
    return ClusterSnapshot(state.cluster_id, state.applied, write_snapshot_file(snapshot))


RESTORED_MAX = 1000
"""How many records of a snapshot one request restores."""


class SnapshotRecord(Document):
    """A line of a snapshot."""

    key: Annotated[str, doc("Its first item.")]
    value: Annotated[Any, doc("Its second item.")]


class SnapshotRecords(Document):
    """Users, ACLs, quotas and settings of groups as they are in a snapshot."""

    records: Annotated[list[SnapshotRecord], doc("Their lines.", max_length=RESTORED_MAX)]


class RestoredRecords(Document):
    """What was restored."""

    restored: Annotated[Count, doc("The number of records.")]


@Route(
    "POST /cluster/restored-records",
    RequiredPermission.ADMINISTRATOR,
    name="restoreClusterRecords",
    tag="Cluster",
    errors=("controller_unavailable",),
)
async def restore_records(request: Request, document: SnapshotRecords) -> RestoredRecords:
    """Restore users, ACLs, quotas and settings of groups from a snapshot. All others stay.

    A credential, a limit or the settings of a group that exist are replaced. If the request fails, some of them may be
    restored; it can be repeated. Topics are created as all others are.
    """
    found = [(each.key.encode(), encode_document(each.value)) for each in document.records]
    restored = take_restored(dict(found))
    if len(restored) < len(document.records):
        raise WebError("bad_request", "expected distinct records of users, ACLs, quotas and settings of groups only")
    try:
        stages = list_stages(restored)
    except StorageFormatError as error:
        raise WebError("bad_request", str(error)) from None
    failures: list[LocalError] = []

    async def change(command: Command) -> None:
        try:
            await request.broker.node.admin.change(command, request.requester)
        except (ConfigError, NoControllerError, StorageError) as error:
            failures.append(error)

    for stage in stages:
        async with trio.open_nursery() as nursery:  # so that they share writes
            for command in stage:
                nursery.start_soon(change, command)
        if failures:
            raise failures[0]
    return RestoredRecords(len(restored))


class ClusterChange(Document):
    """A change of the cluster: a command in the log of metadata."""

    offset: Annotated[Count, doc("Its offset in the log.")]
    ordered_at: Annotated[Count, doc("When the controller got it, in milliseconds since 1970.")]
    ordered_by: Annotated[str, doc("Who ordered it: a user and the address of the client, or a broker.")]
    controller_epoch: Annotated[Count, doc("The leader epoch of the controller.")]
    kind: Annotated[str, doc("The kind of command, such as `create-topic`.")]
    description: Annotated[str, doc("What it changes, in words.")]
    is_done: Annotated[bool, doc("Whether it has taken effect.")]
    reason: Annotated[str, doc("Why it was refused; empty if it has taken effect.")]


class ClusterLog(Document):
    """Changes of the cluster, the oldest first."""

    changes: list[ClusterChange]
    next_before: Annotated[Count | None, doc("The parameter `before` for earlier changes; null if there are none.")]


@Route(
    "GET /cluster/log",
    RequiredPermission.ADMINISTRATOR,
    name="listClusterChanges",
    tag="Cluster",
    parameters=[
        Parameter("before", Annotated[int, doc("The offset before which changes are listed.", ge=0)]),
        Parameter("limit", Annotated[int, doc("At how many offsets changes are listed.", ge=1, le=1000)], 100),
    ],
    errors=("storage_failed",),
)
async def list_changes(request: Request) -> ClusterLog:
    """List the last changes of the cluster: who created, changed and deleted topics, moved logs, and drained brokers.

    The log of metadata keeps the last 9,000 changes at least. Changes that brokers or the controller have ordered
    themselves are among them.
    """
    found, next_before = await request.broker.node.history.read(request.query["before"], request.query["limit"])
    return ClusterLog([_describe_change(each) for each in found], next_before)


def _describe_change(change: Change) -> ClusterChange:
    return ClusterChange.of(
        change.order,
        offset=change.offset,
        kind=change.order.command.KIND,
        description=change.description,
        is_done=change.outcome.error is ErrorCode.NONE,
        reason=change.outcome.reason,
    )


def find_metadata_problems(node: BrokerNode) -> Iterator[str]:
    """Yield a sentence for each problem of the log of metadata."""
    if not node.quorum.controller:
        yield f"the cluster has no controller ({node.quorum}): topics, replicas and brokers cannot be changed"
