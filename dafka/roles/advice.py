"""What an operator can do about an event: the commands and settings that the sentences of events do not name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dafka.protocol import (
    AddressConflict,
    AuthorizedKeysUnreadable,
    EndpointsExposed,
    ForeignDialect,
    LoopbackOnly,
    PeerNotAuthorized,
    PeerRefused,
    RefusedByPeer,
)
from dafka.protocol.trust import KEY_NOT_AUTHORIZED, NO_KEY


def describe_event(event: object) -> str:
    """Return the sentence of an event, followed by what an operator can do about it.

    Args:
        event: An event, or anything else that `str` turns into a sentence.

    Returns:
        One line.
    """
    advise = _ADVICE.get(type(event))
    return f"{event}; {advise(event)}" if advise else str(event)


def _advise_peer_refused(event: PeerRefused) -> str:
    if event.key:
        return _advise_authorize(event)
    if event.reason == NO_KEY:
        return "to connect, the peer needs a key and [security] settings"
    return "`dafka keys show` prints the key of this node"


def _advise_refused_by_peer(event: RefusedByPeer) -> str:
    if event.reason == KEY_NOT_AUTHORIZED:
        return f"on that machine: dafka keys authorize '{event.own_key}'"
    if not event.own_key:
        return "set [security] key_file and authorized_keys (--key-file, --authorized-keys), or check the endpoint"
    if event.reason == NO_KEY:
        return "check that both have [security] settings"
    return "`dafka keys show` on that machine prints its key"


def _advise_authorize(event: PeerRefused | PeerNotAuthorized) -> str:
    return f"to authorize it: dafka keys authorize '{event.key}' --authorized-keys {event.authorized_keys}"


_ADVICE: dict[type, Callable[[Any], str]] = {
    AddressConflict: lambda _: "give each node an address of its own, or revoke the former key",
    AuthorizedKeysUnreadable: lambda _: "the keys read before remain authorized",
    EndpointsExposed: lambda _: "listen on 127.0.0.1, or set up keys ([security], docs/how-to/security.md)",
    ForeignDialect: lambda event: f"set [node] wire to {event.heard} (--wire {event.heard}), or change the peer",
    LoopbackOnly: lambda _: "set [node] bind (--bind 'tcp://*:*')",
    PeerNotAuthorized: _advise_authorize,
    PeerRefused: _advise_peer_refused,
    RefusedByPeer: _advise_refused_by_peer,
}
