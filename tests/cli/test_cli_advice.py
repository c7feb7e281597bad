"""The advice that commands add to events and errors."""

from __future__ import annotations

import pytest

from dafka.cli.advice import CLOSED_CLUSTER, advise, with_advice
from dafka.errors import StorageError, UnacknowledgedError
from dafka.protocol import (
    EndpointsExposed,
    ForeignDialect,
    PeerNotAuthorized,
    PeerRefused,
    RefusedByPeer,
    TowerHostAmbiguous,
    TowersHeard,
)

AUTHORIZE = "to authorize it, run: dafka keys authorize 'k' --authorized-keys list"


@pytest.mark.parametrize(
    ("event", "advice"),
    [
        (PeerRefused("10.0.0.1", "k", "key not authorized", "list"), AUTHORIZE),
        (PeerNotAuthorized("tcp://10.0.0.1:1", "k", "list"), AUTHORIZE),
        (PeerNotAuthorized("tcp://10.0.0.1:1", "", "list"), ""),
        (PeerRefused("10.0.0.1", "", "no key", "list"), f"start it with {CLOSED_CLUSTER}"),
        (PeerRefused("10.0.0.1", "", "another key expected", "list"), "`dafka keys show` prints the right one"),
        (RefusedByPeer("tcp://a:1", "own", "key not authorized"), "run there: dafka keys authorize 'own'"),
        (RefusedByPeer("tcp://a:1", "", "no key"), f"if it belongs to a closed cluster, use {CLOSED_CLUSTER}"),
        (RefusedByPeer("tcp://a:1", "", "unknown"), f"if it belongs to a closed cluster, use {CLOSED_CLUSTER}"),
        (RefusedByPeer("tcp://a:1", "own", "no key"), f"use {CLOSED_CLUSTER} on both sides"),
        (RefusedByPeer("tcp://a:1", "own", "unknown"), "`dafka keys show` prints the right one there"),
        (ForeignDialect("rfc", "libdafka"), "use --wire libdafka, or change the peer"),
        (EndpointsExposed(("tcp://*:1",)), f"listen on 127.0.0.1, or close the cluster with {CLOSED_CLUSTER}"),
        (TowerHostAmbiguous("a", "b"), "with --advertise HOST"),
        (UnacknowledgedError(3, 0, 1), "check with `dafka status` that enough stores run"),
        (TowersHeard(), ""),
        (StorageError("full"), ""),
        (None, ""),
    ],
    ids=lambda each: type(each).__name__ if not isinstance(each, str) else None,
)
def test_advice_names_what_to_run(event: object, advice: str) -> None:
    assert advise(event).endswith(advice)
    assert bool(advise(event)) == bool(advice)
    assert with_advice(event) == (f"{event}; {advise(event)}" if advice else str(event))
