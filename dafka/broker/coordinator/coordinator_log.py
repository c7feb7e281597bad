"""Stores the state of a coordinator in a replicated log: keys with values, of which the newest ones count.

Each record has a header with the leader epoch in which it was written. Divergent records of a former leader can be
merged into the log after records of its successor. They are ignored, because the successor did not know them.

The log is rewritten when most of its records are obsolete: all current values are appended again, and older records are
deleted.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import attrs
import trio

from dafka.batches import decode_records, encode_records, read_header
from dafka.broker.core.coordination.state_records import SHARD_KIND, StateRecord, encode_state
from dafka.broker.core.log.log import Log
from dafka.broker.core.positions import Offset
from dafka.broker.log.deletion import RecordDeletion
from dafka.broker.log.reader import LogReader
from dafka.broker.log.writer import LogWriter, PendingAppend
from dafka.errors import NotLeaderError, StorageError, TopicDeletedError
from dafka.records import Record, RecordBatch
from dafka.storage.plugin_helpers import now_ms

_LOGGER = logging.getLogger("dafka.broker")

REWRITE_RECORDS = 10_000
"""Obsolete records that a log can have, in addition to one for each current value, before it is rewritten."""

READ_BYTES = 2**20
"""The size of a read, in bytes."""

_SHARD_VERSION = 1

_EPOCH_HEADER = "leader-epoch"
"""The header with the leader epoch in which a record was written; without it, the epoch is 0."""


@attrs.frozen(eq=False)
class _Write:
    """Records that were appended: `count` that were `put`, or a rewrite of all current values."""

    appended: PendingAppend
    count: int
    is_rewrite: bool = False


@attrs.define(eq=False, slots=False)
class CoordinatorLog:
    """Keys and values, with pending changes. Each change is a record of a log that this broker leads."""

    _log: Log
    _writer: LogWriter
    _reader: LogReader
    _deletion: RecordDeletion
    _epoch: int = attrs.field(init=False)
    values: dict[bytes, bytes] = attrs.field(init=False, factory=dict)
    _pending: list[tuple[bytes, bytes | None]] = attrs.field(init=False, factory=list)
    _was_put: trio.Event = attrs.field(init=False, factory=trio.Event)
    _writes: deque[_Write] = attrs.field(init=False, factory=deque)
    _has_written: trio.Event = attrs.field(init=False, factory=trio.Event)
    _is_rewriting: bool = attrs.field(init=False, default=False)

    def __attrs_post_init__(self) -> None:
        self._epoch = self._log.leadership.epoch

    @property
    def is_settled(self) -> bool:
        """Whether all records are committed: the high watermark is the log end offset."""
        return self._log.high_watermark >= self._log.index.end_offset

    async def load(self) -> None:
        """Read the state from the log.

        Records of the former leader can still be uncommitted, or be merged later. So this leader first appends a
        record: once it is committed, all records before it are, too. Later records of the former leader are ignored.
        Raise `NotLeaderError` or `StorageError`.
        """
        if self._epoch or not self.is_settled:
            mark = encode_state("", (SHARD_KIND, "leader"), {}, _SHARD_VERSION)
            await self._wait(self._append([(mark.key, mark.value)]))
        offset, end, epoch = self._log.index.start_offset, self._log.high_watermark, 0
        while offset < end:
            batches = await self._reader.read(self._log, offset, end, READ_BYTES)
            if not batches:
                break
            for data in batches:
                header = read_header(data)
                offset = Offset(header.end_offset)
                if not header.is_control:
                    for record in decode_records(self._log.leader_partition, data):
                        epoch_written = _epoch_of(record)
                        if epoch_written >= epoch:
                            epoch = epoch_written
                            self._apply(record.key or b"", record.value)
            await trio.lowlevel.checkpoint()

    def put(self, records: Iterable[StateRecord]) -> None:
        """Change values. `write` appends the changes."""
        for record in records:
            self._apply(record.key, record.value)
            self._pending.append((record.key, record.value))
        self._was_put.set()

    async def write(self, confirm: Callable[[int], None]) -> None:
        """Append the changes of `put`, until cancelled. Raise `NotLeaderError`.

        `confirm` is called with a number of records, in the order in which they were put, when these are committed.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._append_put)
            while True:
                while self._writes:
                    write = self._writes[0]
                    offset = await self._wait(write.appended)
                    self._writes.popleft()
                    confirm(write.count)
                    if write.is_rewrite:
                        nursery.start_soon(self._delete_before, offset)
                self._has_written = trio.Event()
                await self._has_written.wait()

    async def _append_put(self) -> None:
        """Append all pending changes at once, so that many requests share a write."""
        while True:
            await self._was_put.wait()
            self._was_put = trio.Event()
            records, self._pending = self._pending, []
            self._writes.append(_Write(self._append(records), len(records)))
            if self._is_rewrite_due():
                self._is_rewriting = True
                self._writes.append(_Write(self._append(list(self.values.items())), 0, is_rewrite=True))
            self._has_written.set()

    def _append(self, records: Sequence[tuple[bytes, bytes | None]]) -> PendingAppend:
        batch = RecordBatch(
            self._log.leader_partition,
            0,
            [value for _, value in records],
            keys=[key for key, _ in records],
            headers=[((_EPOCH_HEADER, b"%d" % self._epoch),)] * len(records) if self._epoch else None,
            timestamps=[now_ms()] * len(records),
        )
        return self._writer.append(self._log, [(read_header(data), data) for data in encode_records(batch)])

    async def _wait(self, appended: PendingAppend) -> Offset:
        try:
            return await appended.wait_offset()
        except TopicDeletedError:  # another broker had created the topic earlier
            raise NotLeaderError(f"the topic {self._log.topic} of this broker is gone") from None

    async def _delete_before(self, offset: Offset) -> None:
        try:
            await self._deletion.delete_before(self._log, offset)
        except (StorageError, NotLeaderError, TopicDeletedError) as error:  # the next rewrite deletes it
            _LOGGER.warning("cannot drop old records of %s: %s", self._log.topic, error)
        self._is_rewriting = False

    def _is_rewrite_due(self) -> bool:
        if not self.values:  # it is due when there are values to append again
            return False
        count = self._log.index.end_offset - self._log.index.start_offset
        return not self._is_rewriting and count > 2 * len(self.values) + REWRITE_RECORDS

    def _apply(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self.values.pop(key, None)
        else:
            self.values[key] = value


def _epoch_of(record: Record) -> int:
    for name, value in record.headers:
        if name == _EPOCH_HEADER and value is not None and value.isdigit():
            return int(value)
    return 0
