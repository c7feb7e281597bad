"""Routes for the brokers of the cluster, the replicas of logs, and their leader epochs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias

from dafka.broker.broker import Broker
from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.brokers import BrokerRegistration
from dafka.broker.core.metadata.features import FIRST_LEVEL
from dafka.broker.core.replication.records import NO_EPOCH, EpochStart
from dafka.broker.node import BrokerNode
from dafka.config.settings import BROKER_NUMBER_MAX
from dafka.errors import ConfigError, RefusedChangeError
from dafka.http.api.registry import RequiredPermission, Route
from dafka.http.logs.log_access import find_logs
from dafka.http.server.documents import Count, Document, doc
from dafka.http.server.errors import WebError
from dafka.http.server.messages import Request
from dafka.text import counted

BrokerNumber: TypeAlias = Annotated[
    int, doc("The number of the broker, by which clients of Kafka know it.", ge=0, le=BROKER_NUMBER_MAX)
]
EpochFlag: TypeAlias = Literal["first", "divergent", "latest"]


class ClusterBroker(Document):
    """A broker of the cluster. `is_drained` says when a draining one can be taken away."""

    number: BrokerNumber
    address: Annotated[str, doc("Its node address.")]
    is_self: Annotated[bool, doc("Whether it is the broker that answers.")]
    is_alive: Annotated[bool, doc("Whether it was heard recently.")]
    rack: Annotated[str, doc("Its rack or zone; empty if it has none.")]
    kafka_listener: Annotated[str, doc("Where clients of Kafka reach it; empty if they do not.")]
    http_url: Annotated[str, doc("Where HTTP clients and other brokers reach it; empty if they do not.")]
    free_bytes: Annotated[Count, doc("The free space of its storage.")]
    feature_level_min: Annotated[Count, doc("The lowest feature level that it supports.")]
    feature_level_max: Annotated[Count, doc("The highest feature level that it supports.")]
    is_draining: Annotated[bool, doc("Whether it hands its logs to other brokers, to be taken away.")]
    is_drained: Annotated[
        bool,
        doc("Whether it can be taken away: it leads no log, others keep what it keeps, and it is no needed voter."),
    ]
    is_needed_voter: Annotated[
        bool, doc("Whether it votes on metadata, and too few of the voters are alive and stay, without drained ones.")
    ]
    logs_led: Annotated[Count, doc("How many logs it leads, internal ones among them.")]
    replicas: Annotated[Count, doc("How many logs it keeps, led or not.")]
    under_replicated_logs: Annotated[
        Count | None, doc("How many of the logs that it leads too few brokers have whole; null if it has not said so.")
    ]
    damaged_logs: Annotated[Count, doc("How many logs it has damaged records of.")]


class Brokers(Document):
    """The brokers of the cluster."""

    brokers: list[ClusterBroker]
    log_count: Annotated[Count, doc("The number of logs of all topics, internal ones among them.")]
    leaderless_logs: Annotated[Count, doc("How many of them no broker leads at present.")]


class LeaderEpoch(Document):
    """A leader epoch of a log."""

    epoch: Annotated[Count, doc("Its leader epoch.")]
    leader: Annotated[Count | None, doc("The number of the broker that leads it; null if it is no longer known.")]
    leader_address: Annotated[str, doc("The address of that broker.")]
    parent_epoch: Annotated[Count | None, doc("The epoch that it continues; null for the first one.")]
    parent_leader: Annotated[Count | None, doc("The number of the broker that led that epoch.")]
    parent_leader_address: Annotated[str, doc("The address of that broker; empty for the first epoch.")]
    start_offset: Annotated[Count, doc("Its first offset. Its log has the parent's records before it.")]
    replicas: Annotated[list[BrokerNumber], doc("The brokers that keep it.")]
    flags: Annotated[
        list[EpochFlag],
        doc("`first` has no parent. `divergent` has the same parent as another epoch. `latest` has the largest epoch."),
    ]


class LogEpochs(Document):
    """The leader epochs of a log."""

    log: Annotated[Count, doc("The number of the log.")]
    epochs: Annotated[list[LeaderEpoch], doc("Its epochs, in order.")]


class TopicEpochs(Document):
    """The leader epochs of each log of a topic."""

    logs: list[LogEpochs]


class Replicas(Document):
    """Who leads and keeps a log at present."""

    leader: Annotated[Count | None, doc("The number of the broker that leads the log; null if none does at present.")]
    leader_epoch: Annotated[Count, doc("The leader epoch.")]
    replicas: Annotated[list[BrokerNumber], doc("The brokers that keep the log, the preferred leader first.")]
    in_sync: Annotated[
        list[BrokerNumber] | None,
        doc("Those of them that have all of it, or nearly; null if the leader has not said so."),
    ]


class Move(Document):
    """A log that is being moved."""

    topic: Annotated[str, doc("The name of the topic.")]
    log: Annotated[Count, doc("The number of the log.")]
    replicas: Annotated[list[BrokerNumber], doc("The brokers that keep it now.")]
    learners: Annotated[list[BrokerNumber], doc("Replicas that still copy the log.")]
    ordered: Annotated[list[BrokerNumber], doc("The brokers that keep it afterwards, the preferred leader first.")]
    reason: Annotated[str, doc("Why it gets other replicas.")]


class Moves(Document):
    """The logs that are being moved."""

    moves: list[Move]


class NewReplicas(Document):
    """The replicas that a log gets."""

    replicas: Annotated[
        list[BrokerNumber],
        doc("The brokers, the preferred leader first; none to let the cluster choose.", max_length=1024),
    ]


@Route("GET /moves", RequiredPermission.ADMINISTRATOR, name="listMoves", tag="Cluster")
async def list_moves(request: Request) -> Moves:
    """List the logs that are being moved to other replicas, each with the reason."""
    return Moves(find_moves(request.broker.node))


def find_moves(node: BrokerNode) -> list[Move]:
    """Return the logs that are being moved, as far as this broker knows."""
    found = []
    for log, ordered in node.replica_changes().items():
        found.append(
            Move(
                topic=log.topic,
                log=log.number,
                replicas=numbers_of(node, log.leadership.replicas),
                learners=numbers_of(node, log.leadership.learners),
                ordered=numbers_of(node, ordered.replicas),
                reason=ordered.reason.sentence,
            )
        )
    return found


@Route("GET /brokers", RequiredPermission.ADMINISTRATOR, name="listBrokers", tag="Cluster")
async def list_brokers(request: Request) -> Brokers:
    """List the brokers of the cluster, with the number of logs that each leads and stores."""
    node, found = request.broker.node, describe_brokers(request.broker)
    if not request.is_forwarded:
        own_words = {
            each["address"]: each["under_replicated_logs"]
            for document in (await request.web.other_brokers.get_all("/brokers")).values()
            for each in document["brokers"]
            if each["is_self"]
        }
        for each in found:
            each.under_replicated_logs = own_words.get(each.address, each.under_replicated_logs)
    return Brokers(found, sum(1 for _ in node.all_logs()), count_leaderless(node))


def describe_brokers(broker: Broker) -> list[ClusterBroker]:
    """Return all brokers of the cluster by number, with how many logs each leads and stores."""
    node = broker.node
    led: Counter[str] = Counter()
    kept: Counter[str] = Counter()
    needed: Counter[str] = Counter()
    usable = {each.address for each in node.brokers.living() if not each.is_draining}
    for log in node.all_logs():
        leadership = log.leadership
        led[leadership.leader] += 1
        kept.update(leadership.replicas)
        replica_count = node.replicator.reassigner.wanted_count(log)
        if len(usable.intersection(leadership.replicas)) < min(replica_count, len(usable)):
            needed.update(leadership.replicas)
    for ordered in node.replica_changes().values():
        needed.update(ordered.replicas)
    quorum = node.quorum
    voters = quorum.voters if len(usable.intersection(quorum.voters)) < quorum.needed else {}
    return [_describe_broker(node, each, led, kept, needed, voters) for each in node.brokers.all()]


def _describe_broker(
    node: BrokerNode,
    broker: BrokerRegistration,
    led: Counter[str],
    kept: Counter[str],
    needed: Counter[str],
    needed_voters: Collection[str],
) -> ClusterBroker:
    address, is_self = broker.address, broker.address == node.address
    registered = node.tables.state.brokers.get(address)
    levels = FIRST_LEVEL if registered is None else registered.features
    return ClusterBroker.of(
        broker,
        is_self=is_self,
        is_alive=node.brokers.is_alive(address),
        feature_level_min=levels.lowest,
        feature_level_max=levels.highest,
        is_drained=broker.is_draining and not led[address] and not needed[address] and address not in needed_voters,
        is_needed_voter=address in needed_voters,
        logs_led=led[address],
        replicas=kept[address],
        under_replicated_logs=len(node.replicator.reassigner.under_replicated()) if is_self else None,
        damaged_logs=len(broker.damaged_logs),
    )


def find_broker(request: Request) -> BrokerRegistration:
    """Return the broker with the number in the path of a request. Raise `WebError` if there is none."""
    node, text = request.broker.node, request.arguments["number"]
    found = node.brokers.find_number(int(text)) if text.isascii() and text.isdigit() and len(text) < 6 else None
    if found is None:
        known = ", ".join(str(each.number) for each in node.brokers.all())
        raise WebError("broker_not_found", f"there is no broker {text[:100]!r}: the cluster has {known}")
    return found


async def _set_draining(request: Request, *, is_draining: bool) -> ClusterBroker:
    node, found = request.broker.node, find_broker(request)
    drain = partial(node.admin.set_draining, is_draining=is_draining, ordered_by=request.requester)
    try:
        await drain(found.address)
    except RefusedChangeError:
        successor = find_broker(request)
        if successor.address == found.address:
            raise
        await drain(successor.address)  # meanwhile, a broker with a new store has got the number
    return next(each for each in describe_brokers(request.broker) if each.number == found.number)


@Route(
    "POST /brokers/{number}/drain",
    RequiredPermission.ADMINISTRATOR,
    name="drainBroker",
    tag="Cluster",
    errors=("broker_not_found", "controller_unavailable"),
)
async def drain_broker(request: Request) -> ClusterBroker:
    """Move all logs of a broker to other brokers, so that it can be removed.

    It gets no new replicas, and continues to serve clients meanwhile.
    """
    return await _set_draining(request, is_draining=True)


@Route(
    "POST /brokers/{number}/undrain",
    RequiredPermission.ADMINISTRATOR,
    name="undrainBroker",
    tag="Cluster",
    errors=("broker_not_found", "controller_unavailable"),
)
async def undrain_broker(request: Request) -> ClusterBroker:
    """Stop draining a broker: it can lead and store logs again."""
    return await _set_draining(request, is_draining=False)


@Route(
    "GET /topics/{topic}/epochs",
    RequiredPermission.SEE,
    name="listLeaderEpochs",
    tag="Cluster",
)
async def list_epochs(request: Request) -> TopicEpochs:
    """List the leader epochs of each log of a topic.

    An epoch begins when a broker becomes the leader. After a split of the cluster, two epochs can continue the same
    one. When they are merged, the records of the abandoned epoch are appended to the log of the other one.
    """
    node, topic = request.broker.node, request.arguments["topic"]
    logs = find_logs(request.broker, topic)
    found = zip(logs, node.epoch_starts(topic), strict=False)
    return TopicEpochs([LogEpochs(log.number, _describe_epochs(node, starts)) for log, starts in found])


def _describe_epochs(node: BrokerNode, starts: Sequence[EpochStart]) -> list[LeaderEpoch]:
    parents = Counter(each.parent.leader_epoch for each in starts)
    found = []
    for each in starts:
        parent = each.parent.leader_epoch
        is_first = parent == NO_EPOCH
        flags: list[EpochFlag] = []
        if is_first:
            flags.append("first")
        elif parents[parent] > 1:
            flags.append("divergent")
        if each is starts[-1]:
            flags.append("latest")
        found.append(
            LeaderEpoch(
                epoch=each.leader_epoch.epoch,
                leader=number_of(node, each.leader_epoch.leader),
                leader_address=each.leader_epoch.leader,
                parent_epoch=None if is_first else parent.epoch,
                parent_leader=None if is_first else number_of(node, parent.leader),
                parent_leader_address="" if is_first else parent.leader,
                start_offset=each.parent.end_offset,
                replicas=numbers_of(node, each.replicas),
                flags=flags,
            )
        )
    return found


@Route(
    "PUT /topics/{topic}/logs/{log}/replicas",
    RequiredPermission.ADMIN,
    name="changeReplicas",
    tag="Cluster",
    errors=("log_not_found", "broker_not_found"),
    awaits_metadata=True,
)
async def change_replicas(request: Request, document: NewReplicas) -> Replicas:
    """Change the replicas of a log, which takes a while.

    New replicas copy the log first. Replicas that are not in the list then leave. The first one in the list is the
    preferred leader. The log keeps this number of replicas. One that is drained, or stays dead for
    `[broker] replace_replicas_after_ms`, gets a successor. With an empty list, a change under way is cancelled, and the
    log has as many replicas as its topic again.
    """
    node, log = request.broker.node, find_numbered_log(request)
    addresses = [find_number(node, each).address for each in document.replicas]
    if len(set(addresses)) != len(addresses):
        raise ConfigError("replicas: expected each broker once")
    await node.admin.change_replicas(log, addresses, ordered_by=request.requester)
    return Replicas(**describe_leadership(node, log))


def read_log_number(request: Request) -> int:
    """Return the number of a log in the path of a request. Raise `WebError` if it is none."""
    text = request.arguments["log"]
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise WebError("bad_request", f"expected the number of a log, not {text[:100]!r}")
    return int(text)


def find_numbered_log(request: Request) -> Log:
    """Return the log with the topic and the number in the path of a request. Raise `WebError` if there is none."""
    (log,) = find_logs(request.broker, request.arguments["topic"], [read_log_number(request)])
    return log


def find_number(node: BrokerNode, number: int) -> BrokerRegistration:
    """Return the broker with a number. Raise `WebError` if there is none."""
    found = node.brokers.find_number(number)
    if found is None:
        raise WebError("broker_not_found", f"there is no broker {number}")
    return found


def describe_leadership(node: BrokerNode, log: Log) -> dict[str, Any]:
    """Return the fields of `Replicas` for a log. Only the leader knows which replicas are in sync."""
    leadership = log.leadership
    return {
        "leader": number_of(node, leadership.leader) if leadership.leader else None,
        "leader_epoch": leadership.epoch,
        "replicas": numbers_of(node, leadership.replicas),
        "in_sync": numbers_of(node, leadership.in_sync) if leadership.is_led else None,
    }


def number_of(node: BrokerNode, address: str) -> int | None:
    """Return the number of a broker; None if the broker is not known."""
    found = node.brokers.find(address)
    return None if found is None else found.number


def numbers_of(node: BrokerNode, addresses: Iterable[str]) -> list[int]:
    """Return the numbers of the known brokers among these."""
    return [number for each in addresses if (number := number_of(node, each)) is not None]


def count_leaderless(node: BrokerNode) -> int:
    """Return how many logs have no leader at present."""
    return sum(not log.leadership.leader for log in node.all_logs())


def find_broker_problems(node: BrokerNode) -> Iterator[str]:
    """Yield a sentence for each problem of the cluster's brokers and their logs."""
    for each in node.brokers.all():
        if not node.brokers.is_alive(each.address):
            where = each.http_url or each.kafka_listener
            yield f"broker {each.number}{' at ' * bool(where)}{where} is not heard"
        if each.damaged_logs:
            yield f"broker {each.number} has damaged records of {counted(len(each.damaged_logs), 'log')} in its storage"
    under_replicated = node.replicator.reassigner.under_replicated()
    if under_replicated:
        first = under_replicated[0]
        yield (
            f"too few living brokers keep {counted(len(under_replicated), 'log')} that this broker leads, such as log "
            f"{first.number} of {first.topic}"
        )
    leaderless = count_leaderless(node)
    if leaderless:
        yield f"nobody can publish to {counted(leaderless, 'log')} without a leader at present"
    orphans = node.inventory.orphans()
    if orphans:
        yield (
            f"nobody reads {counted(len(orphans), 'partition')} with {counted(sum(orphans.values()), 'record')} of no "
            f"topic that this broker knows, such as {next(iter(orphans))}"
        )
