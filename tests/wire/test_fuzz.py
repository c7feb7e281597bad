"""Any frames that a peer sends are either a message or a `WireError`; what is decoded is encoded as it came."""

from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest

from dafka.errors import WireError
from dafka.wire import WELCOME, NodeBeacon, TowerBeacon, decode, decode_subscription, encode, subscription_prefix
from tests.batches.hostile import change
from tests.wire.test_codec import EXTREMES, VECTORS

COUNT = 8_000
UUID = "FC83322A248C4C30A13C28A5D5649931"
SEEDS = [vector.encoded for vector in VECTORS + EXTREMES]


def mutate(frames: list[bytes], random: Random) -> list[bytes]:
    changed = list(frames)
    for _ in range(random.choice((0, 1, 1, 1, 2, 3))):
        if not changed:
            break
        position, choice = random.randrange(len(changed)), random.random()
        if choice < 0.8:
            changed[position] = change(changed[position], random)
        elif choice < 0.9:
            changed.insert(position, changed[position])
        elif choice < 0.95:
            del changed[position]
        else:
            random.shuffle(changed)
    return changed


def hostile(seeds: list[list[bytes]], seed: int, count: int = COUNT) -> Iterator[list[bytes]]:
    random = Random(seed)
    for _ in range(count):
        if random.random() < 0.1:
            yield [random.randbytes(random.randint(0, 40)) for _ in range(random.randint(0, 5))]
        else:
            yield mutate(random.choice(seeds), random)


def test_frames_are_a_message_or_a_wire_error() -> None:
    outcomes: Counter[str] = Counter()
    for frames in hostile(SEEDS, seed=46):
        try:
            message, dialect = decode(frames)
        except WireError as error:
            outcomes[error.field] += 1
            continue
        except Exception as error:
            pytest.fail(f"decode({frames!r}) raised {error!r}")
        outcomes["well-formed"] += 1
        assert encode(message, dialect) == frames
    assert outcomes["well-formed"] > COUNT / 10
    grammar = {"topic frame", "frames", "frame", "signature", "command", "version", "address", "subject", "sequence"}
    assert {*grammar, "count", "subjects"} <= set(outcomes)


@pytest.mark.parametrize("kind", [NodeBeacon, TowerBeacon])
def test_frames_are_a_beacon_or_a_wire_error(kind: type[NodeBeacon | TowerBeacon]) -> None:
    uuid = UUID.encode()
    seeds = [[b"B", uuid, b"", b"5556"], [b"B", uuid, b"[::1]", b"65535"], [b"B", uuid, b"tcp://127.0.0.1:49152"]]
    seeds += [[b"B", b"\xff", b"tcp://[fe80::1]:1"], [WELCOME]]
    well_formed = 0
    for frames in hostile(seeds, seed=49, count=COUNT // 2):
        try:
            beacon = kind.decode(frames)
        except WireError:
            continue
        except Exception as error:
            pytest.fail(f"{kind.__name__}.decode({frames!r}) raised {error!r}")
        well_formed += 1
        assert beacon.encode() == frames
    assert well_formed > COUNT / 100


def test_a_frame_is_a_subscription_or_none() -> None:
    seeds = [[b"\1Mhello"], [b"\0M"], [b"\1K" + UUID.encode()], [b"\1Ht\xc3\xb8pic"], [b"\1L" + b"a" * 255]]
    well_formed = 0
    for frames in hostile(seeds, seed=50):
        frame = b"".join(frames)
        subscription = decode_subscription(frame)
        if subscription is not None:
            well_formed += 1
            prefix = subscription_prefix(subscription.command, subscription.topic)
            assert bytes([subscription.active]) + prefix == frame
            assert subscription.covers(subscription.command, subscription.topic)
    assert well_formed > COUNT / 10
