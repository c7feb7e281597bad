from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from dafka.discovery import Advertisement, DiscoveryEvent, Settled
from dafka.endpoints import PeerEndpoint
from dafka.protocol import PeerJoined, PeerLeft
from dafka.testing import check_discovery

OWN = Advertisement("A" * 32, "10.0.0.1", 7001)
PEER = PeerJoined("B" * 32, PeerEndpoint("tcp://10.0.0.2:7001"))
LEFT = PeerLeft("B" * 32, PeerEndpoint("tcp://10.0.0.2:7001"))
OTHER = PeerJoined("C" * 32, PeerEndpoint("tcp://10.0.0.3:7001"))


@attrs.define
class Scripted:
    """A discovery that reports events in turn, and then waits to be cancelled.

    Attributes:
        reports: The events.
        starts: Whether it says that it has started.
        ends: Whether it ends by itself.
        ends_after_s: How long it goes on when it is cancelled.
        starts_anyway_s: How long it goes on if it is cancelled before it starts.
        is_hasty: Whether it returns if it is cancelled before it starts.
        is_forgetful: Whether it continues to report after it was cancelled.
        stopped: Set when the peers stop; it then reports that one of them has left.
    """

    reports: tuple[DiscoveryEvent, ...]
    starts: bool = True
    ends: bool = False
    ends_after_s: float = 0
    starts_anyway_s: float = 0
    is_hasty: bool = False
    is_forgetful: bool = False
    stopped: trio.Event = attrs.field(factory=trio.Event)

    async def run(
        self,
        advertisement: Advertisement,
        report: Callable[[DiscoveryEvent], None],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        if trio.current_effective_deadline() <= trio.current_time():
            with trio.CancelScope(shield=True):
                await trio.sleep(self.starts_anyway_s)
            if self.is_hasty:
                return
        if self.is_forgetful:
            trio.lowlevel.spawn_system_task(self._report_later, report)
        await trio.lowlevel.checkpoint()
        if self.starts:
            task_status.started()
        try:
            for each in self.reports:
                report(each)
                await trio.lowlevel.checkpoint()
            if not self.ends:
                await self.stopped.wait()
                report(LEFT)
                await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(self.ends_after_s)

    async def _report_later(self, report: Callable[[DiscoveryEvent], None]) -> None:
        for _ in range(100):
            await trio.lowlevel.checkpoint()
            report(PEER)
            report(LEFT)


def scripted(*reports: DiscoveryEvent, **options: Any) -> Scripted:
    return Scripted(reports, **options)


async def check(discovery: Scripted, *peers: PeerJoined, stop: Callable[[], Awaitable[None]] | None = None) -> None:
    await check_discovery(lambda: discovery, OWN, peers=[each.endpoint for each in peers], stop_peers=stop)


async def test_a_correct_discovery_passes(autojump_clock: trio.testing.MockClock) -> None:
    await check(scripted(PEER, Settled(), LEFT, PEER), PEER)


BROKEN: list[tuple[Scripted, str]] = [
    (scripted(Settled(), starts=False), "started was not called within 10"),
    (scripted(PEER), "Settled never came"),
    (scripted(PEER, Settled(), Settled(), LEFT), "Settled came twice"),
    (scripted(Settled()), r"not all of \['tcp://10.0.0.2:7001'\] were found"),
    (scripted(PEER, PEER, Settled()), "came twice without a PeerLeft between"),
    (scripted(LEFT, PEER, Settled()), "without an earlier PeerJoined"),
    (scripted(PEER, LEFT, LEFT, Settled()), "without an earlier PeerJoined"),
    (scripted(PeerJoined(OWN.address, OTHER.endpoint), PEER, Settled()), "the own node was reported"),
    (scripted(PeerJoined("", PeerEndpoint("tcp://10.0.0.1:7001")), PEER, Settled()), "the own node was reported"),
    (scripted(PeerJoined("C", PeerEndpoint("10.0.0.3:1")), PEER, Settled()), "has no endpoint to connect to"),
    (scripted(PEER, Settled(), ends=True), "run returned without being cancelled"),
    (scripted(PEER, Settled(), is_hasty=True), "run returned without being cancelled"),
    (scripted(PEER, Settled(), ends_after_s=2), r"it ran for another 2\.0 s after it was cancelled"),
    (scripted(PEER, Settled(), starts_anyway_s=2), r"it ran for another 2\.0 s after it was cancelled"),
    (scripted(PEER, Settled(), is_forgetful=True), "after it ended it reported|came twice"),
]


@pytest.mark.parametrize(("broken", "message"), BROKEN)
async def test_each_fault_is_found(autojump_clock: trio.testing.MockClock, broken: Scripted, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        await check(broken, PEER)


async def test_every_peer_must_be_found_and_must_leave(autojump_clock: trio.testing.MockClock) -> None:
    both = scripted(PEER, OTHER, Settled())

    async def stop() -> None:
        await trio.lowlevel.checkpoint()
        both.stopped.set()

    with pytest.raises(AssertionError, match="were found"):
        await check(scripted(PEER, Settled()), PEER, OTHER)
    with pytest.raises(AssertionError, match="not all stopped peers have left"):
        await check(scripted(PEER, Settled()), PEER, stop=trio.lowlevel.checkpoint)
    with pytest.raises(AssertionError, match=r"have left; joined are \['tcp://10.0.0.3:7001'\]"):
        await check(both, PEER, OTHER, stop=stop)
