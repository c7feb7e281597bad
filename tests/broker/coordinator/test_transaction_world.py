"""No log keeps a transaction that its coordinator does not know, and readers see exactly what was committed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
import trio
import trio.testing

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.producer_state import Producer
from dafka.broker.core.topic_partition import TopicPartition
from dafka.broker.core.transactions.coordinator import InitProducerResult
from tests.broker.coordinator.transaction_world import COORDINATOR, LOGS, TIMEOUT_MS, Appended, World
from tests.seeds import each_seed

SEEDS = (*range(10), 12, 16)
"""In 16, a log takes part in the next transaction of a producer because it has not forgotten the previous one."""

RETRIABLE = {
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}


@attrs.define(eq=False)
class Client:
    """A producer of transactions of version 1 or 2.

    Attributes:
        outcomes: The values of each transaction, and whether they were committed; None if it does not know.
    """

    world: World
    name: str
    version: int
    producer: Producer = attrs.field(factory=lambda: Producer(-1, -1))
    sequences: dict[int, int] = attrs.field(factory=dict)
    outcomes: list[tuple[list[str], bool | None]] = attrs.field(factory=list)

    async def run(self, transactions: int) -> None:
        await self._begin()
        for number in range(transactions):
            await self._transact(number)

    async def _begin(self) -> None:
        """Get an epoch, until that succeeds."""
        while True:
            result = await self.world.call(self._init, None)
            if result is not None and not result.error_code:
                self._use(result.producer)
                return
            await self.world.pause(1)

    async def _init(self) -> InitProducerResult:
        return await self.world.any(COORDINATOR).transactions.init_producer_id(self.name, TIMEOUT_MS)

    def _use(self, producer: Producer) -> None:
        if producer != self.producer:
            self.producer, self.sequences = producer, {}

    async def _transact(self, number: int) -> None:
        random, values, is_acked = self.world.random, list[str](), True
        for part in range(random.randint(0, 4)):
            log, value = random.randrange(LOGS), f"{self.name}-{number}-{part}"
            values.append(value)
            is_acked = is_acked and await self._send(log, value)
        wants = is_acked and bool(values) and random.random() < 0.7
        error = await self._end(is_commit=wants) if values or self.version == 2 else ErrorCode.NONE
        if error:
            self.outcomes.append((values, None))
            await self._begin()
            return
        self.outcomes.append((values, wants))
        if not is_acked and self.version == 1:
            await self._begin()

    async def _send(self, log: int, value: str) -> bool:
        world, producer, name = self.world, self.producer, self.name
        record = Appended(producer, self.sequences.get(log, 0), value)
        self.sequences[log] = record.sequence + 1
        if self.version == 1:
            partition = [TopicPartition("orders", log)]
            if await self._retry(lambda: world.any(COORDINATOR).transactions.add_partitions(name, producer, partition)):
                return False

        def produce() -> Awaitable[ErrorCode]:
            return world.any(f"L{log}").produce(name, log, record, adds=self.version == 2)

        return not await self._retry(produce, attempts=world.random.choice((1, 2, 20)))

    async def _end(self, *, is_commit: bool) -> ErrorCode:
        producer = self.producer

        async def end() -> ErrorCode:
            coordinator = self.world.any(COORDINATOR).transactions
            ends = coordinator.end_transaction
            result = await ends(self.name, producer, is_commit=is_commit, raises_epoch=self.version == 2)
            found.append(result.producer)
            return result.error_code

        found: list[Producer] = []
        # In version 1, a late end would end the next transaction of the same epoch: that is what version 2 prevents.
        error = await self._retry(end, is_repeated=self.version == 2)
        if not error:
            self._use(found[-1])
        return error

    async def _retry(
        self, ask: Callable[[], Awaitable[ErrorCode]], *, is_repeated: bool = True, attempts: int = 20
    ) -> ErrorCode:
        error = ErrorCode.REQUEST_TIMED_OUT
        for _ in range(attempts):
            error = ErrorCode(await self.world.call(ask, ErrorCode.REQUEST_TIMED_OUT, is_repeated=is_repeated))
            if error not in RETRIABLE:
                return error
            await self.world.pause(0.5)
        return error


async def run_world(seed: int, *, transactions: int = 8) -> World:
    """Run a world until all its transactions have ended. Return it, after checking what must hold."""
    trio._core._run._r.seed(seed)
    async with trio.open_nursery() as nursery:
        world = World(seed, nursery)
        clients = [Client(world, f"t{number}", 1 + number % 2) for number in range(4)]
        async with trio.open_nursery() as running:
            for each in clients:
                running.start_soon(each.run, transactions)
            running.start_soon(_break, world, clients, transactions)
        world.is_calm = True
        await trio.sleep(20)  # longer than anything is late
        world.expire()
        await trio.sleep(20)
        world.check()
        check_outcomes(world, clients)
        nursery.cancel_scope.cancel()
    return world


async def _break(world: World, clients: list[Client], transactions: int) -> None:
    """Restart and replace brokers while the clients run."""
    while any(len(each.outcomes) < transactions for each in clients):
        await world.pause(3)
        match world.random.randrange(6):
            case 0 | 1:
                world.lead(world.random.randrange(LOGS))
            case 2 | 3:
                world.coordinate()
            case 4:
                world.expire()
        world.check()


def check_outcomes(world: World, clients: list[Client]) -> None:
    """Check that no transaction is open, and that readers see all records of the committed ones, and no others."""
    seen: list[str] = []
    for place in world.places:
        for _, values, is_commit in place.transactions():
            assert is_commit is not None, values
            seen += values if is_commit else []
    assert len(seen) == len(set(seen)), "a record is in a log twice"
    for client in clients:
        for values, is_committed in client.outcomes:
            found = set(values) & set(seen)
            assert found in (
                [set(values)] if is_committed else [set()] if is_committed is False else [set(values), set()]
            )


@each_seed(SEEDS)
def test_late_repeated_and_lost_requests_leave_no_transaction_open(seed: int) -> None:
    trio.run(run_world, seed, clock=trio.testing.MockClock(autojump_threshold=0))
