"""Sends records to the broker that leads their log, in order.

If the leader changes or the connection ends, records without a reply are sent again. No leader appends them twice:
records without a producer id get one of this broker's own, see `Lanes`.
"""

from __future__ import annotations

import math
import secrets
from collections import deque
from collections.abc import Callable, Sequence

import attrs
import trio

from dafka.batches.header import with_producer
from dafka.broker.coordinator.transactions import DRAWN_IDS
from dafka.broker.core.log.log import Log
from dafka.broker.log.appending import Batch
from dafka.http.forwarding.broker_client import BrokerError
from dafka.http.forwarding.broker_link import BrokerLink, Reply
from dafka.http.forwarding.leaders import RETRIED, RETRY_S, Leaders
from dafka.http.logs.log_access import LEADER_WAIT_S, PendingBatches
from dafka.http.server.errors import LeaderMovedError, WebError, leader_changed, topic_not_found

LANES_MAX = 64
"""The maximum number of batches without a producer id in flight for one log."""

_SEQUENCES_MAX = 2**30

AppendHere = Callable[[Log, Sequence[Batch]], PendingBatches]
"""Appends record batches to a log that this broker leads. Raises `WebError`."""


@attrs.define(eq=False)
class Lane:
    """An idempotent producer of this broker, with one batch in flight at a time.

    Its id is from the range of random ids.
    """

    producer_id: int = attrs.field(factory=lambda: DRAWN_IDS + secrets.randbelow(DRAWN_IDS))
    next_sequence: int = 0


class Lanes:
    """The idempotent producers with which a broker forwards the records of clients to one log.

    They are kept as long as the log, so that its leader stores the state of few producers.
    """

    def __init__(self) -> None:
        self._free: list[Lane] = []
        self._count = 0

    def take(self) -> Lane | None:
        """Return an idle lane; None if there are too many lanes."""
        if self._free:
            return self._free.pop()
        if self._count >= LANES_MAX:
            return None
        self._count += 1
        return Lane()

    @property
    def has_free_lane(self) -> bool:
        """Whether `take` would return a lane."""
        return bool(self._free) or self._count < LANES_MAX

    def give_back(self, lane: Lane, record_count: int) -> None:
        """Return a lane after use. It is discarded if the number of records that it has carried is not known (0)."""
        lane.next_sequence += record_count
        if record_count and lane.next_sequence < _SEQUENCES_MAX:
            self._free.append(lane)
        else:
            self._count -= 1


@attrs.define(eq=False)
class RemoteAppend:
    """Records that are being appended at another broker. `ended` is set when they are durable or refused."""

    log: Log
    batches: Sequence[Batch]
    deadline: float
    """Until when sending is retried, by Trio's clock."""
    reply: Reply | None = attrs.field(default=None, init=False)
    """The leader's reply; None if they are not sent, or were refused."""
    refusal: WebError | None = attrs.field(default=None, init=False)
    """Why the leader has refused them temporarily; None if it has not."""
    lane: Lane | None = attrs.field(default=None, init=False)
    """Their producer; None if they have their own."""
    ended: trio.Event = attrs.field(factory=trio.Event, init=False)
    _plain: Sequence[Batch] = attrs.field(init=False)
    _offset: int | None = attrs.field(default=None, init=False)
    _error: WebError | None = attrs.field(default=None, init=False)

    @_plain.default
    def _copy_batches(self) -> Sequence[Batch]:
        return self.batches

    @property
    def record_count(self) -> int:
        """The number of records."""
        return sum(header.count for header, _ in self.batches)

    @property
    def size(self) -> int:
        """The size of the record batches, in bytes."""
        return sum(len(data) for _, data in self.batches)

    @property
    def is_durable(self) -> bool:
        """Whether the records are durable."""
        return self.ended.is_set() and self._error is None

    @property
    def can_repeat(self) -> bool:
        """Whether the records can be sent twice without being appended twice."""
        return all(header.producer_id >= 0 for header, _ in self.batches)

    @property
    def needs_lane(self) -> bool:
        """Whether the records need a producer, so that they can be sent twice. Several batches at once get none."""
        return self.lane is None and not self.can_repeat and len(self.batches) == 1

    def enter(self, lane: Lane | None) -> None:
        """Set or remove the producer of the records."""
        self.lane, self.batches = lane, self._plain
        if lane is not None:
            ((header, data),) = self._plain
            self.batches = [with_producer(header, data, lane.producer_id, 0, lane.next_sequence)]

    def finish(self, offset: int | None) -> None:
        """Record that the first record is durable, at an offset."""
        self._offset = offset
        self.ended.set()

    def fail(self, error: WebError) -> None:
        """Record that the records are refused, or that their outcome is unknown."""
        self._error = error
        self.ended.set()

    async def wait_offset(self) -> int | None:
        """Wait until the records are durable, and return the offset of the first one; None if it is not known."""
        await self.ended.wait()
        if self._error is not None:
            raise self._error
        return self._offset


@attrs.define(eq=False)
class RemoteAppends:
    """The records for one log that are in flight to its leader.

    `append_local` appends them if this broker has become the leader. `on_ended` is called with each append that has
    been stored or has failed.
    """

    _log: Log
    _leaders: Leaders
    _append_local: AppendHere
    _on_ended: Callable[[RemoteAppend], None]
    _lanes: Lanes
    _pending: deque[RemoteAppend] = attrs.field(factory=deque, init=False)
    _changed: trio.Event = attrs.field(factory=trio.Event, init=False)
    _problem: str = attrs.field(default="does not answer", init=False)

    def add(self, batches: Sequence[Batch]) -> RemoteAppend:
        """Queue record batches after those in flight."""
        added = RemoteAppend(self._log, batches, trio.current_time() + LEADER_WAIT_S)
        self._pending.append(added)
        self._changed.set()
        return added

    async def run(self) -> None:
        """Send the queued records to the leader until all have been stored or have failed."""
        while self._pending:
            try:
                if self._log.leadership.is_led:
                    await self._append_here()
                elif self._log.is_gone:
                    self._pending[0].fail(topic_not_found(self._log.topic))
                else:
                    await self._leaders.retry_on_leader_change(self._log, self._send_all, math.inf)
            except BrokerError as error:
                self._problem = str(error)
            self._forget_answers()
            self._fail_late()
            self._remove_ended()
            if self._pending and not self._log.leadership.is_led:
                await self._leaders.wait_leader_change(self._log, RETRY_S)

    async def _send_all(self, link: BrokerLink) -> None:
        """Send all records over a connection, and process the replies in order.

        Returns when nothing is left, or when the leader accepts nothing at present.
        """
        while self._pending:
            self._changed = trio.Event()
            for each in self._pending:
                if each.reply is None:
                    if not self._enter_lane(each):
                        break  # the following ones wait, too
                    data = b"".join([bytes(part) for _, part in each.batches])
                    each.reply = link.publish(self._log.topic, self._log.number, data, self._on_reply)
            for each in list(self._pending):
                if each.reply is None or not each.reply.arrived.is_set():
                    break
                if not self._take_answer(each):
                    await self._take_other_answers()
                    return
            self._fail_late()
            self._remove_ended()
            if self._pending and not self._can_send():
                with trio.move_on_at(self._pending[0].deadline):
                    await self._changed.wait()

    def _fail_late(self) -> None:
        """Fail the records whose deadline has passed: no leader was found, or it did not reply."""
        now = trio.current_time()
        for each in self._pending:
            if each.ended.is_set() or now < each.deadline:
                continue
            if each.reply is not None and not each.reply.withdraw() and not each.can_repeat:
                each.fail(leader_changed(self._log))
            else:
                each.fail(each.refusal or self._leaders.unavailable(self._log, self._problem))

    def _can_send(self) -> bool:
        return self._lanes.has_free_lane and any(each.reply is None for each in self._pending)

    def _on_reply(self) -> None:
        self._changed.set()

    async def _take_other_answers(self) -> None:
        """Process the replies to all records that were sent, after the first ones were refused temporarily."""
        for each in list(self._pending):
            if each.reply is None:
                continue
            with trio.move_on_at(each.deadline):
                await each.reply.arrived.wait()
                self._take_answer(each, follows_refused=True)

    def _take_answer(self, each: RemoteAppend, *, follows_refused: bool = False) -> bool:
        """Process a reply that has arrived. Return False if the records must be sent again."""
        assert each.reply is not None
        try:
            each.finish(each.reply.result())
        except WebError as error:
            if each.lane is not None and error.code == "conflict":
                # The leader knows fewer sequences of the producer than it acknowledged: it has lost records to a split.
                self._leave_lane(each, 0)
                each.enter(None)
                each.reply = None
                return False
            is_gap = follows_refused and error.code == "conflict"
            is_refused_for_now = error.code in RETRIED or error.code == "leader_unavailable"
            if is_refused_for_now or (each.can_repeat and (is_gap or error.code == "leader_changed")):
                each.reply = None
                each.refusal = error if error.code == "leader_unavailable" else None
                return False
            each.fail(error)
        return True

    def _forget_answers(self) -> None:
        """Reset records so that another connection sends them again, unless they could be appended twice.

        Only the broker that received those knows their outcome, even if it no longer leads the log.
        """
        for each in self._pending:
            reply = each.reply
            if reply is None or each.ended.is_set():
                continue
            try:
                if reply.arrived.is_set():
                    self._take_answer(each, follows_refused=True)
                    continue
            except BrokerError:
                pass
            if reply.withdraw() or each.can_repeat:
                each.reply = None
            elif reply.arrived.is_set():
                each.fail(leader_changed(self._log))

    def _remove_ended(self) -> None:
        for each in self._pending:
            if each.ended.is_set():
                self._leave_lane(each, each.record_count if each.is_durable else 0)
                self._on_ended(each)
        self._pending = deque(each for each in self._pending if not each.ended.is_set())

    def _enter_lane(self, each: RemoteAppend) -> bool:
        """Give records a producer if they need one. Return False if none is free."""
        if each.needs_lane:
            lane = self._lanes.take()
            if lane is None:
                return False
            each.enter(lane)
        return True

    def _leave_lane(self, each: RemoteAppend, record_count: int) -> None:
        if each.lane is not None:
            self._lanes.give_back(each.lane, record_count)
            each.lane = None

    async def _append_here(self) -> None:
        """Append all records, because this broker has become the leader."""
        appended: list[tuple[RemoteAppend, PendingBatches]] = []
        for each in [each for each in self._pending if each.reply is None]:
            if not self._enter_lane(each):
                break
            try:
                appended.append((each, self._append_local(self._log, each.batches)))
            except LeaderMovedError:
                break
            except WebError as error:
                if each.lane is not None and error.code == "conflict":
                    self._leave_lane(each, 0)
                    each.enter(None)
                    break
                if error.code == "leader_unavailable":
                    each.refusal = error
                    break  # nothing can be appended before it
                each.fail(error)
        if not appended:
            await trio.sleep(RETRY_S)
        for each, here in appended:
            await self._wait_here(each, here)

    async def _wait_here(self, each: RemoteAppend, here: PendingBatches) -> None:
        try:
            each.finish(await here.wait_offset())
        except LeaderMovedError:
            pass  # they are not in the log, or have a producer id
        except WebError as error:
            each.fail(error)
