"""Stores with record batches: what they take, keep and send (docs/spec/record-batches.md)."""

from __future__ import annotations

from dafka_conformance.grammar.record_batches import ENVELOPE_MAGIC, read_content, read_envelope, write_content
from dafka_conformance.scenario import ScenarioRegistry
from dafka_conformance.scenarios._batches import (
    BOMB_S,
    COMPRESSIONS,
    MIXED,
    add_batch_producer,
    numbered,
    receive_sequences,
    repeat_until,
    report_singles,
    sent_clauses,
)
from dafka_conformance.scenarios._malformed_batches import NO_RECORD, bombs, malformed_batches
from dafka_conformance.scenarios._store import acknowledges, answers, ask, fetch_back, send_fetch
from dafka_conformance.testbed.batch_reader import BatchReader
from dafka_conformance.testbed.scripted_peer import ScriptedPeer
from dafka_conformance.testbed.testbed import Testbed

SCENARIOS = ScenarioRegistry()


async def _expect_ack(
    testbed: Testbed, producer: ScriptedPeer, sequence: int, clause: str, what: str, seconds: float | None = None
) -> None:
    matches = acknowledges(producer.partition, sequence)
    await testbed.expect("ACK", clause, matches, what=f"ACK of {sequence}, {what},", seconds=seconds)


async def _fetch_batches(testbed: Testbed, producer: ScriptedPeer, first: int, count: int) -> BatchReader:
    """Have a node with record batches fetch, and return its connection when all has arrived and is checked."""
    consumer = await testbed.add_peer("C")
    reader = await testbed.add_reader(("DIRECT-RECORD-BATCH", b""), ("DIRECT-RECORD", b""))
    await testbed.wait_subscribed(consumer, "FETCH", producer.address)
    await repeat_until(
        testbed,
        lambda: send_fetch(consumer, producer.partition, first, count),
        lambda: reader.has_batches or bool(reader.received),
    )
    report_singles(testbed, reader, "DIRECT-RECORD")
    await receive_sequences(testbed, reader, "DIRECT-RECORD-BATCH", "batch.fetched", range(first, first + count))
    return reader


@SCENARIOS.add("store.batch-subscriptions", "subscription.store.record-batch", "subscription.store.direct-record-batch")
async def batch_subscriptions(testbed: Testbed) -> None:
    """A store with record batches subscribes to both commands that carry them."""
    await add_batch_producer(testbed)


@SCENARIOS.add("store.batches", "batch.taken")
async def batches(testbed: Testbed) -> None:
    """A store saves and acknowledges the records of batches, also of batches and RECORDs that overlap, each once."""
    producer = await add_batch_producer(testbed)
    for first, end in ((0, 1), (1, 10), (10, 110), (100, 120)):
        producer.send_batch(first, numbered(producer, first, end))
        await _expect_ack(testbed, producer, end - 1, "batch.taken", f"sent in the batch {first}..{end - 1}")
    await producer.send_records(range(115, 125))
    await _expect_ack(testbed, producer, 124, "batch.taken", "sent singly after batches")
    consumer = await testbed.add_peer("C")
    await fetch_back(testbed, consumer, producer.partition, 0, 124, clause="batch.taken")


@SCENARIOS.add("store.batch-compressions", "batch.compressions")
async def batch_compressions(testbed: Testbed) -> None:
    """A store reads batches of all compressions."""
    producer = await add_batch_producer(testbed)
    for compression, name in enumerate(COMPRESSIONS):
        first = producer.partition.head + 1
        producer.send_batch(first, [*numbered(producer, first, first + 20), *MIXED], compression=compression)
        what = f"sent in a batch with the compression {name}"
        await _expect_ack(testbed, producer, producer.partition.head, "batch.compressions", what)
    consumer = await testbed.add_peer("C")
    await fetch_back(testbed, consumer, producer.partition, 0, producer.partition.head, clause="batch.compressions")


@SCENARIOS.add(
    "store.batch-fetched",
    "batch.fetched",
    "batch.no-record",
    "batch.subscribers-only",
    *sent_clauses("DIRECT-RECORD-BATCH"),
)
async def batch_fetched(testbed: Testbed) -> None:
    """A store answers a FETCH in batches, if the node that fetches has subscribed to them, and keeps all of records."""
    producer = await add_batch_producer(testbed)
    producer.send_batch(0, [*numbered(producer, 0, 20), *MIXED])
    await producer.send_records(range(27, 30))
    producer.send_batch(30, numbered(producer, 30, 50), compression=4)
    await _expect_ack(testbed, producer, 49, "batch.taken", "sent in a batch")
    place = len(testbed.received)
    reader = await _fetch_batches(testbed, producer, 3, 40)
    report_singles(testbed, reader, "DIRECT-RECORD")
    consumer = testbed.peers["C"]
    await testbed.wait(lambda: len(answers(testbed, consumer, producer.partition, place)) >= 40)
    singles = answers(testbed, consumer, producer.partition, place)
    text = "a connection that had subscribed to everything got no DIRECT-RECORDs, when another one got batches"
    testbed.check_clause("batch.subscribers-only", bool(singles), text, missing="DIRECT-RECORD")


@SCENARIOS.add("store.batch-gap", "batch.surplus")
async def batch_gap(testbed: Testbed) -> None:
    """A store takes what it misses from an answer in batches that begins before the gap and ends after it."""
    producer = await add_batch_producer(testbed)
    producer.send_batch(0, numbered(producer, 0, 5))
    await _expect_ack(testbed, producer, 4, "batch.taken", "sent in a batch")
    producer.add_records(30)
    producer.answers_requests = producer.answers_in_batches = True
    producer.send_batch(20, numbered(producer, 20, 25))
    await _expect_ack(testbed, producer, 24, "batch.surplus", "fetched in a batch with more records than requested")
    consumer = await testbed.add_peer("C")
    producer.answers_requests = False
    await fetch_back(testbed, consumer, producer.partition, 0, 24, clause="batch.surplus")


@SCENARIOS.add("store.batch-envelope", "envelope.sent", "envelope.value", "batch.records")
async def envelope(testbed: Testbed) -> None:
    """A store sends a record with more than a value in an envelope to a node without record batches."""
    producer = await add_batch_producer(testbed)
    producer.send_batch(0, MIXED)
    await _expect_ack(testbed, producer, len(MIXED) - 1, "batch.taken", "sent in a batch")
    consumer = await testbed.add_peer("C")
    # `MessageChecks` would report another content under direct-record.content: it is the envelope's clause here.
    testbed.message_checks.record_malformed()
    for each in await fetch_back(testbed, consumer, producer.partition, 0, len(MIXED) - 1):
        sequence, content = each.message.get_number("sequence"), each.message.get_bytes("content")
        sent, shown = MIXED[sequence], testbed.trace.show(content)
        if sent.has_only_value and not (sent.value or b"").startswith(ENVELOPE_MAGIC):
            text = f"record {sequence}, which is nothing but a value, was sent as the content {shown}"
            testbed.check_clause("envelope.value", content == sent.value, text, each.event)
        elif sent.has_only_value:
            found = read_envelope(content)
            text = f"record {sequence}, whose value begins with the magic, was sent as the content {shown}"
            testbed.check_clause("envelope.magic", found is not None and found.value == sent.value, text, each.event)
        else:
            text = f"record {sequence}, which has more than a value, was sent as the content {shown}"
            testbed.check_clause("envelope.sent", read_envelope(content) == sent, text, each.event)


@SCENARIOS.add("store.envelopes-taken", "envelope.taken", "envelope.malformed")
async def envelopes_taken(testbed: Testbed) -> None:
    """A store takes an envelope from a node without record batches for the record in it, and any other for a value."""
    producer = await add_batch_producer(testbed)
    partition = producer.partition
    contents = [write_content(record) for record in MIXED]
    broken = [ENVELOPE_MAGIC, ENVELOPE_MAGIC + b"text", contents[1][:-1], contents[1] + b"\0"]
    for sequence, content in enumerate(contents + broken):
        partition.add(sequence, content)
    await producer.send_records(range(len(partition.contents)))
    await _expect_ack(testbed, producer, partition.head, "envelope.taken", "sent as an envelope")
    reader = await testbed.add_reader(("DIRECT-RECORD-BATCH", b""))
    consumer = await testbed.add_peer("C")
    await ask(testbed, consumer, partition, 0, len(partition.contents))
    await repeat_until(
        testbed, lambda: send_fetch(consumer, partition, 0, len(partition.contents)), lambda: reader.has_batches
    )
    wanted = set(partition.contents)
    await testbed.wait(lambda: wanted <= {number for each in reader.received for number in each.sequences})
    for each in reader.messages("DIRECT-RECORD-BATCH"):
        assert each.batch is not None
        for sequence, record in zip(each.sequences, each.batch.records, strict=True):
            wanted.discard(sequence)
            sent = read_content(partition.contents[sequence])
            is_kept = (record.value, record.key, record.headers) == (sent.value, sent.key, sent.headers)
            clause = "envelope.taken" if sequence < len(contents) else "envelope.malformed"
            text = f"record {sequence} was sent as {testbed.trace.show(partition.contents[sequence])}, and is "
            testbed.check_clause(clause, is_kept, text + testbed.trace.show(record.value or b""), each.event)
    text = f"of {len(partition.contents)} records in envelopes, {len(wanted)} did not arrive in a DIRECT-RECORD-BATCH"
    testbed.require_clause("batch.fetched", not wanted, text, missing="DIRECT-RECORD-BATCH" if wanted else "")


@SCENARIOS.add("store.batch-malformed", "batch.malformed")
async def batch_malformed(testbed: Testbed) -> None:
    """A store discards malformed batches, and saves the valid records that follow with the same sequences."""
    producer = await add_batch_producer(testbed)
    faults: dict[int, str] = {}
    first = 0
    for fault, _ in malformed_batches(0):
        batch = dict(malformed_batches(first))[fault]
        faults[first] = fault
        producer.send_batch_bytes(batch, fault)
        producer.send_batch(first, numbered(producer, first, first + 5))
        first += 5
    await _expect_ack(testbed, producer, first - 1, "batch.malformed", "sent after malformed batches")
    consumer = await testbed.add_peer("C")
    for each in await fetch_back(testbed, consumer, producer.partition, 0, first - 1, clause="batch.malformed"):
        if NO_RECORD[2:-2] in each.message.get_bytes("content"):
            number = each.message.get_number("sequence") // 5 * 5
            text = f"a batch with {faults[number]} was not discarded: its records were saved"
            testbed.check_clause("batch.malformed", False, text, each.event)
            break
    testbed.check_running("batch.malformed")


@SCENARIOS.add("store.batch-bombs", "batch.bombs", runs_alone=True)
async def batch_bombs(testbed: Testbed) -> None:
    """A store discards batches that would become very large when decompressed, and continues."""
    producer = await add_batch_producer(testbed)
    for name, batch in bombs(0):
        producer.send_batch_bytes(batch, f"{len(batch):,} bytes of {name} data that become very large")
        first = producer.partition.head + 1
        producer.send_batch(first, numbered(producer, first, first + 5))
        what = f"sent after a batch of {name} data that becomes very large"
        await _expect_ack(testbed, producer, first + 4, "batch.bombs", what, BOMB_S)
    testbed.check_running("batch.bombs")
