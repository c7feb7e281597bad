"""Holds the users and the TLS certificate of a broker's servers, and reads them again when they change."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

import attrs
import trio

from dafka.broker.access.credentials import load_scramp
from dafka.broker.access.issuer_keys import KeysEndpoint, KeysFile, open_keys
from dafka.broker.access.oauth import TokenVerifier
from dafka.broker.access.users import Users
from dafka.config import ClientsConfig
from dafka.endpoints import is_loopback
from dafka.errors import ConfigError
from dafka.watched_files import WatchedFiles

REFRESH_S = 1.0
"""Seconds between two checks of the files."""

_LOGGER = logging.getLogger("dafka.broker")


class ServerTls:
    """The certificate and key of a broker, and the authorities of its clients' certificates.

    If changed files cannot be loaded, the previous ones stay in use, so that a mistake locks nobody out. Raise
    `ConfigError` if the files cannot be loaded at first.
    """

    def __init__(self, settings: ClientsConfig) -> None:
        names = (settings.tls_certificate, settings.tls_key, settings.tls_client_ca)
        paths = [Path(each) for each in names if each]
        self._files = WatchedFiles(
            lambda: paths, lambda: _Loaded(_load(settings), [each.read_bytes() for each in paths])
        )

    def wrap(self, stream: trio.SocketStream) -> trio.SSLStream[trio.SocketStream]:
        """Encrypt a connection. Its first use performs the handshake."""
        return trio.SSLStream(stream, self._files.value.context, server_side=True, https_compatible=True)

    def refresh(self) -> bool:
        """Load the files again if they have changed. Return whether they were loaded; new connections use them.

        Raise `ConfigError`, once for each change, if the changed files cannot be loaded.
        """
        return self._files.refresh()


@attrs.frozen
class _Loaded:
    """A certificate that is in use, and the contents of its files, by which it is compared."""

    context: ssl.SSLContext = attrs.field(eq=False)
    contents: list[bytes]


class ServerSecurity:
    """The users, the keys of tokens and the certificate of a broker; None for what is not configured.

    Raise `ConfigError` if a file cannot be read, and `MissingExtraError` if users are configured and the extra
    `dafka[users]` is not installed.
    """

    def __init__(self, settings: ClientsConfig) -> None:
        self.settings = settings
        self.users: Users | None = None
        if settings.tls_users == "on" and not (settings.users and settings.tls_client_ca):
            raise ConfigError("[clients] tls_users: expected users and tls_client_ca, too")
        if settings.users:
            load_scramp()
            self.users = Users(Path(settings.users))
        self._token_keys = open_keys(settings)
        self.tokens = None if self._token_keys is None else TokenVerifier(settings, self._token_keys)
        self.tls: ServerTls | None = open_tls(settings)

    def check_exposure(self, host: str) -> None:
        """Raise `ConfigError` if unauthenticated clients from other machines could connect to a host, and may not."""
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
        """Read the files again when they change, and fetch keys of tokens, until cancelled."""
        async with trio.open_nursery() as nursery:
            if isinstance(self._token_keys, KeysEndpoint):
                nursery.start_soon(self._token_keys.run)
            nursery.start_soon(self._watch_files)

    async def _watch_files(self) -> None:
        watched: list[tuple[Users | KeysFile | ServerTls, str]] = []
        if self.users is not None:
            watched.append((self.users, "the users"))
        if isinstance(self._token_keys, KeysFile):
            watched.append((self._token_keys, "the keys of tokens"))
        if self.tls is not None:
            watched.append((self.tls, "the TLS certificate"))
        while watched:
            await trio.sleep(REFRESH_S)
            for each, description in watched:
                try:
                    if each.refresh():
                        _LOGGER.info("read %s again", description)
                except ConfigError as error:
                    _LOGGER.warning("%s remain as before: %s", description, error)


def open_tls(settings: ClientsConfig) -> ServerTls | None:
    """Return the certificate, the key and the authorities of a broker; None if it has no certificate.

    Raise `ConfigError` if they cannot be loaded, or a key or an authority is set without a certificate.
    """
    if settings.tls_certificate:
        return ServerTls(settings)
    for name in ("tls_key", "tls_client_ca"):
        if getattr(settings, name):
            raise ConfigError(f"[clients] {name}: expected tls_certificate, too")
    return None


def _load(settings: ClientsConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    certificate, key = settings.tls_certificate, settings.tls_key or None

    def refuse_password() -> str:
        raise ConfigError(f"the TLS key {key or certificate} is encrypted: expected one without a password")

    try:
        context.load_cert_chain(certificate, key, refuse_password)
    except OSError as error:
        files = certificate if key is None else f"{certificate} and {key}"
        raise ConfigError(f"cannot load the TLS certificate and key of {files}: {_explain(error)}") from None
    if settings.tls_client_ca:
        try:
            context.load_verify_locations(settings.tls_client_ca)
        except OSError as error:
            name = settings.tls_client_ca
            raise ConfigError(f"cannot load the TLS authorities of {name}: {_explain(error)}") from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _explain(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or "").replace("_", " ").lower()
        return reason if reason and reason != "pem lib" else "expected PEM format"
    return error.strerror or str(error)
