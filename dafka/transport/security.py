"""What makes a socket one of a closed cluster: CURVE, and the keys of this node, its towers and whoever is let in."""

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
    """The keys of one node or tower in a closed cluster.

    Attributes:
        pair: its own.
        authorized: whom it lets in, and connects to.
        tower_keys: the towers' public keys: one for all, or one for each; empty where the configuration names none.
    """

    pair: KeyPair
    authorized: AuthorizedKeys
    tower_keys: tuple[str, ...]

    def guard(self, socket: BaseSocket) -> None:
        """Before `bind`: nobody's connection is taken but by the handler of `ZapHandler`, which must be there."""
        socket.set_options(
            curve_server=1,
            curve_secretkey=self.pair.secret.encode("ascii"),
            zap_domain=ZAP_DOMAIN,
            zap_enforce_domain=1,
        )

    def expect(self, socket: BaseSocket, key: str) -> None:
        """Before each `connect`: the other side must prove that it has the secret key of this public one."""
        socket.set_options(
            curve_serverkey=key.encode("ascii"),
            curve_publickey=self.pair.public.encode("ascii"),
            curve_secretkey=self.pair.secret.encode("ascii"),
        )

    def tower_key(self, index: int, count: int) -> str:
        """The public key of the tower at this place among `count` ones. Raises `ConfigError` where there is none."""
        keys = self.tower_keys
        if not keys:
            raise ConfigError(
                "[security] tower_keys: expected the tower's public key (`dafka keys show` there): none is given"
            )
        if len(keys) not in (1, count):
            raise ConfigError(
                f"[security] tower_keys: expected one for all towers, or {count}, one for each, not {len(keys)}"
            )
        return keys[index] if len(keys) > 1 else keys[0]


def open_security(config: Config) -> Security | None:
    """Reads the files that `[security]` names; None where it names none: a plain cluster.

    Raises `ConfigError` where one of them is missing, cannot be read, is open to others, or does not hold what it
    should.
    """
    settings = config.security
    if not settings.key_file:
        if settings.authorized_keys or settings.tower_keys:
            name = "authorized_keys" if settings.authorized_keys else "tower_keys"
            raise ConfigError(
                f"[security] {name} without key_file: a closed cluster needs this node's own key (`dafka keys new`)"
            )
        return None
    if not settings.authorized_keys:
        raise ConfigError(
            "[security] key_file without authorized_keys: expected a file or folder of public keys, "
            "which says whom to let in (`dafka keys authorize`)"
        )
    pair = read_key_file(Path(settings.key_file))
    authorized = AuthorizedKeys(Path(settings.authorized_keys), pair.public)
    try:
        return Security(pair, authorized, tuple(map(parse_public_key, settings.tower_keys)))
    except ConfigError as error:
        raise ConfigError(f"[security] tower_keys: {error}") from None
