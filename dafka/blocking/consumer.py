"""Consumers for plain threads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

from dafka import roles
from dafka.blocking.node import Node
from dafka.config import Config
from dafka.records import Partition, Record, RecordBatch
from dafka.roles import ConsumerStatistics, Time


class Consumer(Node[roles.Consumer]):
    """A consumer of topics, opened by `open_consumer`.

    Iterate over it for records, or over `batches()` for batches of them, which is faster. They may be mixed: each
    record is returned once. A consumer is used by one thread at a time; `statistics` may be called by any.
    """

    @property
    def group(self) -> str:
        """The name of the consumer's group; empty if it is in none."""
        return self._role.group

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that the consumer is subscribed to."""
        return self._role.topics

    def subscribe(self, topic: str) -> None:
        """Follow one more topic; see `dafka.Consumer.subscribe`."""
        self._ask(self._role.subscribe, topic)

    def unsubscribe(self, topic: str) -> None:
        """Stop following a topic. No further record of it is returned, even if it was received already."""
        self._ask(self._role.unsubscribe, topic)

    def batches(self, *, until: Mapping[Partition, int] | None = None) -> Iterator[RecordBatch]:
        """Return an iterator over batches of records, which ends at `until`; see `dafka.Consumer.batches`."""
        return _Batches(self, None if until is None else self._role._check_until(until))

    def __iter__(self) -> Iterator[Record]:
        return iter(self.next_record, None)

    def positions(self) -> dict[Partition, int]:
        """Return, by partition, the sequence after the last record that the program received."""
        return self._ask(self._role.positions)

    def lag(self) -> dict[Partition, int]:
        """Return, by partition, how many records are known to exist that the program has not received; 0 if none."""
        return self._ask(self._role.lag)

    def ends(self, *, timeout_s: float | None = None) -> dict[Partition, int]:
        """Ask the stores how much they hold of the consumer's topics; see `dafka.Consumer.ends`."""
        return self._wait(timeout_s, self._role.ends)

    def seek(self, positions: Mapping[Partition, int]) -> None:
        """Continue partitions at other records, earlier or later ones; see `dafka.Consumer.seek`."""
        self._ask(self._role.seek, positions)

    def seek_tail(self, count: int, *, timeout_s: float | None = None) -> None:
        """Continue each partition so that its last records come next; see `dafka.Consumer.seek_tail`."""
        self._wait(timeout_s, partial(self._role.seek_tail, count))

    def positions_at(self, time: Time, *, timeout_s: float | None = None) -> dict[Partition, int]:
        """Ask the stores where their partitions continue from a time on; see `dafka.Consumer.positions_at`."""
        return self._wait(timeout_s, partial(self._role.positions_at, time))

    def seek_time(self, time: Time, *, timeout_s: float | None = None) -> None:
        """Continue each partition with its first record made at a time or later; see `dafka.Consumer.seek_time`."""
        self._wait(timeout_s, partial(self._role.seek_time, time))

    def pause(self, *selected: Partition | str) -> None:
        """Receive no further records of these partitions and topics until `resume`; see `dafka.Consumer.pause`."""
        self._ask(self._role.pause, *selected)

    def resume(self, *selected: Partition | str) -> None:
        """Receive records of paused partitions and topics again, from the one on at which they were paused."""
        self._ask(self._role.resume, *selected)

    @property
    def paused(self) -> frozenset[Partition | str]:
        """The partitions and topics that are paused."""
        return self._role.paused

    def save_positions(self, *, timeout_s: float | None = None) -> None:
        """Make `positions()` durable for the group, or under the name; see `dafka.Consumer.save_positions`."""
        self._wait(timeout_s, self._role.save_positions)

    def statistics(self) -> ConsumerStatistics:
        """Return the counters so far, the positions, and the lag."""
        return self._ask(self._role.statistics)

    def next_batch(self, records_max: int | None = None, *, timeout_s: float | None = None) -> RecordBatch:
        """Wait for the next batch of records; see `dafka.Consumer.next_batch`."""
        while (batch := self._role._delivery.next_batch(records_max)) is None:
            self._wait(timeout_s, self._role._open_run, self._role._open_run_nowait)
        return batch

    def next_record(self, *, timeout_s: float | None = None) -> Record:
        """Wait for the next record, as iterating over the consumer does."""
        while (record := self._role._delivery.next_record()) is None:
            self._wait(timeout_s, self._role._open_run, self._role._open_run_nowait)
        return record

    def _next_batch_before(self, ends: dict[Partition, int] | None) -> RecordBatch | None:
        if ends is None:
            return self.next_batch()
        wait, attempt = partial(self._role._open_run, ends), partial(self._role._open_run_nowait, ends)
        while self._wait(None, wait, attempt):
            if (batch := self._role._delivery.next_batch()) is not None:
                return batch
        return None


class _Batches:
    def __init__(self, consumer: Consumer, ends: dict[Partition, int] | None) -> None:
        self._consumer = consumer
        self._ends = ends

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> RecordBatch:
        batch = self._consumer._next_batch_before(self._ends)
        if batch is None:
            raise StopIteration
        return batch


def open_consumer(
    topics: Iterable[str],
    config: Config | None = None,
    *,
    positions: Mapping[Partition, int] | None = None,
    start: Time | None = None,
    group: str | None = None,
) -> Consumer:
    """Open a consumer; see `dafka.open_consumer`, whose arguments and exceptions it has.

    The consumer is open. Leaving its `with` block, or `close`, closes it.
    """
    return Consumer(partial(roles.open_consumer, topics, config, positions=positions, start=start, group=group))
