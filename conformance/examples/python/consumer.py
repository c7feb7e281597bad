"""A Dafka consumer: it prints each record of a topic as a line: the producer's address, the sequence, the content.

Usage: python consumer.py TOWER_SUB TOWER_PUB TOPIC [--latest]
"""

import os
import sys
import time
from dataclasses import dataclass

from messages import Message
from node import Node

REPEAT_S = 1.0
FETCH_MAX = 10_000
HEADS_REQUESTS = 3


@dataclass
class Partition:
    """What a consumer knows of the records of one producer."""

    next: int  # the sequence of the next record to deliver
    head: int = -1  # the sequence of the last record that is known to exist
    fetched: int = 0  # the end of the last FETCH
    progress_at: float = 0.0  # when a record was delivered or requested


class Consumer(Node):
    """A node that delivers the records of each producer in order, and fetches the ones that it missed."""

    def __init__(self, tower_sub: str, tower_pub: str, topic: bytes, starts_at_latest: bool) -> None:
        super().__init__(tower_sub, tower_pub)
        self.topic = topic
        self.starts_at_latest = starts_at_latest
        self.partitions: dict[bytes, Partition] = {}
        for command in (b"M", b"H"):
            self.subscriber.subscribe(command + self.topic)
        for command in (b"D", b"E", b"L"):
            self.subscriber.subscribe(command + self.address)
        self.every(REPEAT_S / 4, self.fetch_all)
        self.heads_requests = 0  # how often GET-HEADS is still to be sent
        self.every(REPEAT_S, self.request_heads)

    def partition(self, message: Message, begin: int) -> Partition | None:
        """Return the partition that a message is about, or None if it is about another topic.

        Args:
            message: The message.
            begin: The first sequence to deliver of an unknown partition, if the consumer starts at the latest record.
        """
        if message.subject != self.topic:
            return None
        if message.address not in self.partitions:
            self.partitions[message.address] = Partition(begin if self.starts_at_latest else 0)
        return self.partitions[message.address]

    def on_record(self, record: Message) -> None:
        """Deliver a record if it is the next one. One that is early is fetched later, in its turn."""
        partition = self.partition(record, record.sequence)
        if partition is None:
            return
        partition.head = max(partition.head, record.sequence)
        if record.sequence == partition.next:
            self.deliver(record)
            partition.next += 1
            partition.progress_at = time.monotonic()
        self.fetch(record.address, partition)

    def deliver(self, record: Message) -> None:
        """Print a record."""
        sys.stdout.buffer.write(b"%s %d %s\n" % (record.address, record.sequence, record.content))
        sys.stdout.buffer.flush()

    def on_head(self, head: Message) -> None:
        """Learn of a partition's last record."""
        partition = self.partition(head, head.sequence + 1)
        if partition is not None:
            partition.head = max(partition.head, head.sequence)
            self.fetch(head.address, partition)

    def fetch(self, address: bytes, partition: Partition) -> None:
        """Request missing records, unless a request is being answered."""
        is_answered = partition.next < partition.fetched and time.monotonic() < partition.progress_at + REPEAT_S
        if partition.next > partition.head or is_answered:
            return
        count = min(partition.head - partition.next + 1, FETCH_MAX)
        partition.fetched = partition.next + count
        partition.progress_at = time.monotonic()
        self.send(Message("FETCH", address, self.address, self.topic, partition.next, count))

    def fetch_all(self) -> None:
        """Request missing records of all partitions again, if nobody has answered."""
        for address, partition in self.partitions.items():
            self.fetch(address, partition)

    def on_direct_record(self, record: Message) -> None:
        """Take a record that was sent to this node only."""
        if record.topic == self.address:
            self.on_record(record)

    def on_direct_head(self, head: Message) -> None:
        """Learn of a partition's last record from a message to this node only."""
        if head.topic == self.address:
            self.on_head(head)

    def on_subscription(self, prefix: bytes) -> None:
        """Request heads from a new peer. Several times: this node may not be connected to the peer yet."""
        if (b"G" + self.topic).startswith(prefix):
            self.heads_requests = HEADS_REQUESTS
            self.request_heads()

    def request_heads(self) -> None:
        """Request the heads of the topic."""
        if self.heads_requests > 0:
            self.heads_requests -= 1
            self.send(Message("GET-HEADS", self.topic, self.address))

    def on_store_hello(self, hello: Message) -> None:
        """Tell a store which topic this consumer is subscribed to."""
        if hello.topic == self.address:
            self.send(Message("CONSUMER-HELLO", hello.address, self.address, subjects=(self.topic,)))


if __name__ == "__main__":
    Consumer(sys.argv[1], sys.argv[2], os.fsencode(sys.argv[3]), "--latest" in sys.argv[4:]).run()
