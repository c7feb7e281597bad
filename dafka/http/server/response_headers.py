"""Creates the headers of responses."""

from __future__ import annotations

from email.utils import formatdate

from dafka.http.server.head import Head
from dafka.http.server.messages import AnyResponse
from dafka.http.server.origins import Origins

_ALWAYS = (
    ("X-Content-Type-Options", "nosniff"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),
)
_CHALLENGES = ('Basic realm="dafka", charset="UTF-8"', 'Bearer realm="dafka"')
_ALLOWED_METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE"
_ALLOWED_HEADERS = "authorization, content-type, last-event-id"
_PREFLIGHT_S = 600


def response_headers(head: Head | None, response: AnyResponse, origins: Origins) -> list[tuple[str, str]]:
    """Return the headers of a response, except those of its length.

    Args:
        head: The head of the request; None if it was malformed.
        response: The response.
        origins: The origins whose pages may use the broker.

    Returns:
        The headers.
    """
    given = {name.lower() for name, _ in response.headers}
    headers = [("Date", formatdate(usegmt=True)), *_ALWAYS, *response.headers]
    if response.content_type:
        headers.append(("Content-Type", response.content_type))
    if "cache-control" not in given:
        headers.append(("Cache-Control", "no-store"))
    if head is None:
        return headers
    if response.status == 401 and "www-authenticate" not in given:
        # On a Basic challenge, a browser would show its own dialog in front of the page's form.
        is_script = "sec-fetch-mode" in head.headers
        headers += [("WWW-Authenticate", each) for each in (_CHALLENGES[1:] if is_script else _CHALLENGES)]
    origin = head.headers.get("origin")
    if origin is not None:
        headers.append(("Vary", "Origin"))
        if origins.allow(origin):
            headers.append(("Access-Control-Allow-Origin", origin))
            if head.method == "OPTIONS":
                headers += [
                    ("Access-Control-Allow-Methods", _ALLOWED_METHODS),
                    ("Access-Control-Allow-Headers", _ALLOWED_HEADERS),
                    ("Access-Control-Max-Age", str(_PREFLIGHT_S)),
                ]
    return headers
