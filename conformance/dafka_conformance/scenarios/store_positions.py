"""Stores that find records by time (docs/spec/positions-by-time.md)."""

from __future__ import annotations

import time

import attrs

from dafka_conformance.grammar.positions import HOLDS_NONE
from dafka_conformance.grammar.record_batches import BatchRecord
from dafka_conformance.scenario import ScenarioRegistry
from dafka_conformance.scenarios._batches import GRACE_S, add_batch_producer, repeat_until
from dafka_conformance.scenarios._store import acknowledges, save
from dafka_conformance.testbed.batch_reader import BatchReader, ReadMessage
from dafka_conformance.testbed.expectations import LacksError
from dafka_conformance.testbed.known_records import Partition, record_content
from dafka_conformance.testbed.scripted_peer import ScriptedPeer
from dafka_conformance.testbed.testbed import Testbed

SCENARIOS = ScenarioRegistry()

HOUR_MS = 3_600_000
BEGIN_MS = 1_700_000_000_000


@attrs.frozen
class _Asker:
    """A scripted consumer that asks a store, and the connection on which it gets the answers."""

    testbed: Testbed
    peer: ScriptedPeer
    reader: BatchReader
    store: bytes

    async def ask(self, partition: Partition, time_ms: int) -> ReadMessage:
        """Ask where a partition continues from a time on. Raise `UnmetError` if there is no answer."""

        def find() -> ReadMessage | None:
            wanted = (self.peer.address, partition.address, partition.topic, time_ms)
            for each in self.reader.messages("DIRECT-POSITION"):
                message = each.message
                if (message.topic, message["partition"], message["subject"], message["time"]) == wanted:
                    return each
            return None

        await repeat_until(
            self.testbed,
            lambda: self.peer.ask_position(self.store, partition, time_ms),
            lambda: find() is not None,
        )
        found = find()
        text = f"no DIRECT-POSITION of the partition and the time {time_ms} that GET-POSITION names arrived"
        text = self.testbed.exit_message() or text
        self.testbed.require_clause("position.answered", found is not None, text, missing="DIRECT-POSITION")
        assert found is not None
        address = found.message["address"]
        text = f"DIRECT-POSITION names the store {self.testbed.trace.show(found.message.get_bytes('address'))}"
        self.testbed.check_clause("position.answered", address == self.store, text, found.event)
        return found

    async def check(self, clause: str, partition: Partition, time_ms: int, sequence: int, end: int, what: str) -> None:
        """Ask, and check the answer."""
        answer = await self.ask(partition, time_ms)
        found = answer.message.get_number("sequence"), answer.message.get_number("end")
        text = f"the answer is the sequence {found[0]} and the end {found[1]} {what}, expected {sequence} and {end}"
        self.testbed.check_clause(clause, found == (sequence, end), text, answer.event)


async def _open_asker(testbed: Testbed) -> _Asker:
    """Return a consumer that may ask the target. Raise `LacksError` if the target answers no such questions."""
    peer = await testbed.add_peer("C")
    await testbed.wait_subscribed(peer, "FETCH", peer.address)
    await testbed.wait(lambda: bool(peer.subscribed_topics("GET-POSITION")), GRACE_S)
    stores = peer.subscribed_topics("GET-POSITION")
    if not stores:
        raise LacksError("the store does not subscribe to GET-POSITION")
    own = stores & set(testbed.nodes)
    text = "the store has subscribed to GET-POSITION, but not with its own address"
    testbed.require_clause("subscription.store.get-position", bool(own), text)
    reader = await testbed.add_reader(("DIRECT-POSITION", peer.address))
    return _Asker(testbed, peer, reader, min(own))


@SCENARIOS.add(
    "store.positions",
    "subscription.store.get-position",
    "position.first",
    "position.answered",
    "grammar.DIRECT-POSITION",
)
async def positions(testbed: Testbed) -> None:
    """A store finds the first record made at a time or later, also if the times of records do not ascend."""
    asker = await _open_asker(testbed)
    producer = await add_batch_producer(testbed)
    partition = producer.partition
    minutes = (0, 5, 1, 9, 3)
    records = [
        BatchRecord(record_content(producer.address, number), timestamp=BEGIN_MS + 60_000 * minute)
        for number, minute in enumerate(minutes)
    ]
    producer.send_batch(0, records)
    await testbed.expect("ACK", "batch.taken", acknowledges(partition, 4), what="ACK of 4")
    for half_minutes, sequence in ((0, 0), (1, 1), (2, 1), (10, 1), (11, 3), (18, 3), (19, HOLDS_NONE)):
        what = f"for records of the minutes {minutes} and the time at {half_minutes / 2:g} minutes"
        await asker.check("position.first", partition, BEGIN_MS + 30_000 * half_minutes, sequence, 5, what)


@SCENARIOS.add("store.positions-stored", "position.stored", "position.none")
async def positions_stored(testbed: Testbed) -> None:
    """A record without a timestamp has the time at which it was stored, and later times have no record."""
    asker = await _open_asker(testbed)
    producer = await testbed.add_peer("P")
    await save(testbed, producer, 0, 9)
    now_ms = int(time.time() * 1000)
    stored = "for records that were just stored, and a time an hour before"
    await asker.check("position.stored", producer.partition, now_ms - HOUR_MS, 0, 10, stored)
    later = "for records that were just stored, and a time an hour later"
    await asker.check("position.none", producer.partition, now_ms + HOUR_MS, HOLDS_NONE, 10, later)


@SCENARIOS.add("store.positions-unknown", "position.unknown")
async def positions_unknown(testbed: Testbed) -> None:
    """A store answers about a partition that it does not hold."""
    asker = await _open_asker(testbed)
    unknown = Partition(b"0" * 32, testbed.topic)
    await asker.check("position.unknown", unknown, BEGIN_MS, HOLDS_NONE, 0, "for a partition that nobody has sent")


@SCENARIOS.add("store.positions-subscribers", "position.subscribers-only")
async def positions_subscribers(testbed: Testbed) -> None:
    """A store sends no answer to a node that has not subscribed to it with its address."""
    asker = await _open_asker(testbed)
    stranger = await testbed.add_peer("C2")
    partition = Partition(b"0" * 32, testbed.topic)
    await testbed.wait(lambda: asker.store in stranger.subscribed_topics("GET-POSITION"))
    for _ in range(3):
        stranger.ask_position(asker.store, partition, BEGIN_MS)
        await asker.ask(partition, BEGIN_MS)
    is_silent = stranger.address not in testbed.message_checks.positioned
    text = "DIRECT-POSITION was sent to C2, which has not subscribed to it"
    testbed.check_clause("position.subscribers-only", is_silent, text)
