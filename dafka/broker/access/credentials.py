"""Salted hashes of passwords (RFC 5802). They verify a password and do not reveal it."""

from __future__ import annotations

import hmac
from types import ModuleType

import attrs

from dafka.errors import ConfigError
from dafka.extras import require_extra

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
"""The SASL mechanisms. Each user has a credential for each of them."""

DEFAULT_ITERATIONS = 15_000
"""How often a password is hashed. RFC 7677 recommends this number."""

ITERATIONS_MIN = 4096
"""The lowest number that clients accept."""


def load_scramp() -> ModuleType:
    """Return the SCRAM library. Raises `MissingExtraError` if it is not installed."""
    with require_extra("users", "authentication of users"):
        import scramp  # noqa: PLC0415 (the extra is needed only with users)
    module: ModuleType = scramp
    return module


@attrs.frozen
class Credential:
    """A salted and hashed password.

    Attributes:
        salt: The salt.
        iterations: How often the password was hashed.
        stored_key: Verifies the client's proof.
        server_key: Proves to the client that the broker knows this credential.
    """

    salt: bytes = attrs.field(repr=False)
    iterations: int
    stored_key: bytes = attrs.field(repr=False)
    server_key: bytes = attrs.field(repr=False)


def derive_credential(
    mechanism: str, password: str, iterations: int = DEFAULT_ITERATIONS, salt: bytes | None = None
) -> Credential:
    """Derive the credential of a password. This takes milliseconds.

    Args:
        mechanism: The mechanism.
        password: The password.
        iterations: How often to hash it.
        salt: The salt; None for a random one.

    Returns:
        The credential.

    Raises:
        ConfigError: The password is empty or contains characters that SCRAM does not allow.
    """
    scramp = load_scramp()
    try:
        found, stored_key, server_key, count = scramp.ScramMechanism(mechanism).make_auth_info(
            password, iterations, salt
        )
    except scramp.ScramException as error:
        raise ConfigError(f"password: {error}") from None
    return Credential(found, count, stored_key, server_key)


def verify_password(mechanism: str, credential: Credential, password: str) -> bool:
    """Return whether a password matches a credential, in constant time."""
    try:
        given = derive_credential(mechanism, password, credential.iterations, credential.salt)
    except ConfigError:
        return False
    return hmac.compare_digest(given.stored_key, credential.stored_key)
