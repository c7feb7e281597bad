"""Broken nodes with record batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import attrs
import pytest

from dafka import wire
from dafka.batches import (
    BatchHeader,
    Compression,
    check_crc,
    decode_run,
    encode_batch,
    encode_records,
    read_header,
    with_base_offset,
)
from dafka.errors import BatchError
from dafka.records import Partition, Record, RecordBatch
from dafka.transport import subscription_table
from dafka.wire import BATCH_COMMANDS, Command, RecordRun, batch, batch_runs, envelope
from dafka_conformance.grammar.record_batches import ENVELOPE_MAGIC
from dafka_conformance.model import Dialect
from tests.conformance.mutants import Mutant, mutants_of

Patch = pytest.MonkeyPatch
Frames = Sequence[bytes]

CRC_AT = 17
LARGE_BYTES = 2**20


# What is sent


def change_batches(change: Callable[[bytes], bytes], patch: Patch) -> None:
    """Change the content of every batch that is sent."""

    def encode(records: RecordBatch, *arguments: Any) -> tuple[bytes, ...]:
        return tuple(map(change, encode_records(records, *arguments)))

    patch.setattr(batch, "encode_records", encode)


def flip_crc(data: bytes) -> bytes:
    return data[:CRC_AT] + bytes([data[CRC_AT] ^ 1]) + data[CRC_AT + 1 :]


def shift_base_offset(data: bytes) -> bytes:
    return with_base_offset(data, int.from_bytes(data[:8], "big") + 1)


def change_frames(change: Callable[[Frames], Frames], patch: Patch) -> None:
    """Change the frames of every RECORD-BATCH and DIRECT-RECORD-BATCH."""
    encode = batch._encode_batches

    def encode_changed(*arguments: Any) -> Iterator[Frames]:
        return map(change, encode(*arguments))

    patch.setattr(batch, "_encode_batches", encode_changed)


def as_libdafka(frames: Frames) -> Frames:
    return [frames[0] + b"\0" + frames[1][3:], frames[2]]


def under_another_topic(frames: Frames) -> Frames:
    return [frames[0] + b"2", *frames[1:]]


def send_large_batches(patch: Patch) -> None:
    def encode(records: RecordBatch, compression: Any, _bytes_max: int) -> tuple[bytes, ...]:
        return encode_records(records, compression, LARGE_BYTES)

    patch.setattr(batch, "encode_records", encode)


def send_batches_to_all(patch: Patch) -> None:
    """Take a subscription to everything for one to batches."""
    patch.setattr(subscription_table, "_RFC46_COMMANDS", frozenset(command.value for command in Command))


def send_only_batches(patch: Patch) -> None:
    """Send no single records."""
    patch.setattr(batch, "_encode_run", lambda _run, _dialect: ())


def answer_only_singly(patch: Patch) -> None:
    """Answer no FETCH in batches."""
    encode = batch._encode_batches

    def encode_live(run: RecordRun, *arguments: Any) -> Iterator[Frames]:
        return encode(run, *arguments) if run.requestor is None else iter(())

    patch.setattr(batch, "_encode_batches", encode_live)


def answer_both(patch: Patch) -> None:
    """Answer a FETCH in batches and singly."""
    without = {batch.value: each.value for each, batch in BATCH_COMMANDS.items() if each is not Command.DIRECT_RECORD}
    patch.setattr(subscription_table, "_SINGLE_OF", without)
    patch.setattr(subscription_table, "_BATCH_OF", {value: key for key, value in without.items()})


def wrap_nothing(patch: Patch) -> None:
    """Send every record by itself as its value."""
    patch.setattr(batch, "wrap_records", lambda records: [value or b"" for value in records.values])


def leave_magic(patch: Patch) -> None:
    """Send a value that begins with the magic of an envelope as it is."""
    wrap = envelope._wrap

    def wrap_keyed(record: Record) -> bytes:
        is_keyed = record.key is not None or bool(record.headers)
        return wrap(record) if is_keyed or record.value is None else record.value

    patch.setattr(envelope, "_wrap", wrap_keyed)


def wrap_everything(patch: Patch) -> None:
    """Send every record by itself in an envelope."""

    def wrap(records: RecordBatch) -> list[bytes]:
        return [ENVELOPE_MAGIC + encode_batch(0, [value], timestamps=-1) for value in records.values]

    patch.setattr(batch, "wrap_records", wrap)


# What is taken


def take_with(take: Callable[[RecordBatch, bytes], RecordBatch], patch: Patch) -> None:
    """Take other records from a batch than those in it."""

    def decode(partition: Partition, batches: Sequence[tuple[BatchHeader, bytes]], **options: Any) -> RecordBatch:
        if len(batches) > 1:
            raise BatchError("batch", "one alone")  # each is then decoded alone
        return take(decode_run(partition, batches, **options), batches[0][1])

    patch.setattr(batch_runs, "decode_run", decode)


def take_no_zstd(records: RecordBatch, data: bytes) -> RecordBatch:
    if read_header(data).compression is Compression.ZSTD:
        raise BatchError("attributes", "another compression")
    return records


def take_all_but_last(records: RecordBatch, _data: bytes) -> RecordBatch:
    rest = records.between(records.first_sequence, records.end_sequence - (len(records) > 1))
    return attrs.evolve(rest, encoded=())


def take_values(records: RecordBatch, _data: bytes) -> RecordBatch:
    return RecordBatch(records.partition, records.first_sequence, [value or b"" for value in records.values])


def take_any_crc(patch: Patch) -> None:
    patch.setattr(batch_runs, "check_crc", lambda data, **_: read_header(data))


def end_at(is_fatal: Callable[[bytes], bool], patch: Patch) -> None:
    """End at malformed batches of some kind."""

    def check(data: bytes, **options: bool) -> BatchHeader:
        try:
            return check_crc(data, **options)
        except BatchError:
            if is_fatal(data):
                raise MemoryError from None
            raise

    def decode(partition: Partition, batches: Sequence[tuple[BatchHeader, bytes]], **options: Any) -> RecordBatch:
        try:
            return decode_run(partition, batches, **options)
        except BatchError:
            if any(is_fatal(data) for _, data in batches):
                raise MemoryError from None
            raise

    patch.setattr(batch_runs, "check_crc", check)
    patch.setattr(batch_runs, "decode_run", decode)


def is_large(data: bytes) -> bool:
    return len(data) > LARGE_BYTES


def take_no_surplus(patch: Patch) -> None:
    """Discard batches in answers that begin with records which were not requested."""
    decode = batch_runs.BatchRunDecoder._decode

    def decode_requested(
        self: batch_runs.BatchRunDecoder, run: batch_runs.BatchRun, batches: Sequence[tuple[BatchHeader, bytes]]
    ) -> RecordRun:
        decoded = decode(self, run, batches)
        if decoded.requestor is not None and decoded.batch.first_sequence == 0:
            raise BatchError("base offset", "the first requested sequence")
        return decoded

    patch.setattr(batch_runs.BatchRunDecoder, "_decode", decode_requested)


def subscribe_without(command: Command, patch: Patch) -> None:
    """Subscribe to all commands but one."""
    with_batches = wire.with_batches

    def without(prefix: bytes) -> tuple[bytes, ...]:
        return tuple(each for each in with_batches(prefix) if each[:1] != command.value)

    patch.setattr(wire, "with_batches", without)


def take_envelopes_as_values(patch: Patch) -> None:
    patch.setattr(batch, "unwrap_records", RecordBatch)


def empty_broken_envelopes(patch: Patch) -> None:
    """Take a content that only begins as an envelope does for an empty value."""
    unwrap = envelope._unwrap

    def unwrap_any(partition: Partition, sequence: int, content: bytes) -> Record:
        record = unwrap(partition, sequence, content)
        is_broken = content.startswith(ENVELOPE_MAGIC) and record.value == content
        return attrs.evolve(record, value=b"") if is_broken else record

    patch.setattr(envelope, "_unwrap", unwrap_any)


def reader_mutants(role: str, *others: tuple[str, str, str, str, Callable[[Patch], None]]) -> list[Mutant]:
    """Return the mutants that stores and consumers have in common, and others of one of them."""
    single, direct = Command.RECORD_BATCH, Command.DIRECT_RECORD_BATCH
    subscription = f"subscription.{role}"
    faults: list[tuple[str, str, str, str, Callable[[Patch], None]]] = [
        (
            "subscribes-to-no-batch",
            "batch-subscriptions",
            f"{subscription}.record-batch",
            "but not to RECORD-BATCH",
            partial(subscribe_without, single),
        ),
        (
            "subscribes-to-no-direct-batch",
            "batch-subscriptions",
            f"{subscription}.direct-record-batch",
            "but not to DIRECT-RECORD-BATCH",
            partial(subscribe_without, direct),
        ),
        ("reads-no-zstd", "batch-compressions", "batch.compressions", "zstd", partial(take_with, take_no_zstd)),
        ("leaves-out-last", "batches", "batch.taken", "sent in", partial(take_with, take_all_but_last)),
        ("takes-any-crc", "batch-malformed", "batch.malformed", "was not discarded", take_any_crc),
        (
            "ends-at-malformed-batch",
            "batch-malformed",
            "batch.malformed",
            f"the {role} ended by itself",
            partial(end_at, bool),
        ),
        ("ends-at-bomb", "batch-bombs", "batch.bombs", f"the {role} ended by itself", partial(end_at, is_large)),
        ("takes-envelopes-as-values", "envelopes-taken", "envelope.taken", "", take_envelopes_as_values),
        ("empties-broken-envelopes", "envelopes-taken", "envelope.malformed", "", empty_broken_envelopes),
        *others,
    ]
    return [
        Mutant(f"{role}-{fault}", f"{role}.{scenario}", clause, message, apply)
        for fault, scenario, clause, message, apply in faults
    ]


producer_mutant = mutants_of("producer")

MUTANTS = [
    *reader_mutants(
        "store",
        ("takes-no-surplus", "batch-gap", "batch.surplus", "no ACK of 24", take_no_surplus),
        ("takes-values-only", "batch-envelope", "envelope.sent", "has more than a", partial(take_with, take_values)),
        ("drops-keys", "batch-fetched", "batch.records", "has the value", partial(take_with, take_values)),
        ("sends-values-only", "batch-envelope", "envelope.sent", "has more than a value", wrap_nothing),
        ("sends-magic-as-it-is", "batch-envelope", "envelope.magic", "begins with the magic", leave_magic),
        ("wraps-everything", "batch-envelope", "envelope.value", "is nothing but a value", wrap_everything),
        ("answers-no-batch", "batch-fetched", "batch.fetched", "did not arrive", answer_only_singly),
        ("answers-with-both", "batch-fetched", "batch.no-record", "had subscribed to DIRECT-RECORD-BATCH", answer_both),
        ("batches-to-all", "batch-fetched", "batch.subscribers-only", "subscribed to everything", send_batches_to_all),
        ("sends-only-batches", "batch-fetched", "batch.subscribers-only", "got no DIRECT-RECORDs", send_only_batches),
        (
            "batches-one-too-far",
            "batch-fetched",
            "batch.base-offset",
            "the base offset is wrong",
            partial(change_batches, shift_base_offset),
        ),
        ("batches-with-wrong-crc", "batch-fetched", "batch.crc", "the CRC of the", partial(change_batches, flip_crc)),
        (
            "batches-as-libdafka",
            "batch-fetched",
            "grammar.DIRECT-RECORD-BATCH",
            "has 2 frames",
            partial(change_frames, as_libdafka),
        ),
    ),
    *reader_mutants(
        "consumer",
        ("takes-no-surplus", "batch-fetched", "batch.surplus", "fetched in a batch with more records", take_no_surplus),
    ),
    producer_mutant(
        "batches-as-libdafka",
        "batches",
        "grammar.RECORD-BATCH",
        "has 2 frames",
        partial(change_frames, as_libdafka),
        Dialect.LIBDAFKA,
    ),
    producer_mutant(
        "batches-under-another-topic",
        "batches",
        "topic.RECORD-BATCH",
        "is wrongly addressed",
        partial(change_frames, under_another_topic),
    ),
    producer_mutant("batches-in-large", "batch-size", "batch.size", "bytes of records", send_large_batches),
]
