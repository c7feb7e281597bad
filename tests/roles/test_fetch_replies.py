"""The order in which FETCHes are answered when a part of the records is in a slow object store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import trio
import trio.testing

from dafka import wire
from dafka.protocol import FetchResponder, ReadRequest
from dafka.records import RecordBatch
from dafka.roles.replies import COLD_READS_MAX, FetchReplies

COLD_END = 50
END = 100


class Sent:
    """Takes the place of the sockets."""

    def __init__(self) -> None:
        self.runs: list[tuple[str, int, int]] = []

    def publish(self, runs: Sequence[wire.RecordRun]) -> None:
        for each in runs:
            assert each.requestor is not None
            self.runs.append((each.requestor, each.batch.first_sequence, each.batch.end_sequence))


class SlowTier:
    """Two tiers; the cold one answers when it is told to.

    Attributes:
        is_answering: Set when the cold tier answers.
        reading: How many reads wait for it.
    """

    def __init__(self) -> None:
        self.is_answering = trio.Event()
        self.reading = 0

    async def read(self, request: ReadRequest) -> RecordBatch:
        end = request.first_sequence + request.count
        if request.first_sequence < COLD_END:
            self.reading += 1
            await self.is_answering.wait()
            self.reading -= 1
            end = min(end, COLD_END)
        await trio.lowlevel.checkpoint()
        return RecordBatch(request.partition, request.first_sequence, [b"x"] * (end - request.first_sequence))


async def test_a_slow_object_store_delays_only_who_asks_for_what_is_in_it() -> None:
    responder = FetchResponder(lambda _: range(END), 1000)
    sent, tier = Sent(), SlowTier()
    sockets: Any = sent
    replies = FetchReplies(sockets, responder, tier.read, lambda _: COLD_END)

    def fetch(requestor: str, first: int) -> None:
        responder.add_fetch(wire.Fetch("p", requestor, "orders", first, END))
        replies.wake()

    slow = [f"slow-{number}" for number in range(COLD_READS_MAX + 2)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(replies.run)
        for each in slow:
            fetch(each, 0)
        await trio.testing.wait_all_tasks_blocked()
        assert tier.reading == COLD_READS_MAX
        fetch("quick", COLD_END)
        await trio.testing.wait_all_tasks_blocked()
        assert sent.runs == [("quick", COLD_END, END)]
        tier.is_answering.set()
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    for each in slow:
        found = [run[1:] for run in sent.runs if run[0] == each]
        assert found == [(0, COLD_END), (COLD_END, END)]
