"""The public keys of an issuer of tokens (JWKS, RFC 7517): from a file, or from the URL at which it publishes them."""

from __future__ import annotations

import http.client
import json
import logging
import ssl
import time
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any, Protocol
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, ProxyHandler, Request, build_opener

import attrs
import trio

from dafka.config import ClientsConfig
from dafka.endpoints import is_loopback
from dafka.errors import ConfigError
from dafka.extras import require_extra
from dafka.watched_files import WatchedFiles

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

KEYS_BYTES_MAX = 2**20
"""The size of the largest set of keys, in bytes."""

FETCH_S = 10.0
"""How many seconds a fetch of keys may take."""

UNKNOWN_KEY_INTERVAL_S = 10.0
"""The shortest time between the begins of two fetches that tokens with an unknown key cause, in seconds."""

UNKNOWN_KEY_WAIT_S = 5.0
"""How many seconds such a token waits for the keys."""

_CHUNK_BYTES = 2**16
_EXPECTED = 'expected a set of public keys: {"keys": [...]}, as an issuer publishes at its jwks_uri'
_SECRET_TYPE = "oct"

_LOGGER = logging.getLogger("dafka.broker")


def load_joserfc() -> ModuleType:
    """Return the library of JSON Web Tokens. Raise `MissingExtraError` if it is not installed."""
    with require_extra("oauth", "login by OAUTHBEARER"):
        import joserfc.jwk  # noqa: PLC0415 (the extra is needed only with tokens)
        import joserfc.jwt  # noqa: PLC0415
    return joserfc


@attrs.frozen
class PublicKeys:
    """The keys of an issuer, and the documents from which they were imported, by which they are compared."""

    documents: list[Any]
    key_set: KeySet = attrs.field(eq=False, repr=False)


def parse_keys(text: bytes) -> PublicKeys:
    """Return the keys in a JSON Web Key Set. Keys of unknown types and curves are left out, as RFC 7517 recommends.

    Raise `ValueError` if it is none, has a private or secret key, or has no key that can be used.
    """
    joserfc = load_joserfc()
    try:
        documents = json.loads(text)["keys"]
        if any(each["kty"] == _SECRET_TYPE or "d" in each for each in documents):
            raise ValueError(_EXPECTED)
        keys = [key for key in map(_import_key, documents) if key is not None]
        if not keys:
            raise ValueError(_EXPECTED)
        return PublicKeys(documents, joserfc.jwk.KeySet(keys))
    except (joserfc.errors.JoseError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        raise ValueError(_EXPECTED) from None


def _import_key(document: dict[str, Any]) -> Any:
    """Return the key of a document; None if its type or curve is unknown."""
    joserfc = load_joserfc()
    try:
        return joserfc.jwk.import_key(document)
    except (joserfc.errors.JoseError, ValueError, TypeError, LookupError):
        return None


class IssuerKeys(Protocol):
    """The present keys of an issuer."""

    @property
    def current(self) -> PublicKeys | None:
        """The keys; None if they have not been fetched yet."""

    async def fetch_unknown(self) -> bool:
        """Look for the key of a token that is not among the keys. Return whether it may be there now."""


class KeysFile:
    """The keys in a file, which is read again when it changes. If the changed file cannot be read, the former remain.

    Raise `ConfigError` if the file cannot be read at first.
    """

    def __init__(self, path: Path) -> None:
        self._files = WatchedFiles(lambda: [path], lambda: _read_file(path))

    @property
    def current(self) -> PublicKeys:
        """See `IssuerKeys.current`."""
        return self._files.value

    async def fetch_unknown(self) -> bool:
        """See `IssuerKeys.fetch_unknown`. The file is read when it changes, so its keys are the present ones."""
        return False

    def refresh(self) -> bool:
        """Read the keys again if the file has changed. Return whether they changed.

        Raise `ConfigError`, once for each change, if the changed file cannot be read.
        """
        return self._files.refresh()


def _read_file(path: Path) -> PublicKeys:
    try:
        with path.open("rb") as file:
            return parse_keys(file.read(KEYS_BYTES_MAX))
    except OSError as error:
        raise ConfigError(f"cannot read the keys {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"the keys {path}: {error}") from None


class KeysEndpoint:
    """The keys that an issuer publishes at a URL, which `run` fetches regularly.

    If they cannot be fetched, the former remain, and the next attempt follows after a while that doubles each time.
    Raise `ConfigError` if the URL or the authorities of its certificate cannot be used.
    """

    def __init__(self, settings: ClientsConfig) -> None:
        self._url = settings.oauth_jwks_endpoint_url
        self._authority = settings.oauth_tls_ca
        problem = find_url_problem(self._url)
        if problem:
            raise ConfigError(f"[clients] oauth_jwks_endpoint_url: {problem}")
        try:
            self._make_context()
        except OSError as error:
            raise ConfigError(f"[clients] oauth_tls_ca: {self._authority}: {error.strerror or error}") from None
        self._refresh_s = settings.oauth_jwks_endpoint_refresh_ms / 1000
        self._backoff_s = settings.oauth_jwks_endpoint_retry_backoff_ms / 1000
        self._backoff_max_s = settings.oauth_jwks_endpoint_retry_backoff_max_ms / 1000
        self._problem = ""
        self._next_unknown_at = 0.0
        self._wanted, self._fetched = trio.Event(), trio.Event()
        self.current: PublicKeys | None = None

    async def run(self) -> None:
        """Fetch the keys now and then, until cancelled."""
        failures = 0
        while True:
            failures = 0 if await self._fetch() else failures + 1
            self._fetched.set()
            self._wanted, self._fetched = trio.Event(), trio.Event()
            backoff_s = min(self._backoff_s * 2 ** min(failures - 1, 32), self._backoff_max_s)
            with trio.move_on_after(backoff_s if failures else self._refresh_s):
                await self._wanted.wait()

    async def fetch_unknown(self) -> bool:
        """See `IssuerKeys.fetch_unknown`. All tokens together cause one fetch in `UNKNOWN_KEY_INTERVAL_S`."""
        now = trio.current_time()
        if now >= self._next_unknown_at:
            self._next_unknown_at = now + UNKNOWN_KEY_INTERVAL_S
            self._wanted.set()
        elif not self._wanted.is_set():
            return False
        with trio.move_on_after(UNKNOWN_KEY_WAIT_S):
            await self.wait_fetched()
            return True
        return False

    async def wait_fetched(self) -> None:
        """Wait until the fetch that is under way or comes next has ended."""
        await self._fetched.wait()

    async def _fetch(self) -> bool:
        """Fetch the keys. Return whether that succeeded."""
        try:
            # When this is cancelled, the thread ends soon by itself: it has a time limit.
            keys = await trio.to_thread.run_sync(lambda: parse_keys(self._download()), abandon_on_cancel=True)
        except (OSError, http.client.HTTPException, ValueError) as error:
            problem = _describe(error)
            if problem != self._problem:
                which = "there are none yet" if self.current is None else "the former remain"
                _LOGGER.warning("cannot fetch the keys of tokens from %s, %s: %s", self._url, which, problem)
            self._problem = problem
            return False
        if self._problem or keys != self.current:
            _LOGGER.info("fetched %d keys of tokens from %s", len(keys.key_set.keys), self._url)
        if keys != self.current:
            self.current = keys
        self._problem = ""
        return True

    def _download(self) -> bytes:
        """Return what is published at the URL, through the proxy that the environment names, if any."""
        deadline = time.monotonic() + FETCH_S
        proxies = ProxyHandler({} if is_loopback(urlsplit(self._url).hostname or "") else None)
        opener = build_opener(proxies, HTTPSHandler(context=self._make_context()), _CheckedRedirects)
        request = Request(self._url, headers={"Accept": "application/jwk-set+json, application/json"})
        found = bytearray()
        try:
            response = opener.open(request, timeout=FETCH_S)
        except HTTPError as error:
            error.close()
            raise
        with response:
            while chunk := response.read1(_CHUNK_BYTES):
                found += chunk
                if len(found) > KEYS_BYTES_MAX:
                    raise ValueError(f"it answers with more than {KEYS_BYTES_MAX} bytes")
                if time.monotonic() > deadline:
                    raise TimeoutError
        return bytes(found)

    def _make_context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self._authority or None)


class _CheckedRedirects(HTTPRedirectHandler):
    """Follows redirects to URLs whose answers nobody on the way can change."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: http.client.HTTPMessage, newurl: str
    ) -> Request | None:
        """Return the request for the next URL."""
        problem = find_url_problem(newurl)
        if problem:
            raise HTTPError(newurl, code, problem, headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def find_url_problem(url: str) -> str:
    """Return why keys from a URL cannot be trusted; empty if they can: over TLS, or from the same machine."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or parts.scheme not in {"http", "https"} or parts.username is not None:
        return f"expected a URL such as https://issuer.example/jwks, not {url!r}"
    if parts.scheme == "http" and not is_loopback(host):
        return f"expected https, not {url!r}: others on the way could change the keys, and forge tokens"
    return ""


def _describe(error: Exception) -> str:
    """Return why keys could not be fetched, as a clause."""
    if isinstance(error, HTTPError):
        return f"it redirects: {error.msg}" if 300 <= error.code < 400 else f"it answers with the status {error.code}"
    reason = error.reason if isinstance(error, URLError) else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted ({reason.verify_message}); oauth_tls_ca names other authorities"
    if isinstance(reason, TimeoutError):
        return f"it takes longer than {FETCH_S:.0f} s"
    return str(getattr(reason, "strerror", None) or reason) or type(reason).__name__


def open_keys(settings: ClientsConfig) -> KeysFile | KeysEndpoint | None:
    """Return the keys of tokens that are configured; None if none are.

    Raise `ConfigError` if a setting that they need is missing, or they cannot be read, and `MissingExtraError` if the
    extra `dafka[oauth]` is not installed.
    """
    file, url = settings.oauth_keys, settings.oauth_jwks_endpoint_url
    if not file and not url:
        return None
    load_joserfc()
    if file and url:
        raise ConfigError("[clients] oauth_keys: expected either it or oauth_jwks_endpoint_url, not both")
    if not (settings.oauth_issuer and settings.oauth_audience and settings.users):
        name = "oauth_keys" if file else "oauth_jwks_endpoint_url"
        raise ConfigError(f"[clients] {name}: expected oauth_issuer, oauth_audience and users, too")
    return KeysFile(Path(file)) if file else KeysEndpoint(settings)
