"""The identity of a broker's store: which start of it runs, and what the brokers remember of each other's stores.

A store that has forgotten something that it had written must not vote or acknowledge under its id. The broker finds it
before it takes part in the cluster: see `StoreCheck`.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import attrs
import trio

from dafka import wire
from dafka.broker.core.broker_news import RoundsReceived, StoreChecked
from dafka.broker.core.metadata.store_check import (
    ANSWER_S,
    KnownStores,
    StoreCheck,
    StoreClaim,
    StoreProblem,
    add_start,
)
from dafka.broker.core.metadata.store_record import (
    CLUSTER_TOPIC,
    COUNTERS_KEY,
    STORE_KEY,
    SentCounter,
    StoreRecord,
    decode_counters,
    encode_counters,
    encode_store_record,
)
from dafka.broker.core.node_machine import BrokerMachine
from dafka.broker.core.partition_address import INDEX_TOPIC, parse_address
from dafka.broker.core.replication.records import BRANCHES_TOPIC
from dafka.broker.core.rounds import CheckAnswer, Round, RoundKind, answer_check, ask_round, tell_end
from dafka.broker.core.tables import BrokerTables
from dafka.broker.interbroker.mesh import BrokerMesh
from dafka.broker.log.broker_storage import BrokerStorage
from dafka.config.settings import BrokerConfig
from dafka.errors import OutdatedStoreError
from dafka.protocol.actions import Action
from dafka.records import Partition
from dafka.roles.commit_pipeline import Commit, CommitStage

_LOGGER = logging.getLogger("dafka.broker")

ASK_S = 0.1
"""Seconds after which they are asked again."""


class StoreIdentity(CommitStage):
    """The identity of one broker's store.

    As a stage of the commits, it counts writes: each heartbeat has the counter, and others remember it. `act`
    executes the actions of the machine.
    """

    def __init__(
        self,
        tables: BrokerTables,
        machine: BrokerMachine,
        storage: BrokerStorage,
        mesh: BrokerMesh,
        act: Callable[[Iterable[Action]], None],
        config: BrokerConfig,
    ) -> None:
        self.record: StoreRecord | None = None
        """The cluster that the store belongs to; None if it belongs to none yet."""
        self._tables = tables
        self._machine = machine
        self._act = act
        self._storage = storage
        self._mesh = mesh
        self._timeout_s = config.leader_timeout_ms / 1000
        self._known = KnownStores(tables.state, self._timeout_s)
        self._stored_counters: Mapping[str, SentCounter] = {}
        self._own_ends: Mapping[Partition, int] = {}
        self._check = StoreCheck(self._timeout_s)
        self._met: frozenset[str] = frozenset()
        self._answered = trio.Event()
        self._heard_at: dict[str, float] = {}
        self._suspected: set[tuple[str, str]] = set()
        self._is_checked = False
        self._asked_from = self._asked_until = 0
        self._has_written = False
        self._counter = self._writing_counter = self._counter_at_start = 0

    # The record

    def restore(self, record: StoreRecord, state: Mapping[bytes, bytes], own_ends: Mapping[Partition, int]) -> None:
        """Restore what the store keeps. `own_ends` are the ends of the partitions that this broker has written.

        Raise `StorageFormatError` if it is malformed.
        """
        self.record = record
        self._own_ends = own_ends
        if COUNTERS_KEY in state:
            self._stored_counters = decode_counters(state[COUNTERS_KEY])
            self._known.counters.update(self._stored_counters)
            self._counter = self._writing_counter = self._counter_at_start = self._own_counter()

    def begin_start(self, record: StoreRecord) -> trio.Event:
        """Write a new start number. The returned event is set when it is durable."""
        registered = self._tables.state.brokers.get(self._mesh.address)
        accepted = "" if registered is None else registered.start
        return self.update(record, starts=add_start(record.starts, secrets.token_hex(4), accepted))

    def update(
        self, record: StoreRecord, records: Iterable[tuple[bytes, bytes | None]] = (), **changes: Any
    ) -> trio.Event:
        """Change the record, and write it together with others. The returned event is set when it is durable."""
        self.record = attrs.evolve(record, **changes)
        return self._storage.write_state(CLUSTER_TOPIC, [*records, (STORE_KEY, encode_store_record(self.record))])

    @property
    def is_accepted(self) -> bool:
        """Whether the cluster has accepted the present start."""
        registered = self._tables.state.brokers.get(self._mesh.address)
        return registered is not None and self.record is not None and registered.start == self.record.starts[-1]

    @property
    def claim(self) -> StoreClaim | None:
        """What this broker tells of its store; None if the store belongs to no cluster yet."""
        if self.record is None or not self.record.starts:
            return None
        control_end = self._storage.state_end(BRANCHES_TOPIC)
        applied = self._tables.state.applied
        return StoreClaim(self.record.starts, applied, self._counter, self._counter_at_start, control_end)

    # The check

    async def check(self, wait_settled: Callable[[], Awaitable[None]]) -> None:
        """Ask living brokers whether they know of later writes to this store than it has.

        Raise `OutdatedStoreError` if they do. `wait_settled` waits until the node has found the others.
        """
        if self.record is not None:
            await self.begin_start(self.record).wait()
            others = self._tables.state.brokers.keys() - {self._mesh.address}
            with trio.move_on_after(ANSWER_S if others else 0):
                await wait_settled()
            await self._check_by(others)
            self._machine.unchecked = self._check.unchecked_by(others)
        self._is_checked = True

    async def watch(self) -> None:
        """Have the store checked by brokers that are heard later, until the cluster has accepted its start.

        Raise `OutdatedStoreError` if they know of later writes, also of those that they report by themselves later.
        """
        while True:
            while not self._met:
                await self._wait_answer()
            met, self._met = self._met, frozenset()
            await self._check_by(met)
            self._is_checked = True
            self._machine.unchecked = frozenset() if self.is_accepted else self._machine.unchecked - met
            self._act(self._machine.release(trio.current_time()))

    async def _check_by(self, brokers: Collection[str]) -> None:
        """Ask brokers about the store until they have answered."""
        begun = trio.current_time()

        def is_passed() -> bool:
            now = trio.current_time()
            return self._check.is_passed(brokers, self._heard(), now - begun, now)

        while not is_passed():
            claim = self.claim
            assert claim is not None
            self._mesh.publish([ask_round(self._mesh.address, Round(0, RoundKind.CHECKED, claim))])
            with trio.move_on_after(ASK_S):
                while not is_passed():
                    await self._wait_answer()
            self._raise_problem()

    async def _wait_answer(self) -> None:
        self._answered = trio.Event()
        await self._answered.wait()
        self._raise_problem()

    def _raise_problem(self) -> None:
        """Raise `OutdatedStoreError` if the store has certainly forgotten something."""
        problem = self._check.find_problem(trio.current_time())
        if problem is not None:
            raise OutdatedStoreError(f"the storage is an older copy or a clone: {problem}")

    def _heard(self) -> list[str]:
        now = trio.current_time()
        return [each for each, at in self._heard_at.items() if now - at < self._timeout_s]

    def process_check(self, checked: StoreChecked) -> None:
        """Process what others remember of this store, and who can tell it."""
        claim = self.claim
        if claim is None:
            return
        if checked.met:
            self._met |= checked.met
            self._is_checked = False
        if any(map(self._is_shorter, checked.ends, checked.ends.values())):
            self._check.suspect(StoreProblem.RECORDS)
        for broker, answer in checked.answers:
            if answer.start == claim.start:
                self._check.answered(broker, claim, answer.memory, trio.current_time())
        self._answered.set()

    def _is_shorter(self, partition: Partition, end: int) -> bool:
        """Return whether this store has forgotten records of a partition that this broker has written.

        It can have deleted records of former epochs, and of topics whose deletion another broker does not know yet. It
        forgets partitions without records. An index always has records.
        """
        if self._tables.state.is_deleted(partition.address):
            return False
        own_end = max(self._own_ends.get(partition, 0), self._storage.durable_end(partition))
        is_kept = own_end > 0 or partition.topic == INDEX_TOPIC
        return is_kept and end > own_end and self._is_of_latest_epoch(partition.address)

    def _is_of_latest_epoch(self, address: str) -> bool:
        found = parse_address(address)
        return found is not None and self._tables.logs.known_epoch(found.log_name) <= found.epoch

    # Other stores

    def admit(self, rounds: RoundsReceived) -> dict[str, Round]:
        """Return the rounds of the brokers whose stores have forgotten nothing, and answer checks.

        While the own store is checked, this broker answers checks only.
        """
        now, own = trio.current_time(), self._mesh.address
        for broker, reply in rounds.answers:
            if not self._asked_from <= reply.number < self._asked_until and not self.is_accepted:
                self._check.overheard(broker, now)
                self._answered.set()
        admitted = {}
        for broker, found in rounds.asked:
            if broker == own:  # the disk of one of the two is a clone, and the cluster accepts only one of them
                continue
            self._heard_at[broker] = now
            is_check, end = found.kind is RoundKind.CHECKED, self._control_end(broker)
            verdict = self._known.judge(broker, found.claim, end, now, is_check=is_check)
            if verdict.problem is not None and (start := (broker, found.claim.start)) not in self._suspected:
                self._suspected.add(start)
                # What it has sent before can also arrive late. It compares this with what it knows now.
                _LOGGER.info("the broker %s must check its store: %s", broker, verdict.problem)
            if is_check or not verdict.is_admitted:
                ends = [tell_end(each, own, end) for each, end in self._ends_of(broker)]
                self._mesh.publish([*ends, answer_check(broker, own, CheckAnswer(found.claim.start, verdict.memory))])
            elif self._is_checked:
                admitted[broker] = found
        return admitted

    def _control_end(self, broker: str) -> int:
        return self._storage.durable_end(Partition(BRANCHES_TOPIC, broker))

    def _ends_of(self, broker: str) -> Iterator[tuple[Partition, int]]:
        """Yield the ends of the partitions that a broker has written for the logs that it leads."""
        for address, end in self._storage.stored.durable.get(INDEX_TOPIC, {}).items():
            found = parse_address(address)
            if found is not None and found.leader == broker and self._is_of_latest_epoch(address):
                yield Partition(INDEX_TOPIC, address), end
                name = self._tables.state.name_of(found.topic_id)
                if name and (led_end := self._storage.durable_end(Partition(name, address))):
                    yield Partition(name, address), led_end

    def is_trusted(self, broker: str, start: str) -> bool:
        """Return whether a start of a broker was heard, and the cluster has accepted no other one since."""
        return self._known.is_trusted(broker, start)

    # Rounds, and the stage of commits

    def make_round(self, number: int, *, can_write: bool) -> wire.Ack | None:
        """Return the message that asks in a round whether others hear this broker; None if it has no cluster yet."""
        self._asked_from, self._asked_until = self._asked_from or number, number + 1
        kind = RoundKind.WRITABLE if can_write else RoundKind.UNWRITABLE
        claim = self.claim
        return None if claim is None else ask_round(self._mesh.address, Round(number, kind, claim))

    def count_writes(self) -> None:
        """Advance the counter if anything was written, and store it, and the counters of others."""
        claim = self.claim
        if self._has_written and claim is not None:
            self._has_written = False
            self._known.counters[self._mesh.address] = SentCounter(claim.start, self._own_counter() + 1)
        if self._known.counters != self._stored_counters:
            self._stored_counters = dict(self._known.counters)
            self._storage.write_state(CLUSTER_TOPIC, [(COUNTERS_KEY, encode_counters(self._stored_counters))])

    def _own_counter(self) -> int:
        found = self._stored_counters.get(self._mesh.address)
        return 0 if found is None else found.counter

    def prepare(self, commit: Commit) -> None:
        """Record which counter becomes durable with a transaction."""
        self._writing_counter = self._own_counter()

    def done(self, commit: Commit) -> None:
        """Record that the counter is durable, and whether it does not cover other records."""
        self._counter = self._writing_counter
        if commit.batches or any(each.partition.topic != CLUSTER_TOPIC for each in commit.added):
            self._has_written = True
