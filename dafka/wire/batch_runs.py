"""Decodes received RECORD-BATCHes and DIRECT-RECORD-BATCHes to runs of records.

Consecutive batches are gathered and decoded together, so that higher layers need not handle them one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from dafka.batches import BatchHeader, Compression, check_crc, decode_run
from dafka.errors import BatchError, WireError
from dafka.records import Partition
from dafka.wire import codec
from dafka.wire.messages import DirectRecordBatchMessage, RecordBatchMessage, RecordRun

HEADERS_MAX = 16_384
"""The maximum number of remembered headers: one for each partition, and for each requestor and partition. Beyond it,
all are forgotten, and each costs one slow decode again. A peer that invents headers can cause nothing else."""


class BatchRun:
    """Consecutive record batches, while they are gathered. The requestor is None if they were published."""

    __slots__ = ("batches", "next_sequence", "partition", "requestor")

    def __init__(self, partition: Partition, requestor: str | None) -> None:
        self.partition = partition
        self.requestor = requestor
        self.batches: list[tuple[BatchHeader, bytes]] = []
        self.next_sequence = -1

    @property
    def is_compressed(self) -> bool:
        """Whether its records may take more memory than its record batches."""
        return self.batches[0][0].compression is not Compression.NONE

    def add(self, header: BatchHeader, data: bytes) -> bool:
        """Add a record batch if it continues the run.

        A compressed batch forms its own run, since it may grow when decoded.
        """
        is_plain = header.compression is Compression.NONE
        if self.batches and not (is_plain and header.base_offset == self.next_sequence):
            return False
        self.batches.append((header, data))
        self.next_sequence = header.end_offset if is_plain else -1
        return True


class BatchRunDecoder:
    """Gathers and decodes record batches for a `BatchDecoder`; discards and counts malformed ones."""

    def __init__(self, discarded: Counter[str], batch_bytes_max: int, *, keeps_encoded: bool) -> None:
        self._discarded = discarded
        self._batch_bytes_max = batch_bytes_max
        self._keeps_encoded = keeps_encoded
        self._names: dict[tuple[bytes, ...], tuple[Partition, str | None]] = {}
        self._open: dict[tuple[bytes, ...], BatchRun] = {}

    def add(self, frames: Sequence[bytes]) -> BatchRun | None:
        """Add a record batch to the run that it continues, if its CRC is right.

        All frames but the last are the same for all batches of a run. Return the run that begins with this batch; None
        if it continues another or was discarded.
        """
        key, data = tuple(frames[:-1]), frames[-1]
        names = self._names.get(key) or self._read_names(frames, key)
        if names is None:
            return None
        try:
            header = check_crc(data, may_be_compacted=names[1] is not None)
        except BatchError as error:
            self._discarded[f"batch: {error.field}"] += 1
            return None
        run = self._open.get(key)
        if run is not None and run.add(header, data):
            return None
        self._open[key] = begun = BatchRun(*names)
        begun.add(header, data)
        return begun

    def end(self) -> None:
        """End all runs."""
        self._open.clear()

    def decode(self, run: BatchRun) -> Iterator[RecordRun]:
        """Yield the records of a run. If one of its record batches is malformed, each is decoded alone."""
        try:
            yield self._decode(run, run.batches)
        except BatchError:
            for batch in run.batches:
                try:
                    yield self._decode(run, [batch])
                except BatchError as error:
                    self._discarded[f"batch: {error.field}"] += 1

    def _decode(self, run: BatchRun, batches: Sequence[tuple[BatchHeader, bytes]]) -> RecordRun:
        records = decode_run(run.partition, batches, bytes_max=self._batch_bytes_max, is_kept=self._keeps_encoded)
        return RecordRun(records, run.requestor)

    def _read_names(self, frames: Sequence[bytes], key: tuple[bytes, ...]) -> tuple[Partition, str | None] | None:
        """Return the partition of a record batch, and its requestor if it has one."""
        try:
            message, _ = codec.decode(frames)
        except WireError as error:
            self._discarded[error.field] += 1
            return None
        assert isinstance(message, (RecordBatchMessage, DirectRecordBatchMessage))
        requestor = message.requestor if isinstance(message, DirectRecordBatchMessage) else None
        if len(self._names) >= HEADERS_MAX:
            self._names.clear()
        self._names[key] = names = Partition(message.subject, message.address), requestor
        return names
