"""Waiting for messages and deliveries of a target, with a mock clock."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
import trio.testing

from dafka_conformance.grammar import Message
from dafka_conformance.model import Check
from dafka_conformance.targets import Delivery
from dafka_conformance.testbed.expectations import DEFAULT_TIMEOUT_S, FINDINGS_MAX, CheckLog, Expectations, UnmetError
from dafka_conformance.testbed.trace import ReceivedMessage, Trace


class Listener(Expectations):
    """Expectations of a target that runs until the test ends it."""

    death = ""

    def exit_message(self, after: str = "") -> str:
        return self.death

    def hear_ack(self, sequence: int) -> None:
        message = Message("ACK", b"P", {"subject": b"hello", "sequence": sequence})
        place = self.trace.add_message("S", "P", message, [b"K"])
        self.received.append(ReceivedMessage(message, place, 0.0))
        self.notify()

    def deliver(self, *contents: bytes) -> None:
        self.delivered += [Delivery(content) for content in contents]
        self.notify()


@pytest.fixture
async def listener() -> Listener:
    await trio.lowlevel.checkpoint()
    return Listener(Trace(trio.current_time), 1.0)


def acks(sequence: int) -> Callable[[Message], bool]:
    return lambda message: message["sequence"] == sequence


async def test_expect_waits_for_a_later_message(listener: Listener, autojump_clock: trio.testing.MockClock) -> None:
    async def later() -> None:
        for sequence in range(3):
            await trio.sleep(DEFAULT_TIMEOUT_S / 4)
            listener.hear_ack(sequence)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(later)
        received = await listener.expect("ACK", "ack.sent", acks(2))
    assert received is listener.received[2]
    assert listener.checks == [Check("ack.sent", True)]


async def test_missing_message_violates_its_clause_and_shows_the_last_one(
    listener: Listener, autojump_clock: trio.testing.MockClock
) -> None:
    listener.hear_ack(1)
    begin = trio.current_time()
    with pytest.raises(UnmetError):
        await listener.expect("ACK", "ack.sent", acks(2), what="ACK of 2")
    assert trio.current_time() - begin == DEFAULT_TIMEOUT_S
    (check,) = listener.checks
    assert check.message == ("no ACK of 2 arrived within 8 s; the last ACK was topic=P subject=hello sequence=1")
    assert (check.event, listener.trace.events[0].fault) == (0, check.message)


async def test_earlier_messages_do_not_count(listener: Listener, autojump_clock: trio.testing.MockClock) -> None:
    listener.hear_ack(2)
    assert await listener.receive("ACK", acks(2), since=1, seconds=1) is None
    assert await listener.receive("ACK", acks(2)) is listener.received[0]


async def test_patience_multiplies_time_limits(autojump_clock: trio.testing.MockClock) -> None:
    listener = Listener(Trace(trio.current_time), 3.0)
    begin = trio.current_time()
    assert await listener.receive("ACK", seconds=2) is None
    assert trio.current_time() - begin == 6


async def test_dead_target_ends_the_wait_with_its_exit_reason(
    listener: Listener, autojump_clock: trio.testing.MockClock
) -> None:
    async def die() -> None:
        await trio.sleep(1)
        listener.death = "the store ended by itself: out of luck"
        listener.notify()

    begin = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(die)
        with pytest.raises(UnmetError):
            await listener.expect("ACK", "ack.sent")
    assert trio.current_time() - begin == 1
    assert listener.checks[0].message == "the store ended by itself: out of luck"


A, B, C, STRANGER = b"a", b"b", b"c", b"x"


@pytest.mark.parametrize(
    ("delivered", "clause", "message"),
    [
        ((A, STRANGER, B, C), "", ""),
        ((A, C), "delivery.complete", "1 of 3 records were not delivered, the first is b"),
        ((A, B, A, C), "delivery.once", "1 records were delivered more than once"),
        ((A, C, B), "delivery.in-order", "c was delivered, expected b"),
    ],
)
async def test_deliveries(
    delivered: tuple[bytes, ...], clause: str, message: str, listener: Listener, autojump_clock: trio.testing.MockClock
) -> None:
    listener.deliver(*delivered)
    if not clause:
        await listener.expect_delivered([A, B, C])
        assert all(check.holds for check in listener.checks)
        return
    with pytest.raises(UnmetError):
        await listener.expect_delivered([A, B, C])
    assert (listener.checks[-1].clause, listener.checks[-1].message) == (clause, message)


def test_faults_are_recorded_once_and_bounded() -> None:
    findings = CheckLog(Trace(lambda: 0.0))
    for number in range(FINDINGS_MAX + 5):
        for _ in range(2):
            place = findings.trace.add_note("something")
            findings.report_fault("ack.sent", f"wrong {number}", place)
    assert [check.message for check in findings.checks] == [f"wrong {number}" for number in range(FINDINGS_MAX)]
    assert all(event.fault for event in findings.trace.events)
