"""Answers GET-TOPICS: lists the topics of a store, a page at a time (erratum 27).

RFC 46 has no request for a list of topics. Each question is answered with one message of limited size, and says after
which topic the page begins. A store therefore remembers nothing about requestors.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sized

from dafka import wire
from dafka.records import encode_text

PAGE_BYTES_MAX = 3000
"""The size of the topics in one page, in bytes. The whole message stays below the 4 KiB that a reader may expect."""

SORT_S = 1.0
"""Seconds for which the sorted topics are reused."""


class TopicResponder:
    """The list of topics of one store.

    Args:
        durable: By topic, the partitions that the store holds.
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
