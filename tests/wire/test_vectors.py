"""The messages of a cluster of the C implementation, as recorded from its sockets."""

import json
from collections.abc import Iterator
from pathlib import Path

from dafka.wire import (
    WELCOME,
    Dialect,
    TowerBeacon,
    decode,
    decode_subscription,
    encode,
    subscription_prefix,
)

RECORDINGS = sorted((Path(__file__).parent.parent / "vectors").glob("*.json"))


def recorded(kind: str) -> Iterator[list[bytes]]:
    for recording in RECORDINGS:
        for event in json.loads(recording.read_text()):
            if event["kind"] == kind:
                yield [bytes.fromhex(frame) for frame in event["frames"]]


def test_recorded_messages_are_read_and_written_back_byte_for_byte() -> None:
    kinds = set()
    for frames in recorded("message"):
        message, dialect = decode(frames)
        kinds.add(type(message))
        assert dialect is Dialect.LIBDAFKA
        assert encode(message, dialect) == frames
    assert len(kinds) == 9, "all commands of RFC 46 were recorded"


def test_recorded_beacons_are_read_and_written_back_byte_for_byte() -> None:
    beacons = list(recorded("beacon"))
    greetings = [frames for frames in beacons if frames == [WELCOME]]
    assert len(greetings) == len(RECORDINGS)
    for frames in beacons:
        if frames != [WELCOME]:
            assert TowerBeacon.decode(frames).encode() == frames


def test_recorded_subscriptions_are_read_and_written_back_byte_for_byte() -> None:
    for (frame,) in recorded("subscription"):
        subscription = decode_subscription(frame)
        assert subscription is not None
        prefix = subscription_prefix(subscription.command, subscription.topic)
        assert bytes([subscription.active]) + prefix == frame
