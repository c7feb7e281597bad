"""Each log is used where it is led, also when its leader changes meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from random import Random
from typing import Any

import attrs
import trio
import trio.testing

from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.leader_and_isr import LeaderAndIsr
from dafka.http.logs.cluster_logs import ClusterLogs
from dafka.http.server.errors import LeaderMovedError
from tests.http.running import make_log


def make_logs(led: Iterable[str]) -> list[Log]:
    """Return a log for each letter: led `h`ere or `e`lsewhere."""
    return [make_log(number, is_led=where == "h") for number, where in enumerate(led)]


@attrs.define
class Access:
    """Stands for the access to the logs that are led here, or elsewhere. Leaders move before it looks who leads."""

    is_here: bool
    moves: list[Log]
    """The logs whose leader changes, one at each call."""
    asked: list[tuple[str, list[int]]] = attrs.field(factory=list)
    appending: list[Log] = attrs.field(factory=list)
    advanced: trio.Event = attrs.field(factory=trio.Event)

    async def _ask(self, what: str, logs: Iterable[Log]) -> None:
        await trio.lowlevel.checkpoint()
        self.asked.append((what, [log.number for log in logs]))
        if self.moves:
            log = self.moves.pop()
            log.leadership = LeaderAndIsr("a" * 32, log.leadership.epoch + 1, is_led=not log.leadership.is_led)
        for log in logs:
            if log.leadership.is_led != self.is_here:
                raise LeaderMovedError(log)

    async def bounds(self, logs: Sequence[Log]) -> dict[Log, tuple[int, bool]]:
        await self._ask("bounds", logs)
        return {log: (log.number, self.is_here) for log in reversed(logs)}

    async def known_bounds(self, logs: Sequence[Log]) -> dict[Log, tuple[int, bool]]:
        return {log: (log.number, self.is_here) for log in logs}

    async def read(self, log: Log, offset: int, *, bytes_max: int, end_offset: int | None) -> tuple[object, ...]:
        await self._ask("read", [log])
        return self.is_here, offset, bytes_max, end_offset

    async def find_offset_by_time(self, log: Log, timestamp_ms: int) -> tuple[object, ...]:
        await self._ask("time", [log])
        return self.is_here, timestamp_ms

    async def delete_before(self, log: Log, offset: int) -> tuple[object, ...]:
        await self._ask("delete", [log])
        return self.is_here, -offset

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
            raise LeaderMovedError(self.moves.pop())
        return f"{'here' if self.is_here else 'elsewhere'} {sorted(options)}"


def open_cluster_logs(moves: list[Log] | None = None) -> tuple[Any, Access, Access]:
    """Return the access to all logs, and those that it passes calls to."""
    here: Any = Access(is_here=True, moves=[] if moves is None else moves)
    elsewhere: Any = Access(is_here=False, moves=here.moves)
    return ClusterLogs(here, elsewhere), here, elsewhere


async def test_calls_are_answered_where_the_log_is_led_at_last() -> None:
    for seed in range(200):
        random = Random(seed)
        logs = make_logs(random.choices("he", k=4))
        access, here, elsewhere = open_cluster_logs(moves := random.choices(logs, k=random.randrange(4)))
        log = random.choice(logs)
        calls: list[tuple[Any, tuple[object, ...]]] = [
            (access.read(log, 5, bytes_max=7, end_offset=9), (5, 7, 9)),
            (access.find_offset_by_time(log, 5), (5,)),
            (access.delete_before(log, 5), (-5,)),
        ]
        for call, expected in random.sample(calls, 3):
            assert await call == (log.leadership.is_led, *expected), seed
            assert access.has_records(log, 0) == log.leadership.is_led
        moves += random.choices(logs, k=random.randrange(4))
        before = len(here.asked) + len(elsewhere.asked)
        found = await access.bounds(logs)
        assert ([*found], [each[0] for each in found.values()]) == (logs, [0, 1, 2, 3]), seed
        known = await access.known_bounds(logs)
        assert known == {log: (log.number, log.leadership.is_led) for log in logs}
        if len(here.asked) + len(elsewhere.asked) == before + 2:
            assert found == known, "no leader has moved"


async def test_a_wait_ends_when_one_of_the_logs_advances(autojump_clock: trio.testing.MockClock) -> None:
    for led, advancing in product(("hh", "ee", "he", "eh"), "he"):
        access, here, elsewhere = open_cluster_logs()
        logs, is_over = make_logs(led), trio.Event()

        async def wait(access: Any = access, logs: list[Log] = logs, is_over: trio.Event = is_over) -> None:
            await access.wait_records(dict.fromkeys(logs, 0))
            is_over.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.sleep(1)
            assert not is_over.is_set()
            (here if advancing == "h" else elsewhere).advanced.set()
            await trio.testing.wait_all_tasks_blocked()
            assert is_over.is_set() == (advancing in led)
            nursery.cancel_scope.cancel()
        for letter, each in (("h", here), ("e", elsewhere)):
            expected = [number for number, where in enumerate(led) if where == letter]
            assert [numbers for what, numbers in each.asked if what == "wait"] == ([expected] if expected else [])


async def test_a_wait_ends_when_this_broker_stops_leading_one_of_the_logs() -> None:
    access, here, elsewhere = open_cluster_logs()
    logs = make_logs("hhe")
    here.moves, elsewhere.moves = [logs[0]], []
    with trio.fail_after(60):
        await access.wait_records(dict.fromkeys(logs, 0))


async def test_records_follow_those_that_are_on_their_way() -> None:
    access, here, elsewhere = open_cluster_logs()
    log, other = make_logs("he")
    append: Callable[..., Any] = access.append
    assert [append(log, []), append(other, [])] == ["here ['resend']", "elsewhere []"]
    elsewhere.appending = [log]
    assert append(log, []) == "elsewhere []", "records are in flight to the former leader"
    elsewhere.appending, here.moves = [], [log]
    assert append(log, []) == "elsewhere []", "this broker has just stopped leading it"
    await access.wait_capacity()
    assert ("capacity", []) in here.asked
    assert ("capacity", []) in elsewhere.asked
