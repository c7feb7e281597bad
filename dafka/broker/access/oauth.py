"""Verifies the JSON Web Tokens with which clients log in by OAUTHBEARER."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from dafka.broker.access.users_file import find_user_name_problem
from dafka.config import ClientsConfig
from dafka.errors import ConfigError
from dafka.extras import require_extra
from dafka.watched_files import WatchedFiles

OAUTHBEARER = "OAUTHBEARER"
"""The mechanism of clients that send a token (RFC 7628)."""

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA")
"""The accepted algorithms of signatures. None of them uses a shared secret."""

LEEWAY_S = 30
"""How many seconds before its time a token is already accepted, since clocks differ."""

EXPIRES_AT_MAX = 2**53
"""The latest time at which a token expires, in seconds since 1970. In milliseconds, it fits in 64 bits."""

KEYS_BYTES_MAX = 2**20
"""The size of the largest file with keys, in bytes."""


class InvalidTokenError(Exception):
    """A token is not accepted. The message gives the reason, and contains nothing of the token."""


class VerifiedToken(NamedTuple):
    """The user that a token names, and when it expires, in seconds since 1970."""

    user: str
    expires_at: float


def _load_joserfc() -> ModuleType:
    with require_extra("oauth", "login by OAUTHBEARER"):
        import joserfc.jwk  # noqa: PLC0415 (the extra is needed only with tokens)
        import joserfc.jwt  # noqa: PLC0415
    return joserfc


class TokenVerifier:
    """Verifies tokens by the keys in a file, which is read again when it changes.

    If the changed file cannot be read, the previous keys remain. Raise `ConfigError` if the file cannot be read at
    first, or a setting that it needs is missing, and `MissingExtraError` if the extra `dafka[oauth]` is not installed.
    """

    def __init__(self, settings: ClientsConfig) -> None:
        self._joserfc = _load_joserfc()
        if not (settings.oauth_issuer and settings.oauth_audience and settings.users):
            raise ConfigError("[clients] oauth_keys: expected oauth_issuer, oauth_audience and users, too")
        path = Path(settings.oauth_keys)
        self._files = WatchedFiles(lambda: [path], lambda: self._read(path))
        self._user_claim = settings.oauth_user_claim
        self._claims = self._joserfc.jwt.JWTClaimsRegistry(
            leeway=LEEWAY_S,
            iss={"essential": True, "value": settings.oauth_issuer},
            aud={"essential": True, "value": settings.oauth_audience},
            exp={"essential": True},
        )

    def refresh(self) -> bool:
        """Read the keys again if the file has changed. Return whether they changed.

        Raise `ConfigError`, once for each change, if the changed file cannot be read. The previous keys remain.
        """
        return self._files.refresh()

    def verify(self, token: str) -> VerifiedToken:
        """Return the user of a token. Raise `InvalidTokenError` if it is forged, expired or for another audience."""
        keys = self._joserfc.jwk.KeySet.import_key_set({"keys": self._files.value})
        try:
            claims: dict[str, Any] = self._joserfc.jwt.decode(token, keys, algorithms=ALGORITHMS).claims
            self._claims.validate(claims)
        except (self._joserfc.errors.JoseError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise InvalidTokenError(f"the token is not accepted: {type(error).__name__}") from None
        user, expires_at = claims.get(self._user_claim), min(claims["exp"], EXPIRES_AT_MAX)
        if not isinstance(user, str) or find_user_name_problem(user):
            raise InvalidTokenError(f"the claim {self._user_claim!r} of the token is no name of a user")
        if expires_at <= time.time():
            raise InvalidTokenError("the token has expired")
        return VerifiedToken(user, float(expires_at))

    def _read(self, path: Path) -> list[Any]:
        """Return the public keys in a file. Raise `ConfigError` if it cannot be read, or has other keys."""
        problem = 'expected a set of public keys: {"keys": [...]}, as an issuer publishes at its jwks_uri'
        try:
            with path.open("rb") as file:
                found = json.loads(file.read(KEYS_BYTES_MAX))["keys"]
            for each in found:
                if each.get("kty") not in {"RSA", "EC", "OKP"} or "d" in each:
                    raise ConfigError(f"the keys {path}: {problem}")
            self._joserfc.jwk.KeySet.import_key_set({"keys": found})
        except OSError as error:
            raise ConfigError(f"cannot read the keys {path}: {error.strerror}") from None
        except (self._joserfc.errors.JoseError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise ConfigError(f"the keys {path}: {problem}") from None
        return list(found)
