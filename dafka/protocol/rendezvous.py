"""Rendezvous hashing: an order of nodes for each name, which is the same on every node."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b


def rank_nodes(name: str, nodes: Iterable[str]) -> list[str]:
    """Return nodes in the order in which they are preferred for a name, such as that of a log or a partition.

    The preferred one is first. A node's coming or going does not change the order of the others.
    """
    return sorted(nodes, key=lambda node: (weigh_node(name, node), node), reverse=True)


def weigh_node(name: str, node: str) -> bytes:
    """Return the weight of a node for a name; larger weights are preferred."""
    return blake2b(f"{name}\0{node}".encode(errors="surrogateescape"), digest_size=8).digest()
