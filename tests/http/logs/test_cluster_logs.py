"""Each log is used where it is led, also when its leader changes meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.leader_and_isr import LeaderAndIsr
from dafka.http.logs.cluster_logs import ClusterLogs
from dafka.http.server.errors import LeaderMovedError
from dafka.records import Partition


def make_logs(led: str) -> list[Log]:
    """Return a log for each letter: led `h`ere or `e`lsewhere."""
    logs = [
        Log("orders", number, Partition("orders", "a" * 32), Partition("orders", "a" * 32))
        for number in range(len(led))
    ]
    for log, where in zip(logs, led, strict=True):
        lead(log, is_led=where == "h")
    return logs


def lead(log: Log, *, is_led: bool) -> None:
    log.leadership = LeaderAndIsr("a" * 32, log.leadership.epoch + 1, is_led=is_led)


@attrs.define
class Access:
    """Stands for the access to the logs that are led here, or elsewhere. It notes what it is asked."""

    is_here: bool
    asked: list[tuple[object, ...]] = attrs.field(factory=list)
    moves: list[Callable[[], None]] = attrs.field(factory=list)
    """What happens at each call before it finds that the leader has changed."""
    appending: list[Log] = attrs.field(factory=list)
    advanced: trio.Event = attrs.field(factory=trio.Event)

    async def _ask(self, what: str, logs: Iterable[Log]) -> None:
        await trio.lowlevel.checkpoint()
        numbers = [log.number for log in logs]
        self.asked.append((what, numbers))
        if self.moves and numbers:
            self.moves.pop(0)()
        for log in logs:
            if log.leadership.is_led != self.is_here:
                raise LeaderMovedError(log)

    async def bounds(self, logs: Sequence[Log]) -> dict[Log, str]:
        await self._ask("bounds", logs)
        return dict.fromkeys(reversed(logs), "here" if self.is_here else "elsewhere")

    async def known_bounds(self, logs: Sequence[Log]) -> dict[Log, str]:
        return dict.fromkeys(logs, "here" if self.is_here else "elsewhere")

    async def read(self, log: Log, offset: int, *, bytes_max: int, end_offset: int | None) -> tuple[object, ...]:
        await self._ask("read", [log])
        return self.is_here, offset, bytes_max, end_offset

    async def find_offset_by_time(self, log: Log, timestamp_ms: int) -> int:
        await self._ask("time", [log])
        return timestamp_ms

    async def delete_before(self, log: Log, offset: int) -> int:
        await self._ask("delete", [log])
        return offset

    def has_records(self, _log: Log, _offset: int) -> bool:
        return self.is_here

    async def wait_records(self, offsets: Mapping[Log, int]) -> None:
        await self._ask("wait", offsets)
        await self.advanced.wait()

    async def wait_capacity(self) -> None:
        await self._ask("capacity", [])

    def is_appending(self, log: Log) -> bool:
        return log in self.appending

    def append(self, log: Log, _batches: object, _records: object = None, **options: Any) -> str:
        if self.moves:
            self.moves.pop(0)
            raise LeaderMovedError(log)
        return f"{'here' if self.is_here else 'elsewhere'} {sorted(options)}"


def open_cluster_logs() -> tuple[ClusterLogs, Access, Access]:
    here, elsewhere = Access(is_here=True), Access(is_here=False)
    local: Any = here
    remote: Any = elsewhere
    return ClusterLogs(local, remote), here, elsewhere


async def test_offsets_come_from_each_leader_in_the_order_of_the_logs() -> None:
    access, _, _ = open_cluster_logs()
    logs = make_logs("heehe")
    found: Any = await access.bounds(logs)
    assert list(found) == logs
    assert [each[0] for each in found.values()] == [*"heehe"]
    known: Any = await access.known_bounds(logs)
    assert {log.number: each[0] for log, each in known.items()} == dict(enumerate("heehe"))


@pytest.mark.parametrize("begins_here", [True, False])
async def test_a_call_is_repeated_where_a_log_is_led_next(begins_here: bool) -> None:
    calls: list[Callable[[ClusterLogs, Log], Awaitable[object]]] = [
        lambda access, log: access.bounds([log]),
        lambda access, log: access.read(log, 5, bytes_max=7, end_offset=9),
        lambda access, log: access.find_offset_by_time(log, 5),
        lambda access, log: access.delete_before(log, 5),
    ]
    for call in calls:
        access, here, elsewhere = open_cluster_logs()
        (log,) = make_logs("h" if begins_here else "e")
        first, second = (here, elsewhere) if begins_here else (elsewhere, here)
        first.moves = [partial(lead, log, is_led=not begins_here)]
        await call(access, log)
        assert [numbers for _, numbers in first.asked][:1] == [[0]]
        assert [0] in [numbers for _, numbers in second.asked]
    found: Any = await access.read(log, 5, bytes_max=7, end_offset=9)
    assert found == (not begins_here, 5, 7, 9)
    assert access.has_records(log, 0) is (not begins_here)


@pytest.mark.parametrize(
    ("led", "advancing"), [("hh", "here"), ("ee", "elsewhere"), ("he", "here"), ("he", "elsewhere")]
)
async def test_a_wait_ends_when_one_of_the_logs_advances(
    led: str, advancing: str, autojump_clock: trio.testing.MockClock
) -> None:
    access, here, elsewhere = open_cluster_logs()
    logs = make_logs(led)
    is_over = trio.Event()

    async def wait() -> None:
        await access.wait_records(dict.fromkeys(logs, 0))
        is_over.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.sleep(1)
        assert not is_over.is_set()
        (here if advancing == "here" else elsewhere).advanced.set()
        await is_over.wait()
    waits = {
        name: [numbers for what, numbers in each.asked if what == "wait"]
        for name, each in (("h", here), ("e", elsewhere))
    }
    assert waits == {
        each: [[number for number, where in enumerate(led) if where == each]] if each in led else [] for each in "he"
    }


async def test_records_follow_those_that_are_on_their_way() -> None:
    access, here, elsewhere = open_cluster_logs()
    log, other = make_logs("he")
    append: Callable[..., Any] = access.append
    assert [append(log, []), append(other, [])] == ["here ['resend']", "elsewhere []"]
    elsewhere.appending = [log]
    assert append(log, []) == "elsewhere []", "records are in flight to the former leader"
    elsewhere.appending, here.moves = [], [lambda: None]
    assert append(log, []) == "elsewhere []", "this broker has just stopped leading it"
    await access.wait_capacity()
    assert ("capacity", []) in here.asked
    assert ("capacity", []) in elsewhere.asked
