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
        self.next = 0  # the sequence of the next record
        self.acknowledged = 0  # a store has the records before this one
        self.kept: dict[int, bytes] = {}  # the contents of the other records, by sequence
        self.input: list[bytes] = []  # the beginning of a line whose end has not been read
        self.is_input_ended = False
        self.watch(sys.stdin.fileno(), self.read_input)
        self.every(HEAD_S, self.send_head)
        self.every(HEAD_S, self.end_if_acknowledged)
        self.subscriber.subscribe(b"G" + self.topic)

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
            if any(self.input):  # the last line may have no newline
                self.publish(b"".join(self.input))

    def publish(self, content: bytes) -> None:
        """Publish a record."""
        self.kept[self.next] = content
        self.send(self.message("RECORD", self.topic, self.next, content))
        self.next += 1

    def message(self, name: str, topic: bytes, sequence: int, content: bytes = b"") -> Message:
        """Return a message about a record of this producer, which is also the name of the partition."""
        return Message(name, topic, self.address, self.topic, sequence, content=content)

    def send_head(self) -> None:
        """Tell all peers the last record's sequence, so that those that missed it can fetch it."""
        if self.next > 0:
            self.send(self.message("HEAD", self.topic, self.next - 1))

    def on_fetch(self, fetch: Message) -> None:
        """Send the requested records that are kept to the node that requests them."""
        if (fetch.topic, fetch.subject) == (self.address, self.topic):
            first = max(fetch.sequence, self.acknowledged)
            for sequence in range(first, min(fetch.sequence + fetch.count, self.next)):
                self.send(self.message("DIRECT-RECORD", fetch.address, sequence, self.kept[sequence]))

    def on_ack(self, ack: Message) -> None:
        """Forget the record that a store has saved, and all before it."""
        if (ack.topic, ack.subject) == (self.address, self.topic) and ack.sequence < self.next:
            while self.acknowledged <= ack.sequence:
                del self.kept[self.acknowledged]
                self.acknowledged += 1

    def end_if_acknowledged(self) -> None:
        """End the node if its input has ended and a store has every record."""
        if self.is_input_ended and not self.kept:
            self.is_running = False

    def on_get_heads(self, request: Message) -> None:
        """Send the last record's sequence to the node that requests it."""
        if request.topic == self.topic and self.next > 0:
            self.send(self.message("DIRECT-HEAD", request.address, self.next - 1))


if __name__ == "__main__":
    Producer(sys.argv[1], sys.argv[2], os.fsencode(sys.argv[3])).run()
