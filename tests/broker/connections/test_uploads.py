"""Requests that are received in pieces: slow clients delay only themselves, and begun requests do not block others."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from functools import partial

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from dafka.broker.connections.memory import PATIENCE_S, Memory, MemoryPool
from dafka.broker.connections.uploads import PACE_BYTES, ROOMY_PARTS, SMALL_BYTES, SlowUploadError, Upload

MIB = 2**20
LIMIT_MS = 30_000
FAST_BYTES_PER_S = 100 * MIB
END_S = 1000.0
"""When every request has been received or given up."""

BOUND_S = 2.0
"""How long a fast client of 256 KiB is delayed at most by any number of slow ones."""


@attrs.frozen
class Client:
    """A client that sends a part of a request fast, and the rest at another pace."""

    source: str
    claimed: int
    sent_fast: int = 0
    then_bytes_per_s: float = FAST_BYTES_PER_S

    async def send(self, room: MemoryPool, most: int = 2**18) -> None:
        """Send the request, as the listeners receive it."""
        kept = 0

        async def receive(size: int) -> bytes:
            is_fast = kept < self.sent_fast
            size = min(size, self.claimed - kept, 2**16 if is_fast else SMALL_BYTES)
            pace = FAST_BYTES_PER_S if is_fast else self.then_bytes_per_s
            await trio.sleep(size / pace if pace else float("inf"))
            return bytes(size)

        with trio.fail_after(END_S), Upload(room, self.source, self.claimed, LIMIT_MS) as upload:
            while kept < self.claimed:
                roomy = room.left_bytes // ROOMY_PARTS if 2 * room.left_bytes > room.bytes_max else 0
                size_max = max(upload.size, kept + max(kept, SMALL_BYTES, min(roomy, most)))
                kept += len(await upload.receive(receive, kept, most))
                assert upload.size <= size_max or upload.missing_bytes == 0
                assert room.left_bytes >= 0
            upload.complete(kept)
            await trio.sleep(0.001)  # it is handled


async def test_slow_upload_holds_only_what_it_has_sent(autojump_clock: trio.testing.MockClock) -> None:
    room = MemoryPool(100 * MIB)
    async with trio.open_nursery() as nursery:
        for number in range(40):
            client = Client(str(number), 16 * MIB, sent_fast=MIB, then_bytes_per_s=0)
            nursery.start_soon(client.send, room)
        await trio.sleep(1)
        assert 40 * MIB <= room.taken_bytes <= 80 * MIB  # and not the 640 MiB that they claim
        await Client("honest", 8 * MIB).send(room)
        assert trio.current_time() < 2
        nursery.cancel_scope.cancel()
    assert room.taken_bytes == 0


async def test_only_uploads_far_behind_the_pace_end(autojump_clock: trio.testing.MockClock) -> None:
    """The pace counts what was received, and not what the client claims. What was sent fast gives no credit."""
    room, limit_s = MemoryPool(100 * MIB), LIMIT_MS / 1000
    for fast, pace, factor in ((0, 0, 2), (0, 100, 2), (0, PACE_BYTES / 2, 2), (50 * MIB, 0, 1)):
        began = trio.current_time()
        with pytest.raises(SlowUploadError):
            await Client("slow", 64 * MIB, fast, pace).send(room)
        assert trio.current_time() - began <= factor * limit_s + 1
        assert room.taken_bytes == 0
    began = trio.current_time()
    await Client("steady", 64 * MIB, then_bytes_per_s=PACE_BYTES).send(room)
    assert trio.current_time() - began == pytest.approx(64, abs=1)


@pytest.mark.parametrize(("size", "is_small"), [(SMALL_BYTES, True), (SMALL_BYTES + 1, False)])
async def test_small_requests_need_no_memory(size: int, is_small: bool, autojump_clock: trio.testing.MockClock) -> None:
    room = MemoryPool(MIB)
    room.take_now(MIB)
    with trio.move_on_after(10) as scope:
        await Client("a", size).send(room)
    assert scope.cancelled_caught is not is_small
    assert room.taken_bytes == MIB


async def test_complete_request_keeps_only_what_it_has() -> None:
    async def receive(size: int) -> bytes:
        return bytes(min(size, SMALL_BYTES))

    room = MemoryPool(MIB)
    with Upload(room, "a", 64 * SMALL_BYTES, LIMIT_MS) as upload:
        kept = 0
        for _ in range(3):
            kept += len(await upload.receive(receive, kept, MIB))
        assert upload.size > kept
        upload.complete(kept)
        assert upload.size == room.taken_bytes == kept == 3 * SMALL_BYTES
        assert upload.missing_bytes == 0
    assert room.taken_bytes == 0


async def test_waiting_for_room_does_not_put_a_client_behind(autojump_clock: trio.testing.MockClock) -> None:
    room = MemoryPool(MIB)
    room.take_now(MIB)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Client("patient", 2**18).send, room)
        await trio.sleep(10 * LIMIT_MS / 1000)
        room.give_back(MIB)
    assert room.taken_bytes == 0


@pytest.mark.parametrize("count", [2, 12])
async def test_begun_requests_complete_when_they_fill_the_room_together(
    count: int, autojump_clock: trio.testing.MockClock
) -> None:
    """In two rooms of one memory: none of them is ended, though all of them together claim many times what there is."""
    memory = Memory(6 * MIB)
    rooms = [memory.make_pool(4 * MIB) for _ in range(2)]
    async with trio.open_nursery() as nursery:
        for number in range(count):
            for room in rooms:
                nursery.start_soon(Client(str(number % 7), 2 * MIB).send, room)
        nursery.start_soon(Client("larger than the room", 10 * MIB).send, rooms[0])
    assert memory.used_bytes == memory.ended_holders == 0


@pytest.mark.parametrize(("count", "claimed", "sent_fast"), [(40, 16 * MIB, MIB), (1, 64 * MIB, 33 * MIB)])
async def test_source_that_holds_more_than_half_at_the_slowest_pace_gives_way(
    autojump_clock: trio.testing.MockClock, count: int, claimed: int, sent_fast: int
) -> None:
    room = MemoryPool(32 * MIB)
    ended = []

    async def send(client: Client) -> None:
        try:
            await client.send(room)
        except SlowUploadError:
            ended.append(client)

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            client = Client("greedy", claimed, sent_fast=sent_fast, then_bytes_per_s=1.1 * PACE_BYTES)
            nursery.start_soon(send, client)
        await trio.sleep(1)
        begun = trio.current_time()
        await Client("honest", 2**18).send(room)
        assert trio.current_time() - begun < BOUND_S
        assert len(ended) < 10
        assert len(ended) == 1 or count > 1
        nursery.cancel_scope.cancel()


async def test_source_that_waits_for_its_own_memory_is_not_ended(autojump_clock: trio.testing.MockClock) -> None:
    room = MemoryPool(32 * MIB)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Client("a", 64 * MIB, sent_fast=33 * MIB, then_bytes_per_s=1.1 * PACE_BYTES).send, room)
        await trio.sleep(1)
        await Client("a", 2**18).send(room)
        assert trio.current_time() > 20


@pytest.mark.parametrize(
    ("sources", "claimed", "pace"), [("abcde", 3 * MIB, 1.1 * PACE_BYTES), ("a", 4 * MIB, 10 * PACE_BYTES)]
)
async def test_sources_that_hold_less_or_send_fast_are_not_ended(
    sources: str, claimed: int, pace: float, autojump_clock: trio.testing.MockClock
) -> None:
    """Five sources want twice the memory, of which each has less than half; or one wants it for a short time."""
    room = MemoryPool(32 * MIB)
    async with trio.open_nursery() as nursery:
        for source in sources:
            for _ in range(20 // len(sources)):
                nursery.start_soon(Client(source, claimed, sent_fast=MIB, then_bytes_per_s=pace).send, room)
        await trio.sleep(0.1)
        await Client("honest", 2**18).send(room)
    assert room.taken_bytes == room.waiting == 0


SLOW = st.builds(
    Client,
    source=st.sampled_from([f"s{number}" for number in range(30)]),
    claimed=st.integers(SMALL_BYTES + 1, 8 * MIB),
    sent_fast=st.integers(0, 4 * MIB),
    then_bytes_per_s=st.sampled_from([0, 1, 1000, PACE_BYTES / 4, PACE_BYTES / 2]),
)


@settings(max_examples=4)
@given(slow=st.lists(SLOW, max_size=60), copies=st.integers(1, 3), bytes_max=st.sampled_from([16 * MIB, 64 * MIB]))
def test_fast_client_is_served_soon_beside_any_slow_ones(slow: list[Client], copies: int, bytes_max: int) -> None:
    """The bound does not depend on their number, and in the end nothing is held."""
    trio.run(partial(_serve_beside, slow * copies, bytes_max), clock=trio.testing.MockClock(autojump_threshold=0))


async def _serve_beside(slow: list[Client], bytes_max: int) -> None:
    room = MemoryPool(bytes_max)

    async def send(client: Client) -> None:
        with suppress(SlowUploadError):
            await client.send(room)

    async with trio.open_nursery() as nursery:
        for client in slow:
            nursery.start_soon(send, client)
        for _ in range(5):
            await trio.sleep(PATIENCE_S / 3)
            begun = trio.current_time()
            await Client("fast", 2**18).send(room)
            assert trio.current_time() - begun < BOUND_S
    assert room.taken_bytes == room.waiting == 0


@pytest.mark.parametrize("is_at_pace", [True, False])
async def test_a_piece_that_arrives_at_the_slowest_rate_is_waited_for(
    is_at_pace: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """A client whose piece is received at once gives way to others only if too little of it has arrived."""
    room, began = MemoryPool(4 * MIB), trio.current_time()
    room.take_now(2 * MIB)

    async def receive(size: int) -> bytes:
        await trio.sleep(size / PACE_BYTES)
        return bytes(size)

    def count_arrived() -> int:
        return int((trio.current_time() - began) * PACE_BYTES) if is_at_pace else 0

    async with trio.open_nursery() as nursery:
        with (
            Upload(room, "slow", 2 * MIB, LIMIT_MS, count_arrived) as upload,
            nullcontext() if is_at_pace else pytest.raises(SlowUploadError),
        ):
            nursery.start_soon(Client("other", MIB).send, room)
            assert len(await upload.receive(receive, MIB, MIB)) == MIB
