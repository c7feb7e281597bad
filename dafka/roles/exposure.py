"""What the operator should know of where a role listens: to whom it is open, and who cannot reach it."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from dafka.config import Config
from dafka.protocol import EndpointsExposed, LoopbackOnly


def node_warnings(config: Config, endpoint: str) -> list[EndpointsExposed | LoopbackOnly]:
    """For a node that listens at this endpoint."""
    if not is_local(endpoint):
        return exposed(config, [endpoint])
    far = [tower for tower in config.beacon.tower_sub if not is_local(tower)]
    if config.node.discovery == "tower" and endpoint.startswith("tcp://") and far:
        return [LoopbackOnly(endpoint, far[0])]
    return []


def exposed(config: Config, endpoints: Iterable[str]) -> list[EndpointsExposed | LoopbackOnly]:
    """One warning where there are no keys and any of these endpoints can be reached from other machines."""
    open_ones = tuple(endpoint for endpoint in endpoints if not is_local(endpoint))
    return [EndpointsExposed(open_ones)] if open_ones and not config.security.key_file else []


def is_local(endpoint: str) -> bool:
    """Does this machine alone reach what listens there?"""
    scheme, _, rest = endpoint.partition("://")
    host = rest.rpartition(":")[0].strip("[]")
    if scheme != "tcp" or host in ("localhost", "lo"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
