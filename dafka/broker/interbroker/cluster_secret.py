"""The secret that all brokers of a cluster share, with which they authenticate to each other."""

from __future__ import annotations

from pathlib import Path

from dafka.errors import ConfigError

SECRET_LENGTH_MIN = 32
"""The number of characters of the shortest secret."""


def read_secret(path: str) -> str:
    """Return the secret in a file; empty if the path is empty.

    Raises `ConfigError` if the file cannot be read, or the secret is too short.
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
