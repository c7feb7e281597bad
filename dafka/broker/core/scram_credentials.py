"""SCRAM credentials (RFC 5802) as a cluster keeps them. The numbers of mechanisms are from Kafka's protocol."""

from __future__ import annotations

from base64 import b64decode, b64encode
from enum import IntEnum

import attrs

ITERATIONS_MIN = 4096
"""The lowest number of iterations. Clients accept no lower one."""

ITERATIONS_MAX = 16_384
"""The highest number, as in Kafka. It limits the processor time of a login."""

SALT_BYTES_MIN, SALT_BYTES_MAX = 12, 1024
"""The size of a salt, in bytes. A shorter one protects less, and is not accepted at a login."""


class ScramMechanism(IntEnum):
    """A mechanism of SCRAM."""

    SHA_256 = 1
    SHA_512 = 2

    @property
    def sasl_name(self) -> str:
        """The name in SASL."""
        return f"SCRAM-{self.name.replace('_', '-')}"

    @property
    def hash_name(self) -> str:
        """The name of its hash function in `hashlib`."""
        return self.name.replace("_", "").lower()

    @property
    def key_bytes(self) -> int:
        """The size of its keys, in bytes."""
        return 32 if self is ScramMechanism.SHA_256 else 64


@attrs.frozen
class ScramCredential:
    """Verifies a user's password without containing it. Salt and keys are in base64."""

    user: str
    mechanism: ScramMechanism
    iterations: int
    salt: str = attrs.field(repr=False)
    stored_key: str = attrs.field(repr=False)
    server_key: str = attrs.field(repr=False)

    def decode(self) -> tuple[bytes, bytes, bytes]:
        """Return the salt, the stored key and the server key. Raise `ValueError` if they are not in base64."""
        return (
            b64decode(self.salt, validate=True),
            b64decode(self.stored_key, validate=True),
            b64decode(self.server_key, validate=True),
        )


def encode_key(key: bytes) -> str:
    """Return a salt or a key in base64."""
    return b64encode(key).decode()


def find_iterations_problem(iterations: int) -> str:
    """Return why a number of iterations is not possible; empty if it is."""
    if ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        return ""
    return f"expected {ITERATIONS_MIN} to {ITERATIONS_MAX} iterations, not {iterations}"


def find_salt_problem(salt: bytes) -> str:
    """Return why a salt is not possible; empty if it is."""
    if SALT_BYTES_MIN <= len(salt) <= SALT_BYTES_MAX:
        return ""
    return f"expected a salt of {SALT_BYTES_MIN} to {SALT_BYTES_MAX} bytes, not of {len(salt)}"


def find_credential_problem(credential: ScramCredential) -> str:
    """Return why a credential is not possible; empty if it is."""
    try:
        salt, *keys = credential.decode()
    except ValueError:
        return "expected the salt and the keys of a credential in base64"
    size = credential.mechanism.key_bytes
    if any(len(each) != size for each in keys):
        return f"expected keys of {size} bytes for {credential.mechanism.sasl_name}"
    return find_iterations_problem(credential.iterations) or find_salt_problem(salt)
