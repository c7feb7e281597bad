"""The memory that clients share: who is admitted when, exactly at the limits, and who must give way."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from random import Random
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from dafka.broker.connections.memory import PATIENCE_S, Memory, MemoryPool, _Holder
from dafka.broker.connections.uploads import SMALL_BYTES, Upload

MIB = 2**20


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


def test_a_response_larger_than_its_pool_needs_the_whole_pool() -> None:
    memory = Memory(100)
    pool = memory.make_pool(50)
    for other, size, granted, expected in (
        (0, 51, 20, True),
        (1, 51, 20, False),
        (1, 49, 20, True),
        (60, 20, 20, True),
    ):
        pool.take_now(other)
        assert pool.has_room(size, granted) == expected
        pool.give_back(other)


@attrs.define(eq=False)
class Request:
    """A request of the model, which is received in pieces."""

    upload: Upload
    pool: int
    missing: int
    size: int = 0
    waits: bool = False


class Queues:
    """The model of pools: sources take turns with their oldest waiter, and nobody passes the first one in turn.

    Only requests that have begun pass others. A piece is granted if what is left then suffices to complete each of
    them; or else all of the rest.
    """

    def __init__(self, bytes_max: int, pools: list[int]) -> None:
        self.bytes_max = bytes_max
        self.pools = pools
        self.waiting: list[dict[str, list[tuple[int, int, Request | None]]]] = [{} for _ in pools]
        self.held: dict[int, tuple[int, int]] = {}
        self.requests: list[Request] = []

    def free(self, pool: int) -> tuple[int, int]:
        """Return what is left of a pool, and of the memory."""
        sizes = [*self.held.values(), *((each.pool, each.size) for each in self.requests)]
        own = self.pools[pool] - sum(size for each, size in sizes if each == pool)
        return own, self.bytes_max - sum(size for _, size in sizes)

    def left(self, pool: int) -> int:
        return min(self.free(pool))

    def add(self, number: int, pool: int, source: str, size: int, request: Request | None = None) -> None:
        waiting = self.waiting[pool].setdefault(source, [])
        is_begun = request is not None and request.size > 0
        waiting.insert(0 if is_begun else len(waiting), (number, min(size, self.pools[pool]), request))

    def remove(self, pool: int, source: str, place: int) -> tuple[int, Request | None]:
        number, _, request = self.waiting[pool][source].pop(place)
        if not self.waiting[pool][source]:
            del self.waiting[pool][source]
        return number, request

    def admissible(self, pool: int, size: int, request: Request | None) -> int:
        own, left = (each - size for each in self.free(pool))
        if request is not None:
            others = [each for each in self.requests if each is not request and each.size]
            needed = max([request.missing - size, *(each.missing for each in others if each.pool == pool)])
            if own < needed or left < max([needed, *(each.missing for each in others)]):
                return self.admissible(pool, request.missing, None)
        return size if min(own, left) >= 0 else 0

    def admit(self) -> None:
        for pool, waiting in enumerate(self.waiting):
            while waiting:
                heads = [(source, *waiters[0]) for source, waiters in waiting.items()]
                begun = [each for each in heads if each[3] is not None and each[3].size]
                grants = [(*each, self.admissible(pool, *each[2:])) for each in [heads[0], *begun]]
                found = next((each for each in grants if each[-1]), None)
                if found is None:
                    break
                source, number, _, request, granted = found
                if request is None:
                    self.held[number] = pool, granted
                else:
                    request.size, request.missing, request.waits = (
                        request.size + granted,
                        request.missing - granted,
                        False,
                    )
                rest = waiting.pop(source)[1:]
                if rest:
                    waiting[source] = rest


class Takers:
    """Some take memory, or requests are received in pieces, as a seed decides. The model says what each gets."""

    def __init__(self, seed: int, nursery: trio.Nursery) -> None:
        self.draw = Random(seed)
        self.nursery = nursery
        self.memory = Memory(16 * SMALL_BYTES)
        self.pools = [self.memory.make_pool(size * SMALL_BYTES) for size in (10, 8, 5)]
        self.queues = Queues(self.memory.bytes_max, [size * SMALL_BYTES for size in (8, 8, 5)])
        self.scopes: dict[int, trio.CancelScope] = {}
        self.admitted: dict[int, tuple[int, int]] = {}

    async def take(self, number: int, pool: int, source: str, size: int) -> None:
        with trio.CancelScope() as self.scopes[number]:
            self.admitted[number] = pool, await self.pools[pool].wait(source, size)

    async def take_piece(self, number: int, request: Request, size: int) -> None:
        with trio.CancelScope() as scope:
            self.scopes[number] = scope
            await self.pools[request.pool].wait_piece(request.upload, size)
        if scope.cancelled_caught:
            request.upload.close()

    def wait(self, number: int, pool: int, source: str, size: int) -> None:
        self.queues.add(number, pool, source, size)
        self.nursery.start_soon(self.take, number, pool, source, size)

    def have(self, number: int, pool: int, _source: str, size: int) -> None:
        self.queues.held[number] = self.admitted[number] = pool, size
        self.pools[pool].take_now(size)

    def get(self, number: int, pool: int, _source: str, size: int) -> None:
        accepted = size // self.draw.choice((1, 9))
        granted = min(accepted, max(self.queues.left(pool) // 2, SMALL_BYTES))
        self.queues.held[number] = self.admitted[number] = pool, granted
        assert self.pools[pool].grant(accepted) == granted

    def give_back(self, *_: object) -> None:
        if self.queues.held:
            gone = self.draw.choice(sorted(self.queues.held))
            self.queues.held.pop(gone)
            pool, taken = self.admitted.pop(gone)
            self.pools[pool].give_back(taken)

    def end(self, _number: int, pool: int, *_: object) -> None:
        if waiting := self.queues.waiting[pool]:
            source = self.draw.choice(sorted(waiting))
            ended, request = self.queues.remove(pool, source, self.draw.randrange(len(waiting[source])))
            self.scopes[ended].cancel()
            if request is not None:
                self.queues.admit()
                self.queues.requests.remove(request)

    def receive(self, number: int, pool: int, source: str, size: int) -> None:
        going_on = [each for each in self.queues.requests if not each.waits and each.missing]
        if going_on and self.draw.random() < 0.6:
            request = self.draw.choice(going_on)
        else:
            upload = Upload(self.pools[pool], source, max(size, 2 * SMALL_BYTES), 1000)
            request = Request(upload, pool, upload.missing_bytes)
            self.queues.requests.append(request)
        request.waits, size = True, SMALL_BYTES * self.draw.randint(1, request.missing // SMALL_BYTES)
        self.queues.add(number, request.pool, request.upload.source, size, request)
        self.nursery.start_soon(self.take_piece, number, request, size)

    def complete(self, *_: object) -> None:
        if idle := [each for each in self.queues.requests if not each.waits]:
            request = self.draw.choice(idle)
            self.queues.requests.remove(request)
            request.upload.close()

    def check(self) -> None:
        queues = self.queues
        assert self.admitted == queues.held
        assert [each.upload.size for each in queues.requests] == [each.size for each in queues.requests]
        assert [each.left_bytes for each in self.pools] == [queues.left(each) for each in range(3)]
        assert [each.waiting for each in self.pools] == [sum(map(len, each.values())) for each in queues.waiting]
        assert self.memory.waiting == sum(each.waiting for each in self.pools)


@pytest.mark.parametrize("seed", range(60))
async def test_any_history_of_takers_follows_queues_of_turns(seed: int, autojump_clock: trio.testing.MockClock) -> None:
    """Some do not wait: they take what they have already, or get a part of what is left, and a small piece at least.

    In every second history, nobody does so, and requests are received in pieces.
    """
    async with trio.open_nursery() as nursery:
        takers = Takers(seed, nursery)
        steps: list[Callable[[int, int, str, int], None]] = [
            takers.wait,
            takers.have,
            takers.get,
            takers.give_back,
            takers.end,
            takers.receive,
            takers.complete,
        ]
        has_pieces = seed % 2 == 0
        weights = [3, 0, 0, 3, 1, 15, 5] if has_pieces else [12, 1, 1, 5, 3, 0, 0]
        draw = takers.draw
        for number in range(40):
            (step,) = draw.choices(steps, weights)
            pool = draw.choice((0, 0, 0, 1, 2) if has_pieces else (0, 1, 2))
            step(number, pool, draw.choice("abc"), draw.randrange(1, 11) * SMALL_BYTES)
            takers.queues.admit()
            await trio.testing.wait_all_tasks_blocked()
            takers.check()
        await trio.sleep(2 * PATIENCE_S)
        assert takers.admitted == takers.queues.held, "no client gives way"
        nursery.cancel_scope.cancel()
    for request in takers.queues.requests:
        request.upload.close()
    for pool, size in takers.admitted.values():
        takers.pools[pool].give_back(size)
    assert (takers.memory.used_bytes, takers.memory.waiting) == (0, 0)
    assert not any(each._begun for each in takers.pools)


async def test_the_slowest_sender_of_a_source_in_a_pool_gives_way_unless_all_are_fast() -> None:
    random = Random(1)
    for _ in range(200):
        memory = Memory(MIB)
        pools = [memory.make_pool(MIB // 4) for _ in range(2)]
        scopes = [trio.CancelScope() for _ in range(5)]
        senders = {}
        with ExitStack() as stack:
            for scope in scopes:
                upload = Upload(random.choice(pools), random.choice("ab"), MIB, 1000)
                upload.receiving_s = random.choice((0.5, 1.0, 1.25, 1.5))
                senders[scope] = upload
                pool: Any = upload._pool
                holder = _Holder(pool, 1, 0.0, upload)
                stack.enter_context(memory.holding(scope, holder))
            memory.end_one_of(pools[0], "a")
            slow = [
                (each.receiving_s, number)
                for number, each in enumerate(senders.values())
                if (each._pool, each.source) == (pools[0], "a") and each.receiving_s > 2 * PATIENCE_S
            ]
            ended = [number for number, scope in enumerate(scopes) if scope.cancel_called]
            assert ended == ([max(slow)[1]] if slow else [])


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
