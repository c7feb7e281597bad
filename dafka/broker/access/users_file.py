"""Reads and writes the users file: names, credentials and permissions as JSON. It contains no passwords."""

from __future__ import annotations

import binascii
import json
import os
import re
import stat
from base64 import b64decode, b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from dafka.broker.access.credentials import MECHANISMS, Credential, Token, hash_token
from dafka.broker.access.permissions import Permissions
from dafka.broker.core.scram_credentials import ITERATIONS_MIN
from dafka.durable_files import replace_text
from dafka.errors import ConfigError
from dafka.watched_files import WatchedFiles

USERS_VERSION = 1
"""The version of the file; also that of one that names none."""

_FILE_BYTES_MAX = 16 * 2**20
_NAME = re.compile(r"[A-Za-z0-9._@+-]{1,100}")
_PERMISSIONS = tuple(each.name for each in attrs.fields(Permissions))


@attrs.frozen
class User:
    """A user, with a credential for each mechanism."""

    name: str
    credentials: Mapping[str, Credential] = attrs.field(repr=False)
    permissions: Permissions
    tokens: tuple[Token, ...] = ()


def find_user_name_problem(name: str) -> str:
    """Return why a user name is not valid; empty if it is."""
    if _NAME.fullmatch(name):
        return ""
    return f"user {name!r}: expected 1 to 100 letters, digits, '.', '_', '@', '+' and '-'"


class UsersFile:
    """The users in a file, which is read again when it changes.

    If the changed file cannot be read, the previous users remain, so that a mistake locks nobody out. Raise
    `ConfigError` if the file cannot be read at first.
    """

    def __init__(self, path: Path) -> None:
        self._file = WatchedFiles(lambda: [path], lambda: read_users(path))
        self._tokens = _tokens_of(self._file.value)

    def find_token(self, secret: str) -> tuple[User, Token] | None:
        """Return the user of a token and the stored token; None if the token is unknown or has expired."""
        found = self._tokens.get(hash_token(secret))
        return found if found is not None and found[1].is_valid() else None

    @property
    def users(self) -> Mapping[str, User]:
        """The users, by name."""
        return self._file.value

    def find(self, name: str) -> User | None:
        """Return the user with this name; None if it does not exist."""
        return self.users.get(name)

    def refresh(self) -> bool:
        """Read the file again if it has changed. Return whether the users changed.

        Raise `ConfigError`, once for each change, if the changed file cannot be read. The previous users remain.
        """
        is_changed = self._file.refresh()
        if is_changed:
            self._tokens = _tokens_of(self._file.value)
        return is_changed


def read_users(path: Path) -> dict[str, User]:
    """Return the users in a file, by name.

    Raise `ConfigError` if the file cannot be read, everybody can read it, or it is not a users file.
    """
    try:
        with path.open("rb") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & stat.S_IROTH:
                raise ConfigError(f"other users can read the users {path}: run chmod 600 {path}")
            content = file.read(_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"cannot read the users {path}: {error.strerror}") from None
    if len(content) > _FILE_BYTES_MAX:
        raise ConfigError(f"users {path}: expected at most {_FILE_BYTES_MAX} bytes; is it another file?")
    try:
        document = json.loads(content)
        if document.get("version", USERS_VERSION) != USERS_VERSION:
            raise ConfigError("another version of dafka has written them: update dafka")
        found = {name: _read_user(name, each) for name, each in document["users"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = str(error) if isinstance(error, ConfigError) else "expected what `dafka user add` writes"
        raise ConfigError(f"users {path}: {reason}") from None
    return found


def write_users(path: Path, users: Mapping[str, User]) -> None:
    """Replace a users file atomically and durably. Only its owner can read a new file. Raises `ConfigError`."""
    document = {"version": USERS_VERSION, "users": {name: _describe(user) for name, user in sorted(users.items())}}
    try:
        replace_text(path, json.dumps(document, indent=2) + "\n", 0o600)
    except OSError as error:
        raise ConfigError(f"cannot write the users {path}: {error.strerror}") from None


def _read_user(name: str, entry: Any) -> User:
    problem = find_user_name_problem(name)
    if problem:
        raise ConfigError(problem)
    credentials = {
        mechanism: Credential(
            _decode(each["salt"]), int(each["iterations"]), _decode(each["stored_key"]), _decode(each["server_key"])
        )
        for mechanism, each in entry["credentials"].items()
    }
    unknown = [each for each in credentials if each not in MECHANISMS]
    if unknown or not credentials:
        raise ConfigError(f"user {name!r}: expected credentials for {' or '.join(MECHANISMS)}")
    if any(each.iterations < ITERATIONS_MIN for each in credentials.values()):
        raise ConfigError(f"user {name!r}: expected at least {ITERATIONS_MIN} iterations")
    unknown = [each for each in entry.get("permissions", {}) if each not in _PERMISSIONS]
    if unknown:
        raise ConfigError(f"user {name!r}: expected the permissions {', '.join(_PERMISSIONS)}, not {unknown[0]!r}")
    patterns = {kind: tuple(each) for kind, each in entry.get("permissions", {}).items()}
    if not all(isinstance(each, str) for some in patterns.values() for each in some):
        raise ConfigError(f"user {name!r}: expected texts as patterns")
    tokens = tuple(_read_token(name, each) for each in entry.get("tokens", ()))
    return User(name, credentials, Permissions(**patterns), tokens)


def _read_token(name: str, entry: Any) -> Token:
    expires_at_ms = entry.get("expires_at_ms")
    if not isinstance(entry["id"], str) or not isinstance(expires_at_ms, (int, type(None))):
        raise ConfigError(f"user {name!r}: expected tokens with an id, a sha256 and perhaps an expires_at_ms")
    return Token(entry["id"], _decode(entry["sha256"]), expires_at_ms)


def _tokens_of(users: Mapping[str, User]) -> dict[bytes, tuple[User, Token]]:
    return {token.digest: (user, token) for user in users.values() for token in user.tokens}


def _describe(user: User) -> dict[str, Any]:
    return {
        "credentials": {
            mechanism: {
                "iterations": each.iterations,
                "salt": b64encode(each.salt).decode(),
                "stored_key": b64encode(each.stored_key).decode(),
                "server_key": b64encode(each.server_key).decode(),
            }
            for mechanism, each in user.credentials.items()
        },
        "permissions": {kind: list(getattr(user.permissions, kind)) for kind in _PERMISSIONS},
        "tokens": [
            {"id": each.token_id, "sha256": b64encode(each.digest).decode(), "expires_at_ms": each.expires_at_ms}
            for each in user.tokens
        ],
    }


def _decode(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except binascii.Error:
        raise ConfigError("expected keys in base64") from None
