"""Authenticates brokers to each other when they forward requests of clients.

A broker that connects to another one asks for a challenge. It signs each of its requests over this connection: the
challenge, the number of the request, its method and its target. So a signature is valid once and for one connection,
and no other state is needed. A request of another client over the same connection, for example through a proxy, has no
signature and gets no permissions.

All brokers of a cluster sign with the same secret. Without a secret, and if clients do not authenticate, each broker
registers a key with which the others sign.
"""

from __future__ import annotations

import hmac
import secrets
from hashlib import sha256
from typing import ClassVar

import attrs

SCHEME = "Dafka-Broker"
"""The scheme of the headers Authorization and WWW-Authenticate."""

_CHALLENGE_BYTES = 16


def create_key() -> str:
    """Return a key for a broker without a secret file."""
    return secrets.token_hex(_CHALLENGE_BYTES)


@attrs.define(eq=False, slots=False)
class RequestSigner:
    """Signs the requests of one broker to another over one connection, with a secret that both share.

    The sender and the receiver are addresses. The challenge is the receiver's answer to `ASK`.
    """

    ASK: ClassVar = SCHEME
    """The value of the header Authorization that asks for a challenge."""

    _secret: str
    _sender: str
    _receiver: str
    _challenge: str
    _count: int = attrs.field(default=0, init=False)

    def sign(self, method: str, target: str) -> str:
        """Return the value of the header Authorization for the next request."""
        self._count += 1
        parts = (self._sender, self._receiver, self._challenge, str(self._count), method, target)
        return f"{SCHEME} {self._sender}.{self._count}.{_sign(self._secret, parts)}"


@attrs.define(eq=False, slots=False)
class SignatureChecker:
    """Checks the signatures of the requests over one connection to the broker with an address.

    No broker can authenticate if the secret is empty.
    """

    _secret: str
    _address: str
    _challenge: str = attrs.field(default="", init=False)
    _count: int = attrs.field(default=0, init=False)

    def challenge(self) -> str:
        """Create the challenge that the next requests are signed with."""
        self._challenge, self._count = secrets.token_hex(_CHALLENGE_BYTES), 0
        return self._challenge

    def check(self, credential: str, method: str, target: str) -> bool:
        """Return whether a request comes from a broker of the cluster. A credential is valid once.

        The credential is the part after the scheme in the header Authorization.
        """
        sender, _, rest = credential.partition(".")
        count, _, signature = rest.partition(".")
        if not self._secret or not self._challenge or count != str(self._count + 1):
            return False
        parts = (sender, self._address, self._challenge, count, method, target)
        if not hmac.compare_digest(_sign(self._secret, parts).encode(), signature.encode("utf-8", "replace")):
            return False
        self._count += 1
        return True


def _sign(secret: str, parts: tuple[str, ...]) -> str:
    text = "\0".join((SCHEME, *parts))
    return hmac.digest(secret.encode(), text.encode("utf-8", "replace"), sha256).hex()
