"""Checks the origins of pages: a page of another site must not use the broker in the user's name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from dafka.endpoints import is_loopback
from dafka.http.server.errors import WebError

_PORTS = {"http": 80, "https": 443}
_SAFE = {"GET", "HEAD", "OPTIONS"}


class Origins:
    """The origins whose pages may use the broker: its own and configured ones, such as `https://example.com`.

    If the broker is open, clients do not authenticate, so that every client may do everything.
    """

    def __init__(self, origins: Sequence[str], *, is_open: bool, is_encrypted: bool) -> None:
        self._origins = {_normalize(each) for each in origins}
        self._hosts = {(each[1], each[2]) for each in self._origins if each is not None}
        self._is_open = is_open
        self._is_encrypted = is_encrypted

    def allow(self, origin: str) -> bool:
        """Return whether an origin is one of the configured ones."""
        found = _normalize(origin)
        return found is not None and found in self._origins

    def check(self, method: str, headers: Mapping[str, str], *, is_local: bool, has_session: bool) -> None:
        """Raise `WebError` if a request comes from a page of another site.

        The method is `WEBSOCKET` for a GET that requests an upgrade. The client is local if it has connected to a
        loopback address.
        """
        host = headers.get("host", "")
        own = _split_host(host)
        if own is None:
            raise WebError("bad_request", "expected a header Host with the name and the port of the broker")
        if self._is_open and is_local and not (_is_loopback_name(own[0]) or self._has_host(own)):
            raise WebError(
                "forbidden",
                f"expected a name of this machine in the header Host, not {host[:100]!r}; [http] origins can allow it",
            )
        origin = headers.get("origin")
        is_allowed = origin is None or self.allow(origin) or self._is_own(origin, own)
        if not is_allowed and method not in _SAFE:
            message = f"pages of {str(origin)[:100]!r} may not use this broker; [http] origins can allow it"
            raise WebError("forbidden", message)
        is_foreign = headers.get("sec-fetch-site") in {"cross-site", "same-site"}
        is_page = headers.get("sec-fetch-mode") == "navigate" and method in _SAFE
        if is_foreign and not is_page and (has_session or self._is_open) and not self.allow(origin or ""):
            raise WebError("forbidden", "pages of another site may not use this broker; [http] origins can allow it")

    def _has_host(self, own: tuple[str, int | None]) -> bool:
        return any(host == own[0] and (own[1] is None or port == own[1]) for host, port in self._hosts)

    def _is_own(self, origin: str, own: tuple[str, int | None]) -> bool:
        found = _normalize(origin)
        if found is None or (self._is_encrypted and found[0] != "https"):
            return False
        scheme, host, port = found
        return host == own[0] and port == (own[1] or _PORTS[scheme])


def _normalize(origin: str) -> tuple[str, str, int] | None:
    """Return the scheme, the host and the port of an origin; None if it is malformed."""
    try:
        parts = urlsplit(origin)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in _PORTS or not parts.hostname or parts.path or parts.query or parts.username is not None:
        return None
    return parts.scheme, parts.hostname, port or _PORTS[parts.scheme]


def _split_host(text: str) -> tuple[str, int | None] | None:
    """Return the name and the port in a header Host; None if it is malformed."""
    try:
        parts = urlsplit(f"//{text}")
        port = parts.port
    except ValueError:
        return None
    if not parts.hostname or parts.netloc != text or "@" in text:
        return None
    return parts.hostname, port


def _is_loopback_name(host: str) -> bool:
    name = host.rstrip(".")
    return is_loopback(name) or name.endswith(".localhost")
