"""TLS of the broker's servers: the certificate, which is loaded again when its files change."""

from __future__ import annotations

import ssl
from pathlib import Path

import trio

from dafka.config import ClientsConfig
from dafka.errors import ConfigError


class ServerTls:
    """The certificate and key of a broker, and the authorities of its clients' certificates.

    If changed files cannot be loaded, the previous ones stay in use, so that a mistake locks nobody out.

    Args:
        settings: The settings, with a certificate.

    Raises:
        ConfigError: The files cannot be loaded.
    """

    def __init__(self, settings: ClientsConfig) -> None:
        self._settings = settings
        names = (settings.tls_certificate, settings.tls_key, settings.tls_client_ca)
        self._paths = [Path(each) for each in names if each]
        self._state = self._read_state()
        self._context = _load(settings)

    def wrap(self, stream: trio.SocketStream) -> trio.SSLStream[trio.SocketStream]:
        """Encrypt a connection. Its first use performs the handshake."""
        return trio.SSLStream(stream, self._context, server_side=True, https_compatible=True)

    def refresh(self) -> bool:
        """Load the files again if they have changed.

        Returns:
            Whether they were loaded. New connections use them.

        Raises:
            ConfigError: The changed files cannot be loaded. It is raised once for each change.
        """
        state = self._read_state()
        if state == self._state:
            return False
        self._state = state
        self._context = _load(self._settings)
        return True

    def _read_state(self) -> list[tuple[int, int, int] | None]:
        return [_state_of(path) for path in self._paths]


def open_tls(settings: ClientsConfig) -> ServerTls | None:
    """Load the TLS files of a broker. Returns None if it has no certificate.

    Args:
        settings: The settings.

    Returns:
        The certificate, the key and the authorities; None without a certificate.

    Raises:
        ConfigError: The files cannot be loaded, or a key or an authority is set without a certificate.
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


def _state_of(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
