"""Discovery without towers: a fixed list of endpoints, `static:tcp://10.0.0.1:7001,tcp://10.0.0.2:7001`.

Nothing is advertised: the nodes on the list must have each other on theirs, and publish on fixed ports (`bind`).
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from dafka.config import Config
from dafka.discovery.base import Advertisement, Discovery
from dafka.errors import DiscoveryError, WireError
from dafka.protocol import PeerJoined, Report, Settled
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
        for endpoint in self._endpoints:
            if endpoint != own:
                report(PeerJoined("", endpoint))
        task_status.started()
        await trio.sleep(self._settle_s)
        report(Settled())
        await trio.sleep_forever()


def open_static_discovery(argument: str, config: Config) -> Discovery:
    """Opens `static:ENDPOINT,...`. Raises `DiscoveryError` where one is not `tcp://HOST:PORT`, or there is none."""
    endpoints = tuple(dict.fromkeys(part.strip() for part in argument.split(",") if part.strip()))
    try:
        for endpoint in endpoints:
            check_endpoint(endpoint.encode("utf-8"))
    except WireError:
        raise DiscoveryError(f"static discovery: expected tcp://HOST:PORT, not {endpoint!r}") from None
    if not endpoints:
        raise DiscoveryError(
            "static discovery: expected endpoints, as in static:tcp://10.0.0.1:7001,tcp://10.0.0.2:7001"
        )
    return StaticDiscovery(endpoints, config.beacon.settle_ms / 1000)
