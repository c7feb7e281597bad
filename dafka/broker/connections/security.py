"""Holds the users and the TLS certificate of a broker's servers, and reads them again when they change."""

from __future__ import annotations

import ipaddress
import logging
from pathlib import Path

import trio

from dafka.broker.access.credentials import load_scramp
from dafka.broker.access.users_file import UsersFile
from dafka.broker.connections.tls import ServerTls, open_tls
from dafka.config import ClientsConfig
from dafka.errors import ConfigError

REFRESH_S = 1.0
"""Seconds between two checks of the files."""

_LOGGER = logging.getLogger("dafka.broker")


class ServerSecurity:
    """The users and the certificate of a broker.

    Args:
        settings: The settings.

    Attributes:
        settings: The settings.
        users: The users; None if clients do not authenticate.
        tls: The certificate; None if connections are not encrypted.

    Raises:
        ConfigError: A file cannot be read.
        MissingExtraError: Users are configured, and the extra `dafka[users]` is not installed.
    """

    def __init__(self, settings: ClientsConfig) -> None:
        self.settings = settings
        self.users: UsersFile | None = None
        if settings.users:
            load_scramp()
            self.users = UsersFile(Path(settings.users))
        self.tls: ServerTls | None = open_tls(settings)

    def check_exposure(self, host: str) -> None:
        """Raise `ConfigError` if unauthenticated clients could connect from other machines without being allowed to.

        Args:
            host: The host or address on which the broker listens.
        """
        settings = self.settings
        is_open = self.users is None and not settings.tls_client_ca
        if is_open and settings.allow_unauthenticated == "off" and not is_loopback(host):
            raise ConfigError(
                f"clients that do not authenticate could connect to {host or '*'} from elsewhere: name users with "
                "--users or an authority of their certificates with --tls-client-ca, or listen to 127.0.0.1; "
                "--allow-unauthenticated on lets anyone read and write everything"
            )

    def encrypt(self, stream: trio.SocketStream) -> trio.abc.Stream:
        """Return a connection with TLS, if there is a certificate. Its first use performs the handshake."""
        return stream if self.tls is None else self.tls.wrap(stream)

    async def keep_current(self) -> None:
        """Read the files again when they change, until cancelled."""
        while self.users is not None or self.tls is not None:
            await trio.sleep(REFRESH_S)
            for each, description in ((self.users, "the users"), (self.tls, "the TLS certificate")):
                if each is None:
                    continue
                try:
                    if each.refresh():
                        _LOGGER.info("read %s again", description)
                except ConfigError as error:
                    _LOGGER.warning("%s remain as before: %s", description, error)


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback address, which only this machine can reach."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped_address = getattr(address, "ipv4_mapped", None)
    return (mapped_address or address).is_loopback
