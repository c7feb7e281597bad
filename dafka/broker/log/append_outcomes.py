"""Finds the offsets of appended records after another broker became leader of the log.

The former leader cannot know the outcome. The next leader epoch can continue with all of the records, some or none, and
divergent records are appended later. The new leader knows the offset of each record, by its partition and sequence, and
how many replicas have it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import attrs
import trio

from dafka.broker.core.log.log import Log
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.partition_address import name_log
from dafka.broker.core.positions import FIRST_SEQUENCE, Offset, RecordSequence
from dafka.broker.core.replication.replicated_logs import ReplicatedLogs
from dafka.broker.interbroker.messenger import BrokerMessenger, Message
from dafka.broker.log.waiters import LogWaiters
from dafka.broker.log.writer import PendingAppend
from dafka.errors import NotLeaderError, OutcomeUnknownError, TopicDeletedError

ASK_S = 0.1
"""The time between two requests to the leader of a log."""

OUTCOME_S = 60.0
"""How long to look for records."""


@attrs.frozen
class Wanted:
    """Records of a partition to find in a log: a range of sequences, without its end."""

    log: str
    address: str
    first: int
    end: int


class FoundRun(NamedTuple):
    """Consecutive records of a log: the first sequence, the number of records, and the first offset."""

    first_sequence: int
    record_count: int
    offset: int


@attrs.frozen
class Found:
    """Records of a partition that were found in a log."""

    log: str
    address: str
    runs: tuple[FoundRun, ...]


@attrs.frozen
class FindRecords(Message):
    """Asks a leader for the offsets of records."""

    KIND = "find-records"
    records: tuple[Wanted, ...]


@attrs.frozen
class FoundRecords(Message):
    """Answers `FindRecords` with the committed records that were found."""

    KIND = "found-records"
    records: tuple[Found, ...]


@attrs.define(eq=False)
class _Search:
    """The search for records of one partition, up to `end`, in one log.

    `wanted` has the number of waiting tasks, and `found` the runs that the log has, both by first sequence.
    """

    log: Log
    wanted: defaultdict[RecordSequence, int] = attrs.field(factory=lambda: defaultdict(int))
    end: RecordSequence = FIRST_SEQUENCE
    found: dict[int, FoundRun] = attrs.field(factory=dict)
    answered: trio.Event = attrs.field(factory=trio.Event)

    def find(self, first_sequence: RecordSequence, count: int) -> Offset | None:
        """Return the offset of a record if the log has it and all `count` records; None if unknown."""
        for run in self.found.values():
            skipped = first_sequence - run.first_sequence
            if skipped >= 0 and skipped + count <= run.record_count:
                return Offset(run.offset + skipped)
        return None


@attrs.define(eq=False, slots=False)
class AppendOutcomes:
    """Finds the offsets of records whose log has a new leader. `logs` are the logs of `log_table`, as replicated."""

    _log_table: LogTable
    _logs: ReplicatedLogs
    _watchers: LogWaiters
    _holds_lease: Callable[[Log], bool]
    _messenger: BrokerMessenger
    _searches: dict[tuple[str, str], _Search] = attrs.field(init=False, factory=dict)
    _has_searches: trio.Event = attrs.field(init=False, factory=trio.Event)

    def __attrs_post_init__(self) -> None:
        self._messenger.on(FindRecords, self._on_find_records)
        self._messenger.on(FoundRecords, self._on_found_records)

    async def find(self, appended: PendingAppend, *, all_replicas: bool = True) -> Offset:
        """Wait until enough replicas are known to have records, and return the offset of the first one.

        With `all_replicas`, these are as many as the log's `availability` asks for, while this broker still has the
        leader epoch that the records are in.

        Raise `NotLeaderError` if the records are not in the log and never will be, `OutcomeUnknownError` if no leader
        has answered in time, and `TopicDeletedError` if the topic was deleted meanwhile.
        """
        log = appended.log
        with trio.move_on_after(OUTCOME_S), self._searching(appended) as search:
            while True:
                with self._watchers.watching([log]) as advanced:
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
        """Request the offsets of records during the block."""
        log, first = appended.log, appended.first_sequence
        topic = self._log_table.topics.get(log.topic)
        key = name_log("" if topic is None else topic.topic_id, log.number), appended.own.address
        search = self._searches.setdefault(key, _Search(log))
        search.wanted[first] += 1
        search.end = max(search.end, appended.end_sequence)
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
        """Request the offsets of wanted records from the leaders of logs, until cancelled."""
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
            if leader and leader != self._messenger.address:
                asked[leader].append(Wanted(name, address, min(search.wanted), search.end))
        for leader, wanted in asked.items():
            self._messenger.send(leader, FindRecords(tuple(wanted)))

    def _on_find_records(self, sender: str, message: FindRecords) -> None:
        answers = []
        for each in message.records:
            found = self._logs.find(each.log)
            log = None if found is None else self._log_table.find_log(found.topic, found.number)
            if log is None or not log.leadership.is_led:
                continue
            first, end = RecordSequence(each.first), RecordSequence(each.end)
            runs = log.index.placed(each.address, first, end, log.high_watermark)
            if runs and self._holds_lease(log):
                found_runs = tuple(FoundRun(run.first_sequence, run.record_count, run.offset) for run in runs)
                answers.append(Found(each.log, each.address, found_runs))
        if answers:
            self._messenger.send(sender, FoundRecords(tuple(answers)))

    def _on_found_records(self, _sender: str, message: FoundRecords) -> None:
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
