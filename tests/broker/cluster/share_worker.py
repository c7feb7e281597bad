"""A member of a share group that notes what it says of each record, before and after the brokers answer.

python share_worker.py SERVERS TOPIC GROUP SEED LEDGER

Each line of the ledger is `said` or `done`, a kind of acknowledgement, a log and an offset. It is one system call, so
that the ledger is right whenever the process is killed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from random import Random

from confluent_kafka import AcknowledgeType, KafkaException, Message, ShareConsumer

POISON = 17
"""Each record whose number is a multiple is rejected."""

WORN = 13
"""Each record whose number is a multiple is released, until it is delivered too often."""

NAMES = {AcknowledgeType.ACCEPT: "accept", AcknowledgeType.RELEASE: "release", AcknowledgeType.REJECT: "reject"}


def choose(draw: Random, message: Message) -> AcknowledgeType:
    number = int((message.value() or b"0").split(b"-")[1])
    if number % POISON == 0:
        return AcknowledgeType.REJECT
    if number % WORN == 0 or draw.random() < 0.1:
        return AcknowledgeType.RELEASE
    return AcknowledgeType.ACCEPT


def main(servers: str, topic: str, group: str, seed: str, ledger: str) -> None:
    draw, file = Random(seed), os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(word: str, said: Iterable[tuple[int, int, AcknowledgeType]]) -> None:
        lines = [f"{word} {NAMES[kind]} {log} {offset}\n" for log, offset, kind in said]
        os.write(file, "".join(lines).encode())

    config = {
        "bootstrap.servers": servers,
        "group.id": group,
        "share.acknowledgement.mode": "explicit",
        "reconnect.backoff.max.ms": 300,
        "log_level": 2,
    }
    with ShareConsumer(config) as consumer:
        consumer.subscribe([topic])
        while True:
            messages = [each for each in consumer.poll(timeout=1.0) if each.error() is None]
            said = list[tuple[int, int, AcknowledgeType]]()
            for message in messages:
                kind = choose(draw, message)
                consumer.acknowledge(message, kind)
                said.append((message.partition() or 0, message.offset() or 0, kind))
            if not said:
                continue
            note("said", said)
            try:
                answers = consumer.commit_sync(timeout=30.0)
            except KafkaException:
                continue
            done = {each.partition for each, error in answers.items() if error is None}
            note("done", [each for each in said if each[0] in done])


if __name__ == "__main__":
    main(*sys.argv[1:])
