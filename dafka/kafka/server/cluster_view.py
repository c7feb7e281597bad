"""Presents the cluster to clients of Kafka: brokers by number, and the leader and replicas of each log."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.brokers import Brokers
from dafka.config import Config
from dafka.endpoints import split_tcp_endpoint
from dafka.kafka.protocol.messages.cluster import MetadataResponseBroker, MetadataResponsePartition
from dafka.kafka.protocol.messages.logs import LeaderIdAndEpoch, NodeEndpoint

NO_NODE = -1
"""The number for no broker."""


def security_protocol(config: Config) -> str:
    """Return Kafka's name for how clients connect, such as `SASL_SSL`."""
    return "SASL_" * bool(config.clients.users) + ("SSL" if config.clients.tls_certificate else "PLAINTEXT")


class ClusterView:
    """The cluster at one time, as a client sees it that reaches its own broker at an endpoint.

    `nodes` are the brokers advertised to clients, by number; see `Brokers.advertised`.
    """

    def __init__(self, brokers: Brokers, endpoint: tuple[str, int], cluster_id: str, controller: str) -> None:
        self.brokers = brokers
        self.cluster_id = cluster_id
        self._controller = controller
        known = brokers.all()
        self._numbers = {each.address: each.number for each in known}
        self._nodes: dict[int, MetadataResponseBroker] = {}
        listeners = ((each, split_listener(each.kafka_listener)) for each in known)
        for each, found in ((brokers.own, endpoint), *listeners):
            if found is not None and each.number not in self._nodes:
                self._nodes[each.number] = MetadataResponseBroker(
                    node_id=each.number, host=found[0], port=found[1], rack=each.rack or None
                )
        self.nodes = self.list_nodes()

    @property
    def controller(self) -> int:
        """The number of the controller; of another broker if clients cannot reach it: any one forwards requests."""
        listed = {each.node_id for each in self.nodes}
        number = self._numbers.get(self._controller)
        return number if number is not None and number in listed else self.nodes[0].node_id

    def list_nodes(self, leaders: Collection[int] = ()) -> list[MetadataResponseBroker]:
        """Return the brokers advertised to clients, and the leaders that a response names, by number."""
        listed = {each.number for each in self.brokers.advertised()}.union(leaders)
        return [self._nodes[number] for number in sorted(listed) if number in self._nodes]

    def list_fenced(self) -> list[MetadataResponseBroker]:
        """Return the brokers that clients reached and that are not advertised now, mostly dead ones, by number."""
        listed = {each.node_id for each in self.nodes}
        return [self._nodes[number] for number in sorted(self._nodes.keys() - listed)]

    def find_node(self, address: str) -> MetadataResponseBroker | None:
        """Return the broker with an address; None if it is not known, or does not serve clients of Kafka."""
        number = self._numbers.get(address)
        return None if number is None else self._nodes.get(number)

    def find_leader(self, log: Log) -> MetadataResponseBroker | None:
        """Return the leader of a log; None if there is none that clients can reach."""
        return self.find_node(self.brokers.leader_of(log.leadership))

    def describe_log(self, log: Log) -> MetadataResponsePartition:
        """Return the leader and the replicas of a log.

        A broker without a quorum reports the last leader that it knew, as a disconnected broker of Kafka does. A broker
        that does not lead the log reports all living replicas as in sync. While there is no leader that clients can
        reach, the epoch is one less: some clients look up the end of their epoch only when they learn a later epoch
        together with its leader.
        """
        leadership = log.leadership
        leader = self.find_leader(log)
        replicas = self.replicas_of(log)
        in_sync = leadership.in_sync if leadership.is_led and leadership.in_sync else leadership.voters or replicas
        return MetadataResponsePartition(
            error_code=ErrorCode.LEADER_NOT_AVAILABLE if leader is None else ErrorCode.NONE,
            partition_index=log.number,
            leader_id=NO_NODE if leader is None else leader.node_id,
            leader_epoch=leadership.epoch if leader is not None else leadership.epoch - 1,
            replica_nodes=self.numbers_of(replicas),
            isr_nodes=self.numbers_of(filter(self.brokers.is_alive, in_sync)),
            offline_replicas=self.numbers_of(itertools.filterfalse(self.brokers.is_alive, replicas)),
        )

    def replicas_of(self, log: Log) -> tuple[str, ...]:
        """Return the addresses of the replicas of a log."""
        leader = self.brokers.leader_of(log.leadership)
        return log.leadership.replicas or ((leader,) if leader else ())

    def describe_leader(self, log: Log) -> LeaderIdAndEpoch | None:
        """Return the leader of a log, for a client that has sent its request to another broker; None if there is none.

        Clients built on librdkafka crash if a response names the leader of one log, and says of another one that it has
        none.
        """
        leader = self.find_leader(log)
        return None if leader is None else LeaderIdAndEpoch(leader_id=leader.node_id, leader_epoch=log.leadership.epoch)

    def describe_endpoints(self, leaders: Iterable[LeaderIdAndEpoch | None]) -> list[NodeEndpoint]:
        """Return the endpoints of the leaders in a response."""
        numbers = {each.leader_id for each in leaders if each is not None}
        return [
            NodeEndpoint(node_id=each.node_id, host=each.host, port=each.port, rack=each.rack)
            for each in self.list_nodes(numbers)
            if each.node_id in numbers
        ]

    def find_read_replica(self, log: Log, rack: str) -> int:
        """Return the replica in a rack from which clients there should read a log that this broker leads.

        It is a living in-sync replica; `NO_NODE` if there is none, this broker is in the same rack, or the rack is
        empty.
        """
        leadership = log.leadership
        if not rack or not leadership.is_led or not leadership.is_follower_readable or self.brokers.own.rack == rack:
            return NO_NODE
        nodes = [self.find_node(each) for each in leadership.in_sync if self.brokers.is_alive(each)]
        near = [each.node_id for each in nodes if each is not None and each.rack == rack]
        return near[log.number % len(near)] if near else NO_NODE

    def numbers_of(self, addresses: Iterable[str]) -> list[int]:
        """Return the numbers of brokers. Unknown brokers are left out."""
        return [self._numbers[each] for each in addresses if each in self._numbers]


def split_listener(listener: str) -> tuple[str, int] | None:
    """Split `HOST:PORT`. Return None if the text has another form."""
    found = split_tcp_endpoint(f"tcp://{listener}")
    return None if found is None else (found[0].strip("[]"), int(found[1]))
