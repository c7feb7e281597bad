"""Which nodes are known, which partitions they may begin, and how often something is done at their word.

In a plain cluster whoever connects can say anything in anybody's name. What can be told apart is whether discovery has
found a node of that name: nodes that it has found have an allowance each, all others one together. So who invents
names competes with others who do, and with no node.
"""

from __future__ import annotations

from collections import Counter

from dafka.config import NodeConfig
from dafka.records import Partition

STRANGE_MAX = 1000
"""Partitions begun by RECORDs and HEADs of nodes that discovery has not found, all together."""

NODE_BURST = 100
"""So often at once something is done at the word of one node."""

NODE_PER_S = 20.0
"""So often a second, for ever."""

STRANGERS_BURST = 1000
"""So often at once at the word of all others."""

STRANGERS_PER_S = 100.0
"""So often a second, for ever."""

MANY_PARTITIONS = "too many partitions"
MANY_OF_ONE_NODE = "too many partitions of one node"
UNKNOWN_NODE = "too many partitions of unknown nodes"
MANY_UNPROVEN = "too many partitions without records"
TOO_OFTEN = "asked too often"
ABSURD_SEQUENCE = "sequence too large"
MANY_QUESTIONS = "too many questions"
MANY_FETCHES = "too many fetches"

FETCH_SHARE = 0.02
"""What a FETCH of a known node counts for: one that catches up with many partitions sends a few hundred a second."""

STRANGERS_FETCH_SHARE = 0.2
"""What one of any other counts for."""

HEADS_SHARE = 0.01
"""What a question for heads of a known node counts for."""

STRANGERS_HEADS_SHARE = 0.05
"""What one of any other counts for."""

HOSTILE = (MANY_OF_ONE_NODE, UNKNOWN_NODE, ABSURD_SEQUENCE, TOO_OFTEN, MANY_FETCHES, MANY_QUESTIONS)
"""Of what machines discard: what no honest node sends."""


class Admission:
    """Of one node. Partitions that a program or a storage knows of are not its business."""

    def __init__(self, config: NodeConfig) -> None:
        self._partitions_max = config.partitions_max
        self._per_node_max = config.partitions_per_node_max
        self._nodes: set[str] = set()
        self._has_nameless = False
        self._begun: Counter[str] = Counter()
        self._strange: set[Partition] = set()
        self._allowances: dict[str, tuple[float, float]] = {}

    def joined(self, address: str) -> None:
        """Discovery found a node; where it does not know its name, any may be that node's."""
        if address:
            self._nodes.add(address)
        else:
            self._has_nameless = True

    def left(self, address: str) -> None:
        """Discovery lost a node."""
        self._nodes.discard(address)
        self._allowances.pop(address, None)

    def knows(self, address: str) -> bool:
        """Has discovery found this node?"""
        return address in self._nodes

    def begin(self, partition: Partition, followed: int, *, is_live: bool) -> str:
        """A partition is to be followed beside `followed` others, at its producer's word if `is_live`.

        Gives why it may not, or nothing.
        """
        if followed >= self._partitions_max:
            return MANY_PARTITIONS
        if not is_live:
            return ""
        address = partition.address
        if self._begun[address] >= self._per_node_max:
            return MANY_OF_ONE_NODE
        if not self._has_nameless and address not in self._nodes:
            if len(self._strange) >= STRANGE_MAX:
                return UNKNOWN_NODE
            self._strange.add(partition)
        self._begun[address] += 1
        return ""

    def forget(self, partition: Partition) -> None:
        """It is followed no longer."""
        self._strange.discard(partition)
        if self._begun[partition.address] > 1:
            self._begun[partition.address] -= 1
        else:
            del self._begun[partition.address]

    def may_fetch(self, address: str, now: float) -> bool:
        """May one more FETCH of this node be taken?"""
        return self.may_ask(address, now, FETCH_SHARE if self._is_known(address) else STRANGERS_FETCH_SHARE)

    def may_ask_for_heads(self, address: str, now: float) -> bool:
        """May one more of its questions for heads be answered? A consumer has one for each of its topics."""
        return self.may_ask(address, now, HEADS_SHARE if self._is_known(address) else STRANGERS_HEADS_SHARE)

    def _is_known(self, address: str) -> bool:
        return self._has_nameless or address in self._nodes

    def may_ask(self, address: str, now: float, share: float = 1.0) -> bool:
        """May one more thing be done at the word of this node? Some count for less than others."""
        is_known = address in self._nodes
        burst, per_s = (NODE_BURST, NODE_PER_S) if is_known else (STRANGERS_BURST, STRANGERS_PER_S)
        name = address if is_known else ""
        left, at = self._allowances.get(name, (burst, now))
        left = min(left + per_s * (now - at), burst)
        self._allowances[name] = (left - share if left >= share else left), now
        return left >= share
