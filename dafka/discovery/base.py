"""The interface of discovery plugins, which advertise a node and report the nodes that they find.

A plugin registers a function in the entry-point group `dafka.discovery`. The function takes the part of the configured
URL after the colon and the configuration, and returns a `Discovery`. It raises `DiscoveryError` if its argument is
invalid. `dafka.testing.check_discovery` checks a plugin against this interface.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import attrs
import trio

from dafka.config import Config
from dafka.errors import DiscoveryError
from dafka.extras import load_plugin
from dafka.protocol import DiscoveryEvent
from dafka.wire import Role


@attrs.frozen
class Advertisement:
    """The data that other nodes need to connect to a node.

    Attributes:
        address: The address of the node: 32 hexadecimal digits, or an address that the program chose.
        host: The host that other nodes connect to. If empty, the host that the node's connections come from.
        port: The TCP port of the node's publisher.
        role: The role of the node. A discovery can pass it on, so that nodes connect only to the nodes that they need.
    """

    address: str
    host: str
    port: int
    role: Role = Role.ANY


class Discovery(Protocol):
    """A way to find other nodes, for one node.

    If it has an attribute `discarded`, a mapping of reasons to numbers, these are added to the counters of the node.
    """

    async def run(
        self,
        advertisement: Advertisement,
        report: Callable[[DiscoveryEvent], None],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Advertise the node, and report every change, until cancelled.

        - `PeerJoined` reports another node, never this one. Its address is empty if it is unknown.
        - `PeerLeft` has the endpoint of an earlier `PeerJoined`.
        - `Settled` is reported once, when there was enough time to find the nodes that were running before.
        - In a closed cluster (`config.security`), the `PeerEndpoint` of an event has the public key to expect there.
          The node does not connect to an endpoint without a key.

        Args:
            advertisement: How other nodes can reach this one.
            report: Called with each event. It does not block.
            task_status: Its `started` is called when advertising has begun.

        Raises:
            DiscoveryError: The nodes cannot be found with this configuration.
            TransportError: An endpoint is invalid.
        """


def open_discovery(config: Config) -> Discovery:
    """Open the discovery that `config.node.discovery` names. It does nothing until `run` is called.

    The setting is `tower`, `static:tcp://HOST:PORT,...` or the URL of a plugin. Raises `DiscoveryError` if the plugin
    is not installed or its argument is invalid, `ConfigError` if the keys of a closed cluster are missing or invalid.
    """
    name, _, argument = config.node.discovery.partition(":")
    discovery: Discovery = load_plugin("dafka.discovery", name, DiscoveryError)(argument, config)
    return discovery
