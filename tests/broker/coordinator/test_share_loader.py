"""The state of a share partition is written only while this broker serves it."""

from __future__ import annotations

from collections import Counter, defaultdict
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from dafka.broker.coordinator.led_share_partition import LedSharePartition, ShareLoader
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.share.settings import ShareSettings
from dafka.broker.core.groups.share.share_partition import ShareEvent
from dafka.broker.core.groups.share.state import SharePartitionKey, ShareState
from dafka.broker.core.groups.share.states import LoadedShareState
from dafka.broker.log.waiters import LogWaiters

SETTINGS = ShareSettings(begins_after_ms=1_000)
STEPS = 8
"""More steps than loading takes."""


@attrs.define(eq=False)
class World:
    """A log, and a coordinator. Loading ends when it has taken some steps."""

    end: Any
    end_at: int
    step: int = 0
    written: list[int] = attrs.field(factory=list)

    async def _wait(self) -> None:
        await trio.sleep(0.01)
        self.step += 1
        if self.step == self.end_at:
            self.end()

    def holds_lease(self, _log: object) -> bool:
        return True

    async def load(self, _key: SharePartitionKey, leader_epoch: int) -> LoadedShareState:
        await self._wait()
        return LoadedShareState(ErrorCode.NONE, ShareState("id", leader_epoch, -1, -1, ()))

    async def write(self, _key: SharePartitionKey, state: ShareState) -> ErrorCode:
        self.written.append(state.start_offset)
        await self._wait()
        return ErrorCode.NONE

    async def find_offset_by_time(self, _log: object, _time_ms: int) -> tuple[int, int]:
        for _ in range(3):
            await self._wait()
        return 5, 0


@pytest.mark.parametrize("is_replaced", [True, False])
async def test_a_share_partition_that_is_not_served_any_more_writes_nothing(
    autojump_clock: MockClock, is_replaced: bool
) -> None:
    """Otherwise it would replace what the next one has written, and records that were accepted come again."""
    for end_at in range(STEPS):
        leadership = SimpleNamespace(is_led=True, epoch=3)
        log: Any = SimpleNamespace(
            topic="orders", number=0, leadership=leadership, is_end_known=True, high_watermark=9, index=None
        )
        served = LedSharePartition(SharePartitionKey("group", "topic", 0), log, 3)

        def end(served: LedSharePartition = served, leadership: Any = leadership) -> None:
            served.error = ErrorCode.FENCED_STATE_EPOCH if is_replaced else ErrorCode.NONE
            leadership.epoch += not is_replaced

        world: Any = World(end, end_at)
        counts: defaultdict[str, Counter[ShareEvent]] = defaultdict(Counter)
        loader = ShareLoader(world, world, world, LogWaiters(), world, lambda: 10_000, lambda _: SETTINGS)
        loaded = await loader.load(served, counts)
        is_loaded = not 1 <= end_at <= 4  # the coordinator answers, and the start is found in three steps
        assert world.written == ([5] if is_loaded else [])
        if not is_loaded:
            assert loaded is (ErrorCode.FENCED_STATE_EPOCH if is_replaced else ErrorCode.NOT_LEADER_OR_FOLLOWER)
