"""Applies the committed commands in the log of metadata to the state of the cluster, as this broker has it."""

from __future__ import annotations

import logging
from collections.abc import Callable

import attrs
import trio

from dafka.batches import BatchHeader, decode_records, read_header
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.cluster_state import METADATA_TOPIC
from dafka.broker.core.metadata.commands import Order, SnapshotTaken, decode_order
from dafka.broker.core.metadata.history import RecentChanges
from dafka.broker.core.metadata.log_replicas import recovery_of
from dafka.broker.core.metadata.outcome import DONE, Outcome
from dafka.broker.core.metadata.snapshots import SNAPSHOTS_TOPIC, Snapshots
from dafka.broker.core.metadata.store_record import StoreRecord
from dafka.broker.core.positions import Offset
from dafka.broker.core.tables import BrokerTables
from dafka.broker.interbroker.messenger import BrokerMessenger
from dafka.broker.log.broker_storage import BrokerStorage
from dafka.broker.log.reader import LogReader
from dafka.broker.log.waiters import LogWaiters
from dafka.broker.metadata.snapshot_exchange import SnapshotExchange
from dafka.broker.replication.store_identity import StoreIdentity
from dafka.errors import ConfigError, StateDiffersError, StorageError, StorageFormatError

_LOGGER = logging.getLogger("dafka.broker")

READ_BYTES = 2**20
"""The size of a read, in bytes."""

READ_AGAIN_S = 0.1
"""Seconds after which a log is read again that could not be read."""

FETCH_AGAIN_S = 1.0
"""Seconds after which the brokers are asked again for a snapshot that none of them has sent."""


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
        identity: StoreIdentity,
        reader: LogReader,
        watchers: LogWaiters,
        messenger: BrokerMessenger,
        on_applied: Callable[[], None],
    ) -> None:
        self.state = tables.state
        self.snapshots = Snapshots()
        self.recent = RecentChanges()
        self.exchange = SnapshotExchange(self.snapshots, messenger)
        self._tables = tables
        self._log_table = tables.log_table
        self._storage = storage
        self._identity = identity
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
        self._identity.begin_start(record)
        return self._store()

    async def run(self) -> None:
        """Apply commands until cancelled.

        Raise `StorageFormatError` if this version of dafka does not know a command, or the feature level of the
        cluster, `StateDiffersError` if the voters
        have agreed on another state than this broker's, and `ConfigError` if the cluster was recovered without commands
        that this broker has applied.
        """
        if self.log is None:
            await self.is_observed.wait()
        log = self.log
        assert log is not None
        while True:
            with self._watchers.watching([log]) as advanced:
                self._check_recovery()
                if log.high_watermark <= self.state.applied:
                    await advanced.wait()
                    continue
            try:
                has_advanced = await self._advance(log)
            except (StorageFormatError, StateDiffersError):
                raise
            except StorageError as error:
                _LOGGER.warning("cannot read the log of metadata yet: %s", error)
                has_advanced = False
            if not has_advanced:
                await trio.sleep(READ_AGAIN_S)

    def _check_recovery(self) -> None:
        """Check that recoveries of the log of metadata have kept all commands that are applied here."""
        log, record = self._tables.find_metadata(), self._identity.record
        if log is None or record is None:
            return
        recovery = recovery_of(log.replica.newest.generation)
        if recovery <= record.recovery:
            return
        lost = self.state.applied - log.replica.epoch_tree.recovered_end(record.recovery)
        if lost > 0:
            raise ConfigError(
                f"the cluster was recovered without the last {lost} changes that this store knows: copy its records "
                "with `dafka storage copy`, and start the broker with an empty storage"
            )
        self._identity.update(record, recovery=recovery)

    async def _advance(self, log: Log) -> bool:
        """Apply the next commands, or a snapshot if they are not in the log any more. Return whether there are any."""
        found = await self.read_orders(log, self.state.applied)
        if log.index.start_offset > self.state.applied or (found and found[0][0].base_offset > self.state.applied):
            return await self._apply_snapshot(log)
        begun, outcomes = self.state.applied, list[tuple[str, Outcome]]()
        for header, orders in found:
            for offset, order in enumerate(orders, header.base_offset):
                if offset >= self.state.applied:
                    self.snapshots.advance(self.state, Offset(offset))
                    outcomes.append((order.request_id, self._apply(Offset(offset), order)))
            self.snapshots.advance(self.state, Offset(header.end_offset))
        if self.state.applied == begun:
            return False
        self._record_applied()
        for request_id, outcome in outcomes:
            self.settle(request_id, outcome)
        return True

    def _apply(self, offset: Offset, order: Order) -> Outcome:
        outcome = self.recent.apply(self.state, offset, order)
        if isinstance(order.command, SnapshotTaken) and outcome is DONE:
            self.snapshots.agree(order.command)
            self.snapshots.drop_before(self.state.snapshots[0].offset)
        return outcome

    async def read_orders(self, log: Log, offset: Offset) -> list[tuple[BatchHeader, list[Order]]]:
        """Return the next batches of the log of metadata, with their orders. Control batches have none.

        Raise `StorageError` if they cannot be read.
        """
        found = list[tuple[BatchHeader, list[Order]]]()
        for data in await self._reader.read(log, offset, log.high_watermark, READ_BYTES):
            header = read_header(data)
            records = () if header.is_control else decode_records(log.leader_partition, data)
            found.append((header, [decode_order(each.value or b"", self.state.members.support) for each in records]))
        return found

    async def _apply_snapshot(self, log: Log) -> bool:
        """Replace the state by the newest snapshot that the voters have agreed on, if one of them sends it."""
        replicated, offset, agreed = self._tables.find_metadata(), log.index.start_offset, None
        while found := await self.read_orders(log, offset):
            commands = [order.command for _, orders in found for order in orders]
            agreed = next((each for each in reversed(commands) if isinstance(each, SnapshotTaken)), agreed)
            offset = Offset(found[-1][0].end_offset)
        if agreed is None or replicated is None or agreed.offset <= self.state.applied:
            return False
        brokers, now = self._tables.brokers, trio.current_time()
        others = (each for each in replicated.replica.latest.voters if each != brokers.own.address)
        voters = [each for each in others if brokers.is_heard(each, now)]
        snapshot = await self.exchange.fetch(agreed, voters)
        if snapshot is None:
            await trio.sleep(FETCH_AGAIN_S)
            return False
        self.state.restore(snapshot.records)
        self.state.applied = snapshot.offset
        self.snapshots.add(snapshot)
        self.recent.restart(snapshot.offset)
        self._record_applied()
        return True

    def _record_applied(self) -> None:
        self._store()
        self._on_applied()
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    def _store(self) -> trio.Event:
        assert self._identity.record is not None
        self._storage.write_state(SNAPSHOTS_TOPIC, self.snapshots.take_changes())
        records, applied = self.state.take_records(), self.state.applied
        written = self._identity.update(self._identity.record, records, applied=applied)
        self.exchange.record_write(applied, written)
        return written

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
