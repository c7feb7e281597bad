"""Limits on peers: the number of partitions that they can begin, and the rate of their requests.

In a plain cluster, a peer can send any message in the name of any node. A node can only check whether discovery has
found a node of that name. Each node that discovery has found has its own allowance; all other names share one. A peer
that invents names therefore competes with other such peers, and not with known nodes.
"""

from __future__ import annotations

from collections import Counter

from dafka.config import NodeConfig
from dafka.protocol.token_bucket import TokenBucket
from dafka.records import Partition

UNKNOWN_PARTITIONS_MAX = 1000
"""The maximum number of partitions begun by RECORDs and HEADs of all nodes that discovery has not found."""

NODE_BURST = 100
"""Requests of one known node that are served at once."""

NODE_PER_S = 20.0
"""Requests of one known node that are served per second in the long run."""

UNKNOWN_BURST = 1000
"""Requests of all unknown nodes together that are served at once."""

UNKNOWN_PER_S = 100.0
"""Requests of all unknown nodes together that are served per second in the long run."""

FETCH_COST = 0.02
"""Requests that one FETCH of a known node counts as: a node that catches up sends a few hundred per second."""

UNKNOWN_FETCH_COST = 0.2
"""Requests that one FETCH of an unknown node counts as."""

HEADS_COST = 0.01
"""Requests that one topic of a known node's GET-HEADS or CONSUMER-HELLO counts as."""

UNKNOWN_HEADS_COST = 0.05
"""Requests that one topic of an unknown node's GET-HEADS or CONSUMER-HELLO counts as."""

MANY_PARTITIONS = "too many partitions"
MANY_OF_ONE_NODE = "too many partitions of one node"
UNKNOWN_NODE = "too many partitions of unknown nodes"
MANY_UNPROVEN = "too many partitions without records"
TOO_OFTEN = "asked too often"
ABSURD_SEQUENCE = "sequence too large"
MANY_QUESTIONS = "too many questions"
MANY_FETCHES = "too many fetches"

HOSTILE_REASONS = (MANY_OF_ONE_NODE, UNKNOWN_NODE, ABSURD_SEQUENCE, TOO_OFTEN, MANY_FETCHES, MANY_QUESTIONS)
"""Reasons for which machines discard messages that no correct node sends."""


class PeerLimits:
    """The limits of one node. Partitions that the program or a storage already knows are not subject to them."""

    def __init__(self, config: NodeConfig) -> None:
        self._partitions_max = config.partitions_max
        self._per_node_max = config.partitions_per_node_max
        self._nodes: set[str] = set()
        self._has_nameless_node = False
        self._partitions_begun: Counter[str] = Counter()
        self._unknown_partitions: set[Partition] = set()
        self._buckets: dict[str, TokenBucket] = {}

    def peer_joined(self, address: str) -> None:
        """Record a node that discovery found. If its address is empty, any unknown name may be that node's."""
        if address:
            self._nodes.add(address)
        else:
            self._has_nameless_node = True

    def peer_left(self, address: str) -> None:
        """Record that discovery lost a node."""
        self._nodes.discard(address)
        self._buckets.pop(address, None)

    def admit_partition(self, partition: Partition, followed: int, *, is_live: bool) -> str:
        """Admit a partition, which counts until `forget_partition`, or return the reason to discard its messages.

        `followed` is the number of partitions that the node follows already. A live partition was announced by its
        producer, rather than by a store in an answer.
        """
        if followed >= self._partitions_max:
            return MANY_PARTITIONS
        if not is_live:
            return ""
        address = partition.address
        if self._partitions_begun[address] >= self._per_node_max:
            return MANY_OF_ONE_NODE
        if not self._is_known(address):
            if len(self._unknown_partitions) >= UNKNOWN_PARTITIONS_MAX:
                return UNKNOWN_NODE
            self._unknown_partitions.add(partition)
        self._partitions_begun[address] += 1
        return ""

    def forget_partition(self, partition: Partition) -> None:
        """Record that a partition is no longer followed."""
        self._unknown_partitions.discard(partition)
        if self._partitions_begun[partition.address] > 1:
            self._partitions_begun[partition.address] -= 1
        else:
            del self._partitions_begun[partition.address]

    def allow_request(self, address: str, now: float, cost: float = 1.0) -> bool:
        """Return whether one more request of this node can be served, and count it if so."""
        is_known = address in self._nodes
        name = address if is_known else ""
        bucket = self._buckets.get(name)
        if bucket is None:
            per_second, burst = (NODE_PER_S, NODE_BURST) if is_known else (UNKNOWN_PER_S, UNKNOWN_BURST)
            bucket = self._buckets[name] = TokenBucket(per_second, burst, now)
        return bucket.try_take(now, cost)

    def allow_fetch(self, address: str, now: float) -> bool:
        """Return whether one more FETCH of this node can be served, and count it if so."""
        return self.allow_request(address, now, FETCH_COST if self._is_known(address) else UNKNOWN_FETCH_COST)

    def allow_heads_request(self, address: str, now: float) -> bool:
        """Return whether one more GET-HEADS or CONSUMER-HELLO of this node can be served, and count it if so."""
        return self.allow_request(address, now, HEADS_COST if self._is_known(address) else UNKNOWN_HEADS_COST)

    def _is_known(self, address: str) -> bool:
        return self._has_nameless_node or address in self._nodes
