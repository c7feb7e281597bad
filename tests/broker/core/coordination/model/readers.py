"""A reader that wants committed records only, as Kafka's consumers do it."""

import random
from collections.abc import Hashable

from dafka.broker.core.log.open_transactions import AbortedTransaction
from dafka.broker.core.positions import Offset
from dafka.broker.core.topic_partition import TopicPartition
from tests.broker.core.coordination.model.broker import Broker, Entry
from tests.broker.core.coordination.model.events import ViolationError


class Reader:
    """Reads one log in fetches of random size, up to the last stable offset."""

    def __init__(self, name: TopicPartition) -> None:
        self.name = name
        self.position = 0
        self.index = 0
        self.seen: list[Hashable] = []

    def read(self, broker: Broker, rng: random.Random) -> None:
        """Read everything that is there."""
        log = broker.logs[self.name]
        stable = log.transactions.last_stable_offset(Offset(log.high_watermark))
        if stable < self.position:
            raise ViolationError(f"{self.name}: the last stable offset went back from {self.position} to {stable}")
        while self.position < stable:
            batches = log.entries[self.index : self.index + rng.randint(1, 5)]
            batches = [entry for entry in batches if entry.header.base_offset < stable]
            end = batches[-1].header.end_offset
            if end > stable:
                raise ViolationError(f"{self.name}: the last stable offset {stable} is within a batch")
            self.filter(batches, broker.aborted_between(self.name, self.position, end))
            self.position = end
            self.index += len(batches)

    def filter(self, batches: list[Entry], aborted: list[AbortedTransaction]) -> None:
        waiting = list(aborted)
        skipped: set[int] = set()
        for entry in batches:
            while waiting and waiting[0].first_offset < entry.header.end_offset:
                skipped.add(waiting.pop(0).producer_id)
            if entry.marker is not None:
                if not entry.marker.is_commit:
                    skipped.discard(entry.marker.producer_id)
            elif not (entry.header.is_transactional and entry.header.producer_id in skipped):
                self.seen.append(entry.payload)
