"""Answers of scripted peers to a target that asks more than once."""

from __future__ import annotations

from collections import Counter

import trio
import trio.testing

from dafka_conformance.grammar import Grammar, Message, Value
from dafka_conformance.model import Dialect, Role
from dafka_conformance.testbed.known_records import KnownRecords
from dafka_conformance.testbed.message_checks import MessageChecks
from dafka_conformance.testbed.network import Loopback
from dafka_conformance.testbed.scripted_peer import ScriptedPeer
from dafka_conformance.testbed.trace import Trace

GRAMMAR = Grammar.load()
OTHER = b"B" * 32


class SlowPeer(ScriptedPeer):
    """A producer whose answers wait until they may go on, and are noted in place of sent."""

    def __init__(self) -> None:
        trace, known = Trace(lambda: 0.0), KnownRecords()
        super().__init__(
            "P",
            Role.PRODUCER,
            b"orders",
            loopback=Loopback(),
            grammar=GRAMMAR,
            dialect=Dialect.RFC46,
            trace=trace,
            message_checks=MessageChecks(GRAMMAR, Role.STORE, Dialect.RFC46, known, trace, lambda *_, **__: None),
            known_records=known,
            changed=lambda: None,
            target_label="S",
        )
        self.answered: list[tuple[str, bytes, int]] = []
        self.running: Counter[bytes] = Counter()
        self.may_go_on = trio.Event()

    async def answer_request(self, message: Message) -> None:
        requestor = message.get_bytes("address")
        self.running[requestor] += 1
        assert self.running[requestor] == 1
        await self.may_go_on.wait()
        self.running[requestor] -= 1
        self.answered.append((message.name, requestor, message.get_number("sequence")))


def fetch(peer: ScriptedPeer, sequence: int, count: int = 100, requestor: bytes = b"A" * 32) -> Message:
    values: dict[str, Value] = {"address": requestor, "subject": b"orders", "sequence": sequence, "count": count}
    return Message("FETCH", peer.address, values)


async def test_repeated_requests_are_answered_once_and_in_turn() -> None:
    """A peer that answered each repetition at once would never stop sending a busy store the same records."""
    peer = SlowPeer()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.run)
        await trio.testing.wait_all_tasks_blocked()
        for sequence in (0, 10, 20, 30):
            peer.start_answer(fetch(peer, sequence))  # the first is being answered, each other replaces the one before
            await trio.testing.wait_all_tasks_blocked()
        peer.start_answer(fetch(peer, 130))  # other records: the next page
        peer.start_answer(fetch(peer, 7, requestor=OTHER))
        for _ in range(2):
            peer.start_answer(Message("GET-HEADS", b"orders", {"address": OTHER}))
        await trio.testing.wait_all_tasks_blocked()
        peer.may_go_on.set()
        await trio.testing.wait_all_tasks_blocked()
        peer.start_answer(fetch(peer, 0))  # nothing is waiting any more
        await trio.testing.wait_all_tasks_blocked()
        peer.close()
    first = [sequence for name, requestor, sequence in peer.answered if requestor != OTHER]
    assert first == [0, 30, 130, 0]
    assert [(name, sequence) for name, requestor, sequence in peer.answered if requestor == OTHER] == [
        ("FETCH", 7),
        ("GET-HEADS", 0),
    ]
