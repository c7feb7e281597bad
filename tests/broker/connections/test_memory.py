"""The memory that clients share: who is admitted when, exactly at the limits, and who must give way."""

from __future__ import annotations

from random import Random

import pytest
import trio
import trio.testing

from dafka.broker.connections.memory import PATIENCE_S, Memory, MemoryPool
from dafka.broker.connections.uploads import SMALL_BYTES


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


def test_pool_is_at_most_half_of_the_memory_and_never_empty() -> None:
    for total, asked, expected in ((100, 49, 49), (100, 50, 50), (100, 51, 50), (101, 99, 50), (1, 1, 1)):
        assert Memory(total).make_pool(asked).bytes_max == expected


class Queues:
    """The model of pools: sources take turns with their oldest waiter, and nobody passes the first one in turn."""

    def __init__(self, bytes_max: int, pools: list[int]) -> None:
        self.bytes_max = bytes_max
        self.pools = pools
        self.waiting: list[dict[str, list[tuple[int, int]]]] = [{} for _ in pools]
        self.held: dict[int, tuple[int, int]] = {}

    def left(self, pool: int) -> int:
        taken = sum(size for each, size in self.held.values() if each == pool)
        return min(self.pools[pool] - taken, self.bytes_max - sum(size for _, size in self.held.values()))

    def add(self, number: int, pool: int, source: str, size: int) -> None:
        self.waiting[pool].setdefault(source, []).append((number, min(size, self.pools[pool])))

    def remove(self, pool: int, source: str, place: int) -> int:
        number, _ = self.waiting[pool][source].pop(place)
        if not self.waiting[pool][source]:
            del self.waiting[pool][source]
        return number

    def admit(self) -> None:
        for pool, waiting in enumerate(self.waiting):
            while waiting:
                source, numbers = next(iter(waiting.items()))
                number, size = numbers[0]
                if size > self.left(pool):
                    break
                self.held[number] = pool, size
                del waiting[source]
                if numbers[1:]:
                    waiting[source] = numbers[1:]


@pytest.mark.parametrize("seed", range(40))
async def test_any_history_of_takers_follows_queues_of_turns(seed: int, autojump_clock: trio.testing.MockClock) -> None:
    """Some do not wait: they take what they have already, or get a part of what is left, and a small piece at least."""
    random, memory = Random(seed), Memory(16 * SMALL_BYTES)
    pools = [memory.make_pool(size * SMALL_BYTES) for size in (10, 8, 5)]
    queues = Queues(memory.bytes_max, [size * SMALL_BYTES for size in (8, 8, 5)])
    scopes: dict[int, trio.CancelScope] = {}
    admitted: dict[int, tuple[int, int]] = {}

    async def take(number: int, pool: int, source: str, size: int) -> None:
        with trio.CancelScope() as scopes[number]:
            admitted[number] = pool, await pools[pool].wait(source, size)

    async with trio.open_nursery() as nursery:
        for number in range(40):
            pool, source, size = random.randrange(3), random.choice("abc"), random.randrange(1, 11) * SMALL_BYTES
            match random.choices(["wait", "have", "get", "give back", "end"], [12, 1, 1, 5, 3])[0]:
                case "wait":
                    queues.add(number, pool, source, size)
                    nursery.start_soon(take, number, pool, source, size)
                case "have":
                    queues.held[number] = admitted[number] = pool, size
                    pools[pool].take_now(size)
                case "get":
                    accepted = size // random.choice((1, 9))
                    granted = min(accepted, max(queues.left(pool) // 2, SMALL_BYTES))
                    queues.held[number] = admitted[number] = pool, granted
                    assert pools[pool].grant(accepted) == granted
                case "give back" if queues.held:
                    gone = random.choice(sorted(queues.held))
                    queues.held.pop(gone)
                    of_pool, taken = admitted.pop(gone)
                    pools[of_pool].give_back(taken)
                case "end" if waiting := queues.waiting[pool]:
                    source = random.choice(sorted(waiting))
                    scopes[queues.remove(pool, source, random.randrange(len(waiting[source])))].cancel()
            queues.admit()
            await trio.testing.wait_all_tasks_blocked()
            assert admitted == queues.held
            assert [each.left_bytes for each in pools] == [queues.left(each) for each in range(3)]
            assert [each.waiting for each in pools] == [sum(map(len, each.values())) for each in queues.waiting]
            assert memory.waiting == sum(each.waiting for each in pools)
        await trio.sleep(2 * PATIENCE_S)
        assert admitted == queues.held, "no client gives way"
        nursery.cancel_scope.cancel()
    for pool, size in admitted.values():
        pools[pool].give_back(size)
    assert (memory.used_bytes, memory.waiting) == (0, 0)


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
