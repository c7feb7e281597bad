"""Helpers for scenarios of record batches: find out whether the target has them, and check those that it sends.

Record batches are optional. A target that never sends or requests any is not judged by these scenarios.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import trio

from dafka_conformance.grammar.record_batches import BATCH_OF, ENVELOPE_MAGIC, BatchRecord, read_content
from dafka_conformance.scenarios._producer import publish_numbered
from dafka_conformance.testbed.batch_reader import BatchReader, ReadMessage
from dafka_conformance.testbed.expectations import LacksError
from dafka_conformance.testbed.known_records import Partition, record_content
from dafka_conformance.testbed.scripted_peer import ScriptedPeer
from dafka_conformance.testbed.testbed import Testbed

SENT = (
    "grammar.{0}",
    "topic.{0}",
    "batch.format",
    "batch.crc",
    "batch.base-offset",
    "batch.deltas",
    "batch.records",
)

VALUE = b"v" * 200
MIXED = (
    BatchRecord(VALUE),
    BatchRecord(b"keyed", b"key", timestamp=1_700_000_000_000),
    BatchRecord(b"headed", None, ((b"h", b"1"), (b"h", None), (b"", b"")), 1_700_000_000_001),
    BatchRecord(None, b"deleted", timestamp=0),
    BatchRecord(b"", b"", ((b"name", b"value"),), -1),
    BatchRecord(ENVELOPE_MAGIC + b"no envelope"),
    BatchRecord(b"last"),
)
"""Records with everything that a record can have."""

ATTEMPTS_MAX = 8
ATTEMPT_S = 1.0
"""The wait for a first message on a new connection, whose subscriptions the target may not have processed before."""

COMPRESSIONS = ("none", "gzip", "snappy", "LZ4", "zstd")
"""The names of the compressions, in the order of their numbers."""

BOMB_S = 60.0
"""The wait for a target that decompresses a batch as far as it goes."""

GRACE_S = 1.0
"""The wait for record batches once single records have arrived, until the target is known to have none."""


def sent_clauses(name: str) -> tuple[str, ...]:
    """Return the clauses that `check_batch` checks for a message with this name."""
    return tuple(clause.format(name) for clause in SENT)


async def open_batch_writer(testbed: Testbed) -> BatchReader:
    """Return a connection to a producer that sends its records there in batches. Raise `LacksError` if it does not."""
    reader = await testbed.add_reader(("RECORD-BATCH", b""), ("RECORD", b""), ("HEAD", b""))
    for _ in range(ATTEMPTS_MAX):
        await publish_numbered(testbed, 1)
        if await testbed.wait(lambda: _has_records(reader), ATTEMPT_S):
            break
    await testbed.wait(lambda: reader.has_batches, GRACE_S)
    if not reader.has_batches:
        raise LacksError(f"the {testbed.role.title} sends no record batches")
    return reader


def numbered(producer: ScriptedPeer, first: int, end: int) -> list[BatchRecord]:
    """Return records with unique values for these sequences of a scripted producer."""
    return [BatchRecord(record_content(producer.address, sequence)) for sequence in range(first, end)]


async def add_batch_producer(testbed: Testbed) -> ScriptedPeer:
    """Add a producer with record batches. Raise `LacksError` if the target reads none."""
    producer = await testbed.add_peer("P")
    await require_batch_reader(testbed, producer)
    return producer


async def require_batch_reader(testbed: Testbed, peer: ScriptedPeer) -> None:
    """Wait until the target, a store or consumer, has subscribed to RECORD-BATCH at a peer.

    Args:
        testbed: The testbed.
        peer: The peer.

    Raises:
        LacksError: It subscribes to no record batches.
        UnmetError: It subscribes to one of the two commands alone.
    """
    await testbed.wait_subscribed(peer, "RECORD", peer.topic)
    names = tuple(BATCH_OF.values())
    await testbed.wait(lambda: any(map(peer.subscribed_topics, names)), GRACE_S)
    if not any(map(peer.subscribed_topics, names)):
        raise LacksError(f"the {testbed.role.title} subscribes to no record batches")
    for single, name in BATCH_OF.items():
        await testbed.wait(lambda single=single, name=name: _is_alike(peer, single, name))  # type: ignore[misc]
        lacking = peer.subscribed_topics(single) - peer.subscribed_topics(name)
        shown = " and ".join(testbed.trace.show(topic) if topic else "all topics" for topic in sorted(lacking))
        text = f"the {testbed.role.title} has subscribed to {single} for {shown}, but not to {name}"
        clause = f"subscription.{testbed.role.title}.{name.lower()}"
        testbed.require_clause(clause, not lacking, text)


async def receive_sequences(
    testbed: Testbed, reader: BatchReader, name: str, clause: str, sequences: range, since: int = 0
) -> list[ReadMessage]:
    """Wait for batches that have all these records, and check every batch so far.

    Args:
        testbed: The testbed.
        reader: The connection.
        name: The name of the messages.
        clause: The clause that demands the records.
        sequences: The records.
        since: The index in `received` of the reader at which to begin.

    Returns:
        The batches that have some of them.

    Raises:
        UnmetError: A record is missing.
    """
    missing = set(sequences)
    place = since

    def is_complete() -> bool:
        nonlocal place
        for each in reader.messages(name, place):
            missing.difference_update(each.sequences)
        place = len(reader.received)
        return not missing

    await testbed.wait(is_complete)
    found = reader.messages(name, since)
    for each in found:
        check_batch(testbed, each)
    text = f"of the records {sequences[0]}..{sequences[-1]}, {len(missing):,} did not arrive in a {name}"
    text += f", the first is {min(missing)}" if missing else ""
    testbed.require_clause(clause, not missing, testbed.exit_message() or text, missing="" if not missing else name)
    return [each for each in found if each.sequences[-1] >= sequences[0] and each.sequences[0] <= sequences[-1]]


def check_batch(testbed: Testbed, read: ReadMessage) -> None:
    """Check the address and the records of a batch against the records that the target has published or was sent."""
    message, batch = read.message, read.batch
    assert batch is not None
    address, subject = message.get_bytes("address"), message.get_bytes("subject")
    partition = testbed.known_records.partitions.get(address)
    topics = {subject} if message.name == "RECORD-BATCH" else testbed.message_checks.peers.keys()
    if partition is None or partition.topic != subject or message.topic not in topics:
        text = f"{message.name} is wrongly addressed: {testbed.describe(attrs.evolve(message, values=_header(read)))}"
        testbed.report_fault(f"topic.{message.name}", text, read.event, "topic")
        return
    for sequence, record in zip(read.sequences, batch.records, strict=True):
        content = partition.contents.get(sequence)
        if content is not None and is_same(record, read_content(content)):
            continue
        right = _find(partition, record)
        if right is not None:
            text = f"record {right} has the sequence {sequence} in a {message.name}: the base offset is wrong"
            testbed.report_fault("batch.base-offset", text, read.event, "sequence")
        else:
            text = f"record {sequence} has the value {_show(testbed, record)} in a {message.name}, "
            text += f"expected {_show(testbed, None if content is None else read_content(content))}"
            testbed.report_fault("batch.records", text, read.event, "content")
        return


def is_same(record: BatchRecord, other: BatchRecord) -> bool:
    """Return whether two records are the same. The time of one with only a value is lost where it is sent by itself."""
    if record.has_only_value and other.has_only_value:
        return record.value == other.value
    return record == other


async def repeat_until(testbed: Testbed, act: Callable[[], None], condition: Callable[[], bool]) -> bool:
    """Do something once a second until a condition holds, and return whether it holds."""
    for _ in range(ATTEMPTS_MAX):
        act()
        await trio.lowlevel.checkpoint()
        if await testbed.wait(condition, ATTEMPT_S):
            return True
    return condition()


def report_singles(testbed: Testbed, reader: BatchReader, name: str, since: int = 0) -> None:
    """Check that no message of RFC 46 with this name has arrived on a connection that gets batches instead."""
    singles = reader.messages(name, since)
    event = singles[0].event if singles else None
    text = f"{name} was sent to a connection that had subscribed to {BATCH_OF[name]}"
    testbed.check_clause("batch.no-record", not singles, text, event)


def _is_alike(peer: ScriptedPeer, single: str, name: str) -> bool:
    return peer.subscribed_topics(single) <= peer.subscribed_topics(name)


def _has_records(reader: BatchReader) -> bool:
    return reader.has_batches or bool(reader.messages("RECORD"))


def _header(read: ReadMessage) -> dict[str, bytes | int]:
    values = read.message.values
    fields = {name: value for name, value in values.items() if name != "content" and isinstance(value, bytes)}
    return {**fields, "sequence": read.sequences[0]}


def _find(partition: Partition, record: BatchRecord) -> int | None:
    """Return the sequence of a record of which there is only one in a partition; None if there is none or several."""
    found = [sequence for sequence, each in partition.contents.items() if is_same(record, read_content(each))]
    return found[0] if len(found) == 1 else None


def _show(testbed: Testbed, record: BatchRecord | None) -> str:
    if record is None:
        return "none, since there is no such record"
    shown = "null" if record.value is None else testbed.trace.show(record.value)
    if record.key is not None or record.headers:
        key = "none" if record.key is None else testbed.trace.show(record.key)
        shown += f" (key {key}, {len(record.headers)} headers, timestamp {record.timestamp})"
    return shown
