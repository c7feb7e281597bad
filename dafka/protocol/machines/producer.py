"""The producer's side of RFC 46: publish, announce, keep until acknowledged, answer who missed something.

Records are numbered from 0 (or from where a resumed partition stands). The first ones are held back until the node
has settled, which is when the nodes that were there before have had time to connect; a new subscriber is told the
head at once, so that it need not wait for the next HEAD to learn what it has missed.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence

from dafka import wire
from dafka.config import NodeConfig, ProducerConfig
from dafka.protocol.actions import Action, Notify, Publish, Subscribe
from dafka.protocol.answering.fetch_responder import FETCH_RECORDS_MAX, FetchResponder
from dafka.protocol.events import StoresHeard, StoresSilent
from dafka.protocol.ordering.buffers import RetransmitBuffer
from dafka.protocol.presence.peer_limits import ABSURD_SEQUENCE, MANY_FETCHES, TOO_OFTEN, PeerLimits
from dafka.protocol.presence.subscribers import EarliestResponder, SubscriberSet
from dafka.records import SEQUENCE_MAX, Partition, RecordBatch
from dafka.wire import Command

HELD_RECORDS_MAX = 10_000
"""Records held back until the node has settled; then they go out at once."""

ASKERS_MAX = 10_000
"""Nodes that are told, when they ask for records that this producer no longer holds, that it does not."""

SPOOL_TRIM_RECORDS = 10_000
"""Records that stay in a spool although they may leave it, until they are trimmed together."""

STORES_MAX = 1024
"""Distinct stores whose ACKs are counted; further ones are discarded."""


class ProducerMachine:
    """One producer of one partition.

    Attributes:
        partition: the topic and the producer's address.
        next_sequence: the sequence of the next record.
        acknowledged_end: every record before this is acknowledged by `min_stores` stores.
        stored_end: every record before this is acknowledged by some store. Beyond `next_sequence`: the store knows
            more of this partition than its producer, which has resumed from an outdated spool.
        window: the records held for FETCHes; without contents where a spool holds them.
        responder: Answers FETCHes, from `retransmit_buffer` or the spool.
        discarded: messages thrown away, by reason.
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
    ) -> None:
        self.partition = partition
        self.next_sequence = next_sequence
        # With `min_stores` 0 records count as acknowledged at once; whether any store has them nobody knows.
        self.acknowledged_end = acknowledged_end if config.min_stores else next_sequence
        # What comes before and is in no spool must be in some store: this producer does not have it.
        spooled_end = acknowledged_end if config.min_stores else 0
        self.stored_end = spooled_end if is_spooled else next_sequence
        self.retransmit_buffer = RetransmitBuffer(partition, next_sequence)
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
        self._earliest_responder = EarliestResponder(ASKERS_MAX)
        self._limits = PeerLimits(NodeConfig())
        self._listeners = SubscriberSet(Command.DIRECT_RECORD, ASKERS_MAX)
        self._is_settled = False
        self._head_due = float("inf")
        self._silent_from = float("inf")
        self._is_silent = False

    @property
    def unacknowledged(self) -> int:
        """Records that lack ACKs; with `min_stores` 0, none."""
        return self.next_sequence - self.acknowledged_end

    @property
    def unacknowledged_bytes(self) -> int:
        """The contents of records that lack ACKs, as far as they are in memory; a spool's are not."""
        return self.retransmit_buffer.content_bytes if self._config.min_stores else 0

    @property
    def earliest_sequence(self) -> int:
        """The first record that can still be sent again."""
        return self._spool_earliest if self._is_spooled else self.retransmit_buffer.first_sequence

    @property
    def disposable_end(self) -> int:
        """Records before this may leave a spool: acknowledged ones, or with `min_stores` 0 all but the latest."""
        if self._config.min_stores:
            return self.acknowledged_end
        return max(min(self.next_sequence + 1 - self._config.unacknowledged_records_max, self._published_end), 0)

    @property
    def is_all_stored(self) -> bool:
        """Has everything been acknowledged, by stores that were waited for?"""
        return bool(self._config.min_stores) and not self.unacknowledged

    def start(self, now: float) -> list[Action]:
        """The subscriptions of RFC 46, "Producer Subscriptions", and GET-HEADS for the topic (erratum 6)."""
        if self.next_sequence:
            self._head_due = now
        self._watch_silence(now)
        address = self.partition.address
        return [
            Subscribe(wire.subscription_prefix(Command.ACK, address)),
            Subscribe(wire.subscription_prefix(Command.FETCH, address)),
            Subscribe(wire.subscription_prefix(Command.GET_HEADS, self.partition.topic)),
        ]

    def publish(self, contents: Sequence[bytes], now: float) -> list[Action]:
        """Publishes records; their sequences begin at `next_sequence`."""
        if not contents:
            return []
        first_sequence = self.next_sequence
        if self.unacknowledged == 0:
            self._silent_from = now + self._config.silence_ms / 1000
        self.next_sequence += len(contents)
        if not self._is_spooled:
            self.retransmit_buffer.push(contents)
        if self._config.min_stores == 0:
            self.acknowledged_end = self.next_sequence
        if not self._is_settled:
            return []
        self._trim()
        return self._send(RecordBatch(self.partition, first_sequence, contents), now)

    def settled(self, now: float) -> list[Action]:
        """The nodes that were there before are connected as far as they will be: what was held back goes out.

        With a spool, what was held back is announced, and fetched.
        """
        if self._is_settled:
            return []
        self._is_settled = True
        if self._is_spooled:
            self._published_end = self.next_sequence
            return self._head(now)
        actions: list[Action] = []
        while self._published_end < self.next_sequence:
            run = self.retransmit_buffer.read(
                max(self._published_end, self.retransmit_buffer.first_sequence), 2**32, 2**62
            )
            if run is None:
                break
            actions += self._send(run, now)
        self._trim()
        return actions

    def receive(self, messages: Iterable[wire.BatchedMessage], now: float) -> list[Action]:
        """ACKs, FETCHes and GET-HEADS; all else is discarded and counted."""
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

    def subscribed(self, subscriptions: Iterable[wire.Subscription], now: float) -> list[Action]:
        """Whoever subscribes to this topic's HEADs has just connected, and may have missed records."""
        is_new = False
        for subscription in subscriptions:
            self._earliest_responder.subscribed(subscription)
            self._listeners.subscribed(subscription)
            is_new = is_new or (subscription.active and subscription.covers(Command.HEAD, self.partition.topic))
        return self._head(now) if is_new else []

    def peer_joined(self, address: str, now: float) -> list[Action]:
        """Whoever needs the head subscribes to it."""
        self._limits.peer_joined(address)
        return []

    def peer_left(self, address: str, now: float) -> list[Action]:
        """Its ACKs still count: records do not come back from a disk."""
        self._limits.peer_left(address)
        return []

    def tick(self, now: float) -> list[Action]:
        """HEAD each interval once a record was published (RFC 46, "The HEAD Command"); notices silent stores."""
        actions: list[Action] = []
        if now >= self._head_due:
            actions += self._head(now)
        if self.unacknowledged and now >= self._silent_from and not self._is_silent:
            self._is_silent = True
            actions.append(Notify(StoresSilent(self.unacknowledged, self._config.silence_ms / 1000)))
        return actions

    def deadline(self) -> float:
        """When `tick` next has something to do."""
        if self._is_silent or not self.unacknowledged:
            return self._head_due
        return min(self._head_due, self._silent_from)

    def has_room(self) -> bool:
        """May more records be published, or is too much held back or unacknowledged?"""
        config = self._config
        held = self.next_sequence - self._published_end
        if not self._is_settled and held >= HELD_RECORDS_MAX:
            return False
        if config.min_stores == 0:
            # What is held back is nowhere else yet: none of it is let go.
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

        Records leave the spool many together, or when none is unacknowledged. The last one stays, since it shows where
        to resume.
        """
        end = self.disposable_end
        if end - self._spool_trimmed_end < (1 if self.is_all_stored else self._spool_trim_records):
            return None
        self._spool_trimmed_end = end
        return end - 1

    def spool_starts_at(self, sequence: int) -> None:
        """Note that the spool holds no record before this sequence."""
        self._spool_earliest = sequence

    def readable_range(self, partition: Partition) -> range:
        """Return the sequences that this producer can still send: published, and not dropped after their ACKs."""
        return range(self.earliest_sequence, self._published_end)

    def _send(self, batch: RecordBatch, now: float) -> list[Action]:
        if not self._published_end:
            self._head_due = now + self._config.head_interval_ms / 1000
        self._published_end = batch.end_sequence
        return [Publish(wire.RecordRun(batch))]

    def _trim(self) -> None:
        if self._config.min_stores == 0:
            self.retransmit_buffer.trim(self._config.unacknowledged_records_max, self._config.unacknowledged_bytes_max)

    def _head(self, now: float) -> list[Action]:
        if not self._published_end:
            return []
        self._head_due = now + self._config.head_interval_ms / 1000
        return [Publish(wire.Head(self.partition.address, self.partition.topic, self._published_end - 1))]

    def _direct_head(self, requestor: str) -> wire.DirectHead:
        partition = self.partition
        return wire.DirectHead(requestor, partition.address, partition.topic, self._published_end - 1)

    def _receive_fetch(self, fetch: wire.Fetch, now: float) -> list[Action]:
        if Partition(fetch.subject, fetch.partition) != self.partition:
            self.discarded["another partition"] += 1
            return []
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
        # What a store has acknowledged is with stores; what nobody has, and was let go, is nowhere.
        gone = earliest if self.stored_end <= fetch.sequence else 0
        answer = self._earliest_responder.answer(fetch, self.partition.address, earliest, gone)
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
        self._watch_silence(now)
        if 0 < self._config.min_stores <= len(self._stores):
            confirmed = heapq.nlargest(self._config.min_stores, self._stores.values())[-1]
            self.acknowledged_end = max(self.acknowledged_end, confirmed)
            self.retransmit_buffer.release(self.acknowledged_end)
        if self._is_silent:
            self._is_silent = False
            return [Notify(StoresHeard())]
        return []

    def _watch_silence(self, now: float) -> None:
        self._silent_from = now + self._config.silence_ms / 1000
