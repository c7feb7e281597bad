"""Kafka's formats of subscriptions and assignments: what was written is read, and nothing of it can be missing."""

from __future__ import annotations

import struct
from itertools import product

from dafka.broker.core.groups.subscriptions import read_assignment, read_topics

NAMES = [b"", b"orders", "\u00e4".encode(), b"orders"]
NUMBERS = [[], [0], [2, 70_000]]


def test_topics_and_logs_are_read_and_every_shorter_or_wrong_form_is_refused() -> None:
    for count in range(3):
        for names, numbers in product(product(NAMES, repeat=count), product(NUMBERS, repeat=count)):
            topics = logs = struct.pack(">hi", 3, count)
            assigned: dict[str, list[int]] = {}
            lengths, counts = [], []
            for name, mine in zip(names, numbers, strict=True):
                counted = struct.pack(">h", len(name)) + name
                lengths.append(len(topics))
                counts.append(len(logs) + len(counted))
                topics += counted
                logs += counted + struct.pack(f">i{len(mine)}i", len(mine), *mine)
                assigned.setdefault(name.decode(), []).extend(mine)
            assert read_topics(topics + b"rest") == frozenset(assigned)
            assert read_assignment(logs + b"rest") == assigned
            assert {read_topics(topics[:size]) for size in range(len(topics))} == {None}
            assert [read_assignment(logs[:size]) for size in range(1, len(logs))] == [None] * (len(logs) - 1)
            for at, size in [(0, 2), (2, 4), *((each, 2) for each in lengths)]:
                assert read_topics(topics[:at] + b"\xff" * size + topics[at + size :]) is None
            for at in (2, *counts):
                assert read_assignment(logs[:at] + b"\xff" * 4 + logs[at + 4 :]) is None
    assert (read_assignment(b""), read_topics(b"")) == ({}, None)
    assert read_topics(struct.pack(">hih", 0, 1, 1) + b"\xff") is None
