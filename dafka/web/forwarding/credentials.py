"""How brokers prove to each other who they are, when they forward requests of clients.

All brokers of a cluster have the same secret. A credential is a time and a random number, signed with the secret for
one broker. It counts once, and for a few minutes, so that nobody who sees one can use it.
"""

from __future__ import annotations

import hmac
import secrets
from collections import OrderedDict
from hashlib import sha256
from pathlib import Path

from dafka.errors import ConfigError

SCHEME = "Dafka-Broker"
"""The scheme of the header Authorization."""

FORWARDED_BY = "Dafka-Forwarded-By"
"""The header that names the broker which forwards a request. Such a request is not forwarded again."""

SECRET_LENGTH_MIN = 32

VALID_MS = 300_000
"""How far the clocks of two brokers may be apart."""

USED_MAX = 100_000
"""How many used credentials are remembered. Beyond it, further ones are refused."""


class BrokerSecret:
    """The secret that the brokers of a cluster share.

    Args:
        secret: The secret.
        address: The address of this broker.
    """

    def __init__(self, secret: str, address: str) -> None:
        self._secret = secret.encode()
        self._address = address
        self._used: OrderedDict[str, int] = OrderedDict()

    def issue(self, receiver: str, now_ms: int) -> str:
        """Return the value of the header Authorization for a request to another broker.

        Args:
            receiver: The address of the other broker.
            now_ms: The time, in milliseconds since 1970.

        Returns:
            The value.
        """
        nonce = secrets.token_hex(16)
        return f"{SCHEME} {self._address}.{now_ms}.{nonce}.{self._sign(self._address, receiver, now_ms, nonce)}"

    def check(self, credential: str, now_ms: int) -> bool:
        """Return whether a credential comes from a broker of the cluster, is meant for this one, and is new.

        Args:
            credential: What follows the scheme in the header Authorization.
            now_ms: The time, in milliseconds since 1970.

        Returns:
            Whether it counts. It does not count again.
        """
        sender, _, rest = credential.partition(".")
        time, _, rest = rest.partition(".")
        nonce, _, signature = rest.partition(".")
        if not (time.isascii() and time.isdecimal() and len(time) < 20) or abs(now_ms - int(time)) > VALID_MS:
            return False
        expected = self._sign(sender, self._address, int(time), nonce)
        if not hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace")):
            return False
        while self._used and next(iter(self._used.values())) < now_ms - 2 * VALID_MS:
            self._used.popitem(last=False)
        if nonce in self._used or len(self._used) >= USED_MAX:
            return False
        self._used[nonce] = now_ms
        return True

    def _sign(self, sender: str, receiver: str, time_ms: int, nonce: str) -> str:
        text = "\0".join((SCHEME, sender, receiver, str(time_ms), nonce))
        return hmac.digest(self._secret, text.encode("utf-8", "replace"), sha256).hex()


def read_secret(path: str, address: str) -> BrokerSecret | None:
    """Return the secret in a file.

    Args:
        path: The file; empty if there is none.
        address: The address of this broker.

    Returns:
        The secret; None if there is no file.

    Raises:
        ConfigError: The file cannot be read, or the secret is too short.
    """
    if not path:
        return None
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
    return BrokerSecret(secret, address)
