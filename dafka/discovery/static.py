"""Discovery without towers: a fixed list of endpoints, `static:tcp://10.0.0.1:7001,tcp://10.0.0.2:7001`.

Nothing is advertised: the nodes on the list must have each other on theirs, and publish on fixed ports (`bind`). In a
closed cluster a space and the node's public key follow each endpoint.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from dafka.config import Config
from dafka.discovery.base import Advertisement, Discovery
from dafka.errors import DiscoveryError, WireError
from dafka.protocol import PeerJoined, Report, Settled
from dafka.transport import is_key, split_place
from dafka.wire import check_endpoint


class StaticDiscovery:
    """Reports every endpoint once, as a peer whose address is not known."""

    def __init__(self, endpoints: tuple[str, ...], settle_s: float) -> None:
        self._endpoints = endpoints
        self._settle_s = settle_s

    async def run(
        self,
        advertisement: Advertisement,
        report: Callable[[Report], None],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """See `Discovery.run`. The own endpoint may stand on the list; it is passed over."""
        own = f"tcp://{advertisement.host}:{advertisement.port}"
        for place in self._endpoints:
            if split_place(place)[0] != own:
                report(PeerJoined("", place))
        task_status.started()
        await trio.sleep(self._settle_s)
        report(Settled())
        await trio.sleep_forever()


def open_static_discovery(argument: str, config: Config) -> Discovery:
    """Opens `static:ENDPOINT,...`, or, in a closed cluster, `static:ENDPOINT KEY,...`.

    Raises `DiscoveryError` where an endpoint is not `tcp://HOST:PORT` or there is none, or where a key is missing or
    is not to be there.
    """
    places = tuple(dict.fromkeys(" ".join(part.split()) for part in argument.split(",") if part.strip()))
    for place in places:
        _check_place(place, bool(config.security.key_file))
    if not places:
        raise DiscoveryError(
            "static discovery: expected endpoints, as in static:tcp://10.0.0.1:7001,tcp://10.0.0.2:7001"
        )
    return StaticDiscovery(places, config.beacon.settle_ms / 1000)


def _check_place(place: str, has_key: bool) -> None:
    endpoint, key = split_place(place)
    if is_key(key) and not has_key:
        raise DiscoveryError(f"static discovery: {endpoint} has a key behind it, but [security] has no key_file")
    if not has_key:
        endpoint = place
    try:
        check_endpoint(endpoint.encode("utf-8"))
    except WireError:
        raise DiscoveryError(f"static discovery: expected tcp://HOST:PORT, not {endpoint!r}") from None
    if has_key and not is_key(key):
        raise DiscoveryError(f"static discovery: expected a space and the node's public key behind {endpoint}")
