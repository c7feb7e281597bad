"""Consumers with record batches: what they take (docs/spec/record-batches.md)."""

from __future__ import annotations

from collections.abc import Sequence

from dafka_conformance.grammar.record_batches import ENVELOPE_MAGIC, BatchRecord, write_content
from dafka_conformance.scenario import ScenarioRegistry
from dafka_conformance.scenarios._batches import BOMB_S, COMPRESSIONS, add_batch_producer, numbered
from dafka_conformance.scenarios._consumer import COLLECT
from dafka_conformance.scenarios._malformed_batches import NO_RECORD, bombs, malformed_batches
from dafka_conformance.testbed.known_records import record_content
from dafka_conformance.testbed.scripted_peer import ScriptedPeer
from dafka_conformance.testbed.testbed import Testbed

SCENARIOS = ScenarioRegistry()


async def _expect_values(
    testbed: Testbed, values: Sequence[bytes], clause: str, what: str, seconds: float | None = None
) -> None:
    """Check that exactly these values have been delivered so far."""
    await testbed.wait(lambda: len(testbed.delivered) >= len(values), seconds)
    found = [delivery.content for delivery in testbed.delivered]
    missing = [value for value in values if value not in found]
    first = f", such as {testbed.trace.show(missing[0])}" if missing else ""
    text = f"{len(missing)} of {len(values)} records {what} were not delivered{first}"
    testbed.require_clause(clause, not missing, testbed.exit_message() or text)
    wrong = next((value for value, wanted in zip(found, [*values, None], strict=False) if value != wanted), b"")
    text = f"records {what} were not delivered in order, once each: {testbed.trace.show(wrong)}"
    testbed.require_clause(clause, found == list(values), text)


def _contents(producer: ScriptedPeer, end: int) -> list[bytes]:
    return [record_content(producer.address, sequence) for sequence in range(end)]


@SCENARIOS.add(
    "consumer.batch-subscriptions",
    "subscription.consumer.record-batch",
    "subscription.consumer.direct-record-batch",
    needs=COLLECT,
)
async def batch_subscriptions(testbed: Testbed) -> None:
    """A consumer with record batches subscribes to both commands that carry them."""
    await add_batch_producer(testbed)


@SCENARIOS.add("consumer.batches", "batch.taken", needs=COLLECT)
async def batches(testbed: Testbed) -> None:
    """A consumer delivers the records of batches, also of batches and RECORDs that overlap, once each."""
    producer = await add_batch_producer(testbed)
    for first, end in ((0, 1), (1, 10), (10, 110), (100, 120)):
        producer.send_batch(first, numbered(producer, first, end))
    await producer.send_records(range(115, 125))
    producer.send_batch(125, numbered(producer, 125, 130))
    await _expect_values(testbed, _contents(producer, 130), "batch.taken", "sent in batches and singly")


@SCENARIOS.add("consumer.batch-compressions", "batch.compressions", needs=COLLECT)
async def batch_compressions(testbed: Testbed) -> None:
    """A consumer reads batches of all compressions."""
    producer = await add_batch_producer(testbed)
    for compression, name in enumerate(COMPRESSIONS):
        first = producer.partition.head + 1
        producer.send_batch(first, numbered(producer, first, first + 50), compression=compression)
        what = f"sent in batches, the last one with the compression {name},"
        await _expect_values(testbed, _contents(producer, first + 50), "batch.compressions", what)


@SCENARIOS.add("consumer.batch-fetched", "batch.surplus", needs=COLLECT)
async def batch_fetched(testbed: Testbed) -> None:
    """A consumer takes what it misses from an answer in batches that begins before the gap and ends after it."""
    producer = await add_batch_producer(testbed)
    producer.send_batch(0, numbered(producer, 0, 5))
    await _expect_values(testbed, _contents(producer, 5), "batch.taken", "sent in batches")
    producer.add_records(25)
    producer.answers_requests = producer.answers_in_batches = True
    producer.send_batch(20, numbered(producer, 20, 25))
    await testbed.expect("FETCH", "fetch.sent", lambda message: message.topic == producer.address)
    what = "fetched in a batch with more records than requested"
    await _expect_values(testbed, _contents(producer, 25), "batch.surplus", what)


@SCENARIOS.add("consumer.envelopes-taken", "envelope.taken", "envelope.malformed", needs=COLLECT)
async def envelopes_taken(testbed: Testbed) -> None:
    """A consumer takes an envelope from a node without record batches for the record in it, any other for a value."""
    producer = await add_batch_producer(testbed)
    # Its envelope has no byte that is a line feed, so that a target whose output is lines can print broken ones.
    records = [
        BatchRecord(b"with a key", b"key"),
        BatchRecord(b"headed", None, ((b"h", b"1"),), 1),
        BatchRecord(b"plain"),
    ]
    records.append(BatchRecord(ENVELOPE_MAGIC + b"value"))
    contents = [write_content(record) for record in records]
    for sequence, content in enumerate(contents):
        producer.partition.add(sequence, content)
    await producer.send_records(range(len(contents)))
    values = [record.value or b"" for record in records]
    await _expect_values(testbed, values, "envelope.taken", "sent in envelopes")
    broken = [ENVELOPE_MAGIC + b"text", contents[0][:-1], contents[0] + b"\0"]
    for sequence, content in enumerate(broken, len(contents)):
        producer.partition.add(sequence, content)
    await producer.send_records(range(len(contents), len(contents) + len(broken)))
    await _expect_values(testbed, values + broken, "envelope.malformed", "that begin as envelopes do")


@SCENARIOS.add("consumer.batch-malformed", "batch.malformed", needs=COLLECT)
async def batch_malformed(testbed: Testbed) -> None:
    """A consumer discards malformed batches, and delivers the valid records that follow with the same sequences."""
    producer = await add_batch_producer(testbed)
    for fault, _ in malformed_batches(0):
        first = producer.partition.head + 1
        producer.send_batch_bytes(dict(malformed_batches(first))[fault], fault)
        producer.send_batch(first, numbered(producer, first, first + 5))
        await testbed.wait(lambda count=first + 5: len(testbed.delivered) >= count)  # type: ignore[misc]
        taken = [each for each in testbed.delivered if NO_RECORD[2:-2] in each.content]
        text = f"a batch with {fault} was not discarded: its records were delivered"
        testbed.require_clause("batch.malformed", not taken, text)
        text = testbed.exit_message() or f"after a batch with {fault}, valid records were not delivered"
        testbed.require_clause("batch.malformed", len(testbed.delivered) >= first + 5, text)
    values = _contents(producer, producer.partition.head + 1)
    await _expect_values(testbed, values, "batch.malformed", "sent after malformed batches")
    testbed.check_running("batch.malformed")


@SCENARIOS.add("consumer.batch-bombs", "batch.bombs", needs=COLLECT, runs_alone=True)
async def batch_bombs(testbed: Testbed) -> None:
    """A consumer discards batches that would become very large when decompressed, and continues."""
    producer = await add_batch_producer(testbed)
    for name, batch in bombs(0):
        producer.send_batch_bytes(batch, f"{len(batch):,} bytes of {name} data that become very large")
        first = producer.partition.head + 1
        producer.send_batch(first, numbered(producer, first, first + 5))
        what = f"sent after a batch of {name} data that becomes very large"
        await _expect_values(testbed, _contents(producer, first + 5), "batch.bombs", what, BOMB_S)
    testbed.check_running("batch.bombs")
