"""What a discovery plugin is: it makes a node known and reports whom it finds.

A plugin registers, in the entry-point group `dafka.discovery`, a function that takes what follows the colon of the
configured URL and the configuration, and gives a `Discovery`. `dafka.testing.check_discovery` judges one.
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
    """How a node wants to be known: its address, the host to be reached at (may be empty), and its port."""

    address: str
    host: str
    port: int


class Discovery(Protocol):
    """Finds nodes, for one node."""

    async def run(
        self,
        advertisement: Advertisement,
        report: Callable[[DiscoveryEvent], None],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Advertises, and reports every change, until cancelled.

        `report` does not block. A `PeerLeft` names the endpoint of an earlier `PeerJoined`. The own node is not
        reported. In a closed cluster (`config.security`) an endpoint is followed by a space and the public key that is
        to be expected there; without, the node does not connect. `Settled` comes once, and not before others could have
        answered. `started` is called when advertising has begun.
        """


def open_discovery(config: Config) -> Discovery:
    """The discovery that `config.node.discovery` names: `tower`, `static:tcp://HOST:PORT,...`, or a plugin's.

    Raises `DiscoveryError` where it is not installed or does not understand its argument.
    """
    name, _, argument = config.node.discovery.partition(":")
    discovery: Discovery = load_plugin("dafka.discovery", name, DiscoveryError)(argument, config)
    return discovery
