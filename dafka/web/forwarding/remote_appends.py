"""Records for a log that another broker leads, on their way to it, in their order.

If the leader changes, records that are not known to be appended go to the next one: those of idempotent producers,
which no leader appends twice, and those that no leader can have appended.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence

import trio

from dafka.broker.appending import AppendedBatches, Batch
from dafka.errors import NotLeaderError, TopicDeletedError
from dafka.protocol.logs import LogState
from dafka.web.errors import WebError, topic_not_found
from dafka.web.forwarding.broker_client import BrokerError
from dafka.web.forwarding.broker_link import BrokerLink, Reply
from dafka.web.forwarding.leaders import LEADER_WAIT_S, RETRIED, RETRY_S, Leaders


def can_repeat(batches: Sequence[Batch]) -> bool:
    """Return whether no record is appended twice if these record batches are sent twice."""
    return all(header.producer_id >= 0 for header, _ in batches)


class RemoteAppend:
    """Records that are being appended at another broker.

    Args:
        log: The log.
        batches: The record batches.
        deadline: Until when they are sent again, by Trio's clock.

    Attributes:
        log: The log.
        batches: The record batches.
        record_count: The number of records.
        size: The size of the record batches.
        can_repeat: Whether no record is appended twice if they are sent twice.
        deadline: Until when they are sent again, by Trio's clock.
        reply: What the leader answers; None if they are not sent, or were refused.
        refusal: Why the leader has refused them for the moment, if it has said so.
        ended: Set when the records are durable or refused.
    """

    def __init__(self, log: LogState, batches: Sequence[Batch], deadline: float) -> None:
        self.log = log
        self.batches = batches
        self.record_count = sum(header.count for header, _ in batches)
        self.size = sum(len(data) for _, data in batches)
        self.can_repeat = can_repeat(batches)
        self.deadline = deadline
        self.reply: Reply | None = None
        self.refusal: WebError | None = None
        self.ended = trio.Event()
        self._offset: int | None = None
        self._error: WebError | None = None

    def finish(self, offset: int | None) -> None:
        """Note the offset of the first record, which is durable."""
        self._offset = offset
        self.ended.set()

    def fail(self, error: WebError) -> None:
        """Note that the records are refused, or that nobody knows what has become of them."""
        self._error = error
        self.ended.set()

    async def wait_offset(self) -> int | None:
        """Wait until the records are durable, and return the offset of the first one; None if it is not known."""
        await self.ended.wait()
        if self._error is not None:
            raise self._error
        return self._offset


class RemoteAppends:
    """The records for one log that are on their way to its leader.

    Args:
        log: The log.
        leaders: Reaches the leader.
        append: Appends record batches if this broker has become the leader. Raises `WebError` if they are refused, and
            `NotLeaderError`. Returns None if they were appended long before.
        gone: Called with what has arrived or failed.
    """

    def __init__(
        self,
        log: LogState,
        leaders: Leaders,
        append: Callable[[LogState, Sequence[Batch]], AppendedBatches | None],
        gone: Callable[[RemoteAppend], None],
    ) -> None:
        self._log = log
        self._leaders = leaders
        self._append = append
        self._gone = gone
        self._pending: deque[RemoteAppend] = deque()
        self._changed = trio.Event()
        self._problem = "does not answer"

    def add(self, batches: Sequence[Batch]) -> RemoteAppend:
        """Add record batches behind those that are on their way."""
        added = RemoteAppend(self._log, batches, trio.current_time() + LEADER_WAIT_S)
        self._pending.append(added)
        self._changed.set()
        return added

    async def run(self) -> None:
        """Send what was added to the leader, until all of it has arrived or failed."""
        while self._pending:
            try:
                if self._log.leadership.is_led:
                    await self._append_here()
                elif self._log.is_gone:
                    self._pending[0].fail(topic_not_found(self._log.topic))
                else:
                    await self._leaders.until_moved(self._log, self._send_all, math.inf)
            except BrokerError as error:
                self._problem = str(error)
            self._forget_answers()
            self._fail_late()
            self._remove_ended()
            if self._pending and not self._log.leadership.is_led:
                await self._leaders.wait_moved(self._log, RETRY_S)

    async def _send_all(self, link: BrokerLink) -> None:
        """Send all records over a connection, and take the answers in their order.

        Returns when nothing is left, or when the leader accepts nothing at present.
        """
        while self._pending:
            self._changed = trio.Event()
            for each in self._pending:
                if each.reply is None:
                    data = b"".join([bytes(part) for _, part in each.batches])
                    each.reply = link.publish(self._log.topic, self._log.number, data, self._note_change)
            for each in list(self._pending):
                if each.reply is None or not each.reply.arrived.is_set():
                    break
                if not self._take_answer(each):
                    await self._take_other_answers()
                    return
            self._fail_late()
            self._remove_ended()
            if self._pending:
                with trio.move_on_at(self._pending[0].deadline):
                    await self._changed.wait()

    def _fail_late(self) -> None:
        """Give up records for which no leader was found in time, or that it does not answer."""
        now = trio.current_time()
        for each in self._pending:
            if each.ended.is_set() or now < each.deadline:
                continue
            if each.reply is not None and each.reply.is_sent and not each.can_repeat:
                each.fail(leader_changed(self._log))
            else:
                each.fail(each.refusal or self._leaders.unavailable(self._log, self._problem))

    def _note_change(self) -> None:
        self._changed.set()

    async def _take_other_answers(self) -> None:
        """Take the answers to all records that were sent, after the first of them were refused for the moment."""
        for each in list(self._pending):
            if each.reply is None:
                continue
            with trio.move_on_at(each.deadline):
                await each.reply.arrived.wait()
                self._take_answer(each, follows_refused=True)

    def _take_answer(self, each: RemoteAppend, *, follows_refused: bool = False) -> bool:
        """Take an answer that has arrived. Return False if the records are to be sent again."""
        assert each.reply is not None
        try:
            each.finish(each.reply.result())
        except WebError as error:
            is_gap = follows_refused and error.code == "conflict"
            is_refused_for_now = error.code in RETRIED or error.code == "leader_unavailable"
            if is_refused_for_now or (each.can_repeat and (is_gap or error.code == "leader_changed")):
                each.reply = None
                each.refusal = error if error.code == "leader_unavailable" else None
                return False
            each.fail(error)
        return True

    def _forget_answers(self) -> None:
        """Let records be sent again over another connection, except those that could then be appended twice."""
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
            if each.can_repeat or not reply.is_sent:
                each.reply = None
            else:
                each.fail(leader_changed(self._log))

    def _remove_ended(self) -> None:
        for each in self._pending:
            if each.ended.is_set():
                self._gone(each)
        self._pending = deque(each for each in self._pending if not each.ended.is_set())

    async def _append_here(self) -> None:
        """Append all records, because this broker has become the leader."""
        appended: list[tuple[RemoteAppend, AppendedBatches | None]] = []
        for each in self._pending:
            try:
                appended.append((each, self._append(self._log, each.batches)))
            except WebError as error:
                if error.code == "leader_unavailable":
                    each.refusal = error
                    break  # nothing may be appended before it
                each.fail(error)
            except NotLeaderError:
                break
        if not appended:
            await trio.sleep(RETRY_S)
        for each, here in appended:
            await self._wait_here(each, here)

    async def _wait_here(self, each: RemoteAppend, here: AppendedBatches | None) -> None:
        try:
            offset = -1 if here is None else await here.wait_offset()
        except NotLeaderError:
            if not each.can_repeat:
                each.fail(leader_changed(self._log))
        except TopicDeletedError:
            each.fail(topic_not_found(self._log.topic))
        else:
            each.finish(None if offset < 0 else offset)


def leader_changed(log: LogState) -> WebError:
    """Return the error that nobody knows whether records were published."""
    return WebError(
        "leader_changed",
        f"log {log.number} of the topic {log.topic!r} got another leader: the records may be published or not",
    )
