"""What has become of records that a client has appended to a log, when another broker leads it.

The broker that has appended them cannot know: its branch of the log may go on in the next one with all of them, with
some, or without any, and those that are left out are appended behind the others later. The broker that leads now knows
where each record is, by the partition that it is in and its sequence there, and how many replicas have it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import attrs
import trio

from dafka.broker.core.log.log import Log
from dafka.broker.core.partition_address import name_log
from dafka.broker.interbroker.messenger import BrokerMessenger, Message
from dafka.broker.log.pending_append import PendingAppend
from dafka.broker.node import BrokerNode
from dafka.errors import NotLeaderError, OutcomeUnknownError, TopicDeletedError

ASK_S = 0.1
"""The time between two questions to the leader of a log."""

OUTCOME_S = 60.0
"""How long to look for records."""


@attrs.frozen
class Wanted:
    """Records of a partition that a log may have: those from a sequence on, up to another one."""

    log: str
    address: str
    first: int
    end: int


class Run(NamedTuple):
    """Records that a log has: the sequence of the first one, their number, and the offset of the first one."""

    first_sequence: int
    record_count: int
    offset: int


@attrs.frozen
class Found:
    """Records of a partition that a log has."""

    log: str
    address: str
    runs: tuple[Run, ...]


@attrs.frozen
class FindRecords(Message):
    """Asks the leader of logs for records."""

    KIND = "find-records"
    records: tuple[Wanted, ...]


@attrs.frozen
class FoundRecords(Message):
    """Says where they are."""

    KIND = "found-records"
    records: tuple[Found, ...]


@attrs.define(eq=False)
class _Search:
    """The search for records of one partition in one log.

    Attributes:
        log: The log.
        wanted: By the sequence of their first record, how many wait for it.
        end: The sequence after the last record that is looked for.
        found: By the sequence of its first record, a run that the log has.
        answered: Set when there is an answer.
    """

    log: Log
    wanted: defaultdict[int, int] = attrs.field(factory=lambda: defaultdict(int))
    end: int = 0
    found: dict[int, Run] = attrs.field(factory=dict)
    answered: trio.Event = attrs.field(factory=trio.Event)

    def find(self, first_sequence: int, count: int) -> int | None:
        """Return the offset of a record that the log has, with those behind it; None if that is not known."""
        for run in self.found.values():
            skipped = first_sequence - run.first_sequence
            if skipped >= 0 and skipped + count <= run.record_count:
                return run.offset + skipped
        return None


class AppendOutcomes:
    """Finds out what has become of records whose log got another leader.

    Args:
        broker: The broker.
        post: The messages to and from other brokers.
    """

    def __init__(self, broker: BrokerNode, post: BrokerMessenger) -> None:
        self._broker = broker
        self._post = post
        self._searches: dict[tuple[str, str], _Search] = {}
        self._has_searches = trio.Event()
        post.on(FindRecords, self._on_question)
        post.on(FoundRecords, self._on_answer)

    async def find(self, appended: PendingAppend, *, all_replicas: bool = True) -> int:
        """Return the offset of records, when it is known that enough replicas have them.

        Args:
            appended: The records.
            all_replicas: Whether as many replicas must hold the records as the log's `availability` asks for, while
                this broker still has the branch that they are in.

        Returns:
            The offset of the first record.

        Raises:
            NotLeaderError: The records are not in the log, and never will be.
            OutcomeUnknownError: No leader has said in time where they are.
            TopicDeletedError: The topic was deleted meanwhile.
        """
        log = appended.log
        with trio.move_on_after(OUTCOME_S), self._searching(appended) as search:
            while True:
                with self._broker.watchers.watching([log]) as advanced:
                    if log.is_gone:
                        raise TopicDeletedError(log.topic)
                    offset = appended.find_committed(all_replicas=all_replicas)
                    if offset is None:
                        offset = search.find(appended.first_sequence, appended.count)
                    if offset is not None:
                        return offset
                    if appended.withdraw():
                        raise NotLeaderError(
                            f"another broker leads the log {log.number} of {log.topic}", log.leadership.leader
                        )
                    await _wait_any(advanced, search.answered)
        raise OutcomeUnknownError(f"no leader of the log {log.number} of {log.topic} has said whether it has records")

    @contextmanager
    def _searching(self, appended: PendingAppend) -> Iterator[_Search]:
        """Ask for records during the block."""
        log, first = appended.log, appended.first_sequence
        topic = self._broker.order.topics.get(log.topic)
        key = name_log("" if topic is None else topic.topic_id, log.number), appended.own.address
        search = self._searches.setdefault(key, _Search(log))
        search.wanted[first] += 1
        search.end = max(search.end, first + appended.count)
        self._has_searches.set()
        try:
            yield search
        finally:
            search.wanted[first] -= 1
            if not search.wanted[first]:
                del search.wanted[first]
            if not search.wanted:
                self._searches.pop(key, None)

    async def run(self) -> None:
        """Ask the leaders of logs for the records that are looked for, until cancelled."""
        while True:
            await self._has_searches.wait()
            self._has_searches = trio.Event()
            while self._searches:
                self._ask()
                await trio.sleep(ASK_S)

    def _ask(self) -> None:
        asked: defaultdict[str, list[Wanted]] = defaultdict(list)
        for (name, address), search in self._searches.items():
            leader = search.log.leadership.leader
            if leader and leader != self._broker.address:
                asked[leader].append(Wanted(name, address, min(search.wanted), search.end))
        for leader, wanted in asked.items():
            self._post.send(leader, FindRecords(tuple(wanted)))

    def _on_question(self, sender: str, message: FindRecords) -> None:
        answers = []
        for each in message.records:
            found = self._broker.replicator.logs.find(each.log)
            log = None if found is None else self._broker.order.find_log(found.topic, found.number)
            if log is None or not log.leadership.is_led:
                continue
            runs = log.index.placed(each.address, each.first, each.end, log.high_watermark)
            if runs and self._broker.holds_lease(log):
                places = tuple(Run(run.first_sequence, run.record_count, run.offset) for run in runs)
                answers.append(Found(each.log, each.address, places))
        if answers:
            self._post.send(sender, FoundRecords(tuple(answers)))

    def _on_answer(self, _sender: str, message: FoundRecords) -> None:
        for each in message.records:
            search = self._searches.get((each.log, each.address))
            if search is None:
                continue
            search.found.update((run.first_sequence, run) for run in each.runs)
            search.answered.set()
            search.answered = trio.Event()


async def _wait_any(*events: trio.Event) -> None:
    """Wait until one of some events is set."""
    async with trio.open_nursery() as nursery:

        async def wait(event: trio.Event) -> None:
            await event.wait()
            nursery.cancel_scope.cancel()

        for each in events:
            nursery.start_soon(wait, each)
