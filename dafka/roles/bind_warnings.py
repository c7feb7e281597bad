"""Warnings about endpoints: open to other machines without keys, or unreachable from other machines."""

from __future__ import annotations

from collections.abc import Iterable

from dafka.config import Config
from dafka.endpoints import is_local
from dafka.protocol import EndpointsExposed, LoopbackOnly


def node_warnings(config: Config, endpoint: str) -> list[EndpointsExposed | LoopbackOnly]:
    """Return the warnings for a node that listens at this endpoint."""
    if not is_local(endpoint):
        return exposure_warnings(config, [endpoint])
    remote_towers = [tower for tower in config.beacon.tower_sub if not is_local(tower)]
    if config.node.discovery == "tower" and endpoint.startswith("tcp://") and remote_towers:
        return [LoopbackOnly(endpoint, remote_towers[0])]
    return []


def exposure_warnings(config: Config, endpoints: Iterable[str]) -> list[EndpointsExposed | LoopbackOnly]:
    """Return a warning if there are no keys and other machines can reach any of these endpoints."""
    exposed = tuple(endpoint for endpoint in endpoints if not is_local(endpoint))
    return [EndpointsExposed(exposed)] if exposed and not config.security.key_file else []
