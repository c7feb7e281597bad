from __future__ import annotations

from collections.abc import Callable

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


class Scripted:
    """A discovery that reports these events in turn, and then waits to be cancelled."""

    def __init__(
        self, *reports: DiscoveryEvent, starts: bool = True, ends: bool = False, ends_after_s: float = 0
    ) -> None:
        self._reports = reports
        self._starts = starts
        self._ends = ends
        self._ends_after_s = ends_after_s

    async def run(
        self,
        advertisement: Advertisement,
        report: Callable[[DiscoveryEvent], None],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        await trio.lowlevel.checkpoint()
        if self._starts:
            task_status.started()
        try:
            for each in self._reports:
                report(each)
                await trio.lowlevel.checkpoint()
            if not self._ends:
                await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(self._ends_after_s)


class Forgetful(Scripted):
    """A discovery that continues to report after it was cancelled."""

    async def run(
        self,
        advertisement: Advertisement,
        report: Callable[[DiscoveryEvent], None],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        trio.lowlevel.spawn_system_task(self._report_later, report)
        await super().run(advertisement, report, task_status=task_status)

    async def _report_later(self, report: Callable[[DiscoveryEvent], None]) -> None:
        for _ in range(100):
            await trio.lowlevel.checkpoint()
            report(PEER)
            report(LEFT)


async def test_a_correct_discovery_passes(autojump_clock: trio.testing.MockClock) -> None:
    await check_discovery(lambda: Scripted(PEER, Settled(), LEFT, PEER), OWN, peers=[PEER.endpoint])


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (Scripted(Settled(), starts=False), "started was not called within 10"),
        (Scripted(PEER), "Settled never came"),
        (Scripted(PEER, Settled(), Settled(), LEFT), "Settled came twice"),
        (Scripted(Settled()), r"not all of \['tcp://10.0.0.2:7001'\] were found"),
        (Scripted(PEER, PEER, Settled()), "came twice without a PeerLeft between"),
        (Scripted(LEFT, PEER, Settled()), "without an earlier PeerJoined"),
        (Scripted(PEER, LEFT, LEFT, Settled()), "without an earlier PeerJoined"),
        (
            Scripted(PeerJoined(OWN.address, PeerEndpoint("tcp://10.0.0.3:1")), PEER, Settled()),
            "the own node was reported",
        ),
        (Scripted(PeerJoined("", PeerEndpoint("tcp://10.0.0.1:7001")), PEER, Settled()), "the own node was reported"),
        (Scripted(PeerJoined("C", PeerEndpoint("10.0.0.3:1")), PEER, Settled()), "has no endpoint to connect to"),
        (Scripted(PEER, Settled(), ends=True), "run returned without being cancelled"),
        (Scripted(PEER, Settled(), ends_after_s=2), r"it ran for another 2\.0 s after it was cancelled"),
        (Forgetful(PEER, Settled()), "after it ended it reported|came twice"),
    ],
)
async def test_check_discovery_finds_each_fault(
    autojump_clock: trio.testing.MockClock, broken: Scripted, message: str
) -> None:
    with pytest.raises(AssertionError, match=message):
        await check_discovery(lambda: broken, OWN, peers=[PEER.endpoint])


async def test_check_discovery_finds_a_peer_that_never_leaves(autojump_clock: trio.testing.MockClock) -> None:
    with pytest.raises(AssertionError, match="not all stopped peers have left"):
        await check_discovery(
            lambda: Scripted(PEER, Settled()), OWN, peers=[PEER.endpoint], stop_peers=trio.lowlevel.checkpoint
        )


OTHER = PeerJoined("C" * 32, PeerEndpoint("tcp://10.0.0.3:7001"))


async def test_every_peer_must_be_found_and_must_leave(autojump_clock: trio.testing.MockClock) -> None:
    stopped = trio.Event()

    class Slow(Scripted):
        """A discovery that reports that one of two stopped peers has left."""

        async def run(
            self,
            advertisement: Advertisement,
            report: Callable[[DiscoveryEvent], None],
            *,
            task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
        ) -> None:
            async with trio.open_nursery() as nursery:
                await nursery.start(super().run, advertisement, report)
                task_status.started()
                await stopped.wait()
                report(LEFT)

    async def stop() -> None:
        await trio.lowlevel.checkpoint()
        stopped.set()

    both = [PEER.endpoint, OTHER.endpoint]
    with pytest.raises(AssertionError, match="were found"):
        await check_discovery(lambda: Scripted(PEER, Settled()), OWN, peers=both)
    with pytest.raises(AssertionError, match=r"have left; joined are \['tcp://10.0.0.3:7001'\]"):
        await check_discovery(lambda: Slow(PEER, OTHER, Settled()), OWN, peers=both, stop_peers=stop)


async def test_a_discovery_that_is_cancelled_before_it_starts_must_not_return_as_if_it_had_ended(
    autojump_clock: trio.testing.MockClock,
) -> None:
    class Hasty(Scripted):
        """A discovery that returns if it is cancelled already."""

        async def run(
            self,
            advertisement: Advertisement,
            report: Callable[[DiscoveryEvent], None],
            *,
            task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
        ) -> None:
            if trio.current_effective_deadline() > trio.current_time():
                await super().run(advertisement, report, task_status=task_status)

    with pytest.raises(AssertionError, match="run returned without being cancelled"):
        await check_discovery(lambda: Hasty(PEER, Settled()), OWN, peers=[PEER.endpoint])
