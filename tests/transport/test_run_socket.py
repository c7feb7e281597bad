"""How many messages a node receives at once: fewer if handling them takes long, and those of a run as one."""

from __future__ import annotations

from collections.abc import AsyncIterator

import attrs
import pytest
import trio
import trio.testing
import zmq

from dafka.endpoints import PeerEndpoint
from dafka.transport import RunSocket, Socket, open_context
from dafka.transport.plain_subscriber import PAUSE_S, PROBATION_COUNT_MAX, PROBATION_SLICE_S, SHARE, PlaintextSubscriber
from dafka.transport.socket import COUNT_MIN, ITEMS_MAX, SLICE_S, SLOW_BATCH_ITEMS
from dafka.transport.subscribers import Messages
from dafka.wire.batch import EncodedRun


@attrs.define
class Work:
    """A clock that shows how long handling messages takes."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@attrs.define
class Ends:
    """The two ends of a connection within the process: everything that is sent has arrived."""

    near: Socket
    far: RunSocket
    work: Work


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    async with open_context(0) as context:
        work = Work()
        near, far = Socket(context.socket(zmq.SocketType.PAIR)), RunSocket(context.socket(zmq.SocketType.PAIR), work)
        for each in (near, far):
            each.set_options(sndhwm=0, rcvhwm=0)
        near.bind("inproc://here")
        far.connect("inproc://here")
        try:
            yield Ends(near, far, work)
        finally:
            near.close(0)
            far.close(0)


def singles(count: int) -> Messages:
    return [[b"x%d" % number] for number in range(count)]


def run_of(count: int) -> EncodedRun:
    return EncodedRun(None, b"M", 0, [b""] * count)


MOST = 10**6
"""Stands for what the loops receive at most."""


@pytest.mark.parametrize(
    ("items", "spent_s", "expected", "is_slow"),
    [
        (singles(1000), SLICE_S, MOST, False),
        (singles(1000), 2 * SLICE_S, 500, True),
        (singles(1000), 100 * SLICE_S, COUNT_MIN, True),
        (singles(SLOW_BATCH_ITEMS), 4 * SLICE_S, SLOW_BATCH_ITEMS // 4, False),
        (singles(SLOW_BATCH_ITEMS + 1), 4 * SLICE_S, (SLOW_BATCH_ITEMS + 1) // 4, True),
        ([run_of(1000), *singles(10)], 2 * SLICE_S, 505, False),
        ([], 100 * SLICE_S, MOST, False),
    ],
)
async def test_messages_that_take_long_are_received_in_smaller_batches(
    items: Messages, spent_s: float, expected: int, is_slow: bool, ends: Ends
) -> None:
    most = ends.far.count_max
    ends.far.record_returned(items)
    ends.work.now += spent_s
    ends.far.adjust_count_max()
    assert (ends.far.count_max, ends.far.is_slow_batch) == (min(expected, most), is_slow)
    ends.work.now += 100 * SLICE_S
    ends.far.adjust_count_max()  # the same messages count once
    assert ends.far.count_max == min(expected, most)


async def test_the_batches_grow_again_while_full_ones_are_handled_in_time(ends: Ends) -> None:
    most = ends.far.count_max
    ends.far.record_returned(singles(1000))
    ends.work.now += 10 * SLICE_S
    ends.far.adjust_count_max()
    assert ends.far.count_max == 100
    ends.far.record_returned(singles(99))
    ends.far.adjust_count_max()
    assert ends.far.count_max == 100
    for _ in range(20):
        before = ends.far.count_max
        ends.far.record_returned([run_of(before)])
        ends.far.adjust_count_max()
        assert ends.far.count_max == min(2 * before, most)
    assert ends.far.count_max == most


@pytest.mark.usefixtures("either_loops")
async def test_one_call_returns_a_limited_number_of_items(ends: Ends) -> None:
    ends.near.send_many(singles(2 * ITEMS_MAX + 5))
    assert len(ends.far.receive_nowait()) == ITEMS_MAX
    assert len(await ends.far.receive_sourced()) == ITEMS_MAX
    assert await ends.far.receive_sourced(3) == [(-1, [b"x%d" % number]) for number in range(400, 403)]
    assert [frames for frames, _ in await ends.far.receive_with_sources(1)] == singles(405)[403:404]
    assert [frames for _, frames in await ends.far.receive_sourced()] == singles(405)[404:]
    ends.far.record_returned(singles(1000))
    ends.work.now += 20 * SLICE_S
    ends.near.send_many(singles(100))
    assert len(await ends.far.receive_many()) == 50
    assert ends.far.is_slow_batch


@pytest.mark.usefixtures("either_loops")
async def test_messages_that_were_held_come_first_and_once(ends: Ends) -> None:
    """What libzmq had begun to hand over when the peer was disconnected."""
    for take in (ends.far.receive_nowait, lambda: [frames for _, frames in ends.far._receive_sourced_nowait(10)]):
        ends.near.send_many([[b"a", b"b"], [b"c"]])
        ends.far.disconnect("inproc://elsewhere")
        assert take() == [[b"a", b"b"]]
        assert take() == [[b"c"]]
        assert take() == []


# Peers on probation


@pytest.fixture
async def restricted() -> AsyncIterator[tuple[PlaintextSubscriber, Work]]:
    work = Work()
    async with open_context(0) as context:
        subscriber = PlaintextSubscriber(context, {}, work)
        try:
            yield subscriber, work
        finally:
            subscriber.close()


PEER = PeerEndpoint("tcp://10.0.0.1:1")


@pytest.mark.parametrize("spent_s", [0.0, PAUSE_S * SHARE / 2, 0.1, 1.0])
async def test_peers_on_probation_get_a_small_share_of_the_time(
    spent_s: float, restricted: tuple[PlaintextSubscriber, Work], mock_clock: trio.testing.MockClock
) -> None:
    subscriber, work = restricted
    subscriber._restricted_groups.extend([(singles(1), PEER), (singles(2), PEER)])
    received: list[int] = []

    async def receive() -> None:
        received.append(len((await subscriber.receive_restricted())[0]))

    await receive()
    work.now += spent_s
    pause_s = max(spent_s / SHARE - spent_s, PAUSE_S)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(pause_s * 0.99)
        await trio.testing.wait_all_tasks_blocked()
        assert received == [1]
        mock_clock.jump(pause_s * 0.02)
    assert received == [1, 2]


async def test_slow_messages_of_peers_on_probation_are_received_a_few_at_a_time(
    restricted: tuple[PlaintextSubscriber, Work], autojump_clock: trio.testing.MockClock
) -> None:
    subscriber, work = restricted
    counts = []
    for count, slices in ((100, 1.0), (100, 10.0), (10, 1000.0), (1, 1.0), (1, 1.0)):
        subscriber._restricted_groups.append((singles(count), PEER))
        await subscriber.receive_restricted()
        work.now += slices * PROBATION_SLICE_S * (1.0 if slices > 1 else 0.5)
        await subscriber._pause_restricted()
        counts.append(subscriber._restricted_count)
    assert counts == [PROBATION_COUNT_MAX, 10, 1, 2, 4]
    subscriber._restricted_groups.extend([(singles(1), PEER)] * 2)
    await subscriber.receive_restricted()
    await subscriber._pause_restricted()
    assert subscriber._restricted_count == 4, "there is no need for more while others wait"
