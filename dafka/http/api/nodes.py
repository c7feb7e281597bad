"""Routes for the nodes of the cluster, as an observer in the broker's process sees them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import field

from dafka.http.api.registry import RequiredPermission, Route
from dafka.http.server.documents import Count, Document, doc
from dafka.http.server.messages import Request
from dafka.protocol.observer.cluster_survey import ClusterSurvey, NodeState

NODES_MAX = 1000
"""The maximum number of listed nodes."""

_STATES = [each.value for each in NodeState]


class Node(Document):
    """A node of the cluster."""

    address: Annotated[str, doc("Its address.")]
    endpoint: Annotated[str, doc("The endpoint that other nodes connect to.")]
    roles: Annotated[list[str], doc("Its roles. Empty if it has not shown any.")]
    state: Annotated[
        str,
        doc(
            "`up`; `unconnected`: only introduced by towers; `silent`: it has ended, or failed.",
            enum=_STATES,
        ),
    ]
    is_self: Annotated[bool, doc("Whether it is this broker.")]
    last_seen: Annotated[Count | None, doc("When it was last seen, in milliseconds since 1970.")]
    partitions_held: Annotated[Count | None, doc("The partitions that a store holds; null if it has not said so.")]


class Connection(Document):
    """A connection between two nodes."""

    from_: Annotated[str, doc("The address of a node.")] = field(name="from")
    to: Annotated[str, doc("The address of another one.")]
    kind: Annotated[Literal["stored", "connected"], doc("`stored`: the second one stores records of the first one.")]
    partitions: Annotated[Count, doc("How many partitions of the first one the second one stores.")]
    lag: Annotated[Count, doc("How many records the second one is behind.")]


class Tower(Document):
    """A tower that introduces nodes."""

    endpoint: Annotated[str, doc("The endpoint at which it introduces nodes.")]
    is_heard: Annotated[bool, doc("Whether it was heard recently.")]
    nodes: Annotated[Count, doc("How many nodes it introduces.")]
    refusal: Annotated[str, doc("Why it rejects this broker; empty if it does not.")]


class Nodes(Document):
    """The nodes of the cluster."""

    is_complete: Annotated[bool, doc("Whether the nodes were looked for: the first answer comes before that.")]
    nodes: list[Node]
    connections: list[Connection]
    towers: list[Tower]
    note: Annotated[str, doc("Why something is missing; empty if nothing is.")]


@Route("GET /nodes", RequiredPermission.ADMINISTRATOR, name="listNodes", tag="Broker")
async def list_nodes(request: Request) -> Nodes:
    """List the nodes of the cluster, and which store has the records of which node.

    An observer finds the nodes while clients ask for them. The first response can contain only this broker.
    """
    surveys, node = request.web.survey_cache, request.broker.node
    survey, note = surveys.newest(), surveys.problem
    own = Node(
        address=node.address,
        endpoint=node.store.endpoint,
        roles=["broker"],
        state="up",
        is_self=True,
        last_seen=None,
        partitions_held=None,
    )
    if survey is None:
        return Nodes(bool(note), [own], [], [], note)
    others = [each for each in survey.nodes if each.address != node.address and each.roles != ("observer",)]
    if len(others) >= NODES_MAX:
        note = f"only {NODES_MAX} of {len(others) + 1} nodes are listed"
    senders = {log.leader_partition.address: node.address for log in node.log_table.all_logs()}
    listed = [
        Node.of(each, state=each.state.value, is_self=False, last_seen=int(each.last_seen * 1000))
        for each in others[: NODES_MAX - 1]
    ]
    return Nodes(
        is_complete=True,
        nodes=[own, *listed],
        connections=find_connections(survey, node.address, senders),
        towers=[Tower.of(each) for each in survey.towers],
        note=note or "; ".join(survey.limits),
    )


def find_connections(survey: ClusterSurvey, own_address: str, senders: Mapping[str, str]) -> list[Connection]:
    """Return which store has the records of which node, and the other connections of this broker.

    `senders` names the publishing nodes of partitions with other addresses than the node's, by partition address.
    """
    known = {each.address for each in survey.nodes}
    found: dict[tuple[str, str], Connection] = {}
    for each in survey.partitions:
        sender = senders.get(each.partition.address, each.partition.address)
        for holder in each.holders:
            if sender == holder.store or sender not in known or holder.store not in known or not holder.end_sequence:
                continue
            entry = found.setdefault((sender, holder.store), Connection(sender, holder.store, "stored", 0, 0))
            entry.partitions += 1
            entry.lag += holder.lag or 0
    joined = {pair[0] for pair in found if pair[1] == own_address} | {
        pair[1] for pair in found if pair[0] == own_address
    }
    for node in survey.nodes:
        is_peer = node.state is NodeState.UP and node.address != own_address and node.roles != ("observer",)
        if is_peer and node.address not in joined:
            pair = (own_address, node.address)
            found[pair] = Connection(*pair, "connected", 0, 0)
    return list(found.values())
