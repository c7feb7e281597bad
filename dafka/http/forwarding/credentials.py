"""How brokers prove to each other who they are, when they forward requests of clients.

A broker that has connected to another one asks for a challenge, and signs each of its requests over this connection:
with the challenge, the number of the request, and what it asks for. So a signature counts once and for one connection,
and nothing about it is remembered anywhere else. Requests of others over the same connection, such as behind a proxy,
have no signature and get no rights.

All brokers of a cluster have the same secret to sign with. Without one, and if clients do not authenticate, a broker
describes itself to the other brokers with a key that they sign with.
"""

from __future__ import annotations

import hmac
import secrets
from hashlib import sha256
from pathlib import Path

from dafka.errors import ConfigError

SCHEME = "Dafka-Broker"
"""The scheme of the headers Authorization and WWW-Authenticate."""

SECRET_LENGTH_MIN = 32

_CHALLENGE_BYTES = 16


def create_key() -> str:
    """Return a key for a broker without a secret file."""
    return secrets.token_hex(_CHALLENGE_BYTES)


class RequestSigner:
    """Signs what one broker asks another one over one connection.

    Args:
        secret: What both have.
        sender: The address of the broker that asks.
        receiver: The address of the other one.
        challenge: What the other one has answered to `ASK`.
    """

    ASK = SCHEME
    """The value of the header Authorization that asks for a challenge."""

    def __init__(self, secret: str, sender: str, receiver: str, challenge: str) -> None:
        self._secret = secret
        self._sender = sender
        self._receiver = receiver
        self._challenge = challenge
        self._count = 0

    def sign(self, method: str, target: str) -> str:
        """Return the value of the header Authorization for the next request.

        Args:
            method: The method.
            target: The path and the query.

        Returns:
            The value.
        """
        self._count += 1
        parts = (self._sender, self._receiver, self._challenge, str(self._count), method, target)
        return f"{SCHEME} {self._sender}.{self._count}.{_sign(self._secret, parts)}"


class SignatureChecker:
    """Checks the signatures of the requests over one connection.

    Args:
        secret: What the brokers of the cluster have; empty if no broker can prove that it is one.
        address: The address of this broker.
    """

    def __init__(self, secret: str, address: str) -> None:
        self._secret = secret
        self._address = address
        self._challenge = ""
        self._count = 0

    def challenge(self) -> str:
        """Begin anew, and return the challenge that the next requests are signed with."""
        self._challenge, self._count = secrets.token_hex(_CHALLENGE_BYTES), 0
        return self._challenge

    def check(self, credential: str, method: str, target: str) -> bool:
        """Return whether a request comes from a broker of the cluster. A credential counts once.

        Args:
            credential: What follows the scheme in the header Authorization.
            method: The method.
            target: The path and the query.

        Returns:
            Whether it does.
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


def read_secret(path: str) -> str:
    """Return the secret in a file.

    Args:
        path: The file; empty if there is none.

    Returns:
        The secret; empty if there is no file.

    Raises:
        ConfigError: The file cannot be read, or the secret is too short.
    """
    if not path:
        return ""
    try:
        secret = Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "expected text"
        raise ConfigError(f"[broker] secret_file: cannot read {path}: {reason}") from None
    if len(secret) < SECRET_LENGTH_MIN:
        raise ConfigError(
            f"[broker] secret_file: expected at least {SECRET_LENGTH_MIN} characters in {path}, such as those that "
            "`openssl rand -hex 32` prints"
        )
    return secret
