"""Answers GET-POSITION: finds the position of a partition at a time (docs/spec/positions-by-time.md).

A storage finds a record by its time of storing. GET-POSITION asks for the time at which a record was made, so the
search begins there and looks for the first record that was made at the time or later. That takes long if old records
were stored recently. A search is therefore split: it is a sequence that advances by a chunk of records at a time.
Requestors take turns.

The owner of a responder does the I/O: it calls `next_search`, searches a chunk of records, and reports the result.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import attrs

from dafka import wire
from dafka.records import Partition

QUESTIONS_MAX = 50_000
"""The maximum number of questions that wait for their answers, of all requestors together."""


@attrs.define(eq=False)
class PositionSearch:
    """One question under way."""

    partition: Partition
    time_ms: int
    requestor: str
    next_sequence: int | None = None
    """The next record to search; None before the search begins."""


class PositionResponder:
    """The questions that one store is answering, in fair turns.

    `durable_end` returns the sequence after the last durable record of a partition, `takes_answers` whether a node
    takes DIRECT-POSITIONs. Questions of other nodes are dropped.
    """

    def __init__(
        self, address: str, durable_end: Callable[[Partition], int], takes_answers: Callable[[str], bool]
    ) -> None:
        self._address = address
        self._durable_end = durable_end
        self._takes_answers = takes_answers
        self._searches: OrderedDict[str, OrderedDict[Partition, PositionSearch]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        """Return how many questions are still to be answered."""
        return self._count

    def add_question(self, question: wire.GetPosition) -> bool:
        """Queue a question. Return False if the queue is full, so that the question was dropped.

        A repetition of the question under way about a partition is ignored.
        """
        partition = Partition(question.subject, question.partition)
        searches = self._searches.get(question.address, OrderedDict())
        known = searches.get(partition)
        if known is not None and known.time_ms == question.time:
            return True
        if known is None:
            if self._count >= QUESTIONS_MAX:
                return False
            self._count += 1
        self._searches[question.address] = searches
        searches[partition] = PositionSearch(partition, question.time, question.address)
        return True

    def next_search(self) -> PositionSearch | None:
        """Return the search to continue now, or None if there is none. Call `advance` or `complete` with it."""
        while self._searches:
            requestor, searches = self._searches.popitem(last=False)
            if self._takes_answers(requestor):
                self._searches[requestor] = searches
                return next(iter(searches.values()))
            self._count -= len(searches)
        return None

    def advance(self, search: PositionSearch, next_sequence: int) -> None:
        """Continue the search at a sequence."""
        search.next_sequence = next_sequence

    def complete(self, search: PositionSearch, sequence: int | None) -> wire.DirectPosition:
        """Return the answer to a question; its sequence is None if the store has no such record."""
        self.drop(search)
        partition, end = search.partition, self._durable_end(search.partition)
        found = wire.NUMBER_8_MAX if sequence is None else sequence
        return wire.DirectPosition(
            search.requestor, self._address, partition.address, partition.topic, search.time_ms, found, end
        )

    def drop(self, search: PositionSearch) -> None:
        """Forget a question that cannot be answered; the node that asks repeats it."""
        searches = self._searches.get(search.requestor)
        if searches is None or searches.get(search.partition) is not search:
            return
        del searches[search.partition]
        self._count -= 1
        if not searches:
            del self._searches[search.requestor]
