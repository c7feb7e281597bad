"""A shard of the coordinators whose records become durable when a test says so."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio
import trio.testing

from dafka.broker.coordinator.coordinator_shard import CoordinatorShard
from dafka.broker.core.coordination.effects import ReplacedState, WriteMarkers
from dafka.broker.core.coordination.state_records import COORDINATORS_TOPIC, StateRecord
from dafka.broker.core.groups.coordinator import GroupCoordinator
from dafka.broker.core.groups.settings import GroupSettings
from dafka.broker.core.log.log import Log
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.metadata.leader_and_isr import LeaderAndIsr
from dafka.broker.core.transactions.coordinator import TransactionCoordinator, TransactionSettings
from dafka.broker.log.durable_waits import DurableWaits
from dafka.errors import StorageError
from dafka.records import Partition


class Records:
    """Stands in for a `CoordinatorLog`: it keeps all records, and counts how many are durable.

    It fails when it loads or, if the storage has not failed, when it writes.
    """

    def __init__(self, records: Iterable[StateRecord] = ()) -> None:
        self.is_settled = True
        self.put_records = list(records)
        self.durable = len(self.put_records)
        self.loads = trio.Event()
        self.has_more = trio.Event()
        self.confirm: Callable[[int], None] = lambda _count: None
        self.failure: Exception | None = None

    @property
    def values(self) -> dict[bytes, bytes]:
        latest = {each.key: each.value for each in self.put_records[: self.durable]}
        return {key: value for key, value in latest.items() if value is not None}

    async def load(self) -> None:
        await self.loads.wait()
        if isinstance(self.failure, StorageError):
            raise self.failure

    def put(self, records: Iterable[StateRecord]) -> None:
        self.put_records += records
        self.has_more.set()

    async def wait_put(self) -> None:
        """Wait until there are records that are not durable."""
        while self.durable == len(self.put_records):
            self.has_more = trio.Event()
            await self.has_more.wait()

    async def write(self, confirm: Callable[[int], None]) -> None:
        self.confirm = confirm
        if self.failure is not None:
            raise self.failure
        await trio.sleep_forever()

    def commit(self, count: int | None = None) -> None:
        """Make the next `count` records durable; all if it is None."""
        count = len(self.put_records) - self.durable if count is None else count
        self.durable += count
        self.confirm(count)


@attrs.define(eq=False)
class Shard:
    """A shard and what it stands on."""

    records: Records
    number: int = 0
    epoch: int = 0
    holds_lease: bool = True
    deleted_ids: set[str] = attrs.field(factory=set)
    ended: list[WriteMarkers] = attrs.field(factory=list)
    end: Callable[[CoordinatorShard, WriteMarkers], Any] | None = None
    waits: DurableWaits = attrs.field(factory=DurableWaits)
    log: Log = attrs.field()
    shard: CoordinatorShard = attrs.field(init=False)

    @log.default
    def _make_log(self) -> Log:
        place = Partition(COORDINATORS_TOPIC, "own")
        return Log(COORDINATORS_TOPIC, self.number, place, place, leadership=LeaderAndIsr("here", self.epoch))

    def __attrs_post_init__(self) -> None:
        ids = iter(range(10**6))
        stands: Any = self  # for leases
        records: Any = self.records
        leases: Any = _Leases(stands)
        self.shard = CoordinatorShard(
            self.log,
            records,
            self.waits,
            leases,
            self.deleted_ids,
            GroupCoordinator(
                GroupSettings(group_initial_rebalance_delay_ms=0), lambda: str(next(ids)), LogTable("here")
            ),
            TransactionCoordinator(TransactionSettings()),
            self._end,
            self._drop,
        )

    async def commit(self, count: int | None = None) -> None:
        """Make records durable, and wait for what follows."""
        self.records.commit(count)
        await trio.testing.wait_all_tasks_blocked()

    async def _end(self, shard: CoordinatorShard, ending: WriteMarkers) -> None:
        self.ended.append(ending)
        if self.end is not None:
            await self.end(shard, ending)

    async def _drop(self, replaced: Sequence[ReplacedState]) -> None:
        await trio.lowlevel.checkpoint()


@attrs.frozen
class _Leases:
    shard: Shard

    def holds_lease(self, log: Log) -> bool:
        assert log is self.shard.log
        return self.shard.holds_lease


@asynccontextmanager
async def serve(shard: Shard) -> AsyncIterator[Shard]:
    """Load and serve a shard during the block."""
    shard.records.loads.set()
    async with trio.open_nursery() as nursery:
        await nursery.start(shard.shard.run)
        await shard.shard.loaded.wait()
        await trio.testing.wait_all_tasks_blocked()
        yield shard
        nursery.cancel_scope.cancel()
