"""Advice for operators: what to do about an event or an error, with the names of commands and options.

The library's events and errors say what happened. They do not name commands, because they also go to programs that
embed a node.
"""

from __future__ import annotations

from dafka.errors import UnacknowledgedError
from dafka.protocol import (
    EndpointsExposed,
    ForeignDialect,
    IntroducedAtLoopback,
    LoopbackOnly,
    PartitionHalted,
    PeerNotAuthorized,
    PeerRefused,
    RefusedByPeer,
    TowerHostAmbiguous,
    TowersSilent,
)

CLOSED_CLUSTER = "--key-file and --authorized-keys"


_ADVICE: dict[type, str] = {
    EndpointsExposed: f"listen on 127.0.0.1, or close the cluster with {CLOSED_CLUSTER}",
    LoopbackOnly: "to listen on all network interfaces, use --bind 'tcp://*:*'",
    IntroducedAtLoopback: "use --bind 'tcp://*:*' to listen on all network interfaces, or --advertise to name a host",
    TowerHostAmbiguous: "start those that others do not reach there with --advertise HOST",
    TowersSilent: "start one with `dafka tower`, or name another with --tower",
    UnacknowledgedError: "check with `dafka status` that enough stores run",
    PartitionHalted: "to drop the earlier records, stop the store and run `dafka storage trim`",
}


def advise(event: object) -> str:
    """Return what an operator can do about an event or an error; empty if the event says it all."""
    match event:
        case PeerRefused(key=key, authorized_keys=path) | PeerNotAuthorized(key=key, authorized_keys=path) if key:
            return f"to authorize it, run: dafka keys authorize '{key}' --authorized-keys {path}"
        case PeerRefused(reason="no key"):
            return f"if it belongs to the cluster, start it with {CLOSED_CLUSTER}"
        case PeerRefused():
            return "`dafka keys show` prints the right one"
        case RefusedByPeer():
            return _advise_refused(event)
        case ForeignDialect(heard=heard):
            return f"use --wire {heard}, or change the peer"
    return next((advice for kind, advice in _ADVICE.items() if isinstance(event, kind)), "")


def _advise_refused(event: RefusedByPeer) -> str:
    if event.reason == "key not authorized":
        return f"to authorize it, run there: dafka keys authorize '{event.own_key}'"
    if not event.own_key:
        return f"if it belongs to a closed cluster, use {CLOSED_CLUSTER}"
    if event.reason == "no key":
        return f"use {CLOSED_CLUSTER} on both sides"
    return "`dafka keys show` prints the right one there"


def with_advice(event: object) -> str:
    """Return the sentence of an event or an error, and what to do about it."""
    advice = advise(event)
    return f"{event}; {advice}" if advice else str(event)
