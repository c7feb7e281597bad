from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from dafka import wire
from dafka.broker.log.own_partitions import HEAD_WAITS_S, HeadAnnouncer
from dafka.records import Partition

pytestmark = pytest.mark.trio

KEPT, DELETED = Partition("orders", "kept"), Partition("orders", "deleted")


async def test_heads_are_sent_less_and_less_often_and_none_of_deleted_partitions(autojump_clock: MockClock) -> None:
    sent: list[tuple[float, str, int]] = []

    def publish(heads: list[wire.Head]) -> None:
        sent.extend((trio.current_time(), each.address, each.sequence) for each in heads)

    begun = trio.current_time()
    heads = HeadAnnouncer(cast(Any, SimpleNamespace(publish=publish)), {KEPT: 3, DELETED: 0}.__getitem__)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(heads.run)
        heads.add([KEPT, DELETED])
        await trio.sleep(2 * sum(HEAD_WAITS_S))
        nursery.cancel_scope.cancel()
    due = [begun + sum(HEAD_WAITS_S[: number + 1]) for number in range(len(HEAD_WAITS_S))]
    assert [each[1:] for each in sent] == [("kept", 2)] * len(HEAD_WAITS_S)
    assert [each[0] for each in sent] == pytest.approx(due)
