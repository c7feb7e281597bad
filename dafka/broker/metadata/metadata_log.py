"""Applies the committed commands in the log of metadata to the state of the cluster, as this broker has it."""

from __future__ import annotations

import logging
from collections.abc import Callable

import attrs
import trio

from dafka.batches import decode_records, read_header
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.cluster_state import METADATA_TOPIC, Outcome
from dafka.broker.core.metadata.commands import decode_order
from dafka.broker.core.metadata.store_record import CLUSTER_TOPIC, STORE_KEY, StoreRecord, encode_store_record
from dafka.broker.core.positions import Offset
from dafka.broker.core.tables import BrokerTables
from dafka.broker.log.broker_storage import BrokerStorage
from dafka.broker.log.reader import LogReader
from dafka.broker.log.waiters import LogWaiters
from dafka.errors import StorageError

_LOGGER = logging.getLogger("dafka.broker")

READ_BYTES = 2**20
"""The size of a read, in bytes."""

READ_AGAIN_S = 0.1
"""Seconds after which a log is read again that could not be read."""


@attrs.define(eq=False)
class PendingOutcome:
    """The outcome of a request, once it is applied here."""

    arrived: trio.Event = attrs.field(factory=trio.Event)
    outcome: Outcome | None = None


class MetadataLog:
    """The log of metadata at one broker.

    `on_applied` is called after commands have changed the state. The changes of the state are stored with the offset
    up to which commands are applied, so that a broker that starts has the state at once.
    """

    def __init__(
        self,
        tables: BrokerTables,
        storage: BrokerStorage,
        reader: LogReader,
        watchers: LogWaiters,
        on_applied: Callable[[], None],
    ) -> None:
        self.state = tables.state
        self.record: StoreRecord | None = None
        self._log_table = tables.log_table
        self._storage = storage
        self._reader = reader
        self._watchers = watchers
        self._on_applied = on_applied
        self._pending: dict[str, PendingOutcome] = {}
        self.is_observed = trio.Event()
        """Set when this broker takes part in the log."""
        self._changed = trio.Event()

    @property
    def log(self) -> Log | None:
        """The log; None if this broker belongs to no cluster yet."""
        return self._log_table.find_log(METADATA_TOPIC, 0)

    def join(self, record: StoreRecord) -> trio.Event:
        """Record the cluster that this broker belongs to from now on. The returned event is set when it is durable."""
        self.state.found(record.cluster_id)
        self.record = record
        return self._store()

    async def run(self) -> None:
        """Apply commands until cancelled. Raise `StorageFormatError` if this version of dafka does not know one."""
        if self.log is None:
            await self.is_observed.wait()
        log = self.log
        assert log is not None
        while True:
            with self._watchers.watching([log]) as advanced:
                if log.high_watermark <= self.state.applied:
                    await advanced.wait()
                    continue
            try:
                has_applied = await self._apply(log)
            except StorageError as error:
                _LOGGER.warning("cannot read the log of metadata yet: %s", error)
                has_applied = False
            if not has_applied:
                await trio.sleep(READ_AGAIN_S)

    async def _apply(self, log: Log) -> bool:
        state, begun = self.state, self.state.applied
        outcomes: list[tuple[str, Outcome]] = []
        for data in await self._reader.read(log, state.applied, log.high_watermark, READ_BYTES):
            header = read_header(data)
            if not header.is_control:
                for offset, record in enumerate(decode_records(log.leader_partition, data), header.base_offset):
                    if offset >= state.applied:
                        order = decode_order(record.value or b"")
                        outcomes.append((order.request_id, state.apply(order)))
            state.applied = max(state.applied, Offset(header.end_offset))
        if state.applied == begun:
            return False
        self._store()
        self._on_applied()
        for request_id, outcome in outcomes:
            self.settle(request_id, outcome)
        changed, self._changed = self._changed, trio.Event()
        changed.set()
        return True

    def _store(self) -> trio.Event:
        assert self.record is not None
        self.record = attrs.evolve(self.record, applied=self.state.applied)
        records = [*self.state.take_records(), (STORE_KEY, encode_store_record(self.record))]
        return self._storage.write_state(CLUSTER_TOPIC, records)

    def expect(self, request_id: str) -> PendingOutcome:
        """Return the outcome of a request, which arrives later. Call `forget` when nobody waits for it."""
        return self._pending.setdefault(request_id, PendingOutcome())

    def settle(self, request_id: str, outcome: Outcome) -> None:
        """Record the outcome of a request. If it did not reach the controller, its sender repeats it."""
        pending = self._pending.get(request_id)
        if pending is not None and outcome.error is not ErrorCode.NOT_CONTROLLER:
            pending.outcome = outcome
            pending.arrived.set()

    def forget(self, request_id: str) -> None:
        """Forget a request."""
        self._pending.pop(request_id, None)

    async def wait_changed(self) -> None:
        """Wait until the state changes."""
        await self._changed.wait()

    async def wait_until(self, is_true: Callable[[], bool]) -> None:
        """Wait until the state has a property."""
        while not is_true():
            await self._changed.wait()
