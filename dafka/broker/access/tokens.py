"""Tokens: secrets that authenticate a user. The users file stores only their hashes."""

from __future__ import annotations

import secrets
import time
from hashlib import sha256

import attrs

PREFIX = "dafka_"
"""The prefix of all tokens, by which people and scanners recognize a token that was published by mistake."""

_ID_BYTES = 4
_SECRET_BYTES = 32


@attrs.frozen
class Token:
    """The stored form of a token.

    Attributes:
        token_id: The id by which operators refer to the token.
        digest: The SHA-256 of the token. A token is too random to be guessed from it.
        expires_at_ms: When the token expires, in milliseconds since 1970; None for never.
    """

    token_id: str
    digest: bytes = attrs.field(repr=False)
    expires_at_ms: int | None = None

    def is_valid(self) -> bool:
        """Return whether the token has not expired."""
        return self.expires_at_ms is None or time.time() * 1000 < self.expires_at_ms


def create_token(expires_at_ms: int | None = None) -> tuple[str, Token]:
    """Create a token. Returns the secret and its stored form."""
    secret = PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
    return secret, Token(secrets.token_hex(_ID_BYTES), hash_token(secret), expires_at_ms)


def hash_token(secret: str) -> bytes:
    """Return the digest of a token."""
    return sha256(secret.encode("utf-8", "replace")).digest()
