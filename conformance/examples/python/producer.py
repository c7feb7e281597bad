"""A Dafka producer: each line of its standard input becomes a record of a topic.

Usage: python producer.py TOWER_SUB TOWER_PUB TOPIC
"""

import os
import sys

from messages import Message
from node import Node

HEAD_S = 1.0
INPUT_BYTES = 65536


class Producer(Node):
    """A node that publishes records, and keeps each one until a store has acknowledged it."""

    def __init__(self, tower_sub: str, tower_pub: str, topic: bytes) -> None:
        super().__init__(tower_sub, tower_pub)
        self.topic = topic
        self.subscriber.subscribe(b"K" + self.address)
        self.subscriber.subscribe(b"F" + self.address)
        self.subscriber.subscribe(b"G" + self.topic)
        self.kept: dict[int, bytes] = {}  # the contents of records without an ACK, by sequence
        self.acknowledged = 0  # the records before this one have an ACK
        self.next = 0  # the sequence of the next record
        self.input: list[bytes] = []  # the beginning of a line whose end has not been read
        self.is_input_ended = False
        self.watch(sys.stdin.fileno(), self.read_input)
        self.every(HEAD_S, self.send_head)

    def read_input(self) -> None:
        """Read from the standard input, and publish each line."""
        chunk = os.read(sys.stdin.fileno(), INPUT_BYTES)
        self.input.append(chunk)
        if b"\n" in chunk:
            *lines, rest = b"".join(self.input).split(b"\n")
            self.input = [rest]
            for line in lines:
                self.publish(line)
        if not chunk:
            self.poller.unregister(sys.stdin.fileno())
            self.is_input_ended = True
            self.end_if_acknowledged()

    def publish(self, content: bytes) -> None:
        """Publish a record."""
        self.kept[self.next] = content
        self.send("RECORD", self.topic, address=self.address, subject=self.topic, sequence=self.next, content=content)
        self.next += 1

    def send_head(self) -> None:
        """Tell everybody the last record's sequence, so that a peer that missed it can fetch it."""
        if self.next > 0:
            self.send("HEAD", self.topic, address=self.address, subject=self.topic, sequence=self.next - 1)

    def on_fetch(self, fetch: Message) -> None:
        """Send the requested records that are kept to the node that requests them."""
        if (fetch.topic, fetch.subject) == (self.address, self.topic):
            first = max(fetch.sequence, self.acknowledged)
            for sequence in range(first, min(fetch.sequence + fetch.count, self.next)):
                content = self.kept[sequence]
                about = {"address": self.address, "subject": self.topic, "sequence": sequence}
                self.send("DIRECT-RECORD", fetch.address, **about, content=content)

    def on_ack(self, ack: Message) -> None:
        """Forget the record that a store has saved, and all before it."""
        if (ack.topic, ack.subject) == (self.address, self.topic) and ack.sequence < self.next:
            for sequence in range(self.acknowledged, ack.sequence + 1):
                del self.kept[sequence]
            self.acknowledged = max(self.acknowledged, ack.sequence + 1)
            self.end_if_acknowledged()

    def end_if_acknowledged(self) -> None:
        """End the node if its input has ended and a store has every record."""
        if self.is_input_ended and not self.kept:
            self.is_running = False

    def on_get_heads(self, request: Message) -> None:
        """Send the last record's sequence to the node that requests it."""
        if request.topic == self.topic and self.next > 0:
            about = {"address": self.address, "subject": self.topic, "sequence": self.next - 1}
            self.send("DIRECT-HEAD", request.address, **about)


if __name__ == "__main__":
    Producer(sys.argv[1], sys.argv[2], os.fsencode(sys.argv[3])).run()
