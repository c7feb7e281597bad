"""Advice for operators: what to do about an event or an error, with the names of commands and options.

The library's events and errors say what happened. They do not name commands, because they also go to programs that
embed a node.
"""

from __future__ import annotations

from dafka.errors import UnacknowledgedError
from dafka.protocol import (
    EndpointsExposed,
    ForeignDialect,
    LoopbackOnly,
    PartitionHalted,
    PeerNotAuthorized,
    PeerRefused,
    RefusedByPeer,
)

CLOSED_CLUSTER = "--key-file and --authorized-keys"


def advise(event: object) -> str:
    """Return what an operator can do about an event or an error; empty if the event says it all."""
    advice = ""
    match event:
        case PeerRefused(key=key, authorized_keys=path) | PeerNotAuthorized(key=key, authorized_keys=path) if key:
            advice = f"to authorize it, run: dafka keys authorize '{key}' --authorized-keys {path}"
        case PeerRefused(reason="no key"):
            advice = f"if it belongs to the cluster, start it with {CLOSED_CLUSTER}"
        case PeerRefused():
            advice = "`dafka keys show` prints the right one"
        case RefusedByPeer():
            advice = _advise_refused(event)
        case EndpointsExposed():
            advice = f"listen on 127.0.0.1, or close the cluster with {CLOSED_CLUSTER}"
        case LoopbackOnly():
            advice = "to listen on all network interfaces, use --bind 'tcp://*:*'"
        case UnacknowledgedError():
            advice = "check with `dafka status` that enough stores run"
        case ForeignDialect(heard=heard):
            advice = f"use --wire {heard}, or change the peer"
        case PartitionHalted():
            advice = "to drop the earlier records, stop the store and run `dafka storage trim`"
    return advice


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
