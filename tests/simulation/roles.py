"""The roles of a simulated cluster: nodes with their programs, disks and operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dafka.config import Config
from dafka.errors import StorageError
from dafka.protocol import (
    CommitQueue,
    ConsumerMachine,
    DeliveryBuffer,
    FetchResponder,
    PositionSearch,
    ProducerMachine,
    ReadRequest,
    ResetPosition,
    StoreMachine,
)
from dafka.protocol.machines.commit_queue import StorageWork
from dafka.records import Partition, RecordBatch
from dafka.storage import RetentionPolicy
from dafka.wire import Role
from tests.simulation.disk import Disk, contents, wall_ms
from tests.simulation.nodes import SimulatedNode

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

RUN_RECORDS_MAX = 50
"""Records that a program publishes at once."""


SPOOL_TRIM_RECORDS = 10
"""Records that stay in a spool until they are trimmed together."""


class Answering(SimulatedNode):
    """A node that answers FETCHes, a chunk at a time."""

    responder: FetchResponder
    _is_reading = False

    def on_change(self) -> None:
        super().on_change()
        self._answer()

    def read(self, request: ReadRequest) -> RecordBatch | None:
        raise NotImplementedError

    def _answer(self) -> None:
        if self._is_reading or not self.responder:
            return
        request = self.responder.next_read(self.cluster.plan.chunk_records_max)
        if request is not None:
            self._is_reading = True
            self.after(0.0002 + 0.002 * self.cluster.draw.random(), self._answered, request, self.read(request))

    def _answered(self, request: ReadRequest, batch: RecordBatch | None) -> None:
        self._is_reading = False
        run = self.responder.complete_read(request, batch)
        if run is not None:
            self.publish([run])
        self._answer()


class SimulatedStore(Answering):
    """A store, on a disk that survives it."""

    def __init__(self, cluster: Cluster, name: str, config: Config, disk: Disk, port: int) -> None:
        held = disk.partitions()
        ends = {partition: info.end_sequence for partition, info in held.items()}
        earliest = {partition: info.earliest_sequence for partition, info in held.items() if info.earliest_sequence}
        self.machine = StoreMachine(name, config, ends, earliest)
        super().__init__(cluster, name, name, self.machine, config, port)
        self.disk = disk
        self.commits = CommitQueue(self.machine)
        self.responder = self.machine.responder
        self._config = config.store
        self._writing: StorageWork | None = None
        self._is_searching = False
        if config.store.has_retention:
            self.after(config.store.retention_interval_ms / 1000, self._retain)
        self.after(config.store.retention_interval_ms / 1000, self._forget)

    def on_records(self, batch: RecordBatch) -> None:
        self.commits.put_records(batch)
        self._write()

    def on_reset_position(self, reset: ResetPosition) -> None:
        self.commits.put_reset(reset)
        self._write()

    def on_change(self) -> None:
        super().on_change()
        self._search()

    def read(self, request: ReadRequest) -> RecordBatch | None:
        return self.disk.read(request.partition, request.first_sequence, request.count)

    def crash(self) -> None:
        self.vanish()
        if self._writing is not None and not self.disk.is_full:
            self.disk.write_torn(self._writing, self.cluster.clock.now, self.cluster.draw, is_atomic=False)

    def stop(self) -> None:
        while self.commits and not self.disk.is_full:
            work = self.commits.begin_work()
            self.disk.write(work, self.cluster.clock.now)
            self.cluster.checks.on_stored(self, work)
            self.act(self.commits.work_done(self.cluster.clock.now))
        self.vanish()

    def _search(self) -> None:
        search = None if self._is_searching else self.machine.answers.positions.next_search()
        if search is not None:
            self._is_searching = True
            self.after(self.cluster.disk_delay(), self._searched, search)

    def _searched(self, search: PositionSearch) -> None:
        self._is_searching = False
        if self.cluster.draw.random() < 0.3:
            self.machine.answers.positions.advance(search, 0)
        else:
            found = self.disk.find_sequence_by_time(search.partition, search.time_ms)
            self.publish([self.machine.answers.positions.complete(search, found)])
        self._search()

    def _write(self) -> None:
        if self._writing is None and self.commits:
            self._writing = self.commits.begin_work()
            self.after(self.cluster.disk_delay(), self._written)

    def _written(self) -> None:
        work, self._writing = self._writing, None
        assert work is not None
        if self.disk.is_full:
            self.act(self.commits.work_failed(str(StorageError("the disk is full"))))
            self.after(self._config.retry_ms / 1000, self._write)
            return
        self.disk.write(work, self.cluster.clock.now)
        self.cluster.checks.on_stored(self, work)
        self.act(self.commits.work_done(self.cluster.clock.now))
        self._write()

    def _retain(self) -> None:
        config = self._config
        retention = RetentionPolicy(age_ms=config.retention_ms or None, records_max=config.retention_records or None)
        self.machine.records_trimmed(self.disk.retain(retention, self.cluster.clock.now))
        self.after(config.retention_interval_ms / 1000, self._retain)

    def _forget(self) -> None:
        self.machine.drop_silent_unproven(self.cluster.clock.now)
        if silent := self.machine.silent_partitions(self.cluster.clock.now):
            self.commits.put_silent(silent)
            self._write()
        self.after(self._config.retention_interval_ms / 1000, self._forget)


class SimulatedProducer(Answering):
    """A producer, and its program, which publishes a number of records. Its spool, if it has one, survives it."""

    ROLE = Role.PRODUCER

    def __init__(
        self, cluster: Cluster, name: str, partition: Partition, config: Config, spool: Disk | None, port: int
    ) -> None:
        end = earliest = acknowledged = 0
        if spool is not None and (info := spool.partitions().get(partition)) is not None:
            end, earliest = info.end_sequence, info.earliest_sequence
            acknowledged = max(spool.positions.get(partition, 0), earliest)
        self.machine = ProducerMachine(
            partition,
            config.producer,
            config.fetch.replies_max,
            next_sequence=end,
            acknowledged_end=acknowledged,
            is_spooled=spool is not None,
            spool_trim_records=SPOOL_TRIM_RECORDS,
        )
        super().__init__(cluster, name, partition.address, self.machine, config, port)
        self.partition = partition
        self.spool = spool
        self.responder = self.machine.responder
        self.to_publish = 0
        self._spooling: RecordBatch | None = None
        self._is_publishing = False

    def publish_records(self, count: int) -> None:
        self.to_publish += count
        self._publish()

    def on_change(self) -> None:
        super().on_change()
        if self.to_publish and not self._is_publishing:
            self._publish()
        self._trim()

    def read(self, request: ReadRequest) -> RecordBatch | None:
        if self.spool is not None:
            return self.spool.read(self.partition, request.first_sequence, request.count)
        return self.machine.retransmit_buffer.read(request.first_sequence, request.count, 2**20)

    def crash(self) -> None:
        self.vanish()
        if self._spooling is not None and self.spool is not None:
            self.spool.write_torn([self._spooling], self.cluster.clock.now, self.cluster.draw, is_atomic=False)

    def stop(self) -> None:
        self.crash()

    def _publish(self) -> None:
        self._is_publishing = True
        machine = self.machine
        while self.to_publish and self._spooling is None and self.is_alive and machine.has_capacity():
            count = min(self.to_publish, 1 + int(RUN_RECORDS_MAX * self.cluster.draw.random()))
            first_sequence = machine.next_sequence
            batch = RecordBatch(
                self.partition, first_sequence, contents(self.partition, first_sequence, first_sequence + count)
            )
            if self.spool is None:
                self._published(batch)
            else:
                self._spooling = batch
                self.after(self.cluster.disk_delay(), self._spooled)
        self._is_publishing = False

    def _spooled(self) -> None:
        batch, self._spooling = self._spooling, None
        assert batch is not None
        assert self.spool is not None
        self.spool.write([batch], self.cluster.clock.now)
        self._published(batch)

    def _published(self, batch: RecordBatch) -> None:
        self.to_publish -= len(batch)
        self.cluster.checks.on_published(self, batch)
        self.act(self.machine.publish(batch, self.cluster.clock.now))

    def _trim(self) -> None:
        if self.spool is not None and (earliest := self.machine.begin_spool_trim()) is not None:
            self.spool.save_positions({self.partition: earliest + 1})
            self.machine.spool_starts_at(earliest)
            self.spool.trim(self.partition, earliest)


class SimulatedConsumer(SimulatedNode):
    """A consumer, and its program, which takes a batch from time to time and saves its positions."""

    ROLE = Role.CONSUMER

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        address: str,
        config: Config,
        disk: Disk,
        port: int,
        since: float | None = None,
    ) -> None:
        self.machine = ConsumerMachine(address, config, disk.positions, None if since is None else wall_ms(since))
        super().__init__(cluster, name, address, self.machine, config, port)
        self.disk = disk
        self.begins = dict(disk.positions)
        self.since = since
        self.delivery = DeliveryBuffer(self.machine)
        self.is_earliest = config.consumer.offset_reset == "earliest"
        self.taking_s = 0.0
        self._is_taking = False

    def on_records(self, batch: RecordBatch) -> None:
        self.cluster.checks.on_delivered(self, batch)
        self.delivery.put_records(batch)
        self._take_next()

    def subscribe_topic(self, topic: str) -> None:
        self.act(self.machine.subscribe(topic, self.cluster.clock.now))

    def unsubscribe_topic(self, topic: str) -> None:
        self.act(self.machine.unsubscribe(topic))
        actions = self.delivery.drop_topic(topic, self.cluster.clock.now)
        self.cluster.checks.on_unsubscribed(self, topic)
        self.act(actions)

    def save_positions(self) -> None:
        self.cluster.checks.on_saved(self, self.delivery.positions)
        self.disk.save_positions(self.delivery.positions)

    def crash(self) -> None:
        self.vanish()

    def stop(self) -> None:
        self.save_positions()
        self.vanish()

    def _take_next(self) -> None:
        if not self._is_taking:
            self._is_taking = True
            self.after(self.taking_s * 2 * self.cluster.draw.random(), self._taken)

    def _taken(self) -> None:
        self._is_taking = False
        taken = self.delivery.take_run(self.cluster.clock.now)
        if taken is None:
            return
        batch, actions = taken
        self.cluster.checks.on_given(self, self.delivery.hand_over(batch))
        self.act(actions)
        self._take_next()
