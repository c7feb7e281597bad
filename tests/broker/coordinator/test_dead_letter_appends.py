"""Batches of dead letters for other leaders arrive whole and once, or not at all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from dafka.batches import encode_batch
from dafka.broker.coordinator import dead_letter_appends
from dafka.broker.coordinator.dead_letter_appends import AppendLetters, DeadLetterAppends, LettersRefused
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.log_table import LogTable
from dafka.broker.core.metadata.leader_and_isr import LeaderAndIsr
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.interbroker.messenger import Message
from dafka.broker.log.durable_waits import DurableWaits

BATCH = encode_batch(0, [b"letter %d" % number for number in range(20)], timestamps=0)
PIECES = 7


class Brokers:
    """A broker that has dead letters, and the leader of the log for them. One of the pieces can be lost."""

    def __init__(self) -> None:
        self.handlers: dict[tuple[str, type[Message]], Any] = {}
        self.lost: int | None = None
        self.sent = 0
        self.appended: list[bytes] = []
        self.all = {name: self._make(name) for name in ("here", "leader")}

    def _make(self, name: str) -> tuple[DeadLetterAppends, LogTable]:
        table, part = LogTable(name), self
        table.add_topic(Topic("dlq", "L", 2))
        table.logs("dlq")[1].leadership = LeaderAndIsr("leader", 1, is_led=name == "leader")

        def on(kind: type[Message], handler: Any) -> None:
            self.handlers[name, kind] = handler

        def send(to: str, message: Message) -> None:
            if isinstance(message, AppendLetters):
                self.sent += 1
                if self.sent - 1 == self.lost:
                    return
            self.handlers[to, type(message)](name, message)

        messenger: Any = SimpleNamespace(address=name, on=on, send=send)
        appender: Any = part
        return DeadLetterAppends(table, appender, DurableWaits(), messenger), table

    def check_size(self, _log: object, size: int) -> None:
        assert size == len(BATCH)

    @asynccontextmanager
    async def unpacked(self, _log: object, batches: Any, _source: str) -> AsyncIterator[tuple[Any, None]]:
        yield batches, None

    def append(self, log: Any, batches: Any, *, records: None) -> Any:
        assert (log.number, records) == (1, None)
        self.appended += [bytes(data) for _, data in batches]
        return SimpleNamespace(wait_offset=trio.lowlevel.checkpoint)


@pytest.mark.parametrize("lost", [None, *range(PIECES)])
@pytest.mark.parametrize("is_too_large", [False, True])
async def test_a_batch_in_pieces_is_appended_whole_or_not_at_all(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, lost: int | None, is_too_large: bool
) -> None:
    monkeypatch.setattr(dead_letter_appends, "PIECE_BYTES", -(-len(BATCH) // PIECES))
    monkeypatch.setattr(dead_letter_appends, "BATCH_BYTES_LIMIT", len(BATCH) - is_too_large)
    brokers = Brokers()
    (here, table), (leader, _) = brokers.all.values()
    brokers.lost = lost
    async with trio.open_nursery() as nursery:
        await nursery.start(leader.run)
        for is_again in (False, True):
            if is_too_large or (lost is not None and not is_again):
                with pytest.raises(LettersRefused) as refused:
                    await here.append("L", table.logs("dlq")[1], BATCH)
                assert refused.value.error_code is ErrorCode.REQUEST_TIMED_OUT
                assert brokers.appended == []
            else:
                await here.append("L", table.logs("dlq")[1], BATCH)
                assert brokers.appended.pop() == BATCH
                assert brokers.appended == []
        nursery.cancel_scope.cancel()
