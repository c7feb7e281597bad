"""Broken nodes with record batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import attrs
import pytest

from dafka.batches import encode_batch, encode_records, with_base_offset
from dafka.records import RecordBatch
from dafka.transport import subscription_table
from dafka.wire import BATCH_COMMANDS, Command, RecordRun, batch
from dafka_conformance.grammar.record_batches import ENVELOPE_MAGIC, HEADER_BYTES, seal_batch
from dafka_conformance.model import Dialect
from tests.conformance.mutants import Mutant

Patch = pytest.MonkeyPatch
Frames = Sequence[bytes]

CRC_AT = 17
MAGIC_AT = 16
LAST_DELTA_AT = slice(23, 27)
LARGE_BYTES = 2**20


# What is sent


def change_batches(change: Callable[[bytes], bytes], patch: Patch) -> None:
    """Change the content of every batch that is sent."""

    def encode(records: RecordBatch, *arguments: Any) -> tuple[bytes, ...]:
        return tuple(map(change, encode_records(records, *arguments)))

    patch.setattr(batch, "encode_records", encode)


def flip_crc(data: bytes) -> bytes:
    return data[:CRC_AT] + bytes([data[CRC_AT] ^ 1]) + data[CRC_AT + 1 :]


def older_magic(data: bytes) -> bytes:
    return data[:MAGIC_AT] + b"\1" + data[MAGIC_AT + 1 :]


def shift_base_offset(data: bytes) -> bytes:
    return with_base_offset(data, int.from_bytes(data[:8], "big") + 1)


def compact(data: bytes) -> bytes:
    """Leave a gap behind the last record."""
    count = int.from_bytes(data[57:HEADER_BYTES], "big")
    return seal_batch(data[: LAST_DELTA_AT.start] + count.to_bytes(4, "big") + data[LAST_DELTA_AT.stop :])


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


def leave_out_last(patch: Patch) -> None:
    """Leave out the last record of a batch that has several."""
    encode = batch._encode_batches

    def encode_rest(run: RecordRun, *arguments: Any) -> Iterator[Frames]:
        records = run.batch
        rest = records.between(records.first_sequence, records.end_sequence - (len(records) > 1))
        return encode(attrs.evolve(run, batch=attrs.evolve(rest, encoded=())), *arguments)

    patch.setattr(batch, "_encode_batches", encode_rest)


def send_large_batches(patch: Patch) -> None:
    def encode(records: RecordBatch, compression: Any, _bytes_max: int) -> tuple[bytes, ...]:
        return encode_records(records, compression, LARGE_BYTES)

    patch.setattr(batch, "encode_records", encode)


def send_both(patch: Patch) -> None:
    """Send single records to those who get batches, too."""
    patch.setattr(subscription_table, "_counterpart", lambda _prefix, _commands: None)


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


def wrap_everything(patch: Patch) -> None:
    """Send every record by itself in an envelope."""

    def wrap(records: RecordBatch) -> list[bytes]:
        return [ENVELOPE_MAGIC + encode_batch(0, [value], timestamps=-1) for value in records.values]

    patch.setattr(batch, "wrap_records", wrap)


def producer_mutant(
    fault: str,
    scenario: str,
    clause: str,
    message: str,
    apply: Callable[[Patch], None],
    dialect: Dialect = Dialect.RFC46,
) -> Mutant:
    return Mutant(f"producer-{fault}", f"producer.{scenario}", clause, message, apply, dialect)


MUTANTS = [
    producer_mutant(
        "batches-with-wrong-crc", "batches", "batch.crc", "the CRC of the batch", partial(change_batches, flip_crc)
    ),
    producer_mutant(
        "batches-of-magic-1", "batches", "batch.format", "the magic of the batch", partial(change_batches, older_magic)
    ),
    producer_mutant(
        "batches-one-too-far",
        "batches",
        "batch.base-offset",
        "the base offset is wrong",
        partial(change_batches, shift_base_offset),
    ),
    producer_mutant(
        "batches-with-gap", "batches", "batch.deltas", "the last offset delta", partial(change_batches, compact)
    ),
    producer_mutant("batches-without-last", "batches", "batch.records", "did not arrive", leave_out_last),
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
    producer_mutant(
        "batches-for-another-requestor",
        "batch-fetched",
        "topic.DIRECT-RECORD-BATCH",
        "is wrongly addressed",
        partial(change_frames, under_another_topic),
    ),
    producer_mutant(
        "batches-and-records", "batch-subscribers", "batch.no-record", "had subscribed to RECORD-BATCH", send_both
    ),
    producer_mutant(
        "batches-to-all", "batch-subscribers", "batch.subscribers-only", "subscribed to everything", send_batches_to_all
    ),
    producer_mutant("batches-in-large", "batch-size", "batch.size", "bytes of records", send_large_batches),
    producer_mutant(
        "answers-no-batch",
        "batch-fetched",
        "batch.fetched",
        "did not arrive in a DIRECT-RECORD-BATCH",
        answer_only_singly,
    ),
    producer_mutant(
        "answers-with-both",
        "batch-fetched",
        "batch.no-record",
        "had subscribed to DIRECT-RECORD-BATCH",
        answer_both,
    ),
    producer_mutant("sends-magic-as-it-is", "batch-envelope", "envelope.magic", "not in an envelope", wrap_nothing),
    producer_mutant(
        "wraps-everything", "batch-envelope", "envelope.value", "the value plain was sent as", wrap_everything
    ),
]
