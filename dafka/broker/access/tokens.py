"""Tokens: secrets that stand for a user. The file of users keeps their hashes only."""

from __future__ import annotations

import secrets
import time
from hashlib import sha256

import attrs

PREFIX = "dafka_"
"""How all tokens begin, so that people and scanners recognize one that was published by mistake."""

_ID_BYTES = 4
_SECRET_BYTES = 32


@attrs.frozen
class Token:
    """What a broker keeps of a token.

    Attributes:
        token_id: The id, by which operators name the token.
        digest: The SHA-256 of the token. It has too many possible values for the token to be guessed.
        expires_at_ms: When it expires, in milliseconds since 1970; None for never.
    """

    token_id: str
    digest: bytes = attrs.field(repr=False)
    expires_at_ms: int | None = None

    def is_valid(self) -> bool:
        """Return whether the token has not expired."""
        return self.expires_at_ms is None or time.time() * 1000 < self.expires_at_ms


def create_token(expires_at_ms: int | None = None) -> tuple[str, Token]:
    """Return a new token, and what to keep of it."""
    secret = PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
    return secret, Token(secrets.token_hex(_ID_BYTES), hash_token(secret), expires_at_ms)


def hash_token(secret: str) -> bytes:
    """Return the digest of a token."""
    return sha256(secret.encode("utf-8", "replace")).digest()
