"""The answers of one store to FETCH, GET-TOPICS and GET-POSITION."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Container, Mapping, Sized

import attrs

from dafka import wire
from dafka.protocol.actions import Action, Publish
from dafka.protocol.answering.fetch_responder import FetchResponder
from dafka.protocol.answering.position_responder import PositionResponder
from dafka.protocol.machines.head_exchange import HeadExchange, StorePeers
from dafka.protocol.machines.stored_partitions import StoredPartitions
from dafka.protocol.ordering.gap_resolver import HOLDS_NOTHING
from dafka.protocol.presence.peer_limits import MANY_FETCHES, MANY_QUESTIONS, TOO_OFTEN, PeerLimits
from dafka.records import Partition, encode_text

PAGE_BYTES_MAX = 3000
"""The size of the topics in one page, in bytes. The whole message stays below the 4 KiB that a reader may expect."""

SORT_S = 1.0
"""Seconds for which the sorted topics are reused."""


@attrs.define(eq=False, slots=False)
class StoreAnswers:
    """The questions of other nodes about the records and topics of one store."""

    _address: str
    _followed: Container[Partition]
    _stored: StoredPartitions
    _responder: FetchResponder
    _heads: HeadExchange
    _peers: StorePeers
    _limits: PeerLimits
    _discarded: Counter[str]
    """Counts the discarded questions, by reason."""

    def __attrs_post_init__(self) -> None:
        takes_positions = self._peers.position_subscribers.__contains__
        self.positions = PositionResponder(self._address, self._stored.durable_end, takes_positions)
        self.fetches_received = 0
        """FETCHes that are answered with records."""
        self._topics = TopicResponder(self._stored.durable)

    def receive_fetch(self, fetch: wire.Fetch, now: float) -> list[Action]:
        """Queue the records that a FETCH asks for, or answer that this store does not hold them."""
        partition = Partition(fetch.subject, fetch.partition)
        if not self._limits.allow_fetch(fetch.address, now):
            self._discarded[MANY_FETCHES] += 1
            return []
        earliest = self._stored.earliest.get(partition, 0)
        if fetch.sequence < earliest:
            self._discarded["before the earliest"] += 1
            return self._answer_earliest(fetch, earliest, earliest)
        if partition not in self._followed:
            self._discarded["beyond the head"] += 1
            return self._answer_earliest(fetch, HOLDS_NOTHING, 0)
        if fetch.sequence >= self._stored.durable_end(partition):
            self._discarded["beyond the head"] += 1
        elif not self._responder.add_fetch(fetch, is_verified=fetch.address in self._peers.record_subscribers):
            self._discarded[MANY_FETCHES] += 1
        else:
            self.fetches_received += 1
            self._heads.fetch_received(fetch, now)
        return []

    def receive_question(self, question: wire.GetTopics | wire.GetPosition, now: float) -> list[Action]:
        """Answer a GET-TOPICS, or queue a GET-POSITION, of a node that is subscribed to the answer."""
        if isinstance(question, wire.GetPosition):
            self._queue_position(question, now)
            return []
        if not self._limits.allow_heads_request(question.address, now):
            self._discarded[TOO_OFTEN] += 1
            return []
        if question.address not in self._peers.topics_subscribers:
            return []
        return [Publish(self._topics.answer(question, now))]

    def _queue_position(self, question: wire.GetPosition, now: float) -> None:
        if not self._limits.allow_fetch(question.address, now):
            self._discarded[TOO_OFTEN] += 1
        elif question.address in self._peers.position_subscribers and not self.positions.add_question(question):
            self._discarded[MANY_QUESTIONS] += 1

    def _answer_earliest(self, fetch: wire.Fetch, sequence: int, unrecoverable_end: int) -> list[Action]:
        """Answer after the heads that the node has requested: the answer shows the node that they are complete."""
        answer = self._peers.earliest_responder.answer(fetch, self._address, sequence, unrecoverable_end)
        return [] if answer is None or self._heads.responder.send_after_heads(answer) else [Publish(answer)]


class TopicResponder:
    """Answers GET-TOPICS: lists the topics of a store, a page at a time (erratum 27).

    RFC 46 has no request for a list of topics. Each question is answered with one message of limited size, and says
    after which topic the page begins. A store therefore remembers nothing about requestors.
    """

    def __init__(self, durable: Mapping[str, Sized]) -> None:
        self._durable = durable
        self._sorted: list[str] = []
        self._partitions = 0
        self._sorted_count = -1
        self._sorted_at = float("-inf")

    def answer(self, question: wire.GetTopics, now: float) -> wire.DirectTopics:
        """Return the page that a question asks for."""
        self._sort(now)
        begin = bisect_right(self._sorted, question.after)
        end = begin
        size = 0
        while end < len(self._sorted):
            size += 4 + len(encode_text(self._sorted[end]))
            if size > PAGE_BYTES_MAX:
                break
            end += 1
        remaining = len(self._sorted) - end
        page = tuple(self._sorted[begin:end])
        return wire.DirectTopics(question.address, question.store, question.after, page, remaining, self._partitions)

    def _sort(self, now: float) -> None:
        """Sort the topics, unless they were sorted recently."""
        if len(self._durable) == self._sorted_count and now < self._sorted_at + SORT_S:
            return
        self._sorted = sorted(topic for topic, partitions in self._durable.items() if topic and len(partitions))
        self._partitions = sum(map(len, self._durable.values()))
        self._sorted_count = len(self._durable)
        self._sorted_at = now
