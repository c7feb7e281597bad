"""What events say: everything that they know, and each of several cases in its own words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import attrs

from dafka.endpoints import PeerEndpoint
from dafka.protocol import Event, events, store_events, trust
from dafka.records import Partition

ORDERS, LOGS = Partition("orders", "P"), Partition("logs", "Q")
UNSAID = {"authorized_keys", "own_key", "dialect", "is_unwanted", "is_tower_silent"}
"""Fields that programs and advice use."""

CASES = {("PeerRefused", "reason"), ("RefusedByPeer", "reason")}


def classes(union: Any) -> Iterator[Any]:
    for each in get_args(union):
        yield from classes(each) if get_args(each) else [each]


def example(name: str, kind: str, number: int) -> Any:
    values: dict[str, Any] = {
        "str": f"<{name}>",
        "int": 1000 + number,
        "float": 2000.0 + number,
        "bool": True,
        "Partition": Partition(f"topic{number}", f"address{number}"),
        "PeerEndpoint": PeerEndpoint(f"tcp://{name}:80"),
        "tuple[str, ...]": (f"<{name} 1>", f"<{name} 2>"),
        "tuple[Partition, ...]": (Partition("topic", f"{name}"),),
    }
    return values[kind]


def said(value: Any) -> list[str]:
    if isinstance(value, tuple):
        return [text for each in value for text in said(each)]
    return [f"{value:.0f}" if isinstance(value, float) else str(value)]


def test_an_event_says_in_one_sentence_what_it_knows() -> None:
    for kind in classes(Event):
        values = {each.name: example(each.name, each.type, at) for at, each in enumerate(attrs.fields(kind))}
        text = str(kind(**values))
        assert "\n" not in text
        if "end_sequence" in values:
            values["end_sequence"] -= 1  # the last of the records
        for name, value in values.items():
            if name not in UNSAID and (kind.__name__, name) not in CASES:
                assert all(each in text for each in said(value)), f"{name} of {kind.__name__} in {text!r}"


WORDS: list[tuple[Event, str]] = [
    (events.PeerJoined("", PeerEndpoint("tcp://h:1")), "Found node of unknown address at tcp://h:1"),
    (events.PeerLeft("", PeerEndpoint("tcp://h:1")), "Lost node of unknown address at tcp://h:1"),
    (events.TowersSilent(5.0), "No tower heard for 5 s; known nodes stay connected, new ones are not found"),
    (
        events.DialectAdopted("libdafka"),
        "There are nodes of libdafka in this cluster; sending the libdafka dialect from now on",
    ),
    (
        events.DialectAdopted("rfc46"),
        "There are no nodes of libdafka in this cluster; sending the rfc46 dialect again",
    ),
    (events.PartitionsAssigned((ORDERS, LOGS)), "Handling 2 partitions from now on"),
    (events.PartitionsRevoked((ORDERS,)), "Handing orders/P over to other members of the group"),
    (
        events.RecordsUnrecoverable(ORDERS, 3, 4),
        "Record 3 of orders/P is unrecoverable: no node holds them any more; continuing after them",
    ),
    (
        events.RecordsUnrecoverable(ORDERS, 3, 5),
        "Records 3 to 4 of orders/P are unrecoverable: no node holds them any more; continuing after them",
    ),
    (store_events.RecordsDropped(7, 1), "Retention dropped 7 records of 1 partition"),
    (store_events.RecordsDropped(7, 2), "Retention dropped 7 records of 2 partitions"),
    (
        store_events.PartitionsForgotten(1),
        "Forgot 1 partition without records and without messages for a while",
    ),
    (
        trust.PeerRefused("10.0.0.1", "KEY", trust.KEY_NOT_AUTHORIZED, "keys"),
        "Refused 10.0.0.1: its public key KEY is not authorized here",
    ),
    (trust.PeerRefused("", "", trust.NO_KEY, "keys"), "Refused a connection without a key"),
    (
        trust.PeerRefused("", "", trust.WRONG_KEY, "keys"),
        "Refused a connection that expects another public key than this node's",
    ),
    (
        trust.RefusedByPeer("E", "KEY", trust.KEY_NOT_AUTHORIZED),
        "E refuses this node's connection: its key is not authorized there",
    ),
    (
        trust.RefusedByPeer("E", "", trust.NO_KEY),
        "E refuses this node's connection: it requires a key, and this node has no key",
    ),
    (
        trust.RefusedByPeer("E", "", trust.UNKNOWN),
        "E refuses this node's connection: it requires a key, or is neither a tower nor a node, and this node has "
        "no key",
    ),
    (
        trust.RefusedByPeer("E", "KEY", trust.NO_KEY),
        "E refuses this node's connection: only one of the two has a key",
    ),
    (
        trust.RefusedByPeer("E", "KEY", trust.WRONG_KEY),
        "E refuses this node's connection: it may have another public key than the expected one",
    ),
]


def test_each_case_has_its_own_words() -> None:
    for event, text in WORDS:
        assert str(event) == text
        if isinstance(event, trust.RefusedByPeer):
            assert event.is_certain == (event.reason != "unknown")
