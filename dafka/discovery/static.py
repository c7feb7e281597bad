"""Discovery without towers, by a fixed list of endpoints: `static:tcp://10.0.0.1:7001,tcp://10.0.0.2:7001`.

This discovery advertises nothing. Each node must have the other nodes on its list, and publish on a fixed port (`[node]
bind`). In a closed cluster, a space and the node's public key follow each endpoint.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import trio

from dafka.config import Config
from dafka.discovery.base import Advertisement, Discovery
from dafka.endpoints import PeerEndpoint, is_key, is_peer_endpoint
from dafka.errors import DiscoveryError
from dafka.protocol import DiscoveryEvent, PeerJoined, Settled


@attrs.frozen
class StaticDiscovery:
    """A discovery that reports each endpoint of a list once, as a peer of unknown address."""

    _peers: tuple[PeerEndpoint, ...]
    """The endpoints. The node's own endpoint may be among them."""
    _settle_s: float
    """Seconds from the start until `Settled` is reported."""

    async def run(
        self,
        advertisement: Advertisement,
        report: Callable[[DiscoveryEvent], None],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """See `Discovery.run`. The node's own endpoint is skipped."""
        own = f"tcp://{advertisement.host}:{advertisement.port}"
        for peer in self._peers:
            if peer.endpoint != own:
                report(PeerJoined("", peer))
        task_status.started()
        await trio.sleep(self._settle_s)
        report(Settled())
        await trio.sleep_forever()


def open_static_discovery(argument: str, config: Config) -> Discovery:
    """Open `static:ENDPOINT,...`, or in a closed cluster `static:ENDPOINT KEY,...`; the argument follows `static:`.

    Raise `DiscoveryError` if there is no endpoint, one is not `tcp://HOST:PORT`, or a key is missing or not expected.
    """
    peers = tuple(dict.fromkeys(PeerEndpoint.parse(part) for part in argument.split(",") if part.strip()))
    for peer in peers:
        _check_peer(peer, bool(config.security.key_file))
    if not peers:
        raise DiscoveryError(
            "static discovery: expected endpoints, as in static:tcp://10.0.0.1:7001,tcp://10.0.0.2:7001"
        )
    return StaticDiscovery(peers, config.beacon.settle_ms / 1000)


def _check_peer(peer: PeerEndpoint, has_keys: bool) -> None:
    if is_key(peer.key) and not has_keys:
        raise DiscoveryError(
            f"static discovery: a key follows {peer.endpoint}, but this node has none: "
            "set [security] key_file and authorized_keys, or remove the key"
        )
    endpoint = peer.endpoint if has_keys else str(peer)
    if not is_peer_endpoint(endpoint):
        raise DiscoveryError(f"static discovery: expected tcp://HOST:PORT, not {endpoint!r}")
    if has_keys and not is_key(peer.key):
        raise DiscoveryError(
            f"static discovery: expected a space and the node's public key after {endpoint}, "
            "because the cluster is closed ([security] key_file); `dafka keys show` on that node prints it"
        )
