"""The memory that clients share: who is admitted when, exactly at the limits, and who must give way."""

from __future__ import annotations

from random import Random

import pytest
import trio
import trio.testing

from dafka.broker.connections.memory import PATIENCE_S, Memory, MemoryPool
from dafka.broker.connections.uploads import SMALL_BYTES


async def test_rooms_share_one_memory_and_none_takes_more_than_half() -> None:
    memory = Memory(100)
    first, second = memory.make_pool(80), memory.make_pool(80)
    async with first.take("a", 50), second.take("a", 40):
        assert (memory.used_bytes, first.left_bytes, second.left_bytes) == (90, 0, 10)
        second.take_now(20)
        assert second.left_bytes == -10
        second.give_back(20)
        with trio.move_on_after(0):
            async with second.take("b", 20):
                raise AssertionError
    async with first.take("a", 80):  # more than half, so that it has the half for itself
        assert memory.used_bytes == 50
    assert memory.used_bytes == 0


async def test_what_waits_in_one_room_is_admitted_when_another_has_less(autojump_clock: trio.testing.MockClock) -> None:
    memory = Memory(100)
    rooms = [memory.make_pool(50) for _ in range(3)]
    rooms[0].take_now(50)
    rooms[1].take_now(40)
    async with trio.open_nursery() as nursery:

        async def give_back() -> None:
            await trio.sleep(10)
            assert memory.waiting == 1
            rooms[0].give_back(50)

        nursery.start_soon(give_back)
        with trio.fail_after(100):
            async with rooms[2].take("a", 20):
                assert trio.current_time() == 10
    rooms[1].give_back(40)


async def read_nothing(room: MemoryPool, ended: list[int], number: int = 0) -> None:
    room.take_now(30)
    with trio.CancelScope() as scope, room.waiting_for_client(scope, 30):
        await trio.sleep_forever()
    ended.append(number)
    room.give_back(30)


async def test_clients_that_read_nothing_end_when_others_wait(autojump_clock: trio.testing.MockClock) -> None:
    """The clients that have read nothing for the longest time are ended first, and only as many as is needed."""
    memory = Memory(200)
    room = memory.make_pool(100)
    ended: list[int] = []

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(read_nothing, room, ended, number)
            await trio.sleep(PATIENCE_S)
        begun = trio.current_time()
        async with room.take("honest", 40):
            assert trio.current_time() - begun < 1
            assert sorted(ended) == [0, 1]  # 10 were left
        nursery.start_soon(read_nothing, room, ended, 3)
        await trio.testing.wait_all_tasks_blocked()
        assert memory.ended_holders == 2
        assert room.grant(100) == 100  # which cannot wait, but makes room for the next one
        room.give_back(100)
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(ended) == [0, 1, 2]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("others", [0, 1, 30])
async def test_memory_is_granted_exactly_up_to_its_size(others: int) -> None:
    memory = Memory(200)
    room, other = memory.make_pool(100), memory.make_pool(100)
    other.take_now(100 if others else 0)
    memory.make_pool(1).take_now(others)  # more than there is, for a moment
    left = 100 - others
    for size, is_admitted in ((left, True), (left + 1, False)):
        taken = 0
        with trio.move_on_after(0):
            taken = await room.wait("a", size)
        assert (taken == size) is is_admitted
        room.give_back(taken)
    assert (room.taken_bytes, room.left_bytes, memory.left_bytes) == (0, left, 100 - others if others else 200)


def test_pool_is_at_most_half_of_the_memory_and_never_empty() -> None:
    for total, asked, expected in ((100, 49, 49), (100, 50, 50), (100, 51, 50), (101, 99, 50), (1, 1, 1)):
        assert Memory(total).make_pool(asked).bytes_max == expected


async def test_answers_get_at_most_half_of_what_is_left_and_at_least_a_small_piece() -> None:
    for left, accepted, expected in (
        (8 * SMALL_BYTES, 10**9, 4 * SMALL_BYTES),
        (8 * SMALL_BYTES, 4 * SMALL_BYTES, 4 * SMALL_BYTES),
        (8 * SMALL_BYTES, 7, 7),
        (2 * SMALL_BYTES + 1, 10**9, SMALL_BYTES),
        (SMALL_BYTES, 10**9, SMALL_BYTES),
        (0, 10**9, SMALL_BYTES),
        (-5, 10**9, SMALL_BYTES),
        (0, 7, 7),
    ):
        room = MemoryPool(100 * SMALL_BYTES)
        room.take_now(room.bytes_max - left)
        assert room.grant(accepted) == expected
        assert room.left_bytes == left - expected


class Queue:
    """The model of a pool: sources take turns with their oldest waiter, and nobody passes the first one in turn."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.waiting: dict[str, list[tuple[int, int]]] = {}
        self.held: dict[int, int] = {}

    def add(self, number: int, source: str, size: int) -> None:
        self.waiting.setdefault(source, []).append((number, min(size, self.bytes_max)))

    def remove(self, source: str, place: int) -> int:
        number, _ = self.waiting[source].pop(place)
        if not self.waiting[source]:
            del self.waiting[source]
        return number

    def admit(self) -> None:
        while self.waiting:
            source, numbers = next(iter(self.waiting.items()))
            number, size = numbers[0]
            if size > self.bytes_max - sum(self.held.values()):
                return
            self.held[number] = size
            del self.waiting[source]
            if numbers[1:]:
                self.waiting[source] = numbers[1:]


@pytest.mark.parametrize("seed", range(40))
async def test_any_history_of_takers_follows_a_queue_of_turns(seed: int) -> None:
    random, room, queue = Random(seed), MemoryPool(10), Queue(10)
    scopes: dict[int, trio.CancelScope] = {}
    admitted: dict[int, int] = {}

    async def take(number: int, source: str, size: int) -> None:
        with trio.CancelScope() as scopes[number]:
            admitted[number] = await room.wait(source, size)

    async with trio.open_nursery() as nursery:
        for number in range(30):
            action = random.random()
            if action < 0.6:
                source, size = random.choice("abc"), random.randrange(1, 14)
                queue.add(number, source, size)
                nursery.start_soon(take, number, source, size)
            elif action < 0.85 and queue.held:
                gone = random.choice(sorted(queue.held))
                del queue.held[gone]
                room.give_back(admitted.pop(gone))
            elif queue.waiting:
                source = random.choice(sorted(queue.waiting))
                scopes[queue.remove(source, random.randrange(len(queue.waiting[source])))].cancel()
            queue.admit()
            await trio.testing.wait_all_tasks_blocked()
            assert admitted == queue.held
            assert room.taken_bytes == sum(queue.held.values())
            assert room.waiting == sum(map(len, queue.waiting.values()))
        nursery.cancel_scope.cancel()
    for size in admitted.values():
        room.give_back(size)
    assert (room.taken_bytes, room.waiting) == (0, 0)


@pytest.mark.parametrize("total", [200, 400])
@pytest.mark.parametrize(("waited_s", "is_ended"), [(PATIENCE_S, True), (PATIENCE_S - 2**-10, False)])
def test_clients_have_some_time_and_give_way_in_other_pools_only_if_the_memory_is_short(
    total: int, waited_s: float, is_ended: bool
) -> None:
    clock = trio.testing.MockClock()
    memory = Memory(total)
    short, other = memory.make_pool(100), memory.make_pool(100)
    scopes = [trio.CancelScope(), trio.CancelScope()]

    async def run() -> None:
        short.take_now(100)
        other.take_now(100)
        with other.waiting_for_client(scopes[0], 60), short.waiting_for_client(scopes[1], 60):
            clock.jump(waited_s)
            assert short.grant(110) == 110
        ended = [is_ended and total == 200, is_ended]
        assert [each.cancel_called for each in scopes] == ended
        assert memory.ended_holders == sum(ended)

    trio.run(run, clock=clock)


async def test_several_that_wait_end_no_more_clients_than_all_of_them_need(
    autojump_clock: trio.testing.MockClock,
) -> None:
    memory = Memory(200)
    room = memory.make_pool(100)

    async def take(source: str) -> None:
        async with room.take(source, 15):
            await trio.sleep(0.01)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(read_nothing, room, [])
        await trio.sleep(PATIENCE_S)
        with trio.fail_after(100):
            async with trio.open_nursery() as waiting:
                for source in "ab":
                    waiting.start_soon(take, source)
        assert memory.ended_holders == 1
        nursery.cancel_scope.cancel()
