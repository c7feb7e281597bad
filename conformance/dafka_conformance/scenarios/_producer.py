"""What the scenarios for producers have in common: to make the target publish, and to fetch from it."""

from __future__ import annotations

from collections.abc import Sequence

from dafka_conformance.grammar import Message, Value
from dafka_conformance.stage.ledger import content_of
from dafka_conformance.stage.peer import Peer
from dafka_conformance.stage.stage import Stage
from dafka_conformance.targets.base import Ability

FED = (Ability.FEED,)


async def publish(stage: Stage, contents: Sequence[bytes], *, seconds: float | None = None) -> int:
    """The target publishes these; gives the first one's sequence. Raises `UnmetError` where it does not."""
    first, place = stage.watch.published(stage.address), len(stage.heard)
    await stage.feed(contents)
    last = first + len(contents) - 1
    await stage.expect(
        "RECORD",
        "record.command",
        lambda message: message["sequence"] == last,
        since=place,
        seconds=seconds,
        what=f"RECORD {last}",
    )
    return first


async def publish_numbered(stage: Stage, count: int) -> int:
    """As `publish`, with contents that tell which record each is."""
    first = stage.watch.published(stage.address)
    return await publish(stage, [content_of(stage.address, first + index) for index in range(count)])


async def fetch(stage: Stage, peer: Peer, first: int, count: int, *, subject: bytes | None = None) -> int:
    """A played node sends a FETCH; gives the place from which on its answers are heard."""
    place = len(stage.heard)
    values: dict[str, Value] = {"address": peer.address, "subject": stage.topic if subject is None else subject}
    await stage.say(peer, "FETCH", stage.address, **values, sequence=first, count=count)
    return place


async def expect_answer(
    stage: Stage, peer: Peer, clause: str, first: int, count: int, place: int, after: str = ""
) -> None:
    """Each of these records comes as a DIRECT-RECORD; what else is to be said of them, the watch says.

    Raises `UnmetError`. `after`: what came before, which may be why they do not come.
    """
    missing = set(range(first, first + count))
    since = place

    def look() -> bool:
        nonlocal place
        for message in stage.all_heard("DIRECT-RECORD", place):
            if message.topic == peer.address:
                missing.discard(message.number("sequence"))
        place = len(stage.heard)
        return not missing

    if not await stage.wait(look):
        stage.check_alive("robust.malformed" if after else clause)
        others = [message.number("sequence") for message in stage.all_heard("DIRECT-RECORD", since)]
        found = f"; the last DIRECT-RECORD that did come is {others[-1]}" if others else ""
        when = f" after {after}" if after else ""
        stage.require(clause, False, f"record {min(missing)}, fetched{when}, was not sent{found}")


def expect_content(stage: Stage, message: Message, content: bytes) -> None:
    """What was published is what was given."""
    found = message.octets("content")
    shown = f"{stage.trace.show(found)}, not {stage.trace.show(content)}"
    text = f"{message.name} {message.number('sequence')} has the content {shown}"
    stage.require("record.command", found == content, text)


async def expect_no_answer(stage: Stage, peer: Peer, clause: str, first: int, what: str) -> None:
    """The records from `first` to 8 after it were not sent; the one after them is fetched to be sure."""
    place = await fetch(stage, peer, first + 9, 1)
    await expect_answer(stage, peer, "direct-record.sent", first + 9, 1, place, what)
    for heard in stage.heard[place:]:
        message = heard.message
        if message.name == "DIRECT-RECORD" and message.number("sequence") < first + 9:
            stage.check(
                clause, False, f"{what} was answered with DIRECT-RECORD {message.number('sequence')}", heard.event
            )
            return
