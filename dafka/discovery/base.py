"""The discovery plugin interface. A discovery advertises one node and reports the peers that it finds.

A plugin registers a function in the entry-point group `dafka.discovery`. The function takes the text after the colon
of `[node] discovery` and the configuration, and returns a `Discovery`. `dafka.testing.check_discovery` checks a plugin
against this interface.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import attrs
import trio

from dafka.config import Config
from dafka.errors import DiscoveryError
from dafka.plugins import load_plugin
from dafka.protocol import DiscoveryEvent


@attrs.frozen
class Advertisement:
    """The data that a node advertises.

    Attributes:
        address: The node's address.
        host: The host under which peers reach the node; may be empty.
        port: The port under which peers reach the node.
    """

    address: str
    host: str
    port: int


class Discovery(Protocol):
    """The interface of a discovery plugin: finds the peers of one node."""

    async def run(
        self,
        advertisement: Advertisement,
        report: Callable[[DiscoveryEvent], None],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Advertise the node and report every change, until cancelled.

        A `PeerLeft` has the endpoint of an earlier `PeerJoined`. The node itself is not reported. In a closed cluster
        (`config.security`) each endpoint has the public key of the peer; the node does not connect to an endpoint
        without one. `Settled` is reported once, after the peers have had time to answer.

        Args:
            advertisement: The node to advertise.
            report: Called for each event. It does not block.
            task_status: Reports that advertising has begun.
        """


def open_discovery(config: Config) -> Discovery:
    """Open the discovery that `[node] discovery` names: `tower`, `static:tcp://HOST:PORT,...`, or a plugin's.

    Args:
        config: The configuration.

    Returns:
        The discovery.

    Raises:
        DiscoveryError: The discovery is not installed, or its argument is invalid.
    """
    name, _, argument = config.node.discovery.partition(":")
    discovery: Discovery = load_plugin("dafka.discovery", name, DiscoveryError)(argument, config)
    return discovery
