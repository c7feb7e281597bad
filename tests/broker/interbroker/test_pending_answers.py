"""Answers of other brokers to numbered requests."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from dafka.broker.coordinator.dead_letter_appends import LettersAppended
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.typed_json import encode_json
from dafka.broker.interbroker.messenger import BrokerMessenger
from dafka.broker.interbroker.pending_answers import PendingAnswers


async def test_a_request_gets_its_own_answer_only(autojump_clock: MockClock) -> None:
    """A broker that has started again can get late answers to the requests that it sent before."""
    messenger = BrokerMessenger("own", lambda _address, _data: None)
    former, present = (PendingAnswers(messenger, LettersAppended, 1.0) for _ in range(2))

    async def answer(number: int) -> None:
        await trio.testing.wait_all_tasks_blocked()
        message = LettersAppended(number, ErrorCode.NONE, "")
        messenger.process("other", encode_json({"kind": message.KIND, "fields": message}))

    async def is_answered(number: int, answered: int) -> bool:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer, answered)
            return await present.ask("other", number, []) is not None

    for _ in range(3):
        assert not await is_answered(present.next_number(), former.next_number())
    number = present.next_number()
    assert await is_answered(number, number)
