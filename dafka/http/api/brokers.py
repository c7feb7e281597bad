"""Routes for the brokers of the cluster, the replicas of logs, and their leader epochs."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from dafka.errors import ConfigError
from dafka.http.api.registry import Answer, RequiredPermission, Route
from dafka.http.api.replicas import (
    count_leaderless,
    describe_brokers,
    describe_epochs,
    describe_leadership,
    describe_moves,
)
from dafka.http.logs.reading import find_logs
from dafka.http.server.documents import Count, Document, doc
from dafka.http.server.errors import WebError
from dafka.http.server.messages import AnyResponse, Request, respond

BrokerNumber: TypeAlias = Annotated[
    int, doc("The number of the broker, by which clients of Kafka know it.", ge=0, le=1023)
]


class ClusterBroker(Document):
    """A broker of the cluster."""

    number: BrokerNumber
    address: Annotated[str, doc("Its node address.")]
    is_self: Annotated[bool, doc("Whether it is the broker that answers.")]
    is_alive: Annotated[bool, doc("Whether it was heard recently.")]
    rack: Annotated[str, doc("Its rack or zone; empty if it has none.")]
    kafka_listener: Annotated[str, doc("Where clients of Kafka reach it; empty if they do not.")]
    http_url: Annotated[str, doc("Where HTTP clients and other brokers reach it; empty if they do not.")]
    free_bytes: Annotated[Count, doc("The free space of its storage.")]
    is_draining: Annotated[bool, doc("Whether it hands its logs to other brokers, to be taken away.")]
    is_drained: Annotated[bool, doc("Whether it can be taken away: it leads no log, and others keep what it keeps.")]
    logs_led: Annotated[Count, doc("How many logs it leads, internal ones among them.")]
    replicas: Annotated[Count, doc("How many logs it keeps, led or not.")]
    under_replicated_logs: Annotated[
        Count | None, doc("How many of the logs that it leads too few brokers have whole; null if it has not said so.")
    ]


class Brokers(Document):
    """The brokers of the cluster."""

    brokers: list[ClusterBroker]
    log_count: Annotated[Count, doc("The number of logs of all topics, internal ones among them.")]
    leaderless_logs: Annotated[Count, doc("How many of them no broker leads at present.")]


_FLAGS = (
    "`first` continues no branch. `fork` continues a branch that another one continues, too. `latest` has the largest "
    "epoch."
)


class Branch(Document):
    """A leader epoch of a log."""

    epoch: Annotated[Count, doc("Its leader epoch.")]
    leader: Annotated[Count | None, doc("The number of the broker that leads it; null if it is no longer known.")]
    leader_address: Annotated[str, doc("The address of that broker.")]
    old_epoch: Annotated[Count | None, doc("The epoch of the branch that it continues; null for the first branch.")]
    old_leader: Annotated[Count | None, doc("The number of the broker that led that branch.")]
    old_leader_address: Annotated[str, doc("The address of that broker; empty for the first branch.")]
    old_end_offset: Annotated[Count, doc("The offset after the last record that both branches have.")]
    start_offset: Annotated[Count, doc("The offset at which this branch begins.")]
    replicas: Annotated[list[BrokerNumber], doc("The brokers that keep it.")]
    flags: Annotated[list[Literal["first", "fork", "latest"]], doc(_FLAGS)]


class LogBranches(Document):
    """The branches of a log."""

    log: Annotated[Count, doc("The number of the log.")]
    branches: Annotated[list[Branch], doc("Its branches, by epoch.")]


class Branches(Document):
    """The branches of each log of a topic."""

    logs: list[LogBranches]


class Replicas(Document):
    """The replicas of a log."""

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


@Route(
    "GET /moves",
    needs=RequiredPermission.ADMINISTRATOR,
    name="listMoves",
    tag="Cluster",
    answers={200: Answer("The logs.", Moves)},
)
async def list_moves(request: Request) -> AnyResponse:
    """List the logs that are being moved to other replicas, each with the reason."""
    return respond({"moves": describe_moves(request.broker.node)})


@Route(
    "GET /brokers",
    needs=RequiredPermission.ADMINISTRATOR,
    name="listBrokers",
    tag="Cluster",
    answers={200: Answer("The brokers.", Brokers)},
)
async def list_brokers(request: Request) -> AnyResponse:
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
            each["under_replicated_logs"] = own_words.get(each["address"], each["under_replicated_logs"])
    logs = sum(1 for _ in node.log_table.all_logs())
    return respond({"brokers": found, "log_count": logs, "leaderless_logs": count_leaderless(node)})


async def _set_draining(request: Request, *, is_draining: bool) -> AnyResponse:
    node, text = request.broker.node, request.arguments["number"]
    found = node.brokers.find_number(int(text)) if text.isascii() and text.isdigit() and len(text) < 6 else None
    if found is None:
        known = ", ".join(str(each.number) for each in node.brokers.all())
        raise WebError("broker_not_found", f"there is no broker {text[:100]!r}: the cluster has {known}")
    if found.address == node.address:
        node.set_draining(is_draining)
        described = next(each for each in describe_brokers(request.broker) if each["is_self"])
        return respond(described)
    if request.is_forwarded:
        raise WebError("broker_unavailable", f"broker {found.number} is another one than this")
    if not node.brokers.is_alive(found.address):
        raise WebError("broker_unavailable", f"broker {found.number} is not alive")
    target = f"/brokers/{found.number}/{'drain' if is_draining else 'undrain'}"
    answer = await request.web.other_brokers.request(found, "POST", target)
    return respond({**answer, "is_self": False})


@Route(
    "POST /brokers/{number}/drain",
    needs=RequiredPermission.ADMINISTRATOR,
    name="drainBroker",
    tag="Cluster",
    answers={200: Answer("The broker. `is_drained` says when it can be taken away.", ClusterBroker)},
    errors=("broker_not_found", "broker_unavailable"),
)
async def drain_broker(request: Request) -> AnyResponse:
    """Move all logs of a broker to other brokers, so that it can be removed.

    It gets no new replicas, and continues to serve clients meanwhile.
    """
    return await _set_draining(request, is_draining=True)


@Route(
    "POST /brokers/{number}/undrain",
    needs=RequiredPermission.ADMINISTRATOR,
    name="undrainBroker",
    tag="Cluster",
    answers={200: Answer("The broker.", ClusterBroker)},
    errors=("broker_not_found", "broker_unavailable"),
)
async def undrain_broker(request: Request) -> AnyResponse:
    """Stop draining a broker: it can lead and store logs again."""
    return await _set_draining(request, is_draining=False)


@Route(
    "GET /topics/{topic}/branches",
    needs=RequiredPermission.SEE,
    name="listBranches",
    tag="Cluster",
    answers={200: Answer("The branches of each log.", Branches)},
    errors=("topic_not_found",),
)
async def list_branches(request: Request) -> AnyResponse:
    """List the branches (leader epochs) of each log of a topic.

    A branch begins when a broker becomes the leader. After a split of the cluster, two branches can continue the same
    one. When they are merged, the records of the abandoned branch are appended to the other one.
    """
    node, topic = request.broker.node, request.arguments["topic"]
    logs = find_logs(request.broker, topic)
    found: list[dict[str, Any]] = [
        {"log": log.number, "branches": describe_epochs(node, epoch_starts)}
        for log, epoch_starts in zip(logs, node.epoch_starts(topic), strict=False)
    ]
    return respond({"logs": found})


@Route(
    "PUT /topics/{topic}/logs/{log}/replicas",
    needs=RequiredPermission.ADMIN,
    name="changeReplicas",
    tag="Cluster",
    document=NewReplicas,
    answers={200: Answer("Who leads and keeps the log at present. Moving it takes a while.", Replicas)},
    errors=("topic_not_found", "log_not_found", "broker_not_found"),
    changes_topics=True,
)
async def change_replicas(request: Request) -> AnyResponse:
    """Change the replicas of a log.

    New replicas copy the log first. Replicas that are not in the list then leave. The first one in the list is the
    preferred leader. The replicas stay until others are requested, or one of them is drained or stays dead for
    `[broker] replace_replicas_after_ms`. With an empty list, the cluster chooses the replicas again.
    """
    node, text = request.broker.node, request.arguments["log"]
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise WebError("bad_request", f"expected the number of a log, not {text[:100]!r}")
    (log,) = find_logs(request.broker, request.arguments["topic"], [int(text)])
    addresses = []
    for number in request.document.replicas:
        found = node.brokers.find_number(number)
        if found is None:
            raise WebError("broker_not_found", f"there is no broker {number}")
        addresses.append(found.address)
    if len(set(addresses)) != len(addresses):
        raise ConfigError("replicas: expected each broker once")
    node.change_replicas(log, addresses)
    return respond(describe_leadership(node, log))
