"""The producer's side of RFC 46: publish records, announce them, keep them until acknowledged, answer FETCHes.

Records are numbered from 0, or from the end of a resumed partition. The first ones are held back until the node is
settled, so that the nodes that were there before have had time to connect. A new subscriber gets a HEAD at once, and so
learns what it has missed without waiting for the next interval. `HeadSchedule` decides when HEADs are repeated.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable

from dafka import wire
from dafka.config import NodeConfig, ProducerConfig
from dafka.protocol.actions import Action, Notify, Publish, Subscribe
from dafka.protocol.answering.fetch_responder import FETCH_RECORDS_MAX, FetchResponder
from dafka.protocol.events import StoresHeard, StoresSilent
from dafka.protocol.machines.head_intervals import HeadSchedule
from dafka.protocol.machines.stranded_detector import StrandedDetector
from dafka.protocol.ordering.buffers import RetransmitBuffer
from dafka.protocol.presence.peer_limits import ABSURD_SEQUENCE, MANY_FETCHES, TOO_OFTEN, PeerLimits
from dafka.protocol.presence.subscribers import EarliestResponder, SubscriberSet
from dafka.records import SEQUENCE_MAX, Partition, RecordBatch
from dafka.wire import Command

HELD_RECORDS_MAX = 10_000
"""The maximum number of records held back until the node is settled; then they are published together."""

SUBSCRIBERS_MAX = 10_000
"""Subscribers that are remembered, to answer FETCHes for records that this producer no longer holds."""

SPOOL_TRIM_RECORDS = 10_000
"""Records are trimmed from a spool when this many can be trimmed together."""

FOLLOWED_S = 5.0
"""Seconds without a FETCH after which the peers that fetch only when a HEAD comes count as having everything.

A node of libdafka that misses records asks at most once in a second. So it has been sent several HEADs that it would
have answered, also on a busy machine.
"""

LEAVING_HEAD_S = 1.0
"""Seconds between the HEADs of a producer that leaves, unless the configured interval is shorter."""

STORES_MAX = 1024
"""The maximum number of stores whose ACKs are counted; ACKs of others are discarded."""


class ProducerMachine:
    """The state machine of one producer, which publishes one partition.

    All records before `acknowledged_end` are acknowledged by `min_stores` stores, all before `stored_end` by at least
    one. If `stored_end` is greater than `next_sequence`, a store knows more of this partition than its producer, which
    resumed from an old spool.

    Args:
        partition: The topic and the producer's address.
        config: The `[producer]` section.
        replies_max: FETCHes that are answered at the same time.
        reply_records_max: The maximum number of records sent for one FETCH.
        next_sequence: The sequence of the next record.
        acknowledged_end: All records before this were acknowledged when the producer was opened.
        is_spooled: Whether a spool holds the records, and not `retransmit_buffer`.
        spool_trim_records: Records that stay in the spool until they are trimmed together.
        stranded_after_s: Seconds without a store that can continue the partition until `is_stranded`; 0: no limit.
    """

    def __init__(
        self,
        partition: Partition,
        config: ProducerConfig,
        replies_max: int,
        *,
        reply_records_max: int = FETCH_RECORDS_MAX,
        next_sequence: int = 0,
        acknowledged_end: int = 0,
        is_spooled: bool = False,
        spool_trim_records: int = SPOOL_TRIM_RECORDS,
        stranded_after_s: float = 0.0,
    ) -> None:
        self.partition = partition
        self.next_sequence = next_sequence
        # With `min_stores` 0, records count as acknowledged at once, and it is unknown whether any store has them.
        self.acknowledged_end = acknowledged_end if config.min_stores else next_sequence
        # Earlier records that are in no spool must be in a store, since this producer does not have them.
        spooled_end = acknowledged_end if config.min_stores else 0
        self.stored_end = spooled_end if is_spooled else next_sequence
        self.retransmit_buffer = RetransmitBuffer(next_sequence)
        self.responder = FetchResponder(self.readable_range, replies_max, fetch_records_max=reply_records_max)
        self.discarded: Counter[str] = Counter()
        self.fetches_received = 0
        self._config = config
        self._is_spooled = is_spooled
        self._spool_earliest = max(acknowledged_end - 1, 0)
        self._spool_trim_records = spool_trim_records
        self._published_end = next_sequence
        self._spool_trimmed_end = self.disposable_end
        self._stores: dict[str, int] = {}
        self._stranded_detector = StrandedDetector(stranded_after_s, self._stores, STORES_MAX)
        self._earliest_responder = EarliestResponder(SUBSCRIBERS_MAX)
        self._limits = PeerLimits(NodeConfig())
        self._listeners = SubscriberSet(Command.DIRECT_RECORD, SUBSCRIBERS_MAX)
        self._is_settled = False
        self._heads = HeadSchedule(config.head_interval_ms / 1000, config.head_interval_max_ms / 1000)
        self._need_regular_heads: Callable[[], bool] = lambda: False
        self._lag_seen_at = -math.inf
        self._silence_due = float("inf")
        self._is_silent = False

    @property
    def is_stranded(self) -> bool:
        """Whether no store can continue the partition, and none has come for `stranded_after_s`."""
        return self._stranded_detector.is_stranded

    @property
    def unacknowledged(self) -> int:
        """Records without enough ACKs; none with `min_stores` 0."""
        return self.next_sequence - self.acknowledged_end

    @property
    def unacknowledged_bytes(self) -> int:
        """Bytes of the contents of unacknowledged records in memory; those in a spool do not count."""
        return self.retransmit_buffer.content_bytes if self._config.min_stores else 0

    @property
    def earliest_sequence(self) -> int:
        """The sequence of the first record that can still be sent again."""
        return self._spool_earliest if self._is_spooled else self.retransmit_buffer.first_sequence

    @property
    def disposable_end(self) -> int:
        """The end of the records that can leave a spool: acknowledged ones; with `min_stores` 0, all but the latest."""
        if self._config.min_stores:
            return self.acknowledged_end
        return max(min(self.next_sequence + 1 - self._config.unacknowledged_records_max, self._published_end), 0)

    @property
    def unstored_from(self) -> int:
        """The first record that a new partition takes over: not acknowledged, or, with `min_stores` 0, in no store."""
        first = self.acknowledged_end if self._config.min_stores else self.stored_end
        return min(max(first, self.earliest_sequence), self.next_sequence)

    @property
    def ends_by_store(self) -> dict[str, int]:
        """By store, the sequence after the last record that it has acknowledged."""
        return dict(self._stores)

    @property
    def is_all_stored(self) -> bool:
        """Whether `min_stores` is positive, and that many stores have acknowledged everything."""
        return bool(self._config.min_stores) and not self.unacknowledged

    def start(self, now: float) -> list[Action]:
        """Subscribe as RFC 46, "Producer Subscriptions", says, and to GET-HEADS for the topic (erratum 6).

        A producer that waits for several stores also shows that it is a node of this project: stores then send it ACKs
        that name them, in whichever dialect the cluster is (erratum 30).
        """
        if self.next_sequence:
            self._heads.start(now)
        self._restart_silence_timer(now)
        address = self.partition.address
        prefixes = [wire.subscription_prefix(command, address) for command in (Command.ACK, Command.FETCH)]
        prefixes.append(wire.subscription_prefix(Command.GET_HEADS, self.partition.topic))
        if self._config.min_stores > 1:
            prefixes.append(wire.subscription_prefix(Command.DIRECT_EARLIEST, address))
        return [Subscribe(prefix) for prefix in prefixes]

    def watch_listeners(self, need_regular_heads: Callable[[], bool]) -> None:
        """Set the function that returns whether a peer needs HEADs at a regular interval (erratum 33)."""
        self._need_regular_heads = need_regular_heads

    def begin_leaving(self, now: float) -> list[Action]:
        """Announce the last record every second from now on, to peers that would otherwise never fetch the rest."""
        if self.followed_at() <= now:
            return []
        self._heads.shorten(LEAVING_HEAD_S, now)
        return self._announce_head(now)

    def followed_at(self) -> float:
        """Return when this producer can leave without a loss for peers of another implementation.

        A node of libdafka that misses records asks for a page of them when a RECORD or a HEAD shows that they exist,
        and never again after the last one (erratum 17). Stores of libdafka send no HEADs, so the producer stays until
        no such peer asks any more. The time is minus infinity if there is no such peer, or none misses records.
        """
        return self._lag_seen_at + FOLLOWED_S if self._need_regular_heads() else -math.inf

    def publish(self, batch: RecordBatch, now: float) -> list[Action]:
        """Publish records of the partition; the first one has the sequence `next_sequence`."""
        if not len(batch):
            return []
        if self.unacknowledged == 0:
            self._silence_due = now + self._config.silence_ms / 1000
        self.next_sequence = batch.end_sequence
        if not self._is_spooled:
            self.retransmit_buffer.push(batch)
        if self._config.min_stores == 0:
            self.acknowledged_end = self.next_sequence
        if not self._is_settled:
            return []
        self._trim_buffer()
        return self._publish_run(batch, now)

    def node_settled(self, now: float) -> list[Action]:
        """Record that the node is settled, and publish the records that were held back.

        With a spool, they are announced instead, and consumers fetch them.
        """
        if self._is_settled:
            return []
        self._is_settled = True
        if self._is_spooled:
            self._published_end = self.next_sequence
            return self._announce_head(now)
        actions: list[Action] = []
        while self._published_end < self.next_sequence:
            run = self.retransmit_buffer.read(
                max(self._published_end, self.retransmit_buffer.first_sequence), 2**32, 2**62
            )
            if run is None:
                break
            actions += self._publish_run(run, now)
        self._trim_buffer()
        return actions

    def receive(self, messages: Iterable[wire.BatchedMessage], now: float) -> list[Action]:
        """Take ACKs, FETCHes and GET-HEADS; discard and count all other messages."""
        actions: list[Action] = []
        asked: dict[str, None] = {}
        for message in messages:
            if isinstance(message, wire.Ack):
                actions += self._receive_ack(message, now)
            elif isinstance(message, wire.Fetch):
                actions += self._receive_fetch(message, now)
            elif isinstance(message, wire.GetHeads):
                if not self._limits.allow_heads_request(message.address, now):
                    self.discarded[TOO_OFTEN] += 1
                elif message.subject == self.partition.topic and self._published_end:
                    asked[message.address] = None
            else:
                self.discarded["unexpected command"] += 1
        return actions + [Publish(self._direct_head(requestor)) for requestor in asked]

    def receive_subscriptions(self, subscriptions: Iterable[wire.Subscription], now: float) -> list[Action]:
        """Take subscriptions. A peer that subscribes to this topic's HEADs has just connected, and gets one."""
        is_new = False
        for subscription in subscriptions:
            self._earliest_responder.record_subscription(subscription)
            self._listeners.record_subscription(subscription)
            self._stranded_detector.record_subscription(subscription)
            is_new = is_new or (subscription.active and subscription.covers(Command.HEAD, self.partition.topic))
        if not is_new or not self._published_end:
            return []
        self._lag_seen_at = now  # it has missed the records until now
        return self._announce_head(now)

    def peer_joined(self, address: str, now: float) -> list[Action]:
        """Record a node that discovery found."""
        self._limits.peer_joined(address)
        self._stranded_detector.peer_joined(address)
        return []

    def peer_left(self, address: str, now: float) -> list[Action]:
        """Record that discovery lost a node. Its ACKs still count, since its records are on disk."""
        self._limits.peer_left(address)
        self._stranded_detector.peer_left(address)
        return []

    def tick(self, now: float) -> list[Action]:
        """Send a HEAD if it is time and a record was published (RFC 46, "The HEAD Command"); report silent stores."""
        actions: list[Action] = []
        if self._heads.is_due(now):
            actions += self._announce_head(now, is_known=self._is_head_known())
        if self.unacknowledged and now >= self._silence_due and not self._is_silent:
            self._is_silent = True
            actions.append(Notify(StoresSilent(self.unacknowledged, self._config.silence_ms / 1000)))
        self._stranded_detector.tick(now)
        return actions

    def deadline(self) -> float:
        """Return when to call `tick`."""
        due = min(self._heads.deadline(), self._stranded_detector.deadline())
        return due if self._is_silent or not self.unacknowledged else min(due, self._silence_due)

    def has_capacity(self) -> bool:
        """Return whether more records can be published: not too many are held back or unacknowledged."""
        config = self._config
        held = self.next_sequence - self._published_end
        if not self._is_settled and held >= HELD_RECORDS_MAX:
            return False
        if config.min_stores == 0:
            # No other node has the records that are held back, so none of them may be dropped.
            is_held_room = held < config.unacknowledged_records_max
            return self._is_settled or (
                is_held_room and self.retransmit_buffer.content_bytes < config.unacknowledged_bytes_max
            )
        if self._is_spooled:
            return True
        return (
            self.unacknowledged < config.unacknowledged_records_max
            and self.retransmit_buffer.content_bytes < config.unacknowledged_bytes_max
        )

    def begin_spool_trim(self) -> int | None:
        """Return the sequence before which the spool drops its records now, or None if it drops none yet.

        Records are dropped many at a time, or when none is unacknowledged. The last one stays, since it shows where to
        resume.
        """
        end = self.disposable_end
        if end - self._spool_trimmed_end < (1 if self.is_all_stored else self._spool_trim_records):
            return None
        self._spool_trimmed_end = end
        return end - 1

    def spool_starts_at(self, sequence: int) -> None:
        """Record that the spool holds no record before this sequence."""
        self._spool_earliest = sequence

    def readable_range(self, partition: Partition) -> range:
        """Return the sequences that this producer can still send: published, and not dropped after their ACKs."""
        return range(self.earliest_sequence, self._published_end)

    def _publish_run(self, batch: RecordBatch, now: float) -> list[Action]:
        self._heads.records_published(now)
        self._published_end = batch.end_sequence
        return [Publish(wire.RecordRun(batch))]

    def _trim_buffer(self) -> None:
        if self._config.min_stores == 0:
            self.retransmit_buffer.trim(self._config.unacknowledged_records_max, self._config.unacknowledged_bytes_max)

    def _is_head_known(self) -> bool:
        """Return whether the stores have everything, so that only a node that has missed records needs a HEAD."""
        is_acknowledged = self.acknowledged_end >= self._published_end
        return is_acknowledged and self._stranded_detector.have_all_stores(self._published_end)

    def _announce_head(self, now: float, *, is_known: bool = False) -> list[Action]:
        if not self._published_end:
            return []
        self._heads.head_sent(now, is_known=is_known and not self._need_regular_heads())
        return [Publish(wire.Head(self.partition.address, self.partition.topic, self._published_end - 1))]

    def _direct_head(self, requestor: str) -> wire.DirectHead:
        partition = self.partition
        return wire.DirectHead(requestor, partition.address, partition.topic, self._published_end - 1)

    def _receive_fetch(self, fetch: wire.Fetch, now: float) -> list[Action]:
        if Partition(fetch.subject, fetch.partition) != self.partition:
            self.discarded["another partition"] += 1
            return []
        if fetch.sequence < self._published_end and fetch.address not in self._earliest_responder:
            self._lag_seen_at = now
        if not self._limits.allow_fetch(fetch.address, now):
            self.discarded[MANY_FETCHES] += 1
            return []
        if fetch.sequence >= self._published_end:
            self.discarded["beyond the head"] += 1
        elif not self.responder.add_fetch(fetch, is_verified=fetch.address in self._listeners):
            self.discarded[MANY_FETCHES] += 1
        else:
            self.fetches_received += 1
        earliest = self.earliest_sequence
        if fetch.sequence >= earliest:
            return []
        # Records that a store has acknowledged are held by stores. Dropped records beyond that are lost.
        unrecoverable_end = earliest if self.stored_end <= fetch.sequence else 0
        if not unrecoverable_end:
            self._stranded_detector.record_fetch(fetch, now)
        answer = self._earliest_responder.answer(fetch, self.partition.address, earliest, unrecoverable_end)
        return [] if answer is None else [Publish(answer)]

    def _receive_ack(self, ack: wire.Ack, now: float) -> list[Action]:
        end_sequence = ack.sequence + 1
        if Partition(ack.subject, ack.partition) != self.partition:
            self.discarded["another partition"] += 1
            return []
        if end_sequence > SEQUENCE_MAX:
            self.discarded[ABSURD_SEQUENCE] += 1
            return []
        self.stored_end = max(self.stored_end, end_sequence)
        if end_sequence > self._published_end:
            self.discarded["beyond the head"] += 1
            return []
        if ack.address not in self._stores and len(self._stores) >= STORES_MAX:
            self.discarded["too many stores"] += 1
            return []
        self._stores[ack.address] = max(self._stores.get(ack.address, 0), end_sequence)
        self._stranded_detector.record_ack(ack.address, end_sequence)
        self._restart_silence_timer(now)
        if 0 < self._config.min_stores <= len(self._stores):
            confirmed = heapq.nlargest(self._config.min_stores, self._stores.values())[-1]
            self.acknowledged_end = max(self.acknowledged_end, confirmed)
            self.retransmit_buffer.release(self.acknowledged_end)
        if self._is_silent:
            self._is_silent = False
            return [Notify(StoresHeard())]
        return []

    def _restart_silence_timer(self, now: float) -> None:
        self._silence_due = now + self._config.silence_ms / 1000
