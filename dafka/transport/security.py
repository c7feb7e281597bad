"""The security settings of a closed cluster: CURVE, the keys of this node and its towers, and the authorized keys."""

from __future__ import annotations

from pathlib import Path

import attrs

from dafka.config import Config
from dafka.errors import ConfigError
from dafka.transport.keys import AuthorizedKeys, KeyPair, parse_public_key, read_key_file
from dafka.transport.socket import BaseSocket

ZAP_DOMAIN = b"dafka"


@attrs.frozen
class Security:
    """The keys of one node or tower in a closed cluster."""

    pair: KeyPair
    authorized: AuthorizedKeys
    """The public keys of the peers that may connect, and that this node connects to."""
    tower_keys: tuple[str, ...]
    """The public keys of the towers: one for all, or one for each; empty if none are configured."""

    def require_keys(self, socket: BaseSocket) -> None:
        """Accept authorized peers only. Call it before `bind`; a `ZapHandler` must run in the socket's context."""
        socket.set_options(
            curve_server=1,
            curve_secretkey=self.pair.secret.encode("ascii"),
            zap_domain=ZAP_DOMAIN,
            zap_enforce_domain=1,
        )

    def expect_key(self, socket: BaseSocket, key: str) -> None:
        """Require that the peer holds the secret key of this public key. Call it before each `connect`."""
        socket.set_options(
            curve_serverkey=key.encode("ascii"),
            curve_publickey=self.pair.public.encode("ascii"),
            curve_secretkey=self.pair.secret.encode("ascii"),
        )

    def tower_key(self, index: int, count: int) -> str:
        """Return the public key of the tower at this position among those of the configuration.

        Raise `ConfigError` if there is neither one key for all towers nor one for each.
        """
        keys = self.tower_keys
        if not keys:
            raise ConfigError(
                "[security] tower_keys: expected the tower's public key, not none; "
                "`dafka keys show` on the tower's machine prints it"
            )
        if len(keys) not in (1, count):
            raise ConfigError(
                f"[security] tower_keys: expected one key for all towers, or {count}, one for each, not {len(keys)}"
            )
        return keys[index] if len(keys) > 1 else keys[0]


def open_security(config: Config) -> Security | None:
    """Read the files that `[security]` names. Return None in a plain cluster, which has no `[security] key_file`.

    Raise `ConfigError` if a setting or a file is missing, unreadable, readable by other users, or damaged.
    """
    settings = config.security
    if not settings.key_file:
        if settings.authorized_keys or settings.tower_keys:
            name = "authorized_keys" if settings.authorized_keys else "tower_keys"
            raise ConfigError(
                f"[security] {name}: expected a key_file beside it, the node's own key; `dafka keys new` creates one"
            )
        return None
    if not settings.authorized_keys:
        raise ConfigError(
            "[security] key_file: expected authorized_keys beside it, a file or folder of the public keys that may "
            "connect; `dafka keys authorize` adds one"
        )
    pair = read_key_file(Path(settings.key_file))
    authorized = AuthorizedKeys(Path(settings.authorized_keys), pair.public)
    try:
        return Security(pair, authorized, tuple(map(parse_public_key, settings.tower_keys)))
    except ConfigError as error:
        raise ConfigError(f"[security] tower_keys: {error}") from None
