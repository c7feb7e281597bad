"""Verifies the JSON Web Tokens with which clients log in by OAUTHBEARER."""

from __future__ import annotations

import time
from collections import OrderedDict
from hashlib import sha256
from typing import Any, NamedTuple

from dafka.broker.access.issuer_keys import IssuerKeys, PublicKeys, load_joserfc
from dafka.broker.access.users_file import find_user_name_problem
from dafka.config import ClientsConfig

OAUTHBEARER = "OAUTHBEARER"
"""The mechanism of clients that send a token (RFC 7628)."""

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA")
"""The accepted algorithms of signatures. None of them uses a shared secret."""

LEEWAY_S = 30
"""How many seconds before its time a token is already accepted, since clocks differ."""

EXPIRES_AT_MAX = 2**53
"""The latest time at which a token expires, in seconds since 1970. In milliseconds, it fits in 64 bits."""

VERIFIED_MAX = 1000
"""How many verified tokens are remembered, since clients of HTTP send theirs with each request."""


class InvalidTokenError(Exception):
    """A token is not accepted. The message gives the reason, and contains nothing of the token."""


class UnknownKeyError(InvalidTokenError):
    """A token is signed with a key that is not among the keys of the issuer."""


class VerifiedToken(NamedTuple):
    """The user that a token names, and when it expires, in seconds since 1970."""

    user: str
    expires_at: float

    def is_valid(self) -> bool:
        """Return whether the token has not expired."""
        return time.time() < self.expires_at


class TokenVerifier:
    """Verifies tokens by the present keys of an issuer. The settings name the issuer, the audience and the user."""

    def __init__(self, settings: ClientsConfig, keys: IssuerKeys) -> None:
        self._keys = keys
        self._joserfc = load_joserfc()
        self._user_claim = settings.oauth_user_claim
        self._claims = self._joserfc.jwt.JWTClaimsRegistry(
            leeway=LEEWAY_S,
            iss={"essential": True, "value": settings.oauth_issuer},
            aud={"essential": True, "value": settings.oauth_audience},
            exp={"essential": True},
        )
        self._verified: OrderedDict[bytes, VerifiedToken] = OrderedDict()
        self._verified_by: PublicKeys | None = None

    async def verify(self, token: str) -> VerifiedToken:
        """Return the user of a token. Raise `InvalidTokenError` if it is forged, expired or for another audience.

        If its key is unknown, it waits for the issuer's present keys, which are fetched now and then for that.
        """
        try:
            return self._verify(token)
        except UnknownKeyError:
            if not await self._keys.fetch_unknown():
                raise
        return self._verify(token)

    def _verify(self, token: str) -> VerifiedToken:
        """Verify a token by the keys that are known, in a tenth of a millisecond, or from memory."""
        keys = self._keys.current
        if keys is None:
            raise UnknownKeyError("the keys of the issuer have not been fetched yet")
        if keys is not self._verified_by:
            self._verified.clear()
            self._verified_by = keys
        digest = sha256(token.encode("utf-8", "replace")).digest()
        found = self._verified.pop(digest, None) or self._read(token, keys)
        if not found.is_valid():
            raise InvalidTokenError("the token has expired")
        self._verified[digest] = found
        if len(self._verified) > VERIFIED_MAX:
            self._verified.popitem(last=False)
        return found

    def _read(self, token: str, keys: PublicKeys) -> VerifiedToken:
        errors = self._joserfc.errors
        try:
            claims: dict[str, Any] = self._joserfc.jwt.decode(token, keys.key_set, algorithms=ALGORITHMS).claims
            self._claims.validate(claims)
        except errors.InvalidKeyIdError:
            raise UnknownKeyError("the token is signed with an unknown key") from None
        except errors.ExpiredTokenError:
            raise InvalidTokenError("the token has expired") from None
        except errors.ClaimError as error:
            raise InvalidTokenError(f"the claim {error.claim!r} of the token is not accepted") from None
        except (errors.JoseError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise InvalidTokenError(f"the token is not accepted: {type(error).__name__}") from None
        user, expires_at = claims.get(self._user_claim), min(claims["exp"], EXPIRES_AT_MAX)
        if not isinstance(user, str) or find_user_name_problem(user):
            raise InvalidTokenError(f"the claim {self._user_claim!r} of the token is no name of a user")
        return VerifiedToken(user, float(expires_at))
