"""Helpers for producer scenarios: make the target publish, and fetch from it."""

from __future__ import annotations

from collections.abc import Sequence

from dafka_conformance.grammar import Message, Value
from dafka_conformance.targets.base import Ability
from dafka_conformance.testbed.known_records import record_content
from dafka_conformance.testbed.scripted_peer import ScriptedPeer
from dafka_conformance.testbed.testbed import Testbed

FED = (Ability.FEED,)


async def publish(testbed: Testbed, contents: Sequence[bytes], *, seconds: float | None = None) -> int:
    """Make the target publish records, and return the sequence of the first one."""
    first, place = testbed.message_checks.published_count(testbed.address), len(testbed.received)
    await testbed.feed(contents)
    last = first + len(contents) - 1
    await testbed.expect(
        "RECORD",
        "record.command",
        lambda message: message["sequence"] == last,
        since=place,
        seconds=seconds,
        what=f"RECORD {last}",
    )
    return first


async def publish_numbered(testbed: Testbed, count: int) -> int:
    """Make the target publish records with unique contents, as `publish` does."""
    first = testbed.message_checks.published_count(testbed.address)
    return await publish(testbed, [record_content(testbed.address, first + index) for index in range(count)])


async def fetch(testbed: Testbed, peer: ScriptedPeer, first: int, count: int, *, subject: bytes | None = None) -> int:
    """Send a FETCH from a peer, and return the index in `received` at which its answers start."""
    place = len(testbed.received)
    values: dict[str, Value] = {"address": peer.address, "subject": testbed.topic if subject is None else subject}
    await testbed.send(peer, "FETCH", testbed.address, **values, sequence=first, count=count)
    return place


async def expect_answer(
    testbed: Testbed, peer: ScriptedPeer, clause: str, first: int, count: int, place: int, after: str = ""
) -> None:
    """Wait for DIRECT-RECORDs of all these records. `MessageChecks` checks their order and contents.

    Args:
        testbed: The testbed.
        peer: The peer that sent the FETCH.
        clause: The clause that demands the answer.
        first: The first record.
        count: The number of records.
        place: The index in `received` at which the answers start.
        after: The messages before the FETCH that may prevent an answer, for the finding.
    """
    missing = set(range(first, first + count))
    since = place

    def is_complete() -> bool:
        nonlocal place
        for message in testbed.messages("DIRECT-RECORD", place):
            if message.topic == peer.address:
                missing.discard(message.get_number("sequence"))
        place = len(testbed.received)
        return not missing

    if not await testbed.wait(is_complete):
        testbed.check_running("robust.malformed" if after else clause)
        others = [message.get_number("sequence") for message in testbed.messages("DIRECT-RECORD", since)]
        found = f"; the last DIRECT-RECORD was {others[-1]}" if others else ""
        when = f" after {after}" if after else ""
        text = f"record {min(missing)}, fetched{when}, was not sent{found}"
        testbed.require_clause(clause, False, text, missing="DIRECT-RECORD")


def expect_records(testbed: Testbed, contents: Sequence[bytes]) -> None:
    """Check that the RECORDs so far are these records, in order."""
    messages = testbed.messages("RECORD")
    text = f"{len(messages):,} of {len(contents):,} records were published as RECORDs"
    testbed.require_clause("record.command", len(messages) == len(contents), text)
    for message, content in zip(messages, contents, strict=True):
        if message["content"] != content:
            expect_content(testbed, message, content)


def expect_content(testbed: Testbed, message: Message, content: bytes) -> None:
    """Check that a message has the content that the target was given."""
    found = message.get_bytes("content")
    shown = f"{testbed.trace.show(found)}, not {testbed.trace.show(content)}"
    text = f"{message.name} {message.get_number('sequence')} has the content {shown}"
    testbed.require_clause("record.command", found == content, text)


async def expect_no_answer(testbed: Testbed, peer: ScriptedPeer, clause: str, first: int, what: str) -> None:
    """Check that none of the nine records from `first` on was sent, after fetching the one after them as a barrier."""
    place = await fetch(testbed, peer, first + 9, 1)
    await expect_answer(testbed, peer, "direct-record.sent", first + 9, 1, place, what)
    for received in testbed.received[place:]:
        message = received.message
        if message.name == "DIRECT-RECORD" and message.get_number("sequence") < first + 9:
            testbed.check_clause(
                clause,
                False,
                f"{what} was answered with DIRECT-RECORD {message.get_number('sequence')}",
                received.event,
            )
            return
