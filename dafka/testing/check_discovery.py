"""Checks a discovery plugin against the contract of `dafka.discovery.Discovery`. It does not need pytest."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager

import attrs
import trio

from dafka.discovery import Advertisement, Discovery, DiscoveryEvent, Settled
from dafka.endpoints import PeerEndpoint, is_peer_endpoint
from dafka.exceptions import unwrap_group
from dafka.protocol import PeerJoined, PeerLeft

CANCEL_S = 1.0
"""Seconds within which a cancelled discovery must end."""

WATCH_S = 0.5
"""Seconds for which a run continues after the required events, so that later events are checked, too."""


async def check_discovery(
    make: Callable[[], Discovery],
    advertisement: Advertisement,
    *,
    peers: Collection[PeerEndpoint] = (),
    stop_peers: Callable[[], Awaitable[None]] | None = None,
    timeout_s: float = 10.0,
) -> None:
    """Run a discovery a few times, and check that it meets the contract.

    Args:
        make: Returns the discovery. It is called once for each run.
        advertisement: The node that the discovery runs for.
        peers: The endpoints of other nodes, which the discovery must find.
        stop_peers: Stops those nodes, which must then be reported as left. None: they continue to run.
        timeout_s: Seconds that each step may take.

    Raises:
        AssertionError: The contract is broken; the message says how.
    """
    await _check_cancelled_before_start(make, advertisement)
    await _check_cancelled_once_started(make, advertisement, timeout_s)
    async with _run(make, advertisement, timeout_s) as reports:
        await reports.wait(lambda: reports.is_settled, timeout_s, "Settled never came")
        await reports.wait(
            lambda: reports.joined >= set(peers), timeout_s, f"not all of {sorted(map(str, peers))} were found"
        )
        await trio.sleep(WATCH_S)
        if stop_peers is not None:
            await stop_peers()
            await reports.wait(lambda: not reports.joined & set(peers), timeout_s, "not all stopped peers have left")


@attrs.define(eq=False)
class _Reports:
    """The events of one run of a discovery for a node. Each is checked when it is reported."""

    _advertisement: Advertisement
    joined: set[PeerEndpoint] = attrs.field(factory=set, init=False)
    """The endpoints that have joined and not left."""
    is_settled: bool = attrs.field(default=False, init=False)
    problem: str = attrs.field(default="", init=False)
    """A description of the first event that breaks the contract."""
    is_over: bool = attrs.field(default=False, init=False)
    _changed: trio.Event = attrs.field(factory=trio.Event, init=False)

    def take(self, report: DiscoveryEvent) -> None:
        """Take one event; the discovery calls this as `report`."""
        self.problem = self.problem or self._check_event(report)
        if isinstance(report, PeerJoined):
            self.joined.add(report.endpoint)
        elif isinstance(report, PeerLeft):
            self.joined.discard(report.endpoint)
        elif isinstance(report, Settled):
            self.is_settled = True
        self._changed.set()
        self._changed = trio.Event()

    async def wait(self, is_reached: Callable[[], bool], timeout_s: float, problem: str) -> None:
        """Wait until the events so far satisfy a condition."""
        with trio.move_on_after(timeout_s) as scope:
            while not is_reached() and not self.problem:
                await self._changed.wait()
        assert not self.problem, self.problem
        assert not scope.cancelled_caught, f"after {timeout_s} s: {problem}; joined are {sorted(map(str, self.joined))}"

    def _check_event(self, report: DiscoveryEvent) -> str:
        if self.is_over:
            return f"after it ended it reported {report!r}"
        if isinstance(report, PeerJoined):
            return self._check_joined(report)
        if isinstance(report, PeerLeft):
            return "" if report.endpoint in self.joined else f"{report!r} without an earlier PeerJoined"
        if isinstance(report, Settled):
            return "Settled came twice" if self.is_settled else ""
        return ""

    def _check_joined(self, report: PeerJoined) -> str:
        own = self._advertisement
        if report.address == own.address or report.endpoint.endpoint == f"tcp://{own.host}:{own.port}":
            return f"the own node was reported: {report!r}"
        if report.endpoint in self.joined:
            return f"{report!r} came twice without a PeerLeft between"
        if not is_peer_endpoint(report.endpoint.endpoint):
            return f"{report!r} has no endpoint to connect to"
        return ""


@asynccontextmanager
async def _run(
    make: Callable[[], Discovery], advertisement: Advertisement, timeout_s: float
) -> AsyncIterator[_Reports]:
    """Start a discovery, and check that it ends when it is cancelled at the end of the block."""
    reports = _Reports(advertisement)
    discovery = make()
    cancelled_at = math.inf
    with unwrap_group():
        async with trio.open_nursery() as nursery:
            with trio.move_on_after(timeout_s) as scope:
                await nursery.start(discovery.run, advertisement, reports.take)
            assert not scope.cancelled_caught, f"started was not called within {timeout_s} s"
            yield reports
            assert nursery.child_tasks, "run returned without being cancelled"
            nursery.cancel_scope.cancel()
            cancelled_at = trio.current_time()
    _check_ended(reports, cancelled_at)


def _check_ended(reports: _Reports, cancelled_at: float) -> None:
    seconds = trio.current_time() - cancelled_at
    assert seconds <= CANCEL_S, f"it ran for another {seconds:.1f} s after it was cancelled"
    assert not reports.problem, reports.problem
    reports.is_over = True


async def _check_cancelled_before_start(make: Callable[[], Discovery], advertisement: Advertisement) -> None:
    reports = _Reports(advertisement)
    cancelled_at = trio.current_time()
    with trio.CancelScope() as scope:
        scope.cancel()
        await make().run(advertisement, reports.take)
    assert scope.cancelled_caught, "run returned without being cancelled"
    _check_ended(reports, cancelled_at)


async def _check_cancelled_once_started(
    make: Callable[[], Discovery], advertisement: Advertisement, timeout_s: float
) -> None:
    async with _run(make, advertisement, timeout_s) as reports:
        pass
    await trio.lowlevel.checkpoint()
    assert not reports.problem, reports.problem
