"""Publishes records to the logs of a topic, for HTTP and WebSocket.

A record with a key goes to the log that Kafka's default partitioner chooses. Records without a key go to one log per
call, so that batches stay large.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Annotated

import attrs

from dafka.batches import RecordColumns, check_crc, encode_batch
from dafka.broker.broker import Broker
from dafka.broker.core.log.log import Log
from dafka.broker.core.log.partitioner import log_of_key
from dafka.broker.log.appending import AppendRefusedError, Batch, read_batches
from dafka.broker.log.durable_waits import DurableWaits
from dafka.errors import ConfigError, EncodingError, NoControllerError, StorageError
from dafka.http.logs.local_logs import refused_append
from dafka.http.logs.log_access import LogAccess, PendingBatches, log_at
from dafka.http.server.documents import Count, Document, doc
from dafka.http.server.errors import WebError, topic_not_found


@attrs.frozen
class ProducerSequence:
    """The position of records in the sequence of an idempotent producer, whose id is from `init_producer`."""

    producer_id: int
    producer_epoch: int
    base_sequence: int
    """The producer's sequence of the first record in this log."""


class Published(Document):
    """Consecutive records that are durable in a log."""

    log: Annotated[Count, doc("The number of the log.")]
    offset: Annotated[
        Count | None, doc("The offset of the first record; null for old duplicates whose offset is no longer known.")
    ]
    count: Annotated[Count, doc("The number of records, which have consecutive offsets.")]


@attrs.frozen(eq=False)
class Publication:
    """Records that are being published, with the pending append of each log."""

    _parts: Sequence[PendingBatches]
    _waits: DurableWaits
    """The waits for durable records. They end if the storage keeps failing."""

    @property
    def record_count(self) -> int:
        """The number of records."""
        return sum(each.record_count for each in self._parts)

    @property
    def is_durable(self) -> bool:
        """Whether the records are durable."""
        return all(each.is_durable for each in self._parts)

    async def wait(self) -> list[Published]:
        """Wait until the records are durable, and return where they are, by log.

        Raises `WebError` if the topic was deleted meanwhile, the storage fails, or the leader of a log has changed or
        cannot be reached.
        """
        found = []
        for each in self._parts:
            try:
                with self._waits.bounded():
                    offset = await each.wait_offset()
            except StorageError as error:
                raise WebError("storage_failed", f"the records of log {each.log.number}: {error}") from None
            found.append(Published(each.log.number, offset, each.record_count))
        return found


class Publisher:
    """Publishes records of clients.

    If `creates_topics`, topics are created by the first records, if `[kafka] auto_create_topics` allows it.
    """

    def __init__(self, broker: Broker, access: LogAccess, *, creates_topics: bool = True) -> None:
        self._access = access
        self._broker = broker
        self._creates_topics = creates_topics and broker.config.kafka.auto_create_topics == "on"
        self._turns = cycle(range(2**20))

    async def publish(
        self, topic: str, records: RecordColumns, source: str, *, log: int | None = None
    ) -> list[Published]:
        """Publish records, and wait until they are durable. See `begin`."""
        await self.prepare(topic, may_create=True)
        return await (await self.begin(topic, records, source, log=log)).wait()

    async def prepare(self, topic: str, *, may_create: bool) -> None:
        """Wait until records that are not yet durable take less than `[store] pending_bytes_max`.

        If the topic does not exist and the client `may_create` it, it is created if `[kafka] auto_create_topics` allows
        it. Raises `WebError` if that is impossible.
        """
        await self._access.wait_capacity()
        node = self._broker.node
        if may_create and self._creates_topics and node.find_topic(topic) is None:
            await node.leases.wait_metadata()
            if node.find_topic(topic) is None:
                await self._create(topic)

    async def _create(self, topic: str) -> None:
        node = self._broker.node
        try:
            await node.admin.create_topic(topic)
        except ConfigError as error:
            if node.find_topic(topic) is None:  # nobody else has just created it
                raise WebError("bad_request", str(error)) from None
        except NoControllerError as error:
            raise WebError("controller_unavailable", str(error)) from None

    async def begin(
        self,
        topic: str,
        records: RecordColumns,
        source: str,
        *,
        log: int | None = None,
        producer: ProducerSequence | None = None,
    ) -> Publication:
        """Append records, at least one. The caller must call `prepare` first, and check the client's permission.

        Without a log, the keys choose the logs. With a producer's sequence, the records must be for one log, and are
        appended once. The source is the user, or the address of the client. Raises `WebError` if the topic or the log
        does not exist, or the records are refused.
        """
        logs = self._find_logs(topic)
        if log is not None:
            parts = [(log_at(topic, logs, log), records)]
        elif len(logs) == 1:
            parts = [(logs[0], records)]
        elif producer is not None:
            raise WebError(
                "bad_request",
                f"the topic {topic!r} has {len(logs)} logs: records of a producer with an id must name theirs",
            )
        else:
            parts = self._divide(logs, records)
        # Validate all parts before any is appended.
        encoded = [(each, self._encode(each, part, producer)) for each, part in parts]
        pending = [await self._append(each, [batch], source) for each, batch in encoded]
        return Publication(pending, self._broker.node.storage.waits)

    async def begin_batches(self, topic: str, log: int, data: bytes | memoryview, source: str) -> Publication:
        """Append whole, concatenated record batches as they are. See `begin`.

        A batch with a producer id comes alone.
        """
        found = log_at(topic, self._find_logs(topic), log)
        self._check_size(found, len(data))
        try:
            batches = read_batches(data)
            if not batches or any(header.is_transactional for header, _ in batches):
                raise WebError("bad_request", "expected record batches that belong to no transaction")
        except AppendRefusedError as refused:
            raise refused_append(found, refused) from None
        return Publication([await self._append(found, batches, source)], self._broker.node.storage.waits)

    async def _append(self, log: Log, batches: Sequence[Batch], source: str) -> PendingBatches:
        try:
            async with self._broker.appender.unpacked(log, batches, source) as (adapted, records):
                return self._access.append(log, adapted, records)
        except AppendRefusedError as refused:
            raise refused_append(log, refused) from None

    def _find_logs(self, topic: str) -> Sequence[Log]:
        logs = self._broker.node.logs(topic)
        if not logs:
            raise topic_not_found(topic)
        return logs

    def _divide(self, logs: Sequence[Log], records: RecordColumns) -> list[tuple[Log, RecordColumns]]:
        keyless = next(self._turns) % len(logs)
        if records.keys is None:
            return [(logs[keyless], records)]
        chosen: dict[bytes | None, int] = {None: keyless}
        indexes: dict[int, list[int]] = {}
        for index, key in enumerate(records.keys):
            number = chosen.get(key)
            if number is None:
                assert key is not None
                number = chosen[key] = log_of_key(key, len(logs))
            indexes.setdefault(number, []).append(index)
        return [(logs[number], _select(records, indexes[number])) for number in sorted(indexes)]

    def _encode(self, log: Log, records: RecordColumns, producer: ProducerSequence | None) -> Batch:
        appender = self._broker.appender
        refused = appender.rules_of(log).find_refused(
            len(records), records.keys, records.timestamps, appender.time_ms()
        )
        if refused:
            raise refused_append(log, AppendRefusedError(*refused))
        try:
            data = encode_batch(
                0,
                records.values,
                keys=records.keys,
                headers=records.headers,
                timestamps=records.timestamps,
                producer_id=-1 if producer is None else producer.producer_id,
                producer_epoch=-1 if producer is None else producer.producer_epoch,
                base_sequence=-1 if producer is None else producer.base_sequence,
            )
        except EncodingError as error:
            raise WebError("bad_request", str(error)) from None
        self._check_size(log, len(data))
        return check_crc(data), data

    def _check_size(self, log: Log, size: int) -> None:
        try:
            self._broker.appender.check_size(log, size)
        except AppendRefusedError as refused:
            raise refused_append(log, refused) from None


def _select(records: RecordColumns, indexes: Sequence[int]) -> RecordColumns:
    return RecordColumns(
        [records.values[each] for each in indexes],
        None if records.keys is None else [records.keys[each] for each in indexes],
        None if records.headers is None else [records.headers[each] for each in indexes],
        [records.timestamps[each] for each in indexes],
    )
