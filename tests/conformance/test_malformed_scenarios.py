"""What counts as an answer to a malformed message."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from dafka_conformance.grammar import Message
from dafka_conformance.scenarios.store_malformed import _MalformedConsumer
from dafka_conformance.testbed.expectations import CheckLog, UnmetError
from dafka_conformance.testbed.known_records import Partition
from dafka_conformance.testbed.scripted_peer import ScriptedPeer
from dafka_conformance.testbed.testbed import Testbed
from dafka_conformance.testbed.trace import ReceivedMessage, Trace

CONSUMER, PRODUCER, DEPARTED = b"C" * 32, b"P" * 32, b"D" * 32


def check_silence(producer: bytes) -> CheckLog:
    """Check the messages of a store that sent the consumer the head of this producer."""
    log = CheckLog(Trace(lambda: 0.0))
    head = Message("DIRECT-HEAD", CONSUMER, {"address": producer, "subject": b"orders", "sequence": 0})
    testbed = cast(
        Testbed,
        SimpleNamespace(received=[ReceivedMessage(head, 0, 0.0)], require_clause=log.require_clause),
    )
    consumer, asked = (
        cast(ScriptedPeer, SimpleNamespace(address=address, partition=Partition(address, b"orders")))
        for address in (CONSUMER, PRODUCER)
    )
    _MalformedConsumer(testbed, "robust.malformed")._check_silence(consumer, asked, "GET-HEADS without its last byte")
    return log


def test_head_of_a_producer_that_has_left_is_no_answer() -> None:
    """A store tells the others what it has of a producer that left, when it notices that."""
    assert all(check.holds for check in check_silence(DEPARTED).checks)


def test_head_that_was_asked_for_is_an_answer() -> None:
    with pytest.raises(UnmetError, match="GET-HEADS without its last byte was answered with DIRECT-HEAD"):
        check_silence(PRODUCER)
