"""A small client of a broker's HTTP API, for what Kafka's protocol cannot say."""

from __future__ import annotations

import http.client
import json
import ssl
from base64 import b64encode
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from dafka.cli.kafka.client import TIMEOUT_S, BrokerUnreachable, make_context
from dafka.cli.terminal import UsageMistake

DEFAULT_URL = "http://127.0.0.1:8080"

_BAD_REQUESTS = range(400, 500)


class HttpClient:
    """A client of a broker's HTTP API. The authority and the user are as `Access` has them.

    Raise `UsageMistake` if the URL or the file is malformed.
    """

    def __init__(self, url: str, authority: str = "", user: str = "", password: str = "") -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if parts.scheme not in {"http", "https"} or not host or host.isdecimal() or parts.path not in {"", "/"}:
            raise UsageMistake(f"--http: expected a URL such as {DEFAULT_URL}, not {url!r}")
        self._access = authority, user, password
        self._url = f"{parts.scheme}://{parts.netloc}"
        self._connect: Callable[[], http.client.HTTPConnection] = partial(
            http.client.HTTPConnection, host, port, timeout=TIMEOUT_S
        )
        if parts.scheme == "https":
            context = make_context(authority)
            self._connect = partial(http.client.HTTPSConnection, host, port, timeout=TIMEOUT_S, context=context)
        self._headers = {"Accept": "application/json"}
        if user:
            self._headers["Authorization"] = "Basic " + b64encode(f"{user}:{password}".encode()).decode()

    def at(self, url: str) -> HttpClient:
        """Return a client of another broker, with the same authority and user."""
        return HttpClient(url, *self._access)

    def _advise(self, error: Exception) -> str:
        if isinstance(error, ConnectionRefusedError):
            return "; start a broker that serves HTTP with `dafka broker --http`, or name another with --http"
        is_plain = self._url.startswith("http:") and isinstance(error, http.client.RemoteDisconnected)
        return "; if it expects TLS, use https://" if is_plain else ""

    def ask(self, method: str, target: str, document: Any = None) -> Any:
        """Return the JSON document in the answer to a request.

        Raise `BrokerUnreachable` if the broker does not answer, or cannot do it at present, and `UsageMistake` if it
        refuses.
        """
        headers, body = dict(self._headers), None
        if document is not None:
            headers["Content-Type"], body = "application/json", json.dumps(document)
        connection = self._connect()
        try:
            connection.request(method, target, body, headers)
            answer = connection.getresponse()
            status, text = answer.status, answer.read()
        except ssl.SSLCertVerificationError as error:
            raise UsageMistake(f"the certificate of {self._url} is not accepted: {error.verify_message}") from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise BrokerUnreachable(
                f"no answer from the broker at {self._url}: {reason}{self._advise(error)}"
            ) from None
        finally:
            connection.close()
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if status < 400 and found is not None:
            return found
        problem = found.get("error") if isinstance(found, dict) else None
        message = problem.get("message") if isinstance(problem, dict) else None
        if message is None:
            raise BrokerUnreachable(f"{self._url} does not answer as a broker (status {status})")
        raise (UsageMistake if status in _BAD_REQUESTS else BrokerUnreachable)(str(message))
