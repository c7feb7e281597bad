"""What authenticates users: salted hashes of passwords (RFC 5802), and tokens, of which only hashes are stored."""

from __future__ import annotations

import hmac
import secrets
import time
from hashlib import new, sha256
from types import ModuleType

import attrs

from dafka.broker.core.scram_credentials import ScramCredential, ScramMechanism, encode_key
from dafka.errors import ConfigError
from dafka.extras import require_extra

MECHANISMS = tuple(each.sasl_name for each in ScramMechanism)
"""The SASL mechanisms. Each user has a credential for each of them."""

DEFAULT_ITERATIONS = 15_000
"""How often a password is hashed. RFC 7677 recommends this number."""

TOKEN_PREFIX = "dafka_"
"""The prefix of all tokens, by which people and scanners recognize a token that was published by mistake."""

_ID_BYTES = 4
_SECRET_BYTES = 32


def load_scramp() -> ModuleType:
    """Return the SCRAM library. Raises `MissingExtraError` if it is not installed."""
    with require_extra("users", "authentication of users"):
        import scramp  # noqa: PLC0415 (the extra is needed only with users)
        import scramp.utils  # noqa: PLC0415
    module: ModuleType = scramp
    return module


@attrs.frozen
class Credential:
    """A salted and hashed password.

    The stored key verifies the client's proof. The server key proves to the client that the broker knows the
    credential.
    """

    salt: bytes = attrs.field(repr=False)
    iterations: int
    stored_key: bytes = attrs.field(repr=False)
    server_key: bytes = attrs.field(repr=False)


def derive_credential(
    mechanism: str, password: str, iterations: int = DEFAULT_ITERATIONS, salt: bytes | None = None
) -> Credential:
    """Return the credential of a password, with a random salt if None. This takes milliseconds.

    Raise `ConfigError` if the password is empty or contains characters that SCRAM does not allow.
    """
    scramp = load_scramp()
    if not password:
        raise ConfigError("password: expected one that is not empty")
    try:
        found, stored_key, server_key, count = scramp.ScramMechanism(mechanism).make_auth_info(
            password, iterations, salt
        )
    except scramp.ScramException as error:
        raise ConfigError(f"password: {error}") from None
    return Credential(found, count, stored_key, server_key)


def prepare_password(password: str) -> bytes:
    """Return the bytes of a password to be salted and hashed, which are the same however it is typed.

    Raise `ConfigError` if it is empty, or contains characters that SCRAM does not allow.
    """
    scramp = load_scramp()
    try:
        prepared: str = scramp.utils.saslprep(password)
    except scramp.ScramException as error:
        raise ConfigError(f"password: {error}") from None
    if not prepared:
        raise ConfigError("password: expected one that is not empty")
    return prepared.encode()


def derive_from_salted(
    user: str, mechanism: ScramMechanism, iterations: int, salt: bytes, salted_password: bytes
) -> ScramCredential:
    """Return the credential of a password that was already salted and hashed (RFC 5802)."""
    digest = mechanism.hash_name
    client_key = hmac.digest(salted_password, b"Client Key", digest)
    stored_key, server_key = new(digest, client_key).digest(), hmac.digest(salted_password, b"Server Key", digest)
    return ScramCredential(
        user, mechanism, iterations, encode_key(salt), encode_key(stored_key), encode_key(server_key)
    )


def verify_password(mechanism: str, credential: Credential, password: str) -> bool:
    """Return whether a password matches a credential, in constant time."""
    try:
        given = derive_credential(mechanism, password, credential.iterations, credential.salt)
    except ConfigError:
        return False
    return hmac.compare_digest(given.stored_key, credential.stored_key)


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
    secret = TOKEN_PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
    return secret, Token(secrets.token_hex(_ID_BYTES), hash_token(secret), expires_at_ms)


def hash_token(secret: str) -> bytes:
    """Return the digest of a token."""
    return sha256(secret.encode("utf-8", "replace")).digest()
