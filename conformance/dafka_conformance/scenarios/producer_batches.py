"""Producers with record batches: what they send to whom (docs/spec/record-batches.md)."""

from __future__ import annotations

from dafka_conformance.grammar import Value
from dafka_conformance.grammar.record_batches import ENVELOPE_MAGIC, BatchRecord, read_envelope
from dafka_conformance.scenario import ScenarioRegistry
from dafka_conformance.scenarios._batches import (
    ATTEMPT_S,
    ATTEMPTS_MAX,
    open_batch_writer,
    receive_sequences,
    repeat_until,
    report_singles,
    sent_clauses,
)
from dafka_conformance.scenarios._producer import FED, expect_answer, publish, publish_numbered
from dafka_conformance.testbed.known_records import record_content
from dafka_conformance.testbed.testbed import Testbed

SCENARIOS = ScenarioRegistry()

MANY_COUNT = 300
ROUNDS = 5
BATCH_BYTES_MAX = 64 * 1024
COMPRESSED_BYTES_MAX = 512 * 1024
LARGE_BYTES = 4096
LARGE_COUNT = 64
HEAD_S = 10.0


@SCENARIOS.add("producer.batches", *sent_clauses("RECORD-BATCH"), needs=FED)
async def batches(testbed: Testbed) -> None:
    """A producer sends its records in batches to a connection that subscribed to them, with the same sequences."""
    reader = await open_batch_writer(testbed)
    first = testbed.message_checks.published_count(testbed.address)
    since = len(reader.received)
    for count in (1, 3, MANY_COUNT):
        await publish_numbered(testbed, count)
    sequences = range(first, first + 4 + MANY_COUNT)
    found = await receive_sequences(testbed, reader, "RECORD-BATCH", "batch.records", sequences, since)
    arrived = [sequence for each in found for sequence in each.sequences]
    text = "the records of the batches are not in ascending order, once each"
    testbed.check_clause("batch.records", arrived == list(sequences), text, found[0].event)


@SCENARIOS.add("producer.batch-subscribers", "batch.no-record", "batch.subscribers-only", needs=FED)
async def batch_subscribers(testbed: Testbed) -> None:
    """A connection that subscribes to RECORD-BATCH gets no RECORD, in whichever order it subscribes to both."""
    reader = await open_batch_writer(testbed)
    late = await testbed.add_reader(("RECORD", testbed.topic), ("RECORD-BATCH", testbed.topic), ("HEAD", testbed.topic))
    # A HEAD on the connection shows that the target has processed the subscriptions before it.
    is_ready = await testbed.wait(lambda: bool(late.messages("HEAD")), HEAD_S)
    testbed.require_clause("head.interval", is_ready, "no HEAD arrived on a new connection", missing="HEAD")
    since = len(late.received)
    single = await testbed.add_reader(("RECORD", testbed.topic))
    first = testbed.message_checks.published_count(testbed.address)
    for _ in range(ATTEMPTS_MAX):
        await publish_numbered(testbed, ROUNDS)
        if await testbed.wait(lambda: bool(single.received), ATTEMPT_S):
            break
    text = "no RECORD was sent to a connection that had not subscribed to RECORD-BATCH"
    testbed.check_clause("batch.subscribers-only", bool(single.messages("RECORD")), text)
    sequences = range(first, testbed.message_checks.published_count(testbed.address))
    await receive_sequences(testbed, late, "RECORD-BATCH", "batch.records", sequences, since)
    await receive_sequences(testbed, reader, "RECORD-BATCH", "batch.records", sequences)
    heads = len(reader.messages("HEAD"))
    await testbed.wait(lambda: len(reader.messages("HEAD")) > heads, HEAD_S)
    report_singles(testbed, reader, "RECORD")
    report_singles(testbed, late, "RECORD", since)


@SCENARIOS.add(
    "producer.batch-fetched", "batch.fetched", "batch.no-record", *sent_clauses("DIRECT-RECORD-BATCH"), needs=FED
)
async def batch_fetched(testbed: Testbed) -> None:
    """A producer answers a FETCH in batches, if the node that fetches has subscribed to them, and else one by one."""
    await open_batch_writer(testbed)
    first = await publish_numbered(testbed, MANY_COUNT)
    peer = await testbed.add_peer("C")
    reader = await testbed.add_reader(("DIRECT-RECORD-BATCH", b""), ("DIRECT-RECORD", b""))
    await testbed.wait_subscribed(peer, "FETCH", testbed.address)
    place = len(testbed.received)
    values: dict[str, Value] = {"address": peer.address, "subject": testbed.topic, "sequence": first + 5, "count": 20}
    await repeat_until(
        testbed,
        lambda: peer.send("FETCH", testbed.address, values),
        lambda: reader.has_batches or bool(reader.received),
    )
    await expect_answer(testbed, peer, "direct-record.sent", first + 5, 20, place)
    report_singles(testbed, reader, "DIRECT-RECORD")
    sequences = range(first + 5, first + 25)
    await receive_sequences(testbed, reader, "DIRECT-RECORD-BATCH", "batch.fetched", sequences)
    report_singles(testbed, reader, "DIRECT-RECORD")


@SCENARIOS.add("producer.batch-size", "batch.size", needs=FED)
async def batch_size(testbed: Testbed) -> None:
    """A batch has at most 64 KiB of records, or 512 KiB before they are compressed, unless it has only one."""
    reader = await open_batch_writer(testbed)
    first, since = testbed.message_checks.published_count(testbed.address), len(reader.received)
    contents = [record_content(testbed.address, first + index).ljust(LARGE_BYTES) for index in range(LARGE_COUNT)]
    contents.append(b"x" * 2 * BATCH_BYTES_MAX)
    await publish(testbed, contents)
    sequences = range(first, first + len(contents))
    for each in await receive_sequences(testbed, reader, "RECORD-BATCH", "batch.records", sequences, since):
        assert each.batch is not None
        size = sum(len(record.value or b"") for record in each.batch.records)
        text = f"a batch has {size:,} bytes of records"
        limit = COMPRESSED_BYTES_MAX if each.batch.compression else BATCH_BYTES_MAX
        holds = size <= limit or len(each.batch.records) == 1
        if not testbed.check_clause("batch.size", holds, text, each.event):
            break


@SCENARIOS.add("producer.batch-envelope", "envelope.magic", "envelope.value", "batch.records", needs=FED)
async def envelope(testbed: Testbed) -> None:
    """A value that begins as an envelope does is sent in an envelope to nodes without record batches."""
    reader = await open_batch_writer(testbed)
    first = testbed.message_checks.published_count(testbed.address)
    values = [ENVELOPE_MAGIC + b"value", b"plain", ENVELOPE_MAGIC, b"", ENVELOPE_MAGIC[:3]]
    place, since = len(testbed.received), len(reader.received)
    await publish(testbed, values)
    for value, received in zip(
        values, (each for each in testbed.received[place:] if each.message.name == "RECORD"), strict=True
    ):
        content, shown = received.message.get_bytes("content"), testbed.trace.show(value)
        if not value.startswith(ENVELOPE_MAGIC):
            text = f"the value {shown} was sent as the content {testbed.trace.show(content)}"
            testbed.check_clause("envelope.value", content == value, text, received.event)
            continue
        record = read_envelope(content)
        text = f"the value {shown} was sent as the content {testbed.trace.show(content)}, not in an envelope"
        holds = record is not None and (record.value, record.key, record.headers) == (value, None, ())
        testbed.check_clause("envelope.magic", holds, text, received.event)
    sequences = range(first, first + len(values))
    found = await receive_sequences(testbed, reader, "RECORD-BATCH", "batch.records", sequences, since)
    sent: list[BatchRecord] = [record for each in found if each.batch for record in each.batch.records]
    text = "the values in a RECORD-BATCH are not those that were published: a batch needs no envelope"
    testbed.check_clause("batch.records", [record.value for record in sent] == values, text, found[0].event)
