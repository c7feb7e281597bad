"""The leader leases of a broker: others confirm in rounds that they hear it, so that none of them leads its logs."""

from __future__ import annotations

import logging
import secrets
import sys
import time
from collections.abc import Iterable, Mapping, Sequence

import trio

from dafka import wire
from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.wall_clocks import WallClocks
from dafka.broker.core.partition_address import name_log
from dafka.broker.core.replication.leader_lease import LeaseRounds, RoundAnswer
from dafka.broker.core.replication.records import BRANCHES_TOPIC
from dafka.broker.core.rounds import Round, RoundKind, RoundReply, answer_round
from dafka.broker.core.tables import BrokerTables
from dafka.broker.interbroker.mesh import BrokerMesh
from dafka.broker.log.broker_storage import BrokerStorage
from dafka.broker.replication.own_control import OwnControl
from dafka.broker.replication.store_identity import StoreIdentity
from dafka.config.settings import BrokerConfig
from dafka.records import Partition
from dafka.storage.plugin_helpers import now_ms

_LOGGER = logging.getLogger("dafka.broker")


class LeaderLeases:
    """The lease rounds of one broker, which also tell what the others have written and applied, and their time."""

    def __init__(
        self,
        tables: BrokerTables,
        storage: BrokerStorage,
        identity: StoreIdentity,
        control: OwnControl,
        mesh: BrokerMesh,
        config: BrokerConfig,
    ) -> None:
        self._tables = tables
        self._brokers = tables.brokers
        self._storage = storage
        self._identity = identity
        self._control = control
        self._mesh = mesh
        self._address = mesh.address
        self._timeout_s = config.leader_timeout_ms / 1000
        self._lease_s = (config.leader_timeout_ms - config.heartbeat_ms) / 1000
        self._rounds = LeaseRounds(secrets.randbits(40))
        self._round_answered = trio.Event()
        self._learned_ends: dict[Partition, int] = {}
        self._applied: dict[str, int] = {}
        self._clocks = WallClocks()
        self._is_clock_wrong = False

    def start(self) -> None:
        """Record which control records this broker has read when it started."""
        self._learned_ends = self._storage.ends(BRANCHES_TOPIC)

    def begin_round(self, heartbeat: Sequence[wire.Head] = ()) -> None:
        """Ask the other brokers to confirm that they hear this one. A heartbeat is sent together with the question."""
        messages: list[wire.BatchedMessage] = [*heartbeat]
        if not self._brokers.is_alone:
            can_write = self._storage.can_write
            number = self._rounds.begin(lease_time(), can_write=can_write)
            message = self._identity.make_round(number, can_write=can_write)
            if message is not None:
                messages.append(message)
        if messages:
            self._mesh.publish(messages)
        self._check_clock()
        self._notify()  # waiters check again, as another broker may lead

    def process_rounds(self, rounds: Mapping[str, Round], answers: Iterable[tuple[str, RoundReply]]) -> None:
        """Answer lease rounds of other brokers, and process their answers to this broker's rounds.

        This broker does not answer while votes are being written, because its answer would not cover them.
        """
        now, own, claim = trio.current_time(), self._address, self._identity.claim
        for asker, asked in rounds.items():
            can_write = asked.kind is RoundKind.WRITABLE
            self._brokers.record_heartbeat(asker, now)
            self._brokers.record_storage(asker, can_write=can_write)
            may_answer = self._brokers.may_answer(asker, now, can_write=can_write)
            if claim and may_answer and self._control.is_durable:
                control_end = self._storage.durable_end(Partition(BRANCHES_TOPIC, own))
                reply = RoundReply(asked.number, control_end, self._tables.state.applied, now_ms(), claim.start)
                self._mesh.publish([answer_round(asker, own, reply)])
        has_counted, steady_ms = False, _lease_time_ms()
        for broker, reply in answers:
            if broker in self._tables.state.forgotten_ids or not self._identity.is_trusted(broker, reply.start):
                continue
            self._applied[broker] = reply.applied
            self._clocks.record(broker, reply.time_ms, steady_ms)
            answer = RoundAnswer(reply.number, reply.control_end)
            known_end = self._learned_ends.get(Partition(BRANCHES_TOPIC, broker), 0)
            has_counted |= self._rounds.answered(broker, answer, known_end)
        if has_counted:
            self._notify()

    def is_clock_right(self) -> bool:
        """Return whether the wall clock of this broker is right, as far as the other brokers can tell."""
        return self._clocks.is_right(now_ms(), _lease_time_ms(), self._others())

    def time_ms(self) -> int:
        """Return the time, in ms since 1970: by this broker's wall clock or, if it is wrong, by those of the others."""
        return self._clocks.correct(now_ms(), _lease_time_ms(), self._others())

    def _check_clock(self) -> None:
        is_wrong = self._clocks.is_wrong(now_ms(), _lease_time_ms(), self._others())
        if is_wrong and not self._is_clock_wrong:
            _LOGGER.warning(
                "the clock of this broker is more than ten minutes from those of most other brokers: no records expire "
                "in the logs that it leads until it is set"
            )
        self._is_clock_wrong = is_wrong

    def _others(self) -> list[str]:
        return [each.address for each in self._brokers.all() if each.address != self._address]

    def record_learned(self, partition: Partition, end: int) -> None:
        """Record up to which sequence this broker has processed the control records of another one."""
        self._learned_ends[partition] = end
        if partition.topic == BRANCHES_TOPIC and self._rounds.learned(partition.address, end):
            self._notify()

    def holds_lease(self, log: Log) -> bool:
        """Return whether this broker leads a log and has its leader lease, so that no other broker can lead it.

        Call it after reading the latest state for a client: the process can have been stopped in between.
        """
        return log.leadership.is_led and lease_time() < self._lease_end(log)

    async def wait_lease(self, log: Log) -> None:
        """Wait until this broker has the leader lease of a log, or leads it no longer."""
        while log.leadership.is_led and not self.holds_lease(log):
            await self.wait_round()

    def _lease_end(self, log: Log) -> float:
        """Return the time until which this broker has the leader lease of a log; see `lease_time`."""
        topic = self._tables.log_table.topics.get(log.topic)
        replicated = None if topic is None else self._tables.logs.find(name_log(topic.topic_id, log.number))
        if replicated is None:
            return float("inf")
        return replicated.replica.heard_since(self._rounds.heard_since) + self._lease_s

    async def wait_round(self) -> None:
        """Wait until a lease round is answered or the next one begins."""
        await self._round_answered.wait()

    async def wait_metadata(self) -> None:
        """Wait until this broker has applied what the living brokers have applied, as it can have been stopped.

        It continues without living brokers that do not answer for twice `leader_timeout_ms`.
        """
        own = self._address
        with trio.move_on_after(2 * self._timeout_s):
            while not all(self._has_applied_as(each) for each in self._brokers.alive if each != own):
                await self.wait_round()

    def _has_applied_as(self, broker: str) -> bool:
        is_heard = lease_time() < self._rounds.heard_since(broker) + self._lease_s
        return is_heard and self._tables.state.applied >= self._applied.get(broker, 0)

    def _notify(self) -> None:
        answered, self._round_answered = self._round_answered, trio.Event()
        answered.set()


def lease_time() -> float:
    """Return the time in seconds.

    Like trio's clock, it advances while the process is stopped. On Linux, it also advances while the machine sleeps.
    """
    return trio.current_time() + _slept_s()


def _lease_time_ms() -> int:
    return round(lease_time() * 1000)


def _slept_s() -> float:
    """Return how many seconds the machine has slept since it was started."""
    if sys.platform != "linux":
        return 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
