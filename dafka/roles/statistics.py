"""Figures about a running role: its health, its counters, and histograms of durations."""

from __future__ import annotations

from bisect import bisect_left

import attrs

from dafka.records import Partition
from dafka.storage import TierStatistics

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The upper bounds of the buckets, in seconds: from a disk with a battery-backed cache to one that is failing."""


@attrs.frozen
class Health:
    """The state of a role, for a supervisor. Each text is empty if all is well.

    Attributes:
        trouble: Why the role should be restarted, since it does not recover by itself.
        unready: Why the role cannot do its work now. It keeps trying, and a restart does not help.
    """

    trouble: str = ""
    unready: str = ""


@attrs.frozen
class Histogram:
    """A histogram of durations.

    Attributes:
        bounds: The upper bound of each bucket, in seconds. The last bucket has none.
        counts: The number of durations in each bucket; there is one more bucket than bounds.
        total: The sum of all durations, in seconds.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        """The number of durations measured."""
        return sum(self.counts)


class Timer:
    """Collects a histogram; one measurement costs two additions."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._total = 0.0

    def add(self, seconds: float) -> None:
        """Add one measurement."""
        self._counts[bisect_left(BOUNDS_S, seconds)] += 1
        self._total += seconds

    def histogram(self) -> Histogram:
        """Return the histogram so far."""
        return Histogram(BOUNDS_S, tuple(self._counts), self._total)


@attrs.frozen
class ProducerStatistics:
    """A producer's counters since it was opened.

    Attributes:
        records: Records published.
        bytes: The bytes of their contents.
        next_sequence: The sequence of the next record.
        unacknowledged: Records without enough ACKs, including those that were in the spool.
        unacknowledged_bytes: The bytes of their contents in memory; those in a spool do not count.
        fetches_received: FETCHes answered.
        records_sent: Records sent in answers to FETCHes.
        bytes_sent: The bytes of their contents.
        partitions_replaced: New partitions begun because no store could continue the previous one.
        discarded: Messages that were discarded, by reason.
        peers: Nodes that this one is connected to.
    """

    records: int
    bytes: int
    next_sequence: int
    unacknowledged: int
    unacknowledged_bytes: int
    fetches_received: int
    records_sent: int
    bytes_sent: int
    partitions_replaced: int
    discarded: dict[str, int]
    peers: int


@attrs.frozen
class ConsumerStatistics:
    """A consumer's counters since it was opened.

    Attributes:
        records: Records that the program took.
        bytes: The bytes of their contents.
        buffered_bytes: Memory of the records that wait for the program.
        records_unrecoverable: Records skipped because no node holds them any more.
        fetches_sent: FETCHes sent for missing records.
        positions: By partition, the sequence of the next record that the program receives.
        lag: By partition, the number of known records from that position on; partitions without lag are left out.
        discarded: Messages that were discarded, by reason.
        peers: Nodes that this one is connected to.
    """

    records: int
    bytes: int
    buffered_bytes: int
    records_unrecoverable: int
    fetches_sent: int
    positions: dict[Partition, int]
    lag: dict[Partition, int]
    discarded: dict[str, int]
    peers: int


@attrs.frozen
class TopicCounts:
    """A topic in a store.

    Attributes:
        partitions: The number of its partitions that have durable records.
        records: The records before the end of the durable part of each partition, including dropped ones.
    """

    partitions: int
    records: int


@attrs.frozen
class StoreStatistics:
    """A store's counters since it was opened.

    Attributes:
        partitions: Partitions that it knows.
        records_stored: Records made durable.
        bytes_stored: The bytes of their contents.
        records_dropped: Records dropped by retention.
        records_compacted: Superseded records removed by compaction.
        commits: Transactions of its storage.
        commit_seconds: The durations of the transactions, in seconds.
        pending_bytes: Memory of the records received and not yet durable.
        fetches_sent: FETCHes sent for missing records.
        fetches_received: FETCHes answered.
        records_sent: Records sent in answers to FETCHes.
        bytes_sent: The bytes of their contents.
        lag: By partition, the number of known records that are not durable here; partitions without lag are left out.
        missing_records: The part of the lag for which several FETCHes in a row were not answered.
        is_full: Whether the store accepts no new partitions, or its storage fails.
        discarded: Messages that were discarded, by reason.
        peers: Nodes that this one is connected to.
        topics: The topics that have durable records.
        cold: The cold tier of its storage; None if there is none.
    """

    partitions: int
    records_stored: int
    bytes_stored: int
    records_dropped: int
    commits: int
    commit_seconds: Histogram
    pending_bytes: int
    fetches_sent: int
    fetches_received: int
    records_sent: int
    bytes_sent: int
    lag: dict[Partition, int]
    missing_records: int
    is_full: bool
    discarded: dict[str, int]
    peers: int
    topics: dict[str, TopicCounts] = attrs.field(factory=dict)
    cold: TierStatistics | None = None
    records_compacted: int = 0


@attrs.frozen
class TowerStatistics:
    """The counters of a tower.

    Attributes:
        beacons: Beacons passed on since the start.
        discarded: Beacons and subscriptions discarded and connections ended since the start.
        nodes: Nodes that the tower introduces now.
    """

    beacons: int
    discarded: int
    nodes: int
