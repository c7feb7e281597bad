"""Replicates the logs of a broker: heartbeats, control records, elections, leases and the logs that it leads."""

from __future__ import annotations

import logging
import secrets
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

import attrs
import trio

from dafka import wire
from dafka.broker.core.log.log import Log
from dafka.broker.core.metadata.brokers import BROKERS_TOPIC, BrokerRegistration, Brokers, decode_broker, encode_broker
from dafka.broker.core.metadata.leader_and_isr import LeaderAndIsr
from dafka.broker.core.metadata.topic_table import TopicTable
from dafka.broker.core.metadata.topics import MESSAGES_TOPIC, TOPICS_TOPIC, Deletion, Topic, decode_topic, encode_topic
from dafka.broker.core.node_machine import answer_round, ask_round
from dafka.broker.core.partition_address import INDEX_TOPIC, name_log, parse_address
from dafka.broker.core.replication.effects import (
    Acknowledge,
    AdvanceHighWatermark,
    Lead,
    ReplicaAction,
    StepDown,
    WriteControl,
)
from dafka.broker.core.replication.leader_lease import LeaseRounds, RoundAnswer
from dafka.broker.core.replication.records import (
    BRANCHES_TOPIC,
    EPOCH_STEP,
    ControlRecord,
    EpochEnd,
    decode_control,
    encode_control,
    key_of,
    next_epoch,
)
from dafka.broker.core.replication.replicated_logs import (
    FetchRecords,
    LogAction,
    ReplicatedLog,
    ReplicatedLogs,
    is_obsolete,
)
from dafka.broker.core.replication.settings import Availability, ReplicaSettings
from dafka.broker.replication.checkpoints import Checkpoints
from dafka.broker.replication.host import Host
from dafka.broker.replication.leader import IN_SYNC_S, LedLogs
from dafka.broker.replication.lease_clock import lease_time
from dafka.broker.replication.reassignment import Reassigner
from dafka.broker.replication.replica_loader import ReplicaLoader
from dafka.config import Config
from dafka.errors import ConfigError, StorageFormatError
from dafka.protocol.rendezvous import rank_nodes
from dafka.records import SEQUENCE_MAX, Partition, RecordBatch

_LOGGER = logging.getLogger("dafka.broker")

CONTROL_TOPICS = (TOPICS_TOPIC, BROKERS_TOPIC, BRANCHES_TOPIC)
"""The topics of which every broker stores all partitions."""

FETCH_AGAIN_S = 1.0
"""Seconds after which missing records are requested again. There can be thousands of partitions."""

MISSED_EPOCHS = 8
"""How many leader changes of a log the broker that deletes its topic can have missed."""

LEAVING_S = 1.0
"""Seconds that others have to learn that a broker leaves because another one has its number."""

SETTLE_S = 2.0
"""The longest time that a starting broker waits for others, in seconds."""


class Replicator:
    """The membership of one broker in the cluster, and its replicas.

    Args:
        broker: The broker.
        config: The configuration.

    Attributes:
        brokers: The brokers.
        topic_table: The topics as brokers have written them. `settle_topics` applies it to `OffsetAssigner`.
        logs: The replicated logs.
        led_logs: The logs that this broker leads.
        reassigner: Changes the replicas of these logs.
        checkpoints: The checkpoints, which spare reading whole indexes when the broker starts.
    """

    def __init__(self, broker: Host, config: Config) -> None:
        settings = config.broker
        number = max(settings.number, 0)
        own = BrokerRegistration(
            address=broker.address,
            number=number,
            rack=settings.rack,
            is_starting=True,
            has_set_number=settings.number >= 0,
            awaits_share=True,
        )
        self.brokers = Brokers(own, settings.leader_timeout_ms / 1000)
        self.logs = ReplicatedLogs(
            broker.address,
            lambda: self.brokers.own.number,
            broker.durable_end_of,
            ReplicaSettings(preferred_leader_after_s=settings.preferred_leader_after_ms / 1000),
        )
        self._broker = broker
        self._order = broker.order
        self.topic_table = TopicTable()
        self._order.producer_starts = self.topic_table.producer_starts
        self._settings = settings
        self._indexes: defaultdict[str, set[Partition]] = defaultdict(set)
        self._control: list[ControlRecord] = []
        self._writing: list[ControlRecord] = []
        self._nursery: trio.Nursery | None = None
        self._heartbeat_sent_at = float("-inf")
        self._has_racks = bool(settings.rack)
        self._lease_s = (settings.leader_timeout_ms - settings.heartbeat_ms) / 1000
        self._rounds = LeaseRounds(secrets.randbits(40))
        self._round_answered = trio.Event()
        self._learned_ends: dict[Partition, int] = {}
        self._topic_ends: dict[str, int] = {}
        self._subscribed_leaders: set[str] = set()
        self._epoch_counts: dict[str, int] = {}
        self._rivals: set[str] = set()
        self._own_control: defaultdict[str, dict[str, ControlRecord]] = defaultdict(dict)
        self.checkpoints = Checkpoints(broker, self.logs)
        self._loader = ReplicaLoader(broker, self.logs, self.checkpoints, self._indexes, self._take_part)
        self.led_logs = LedLogs(broker, self.brokers, self.logs, self.act, self._refresh)
        self.reassigner = Reassigner(
            broker,
            config,
            self.brokers,
            self.logs,
            self.led_logs,
            self._indexes,
            self.put_topic,
            self.act,
            self._refresh,
            self.describe,
            self._hear_acknowledgements,
        )
        self._leader_changes: dict[Log, trio.Event] = {}
        self._settled_number = trio.Event()

    @property
    def is_alone(self) -> bool:
        """Whether no other broker is known."""
        return self.brokers.is_alone

    # Starting

    def learn(self, partition: Partition, records: Iterable[tuple[bytes | None, bytes | None]]) -> None:
        """Process stored control records of this broker or another one: keys and values of a partition.

        The next `settle_topics` applies changes of topics.
        """
        writer = partition.address
        for key, value in records:
            try:
                name = (key or b"").decode()
                found = None if value is None else _decode(partition, name, value)
            except (StorageFormatError, UnicodeDecodeError) as error:
                _LOGGER.warning("a control record of the broker %s is ignored: %s", writer, error)
                continue
            if found is None:
                self._own_control[name.partition("/")[2].rpartition("/")[0]].pop(name, None)
            elif isinstance(found, BrokerRegistration):
                self._learn_broker(found)
            elif isinstance(found, Topic | Deletion):
                self._learn_topic(found, writer)
            else:
                self._learn_control(found, writer, name)

    def _learn_control(self, record: ControlRecord, writer: str, key: str) -> None:
        if record.log.partition("/")[0] in self.topic_table.deleted_ids:
            return
        if writer == self._broker.address:
            self._own_control[record.log][key] = record
        self.act(self.logs.record_control(writer, record))
        log = self.logs.find(record.log)
        if log is not None:
            self.led_logs.note_held([log])
            self.led_logs.merge_later([log])

    def _learn_broker(self, broker: BrokerRegistration) -> None:
        own = self.brokers.own
        if broker.address == own.address:
            if self._nursery is None and self._settings.number < 0:
                self.brokers.own = attrs.evolve(own, number=broker.number)
            if self._nursery is None:
                self.brokers.own = attrs.evolve(
                    self.brokers.own, is_draining=broker.is_draining, awaits_share=broker.awaits_share
                )
            return
        was_alone = self.is_alone
        self.brokers.record_registration(broker)
        if self._nursery is None and broker.number != own.number:  # the broker that had that number before has left
            self.brokers.expect(broker.address, trio.current_time())
        has_racks = any(each.rack for each in self.brokers.all())
        if has_racks != self._has_racks:
            self._has_racks = has_racks
            self._refresh_all(self.logs)
        if own.rack:
            self._hear_acknowledgements(broker.address)
        if not own.has_set_number and not broker.has_left and own.yields_number(broker):
            taken = {each.number for each in self.brokers.all() if each.address != own.address}
            self.describe(number=next(each for each in range(len(taken) + 1) if each not in taken))
        if was_alone and self._nursery is not None:
            self._join_cluster()

    def _hear_acknowledgements(self, leader: str) -> None:
        if leader not in self._subscribed_leaders:
            self._subscribed_leaders.add(leader)
            self._broker.hear_acknowledgements(leader)

    # Topics

    def _learn_topic(self, found: Topic | Deletion, writer: str) -> None:
        if isinstance(found, Deletion):
            self.topic_table.learn_deletion(found)
        elif found.placement:
            self.topic_table.learn(found)
        else:
            self.topic_table.learn(attrs.evolve(found, placement=((writer,),) * found.log_count))

    def put_topic(self, topic: Topic) -> trio.Event:
        """Create a topic or change one. The returned event is set when the change is durable."""
        self.topic_table.learn(topic)
        self.settle_topics()
        return self._broker.write_state(TOPICS_TOPIC, [(topic.name.encode(), encode_topic(topic))])

    def first_epoch(self, name: str) -> int:
        """Return the first leader epoch of a new topic. It is after all epochs of a deleted topic of the same name.

        The broker that deleted that topic can have missed its last leaders.
        """
        last = self.topic_table.last_epochs.get(name)
        if last is None or (self.is_alone and not last):
            return 0
        return next_epoch(last + MISSED_EPOCHS * EPOCH_STEP, 0)

    def settle_topics(self) -> None:
        """Apply the topic table: forget the logs of removed topics, and add or change the others.

        The partitions of deleted topics are dropped later, when the deletion is durable.
        """
        removed: dict[str, list[Log]] = {}
        for name in self.topic_table.take_changed():
            known, found = self._order.topics.get(name), self.topic_table.find(name)
            if known is not None and (found is None or found.topic_id != known.topic_id):
                removed[known.topic_id] = self._remove_topic(known)
            if found is not None and found != known:
                self._add_topic(found)
        for deletion in self.topic_table.take_deletions():
            self._forget_control(deletion.topic)
            if self._nursery is not None:
                self._nursery.start_soon(self._broker.drop_topic, deletion, removed.get(deletion.topic.topic_id, ()))

    def _add_topic(self, topic: Topic) -> None:
        """Add a topic or change one, and load its new logs."""
        before = len(self._order.logs(topic.name))
        self._order.add_topic(topic)
        own = self._broker.address
        added = self._order.logs(topic.name)[before:]
        for log in added:
            replicas = topic.placement[log.number] if log.number < len(topic.placement) else (own,)
            name = name_log(topic.topic_id, log.number)
            if replicas == (own,) and self.is_alone and not topic.first_epoch and not self.logs.has_control(name):
                log.leadership = LeaderAndIsr(own, 0, is_led=True, replicas=replicas, in_sync=replicas)
                if self._nursery is not None:
                    self._order.catch_up(log, self._broker.ends(topic.name), self._broker.earliest(topic.name))
                    self._nursery.start_soon(self.led_logs.catch_up, log)
            else:
                self._order.end_epoch(log)
                log.leadership = LeaderAndIsr("", 0, is_led=False, replicas=replicas)
                self._loader.put(log)
        if added and self._nursery is not None and not self.is_alone:
            self._broker.ask_heads((topic.name, INDEX_TOPIC))

    def _remove_topic(self, topic: Topic) -> list[Log]:
        """Forget the logs of a topic that is deleted or hidden, and notify their waiters."""
        logs = self._order.remove_topic(topic.name)
        for log in logs:
            name = name_log(topic.topic_id, log.number)
            self.logs.remove(name)
            self.led_logs.forget(name)
            log.leadership = attrs.evolve(log.leadership, leader="", is_led=False)
            self._broker.watchers.notify(log)
            self._leader_changes.pop(log, trio.Event()).set()
        self._broker.on_removed(topic, logs)
        return logs

    def _forget_control(self, topic: Topic) -> None:
        """Forget the control records of the logs of a deleted topic, and remove those of this broker."""
        removed: list[tuple[bytes, bytes | None]] = []
        for number in range(topic.log_count):
            name = name_log(topic.topic_id, number)
            self.logs.forget_control(name)
            self._indexes.pop(name, None)
            self._epoch_counts.pop(name, None)
            removed += [(key.encode(), None) for key in self._own_control.pop(name, {})]
        if removed:
            self._broker.write_state(BRANCHES_TOPIC, removed)

    # Running

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the membership in the cluster until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self.describe()
            self._learned_ends = self._broker.ends(BRANCHES_TOPIC) | self._broker.ends(TOPICS_TOPIC)
            nursery.start_soon(self._stop_spawning_when_cancelled)
            if not self.is_alone:
                self._join_cluster()
                await self._loader.load_first()
            nursery.start_soon(self._run_clock)
            nursery.start_soon(self._settle_number)
            nursery.start_soon(self._loader.run)
            nursery.start_soon(self.led_logs.run)
            nursery.start_soon(self.reassigner.run)
            nursery.start_soon(self.checkpoints.run)
            task_status.started()

    async def _stop_spawning_when_cancelled(self) -> None:
        """Start no further tasks when the broker stops. The last written records can still ask for some."""
        try:
            await trio.sleep_forever()
        finally:
            self._nursery = None

    async def _run_clock(self) -> None:
        heartbeat_s = self._settings.heartbeat_ms / 1000
        due = trio.current_time()
        fetched_at = due
        while True:
            self._send_heartbeat(trio.current_time())
            self._begin_round()
            now = trio.current_time()
            late_s, due = max(now - due, 0.0), now + heartbeat_s
            self.brokers.record_storage(self._broker.address, can_write=self._broker.can_write)
            if self.brokers.check_alive(now, late_s if late_s > heartbeat_s else 0.0):
                self.act(self.logs.set_alive(self.brokers.alive, now, self.brokers.unwritable))
                self._refresh_all(self.logs)
                self.led_logs.merge_later(self.logs)
            else:
                advanced = self.logs.active
                self.act(self.logs.advance(now))
                self._refresh_all(advanced)
            await self._check_number()
            if now - fetched_at >= FETCH_AGAIN_S:
                fetched_at = now
                self.act(self.logs.repeat_fetches())
            await trio.sleep(heartbeat_s)

    async def _settle_number(self) -> None:
        """Wait until a heartbeat of another broker with the same number would have arrived."""
        await self._broker.wait_settled()
        await trio.sleep(self._settings.leader_timeout_ms / 1000)
        await self._check_number()
        self.describe(is_starting=False)
        self._settled_number.set()

    async def wait_number(self) -> None:
        """Wait until no earlier broker can have the number of this broker.

        It does not wait for a tower that does not answer, as there can be none. If another broker has the number, this
        one ends with an error instead.
        """
        with trio.move_on_after(SETTLE_S):
            await self._settled_number.wait()
        while not self._settled_number.is_set() and (  # noqa: ASYNC110 (no event is set when a tower is heard)
            self.brokers.rivals() or not self._broker.unheard_towers()
        ):
            await trio.sleep(self._settings.heartbeat_ms / 1000)

    async def _check_number(self) -> None:
        """Look for other brokers with the number of this one.

        Raises:
            ConfigError: The number is a setting, and the other broker had it before.
        """
        own = self.brokers.own
        for rival in self.brokers.rivals():
            where = rival.kafka_listener or rival.http_url
            found = f"the broker {rival.address}{' at ' * bool(where)}{where} has the number {own.number}, too"
            if own.is_starting and own.has_set_number and own.yields_number(rival):
                self.describe(has_left=True)
                await self._broker.wait_durable()
                await trio.sleep(LEAVING_S)
                raise ConfigError(f"{found}; start this broker with another one")
            if not rival.is_starting and rival.address not in self._rivals:
                self._rivals.add(rival.address)
                _LOGGER.error("%s; start one of the two with another one", found)

    def _send_heartbeat(self, now: float) -> None:
        """Send a heartbeat, also between the steps of long work on thousands of logs.

        It is a HEAD of this broker's registration.
        """
        self._heartbeat_sent_at = now
        own = Partition(BROKERS_TOPIC, self._broker.address)
        end = self._broker.durable_end_of(own)
        if end > 0:
            self._broker.publish([wire.Head(own.address, own.topic, end - 1)])

    def _send_heartbeat_if_due(self) -> None:
        now = trio.current_time()
        if now - self._heartbeat_sent_at >= self._settings.heartbeat_ms / 1000:
            self._send_heartbeat(now)

    # Leases

    def _begin_round(self) -> None:
        """Ask the other brokers to confirm that they hear this one, which it needs for its leader leases."""
        if not self.is_alone:
            can_write = self._broker.can_write
            number = self._rounds.begin(lease_time(), is_replaceable=self.brokers.is_replaceable(can_write=can_write))
            self._broker.publish([ask_round(self._broker.address, number, can_write=can_write)])
        self._on_answered()  # waiters check again, as another broker may lead

    def heard_rounds(self, rounds: Mapping[str, tuple[int, bool]], answers: Mapping[str, tuple[int, int, int]]) -> None:
        """Answer lease rounds of other brokers, and process their answers to this broker's rounds.

        This broker does not answer while votes are being written, because its answer would not cover them.
        """
        now, own = trio.current_time(), self._broker.address
        for asker, (number, can_write) in rounds.items():
            self.brokers.record_heartbeat(asker, now)
            self.brokers.record_storage(asker, can_write=can_write)
            may_answer = self.brokers.may_answer(asker, can_write=can_write)
            if may_answer and not self._control and not self._writing:
                ends = (self._broker.durable_end_of(Partition(topic, own)) for topic in (BRANCHES_TOPIC, TOPICS_TOPIC))
                self._broker.publish([answer_round(asker, own, number, *ends)])
        has_counted = False
        for broker, (number, control_end, topics_end) in answers.items():
            self._topic_ends[broker] = topics_end
            has_counted |= self._rounds.answered(
                broker, RoundAnswer(number, control_end), self._learned_end(BRANCHES_TOPIC, broker)
            )
        if has_counted:
            self._on_answered()

    def _learned_end(self, topic: str, broker: str) -> int:
        return self._learned_ends.get(Partition(topic, broker), 0)

    def _record_learned(self, partition: Partition, end: int) -> None:
        self._learned_ends[partition] = end
        if partition.topic == BRANCHES_TOPIC and self._rounds.learned(partition.address, end):
            self._on_answered()

    def _on_answered(self) -> None:
        answered, self._round_answered = self._round_answered, trio.Event()
        answered.set()

    def lease_end(self, state: Log) -> float:
        """Return the time until which this broker has the leader lease of a log; see `lease_time`."""
        topic = self._order.topics.get(state.topic)
        log = None if topic is None else self.logs.find(name_log(topic.topic_id, state.number))
        if log is None:
            return float("inf")
        return log.replica.heard_since(self._rounds.heard_since) + self._lease_s

    async def wait_topics(self) -> None:
        """Wait until this broker knows all topic changes of the living brokers, as it can have been stopped.

        It continues without living brokers that do not answer for twice `leader_timeout_ms`.
        """
        own = self._broker.address
        with trio.move_on_after(2 * self._settings.leader_timeout_ms / 1000):
            while not all(self._knows_topics_of(each) for each in self.brokers.alive if each != own):
                await self.wait_round()

    def _knows_topics_of(self, broker: str) -> bool:
        is_heard = lease_time() < self._rounds.heard_since(broker) + self._lease_s
        return is_heard and self._learned_end(TOPICS_TOPIC, broker) >= self._topic_ends.get(broker, 0)

    async def wait_round(self) -> None:
        """Wait until a lease round is answered or the next one begins."""
        await self._round_answered.wait()

    def heard(self, brokers: Iterable[str]) -> None:
        """Record heartbeats of brokers."""
        now = trio.current_time()
        for broker in brokers:
            self.brokers.record_heartbeat(broker, now)

    def describe(self, **changes: Any) -> None:
        """Update the registration of this broker."""
        before = self.brokers.own
        own = self.brokers.own = attrs.evolve(before, **changes)
        if own.number != before.number:
            self.logs.renumber(own.number)
        if self._nursery is not None:
            self._broker.write_state(BROKERS_TOPIC, [(own.address.encode(), encode_broker(own))])

    def _join_cluster(self) -> None:
        """Announce the control records and replicate the logs that this broker had while it was alone."""
        self._broker.announce_control()
        for log in self._order.all_logs():
            self._loader.put(log)

    def creates(self, topic: str) -> bool:
        """Return whether this broker is the one that creates a topic when a producer writes to it."""
        return rank_nodes(topic, self.brokers.alive)[0] == self._broker.address

    def keeps(self, partition: Partition) -> bool | None:
        """Return whether this broker stores a partition; None if the limits for peers decide."""
        if partition.topic in CONTROL_TOPICS or partition.topic == MESSAGES_TOPIC:
            return True
        address = parse_address(partition.address)
        if address is not None and address.topic_id in self.topic_table.deleted_ids:
            return False
        if self.is_alone:
            return None
        found = self.logs.keeps(partition)
        if found is not None or partition.topic == INDEX_TOPIC:
            return bool(found)
        return None if self._keeps_producer_partition(partition, is_of_broker=address is not None) else False

    def _keeps_producer_partition(self, partition: Partition, *, is_of_broker: bool) -> bool:
        """Return whether this broker stores a partition that belongs to no replicated log."""
        topic = self._order.topics.get(partition.topic)
        if topic is None:  # partitions of other brokers wait until the topic is known
            return not is_of_broker and (not self._broker.may_create(partition.topic) or self.creates(partition.topic))
        if not self._order.is_producer_partition(partition):
            return False
        names = (name_log(topic.topic_id, number) for number in range(topic.log_count))
        logs = (self.logs.find(name) for name in names)
        return any(log is None or self._broker.address in log.replica.replicas for log in logs)

    def leader_of(self, partition: Partition) -> str:
        """Return the living leader of the replicated log of a partition; empty if there is none."""
        found = self.logs.find_partition(partition)
        leader = "" if found is None else found[0].replica.leader
        return leader if self.brokers.is_alive(leader) else ""

    async def wait_others(self) -> None:
        """Wait a while until other brokers are known, if there are any."""
        with trio.move_on_after(SETTLE_S):
            await self._broker.wait_settled()
            await trio.sleep(2 * self._settings.heartbeat_ms / 1000)

    # Loading logs

    def note_indexes(self, partitions: Iterable[Partition]) -> None:
        """Record the index partitions that are stored."""
        for partition in partitions:
            if partition.topic == INDEX_TOPIC:
                address = parse_address(partition.address)
                if address is not None:
                    self._indexes[address.log_name].add(partition)

    def _take_part(self, log: ReplicatedLog, state: Log) -> None:
        self.reassigner.prefer_leaders(log)
        if self._order.leads(state):
            self.led_logs.keep_leading(log, state)
        self._refresh(log)
        self.act(self.logs.resume(log, trio.current_time()))

    # Effects of replicas

    def stored(self, batches: Iterable[RecordBatch]) -> None:
        """Process records that are durable here."""
        batches = list(batches)
        self.note_indexes(batch.partition for batch in batches)
        for batch in batches:
            if batch.partition.topic in CONTROL_TOPICS and batch.partition.address != self._broker.address:
                self.learn(batch.partition, zip(batch.keys or (), batch.values, strict=True))
                self._record_learned(batch.partition, batch.end_sequence)
        self.settle_topics()
        if len(self.logs):
            changed, actions = self.logs.stored(batches)
            self.act(actions)
            self.led_logs.note_held(changed)
            others = (self.logs.find_partition(each.partition) for each in batches if self._is_index_of_other(each))
            self.led_logs.merge_later(found[0] for found in others if found is not None)

    def _is_index_of_other(self, batch: RecordBatch) -> bool:
        return batch.partition.topic == INDEX_TOPIC and not self._broker.is_own(batch.partition)

    def begin_write(self) -> None:
        """Record that the control records so far are being written."""
        self._writing += self._control
        self._control = []

    def write_done(self) -> None:
        """Apply the control records that are durable now."""
        written, self._writing = self._writing, []
        for record in written:
            self.act(self.logs.record_control(self._broker.address, record))

    def acknowledged(self, acknowledgements: Iterable[tuple[tuple[Partition, str], int]]) -> None:
        """Process acknowledgements of indexes by other replicas."""
        for (partition, broker), index_end in acknowledgements:
            self.act(self.logs.acknowledged(broker, partition, index_end))

    def repeat_acknowledgements(self, partitions: Iterable[Partition]) -> None:
        """Acknowledge indexes again whose leaders can have missed the acknowledgement."""
        self.act(chain.from_iterable(map(self.logs.repeat_acknowledgement, partitions)))

    def act(self, actions: Iterable[LogAction]) -> None:
        """Execute the effects of replicas. Acknowledgements and fetches are sent together at the end."""
        acknowledged: dict[Partition, int] = {}
        missing: dict[Partition, int] = {}
        for log, action in actions:
            if self.logs.find(log.name) is not log:  # its topic was deleted meanwhile
                continue
            if isinstance(action, FetchRecords):
                missing[action.partition] = action.end_sequence
                continue
            if isinstance(action, Acknowledge):
                acknowledged[log.index_partition(action.leader_epoch)] = log.local_log.acknowledged_end(
                    action.leader_epoch
                )
            else:
                self._execute(log, action)
            self._refresh(log)
            self._send_heartbeat_if_due()
        if acknowledged:
            self._broker.acknowledge(acknowledged)
        if missing:
            self._broker.expect_records(missing)
            self._send_heartbeat_if_due()

    def _execute(self, log: ReplicatedLog, action: ReplicaAction) -> None:
        if isinstance(action, WriteControl):
            self._write_control(action.record)
        elif isinstance(action, AdvanceHighWatermark):
            self.led_logs.move_high_watermark(log, action.offset)
        elif isinstance(action, Lead) and self._nursery is not None:
            self._nursery.start_soon(self.led_logs.lead, log, action.start)
        elif isinstance(action, StepDown):
            state = self._order.find_log(log.topic, log.number, log.topic_id)
            if state is not None:
                self._order.end_epoch(state)

    def _write_control(self, record: ControlRecord) -> None:
        key = key_of(record)
        self._control.append(record)
        own = self._own_control[record.log]
        own[key] = record
        changes: list[tuple[bytes, bytes | None]] = [(key.encode(), encode_control(record))]
        log = self.logs.find(record.log)
        if log is not None:
            epoch = log.replica.latest.leader_epoch.epoch
            for obsolete in [key for key, each in own.items() if is_obsolete(each, epoch)]:
                del own[obsolete]
                changes.append((obsolete.encode(), None))
        self._broker.write_state(BRANCHES_TOPIC, changes)

    def _refresh_all(self, logs: Iterable[ReplicatedLog]) -> None:
        for log in logs:
            self._refresh(log)
            self._send_heartbeat_if_due()

    def _refresh(self, log: ReplicatedLog) -> None:
        """Update the leadership that clients see of a log."""
        state = self._order.find_log(log.topic, log.number, log.topic_id)
        if state is None:
            return
        replica = log.replica
        epoch = replica.latest.leader_epoch
        is_led = replica.led_epoch == epoch and self._order.leads(state) and self.led_logs.is_ready(log)
        is_led = is_led and replica.may_serve
        leader = replica.leader if self.brokers.is_alive(replica.leader) else ""
        if leader == self._broker.address and not is_led:
            leader = ""
        presumed_leader = "" if leader or replica.is_quorum_active else epoch.leader
        learners = replica.latest.learners
        in_sync = tuple(each for each in replica.in_sync(within_s=IN_SYNC_S) if each not in learners)
        is_readable = self._has_racks if is_led else self.led_logs.is_followed(log, epoch)
        found = LeaderAndIsr(
            leader,
            epoch.epoch,
            is_led,
            replica.replicas,
            in_sync,
            is_readable,
            presumed_leader,
            learners,
        )
        if is_led and state.high_watermark != replica.high_watermark:  # a follower does not notify readers
            state.high_watermark = replica.high_watermark
            self._broker.watchers.notify(state)
        can_diverge = replica.availability is Availability.BRANCH
        if (
            can_diverge
            and (is_led or is_readable)
            and len(replica.epoch_tree.starts) != self._epoch_counts.get(log.name)
        ):
            self._epoch_counts[log.name] = len(replica.epoch_tree.starts)
            state.divergences = replica.epoch_tree.divergences(EpochEnd(epoch, SEQUENCE_MAX))
        if found != state.leadership:
            if is_led and not state.leadership.is_led:
                self.led_logs.merge_later([log])
            if is_led != state.leadership.is_led:
                change = "leads" if is_led else "leads no more"
                _LOGGER.info("%s log %d of %s, leader epoch %d", change, log.number, log.topic, epoch.epoch)
            state.leadership = found
            self._broker.watchers.notify(state)
            self._leader_changes.pop(state, trio.Event()).set()

    async def wait_leadership(self, log: Log) -> None:
        """Wait until the leadership of a log changes or the log is gone."""
        if log.is_gone:
            await trio.lowlevel.checkpoint()
            return
        await self._leader_changes.setdefault(log, trio.Event()).wait()


def _decode(partition: Partition, key: str, value: bytes) -> BrokerRegistration | Topic | Deletion | ControlRecord:
    if partition.topic == BROKERS_TOPIC:
        return decode_broker(partition.address, value)
    return decode_topic(key, value) if partition.topic == TOPICS_TOPIC else decode_control(value)
