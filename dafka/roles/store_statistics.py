"""The counters of a store."""

from __future__ import annotations

import attrs

from dafka.records import Partition
from dafka.roles.statistics import Histogram
from dafka.storage import (
    TierStatistics,
)


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
