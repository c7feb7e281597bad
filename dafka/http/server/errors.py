"""Errors for clients of HTTP and WebSocket, with the same codes for both."""

from __future__ import annotations

from collections.abc import Iterable

from dafka.broker.core.log.log import Log
from dafka.http1.head import RequestError

STATUSES = {
    "bad_request": 400,
    "offset_out_of_range": 400,
    "unauthenticated": 401,
    "forbidden": 403,
    "not_found": 404,
    "topic_not_found": 404,
    "log_not_found": 404,
    "group_not_found": 404,
    "broker_not_found": 404,
    "method_not_allowed": 405,
    "request_timeout": 408,
    "conflict": 409,
    "topic_exists": 409,
    "too_large": 413,
    "unsupported": 415,
    "not_leader": 421,
    "too_many_requests": 429,
    "internal_error": 500,
    "storage_failed": 503,
    "controller_unavailable": 503,
    "leader_unavailable": 503,
    "leader_changed": 503,
    "broker_unavailable": 503,
}
"""The HTTP status of each error code."""


class WebError(Exception):
    """A request is refused, with one of the codes of `STATUSES`.

    The message says what is wrong, and what is expected. `status` replaces the code's, and `headers` are added to those
    of the response.
    """

    def __init__(
        self, code: str, message: str, *, status: int | None = None, headers: Iterable[tuple[str, str]] = ()
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = STATUSES[code] if status is None else status
        self.headers = tuple(headers)

    def describe(self) -> dict[str, str]:
        """Return the error as a JSON object."""
        return {"code": self.code, "message": self.message}


class LeaderMovedError(WebError):
    """A log is not led where its records are asked for: another broker leads it, or none."""

    def __init__(self, log: Log) -> None:
        super().__init__("not_leader", f"this broker does not lead log {log.number} of the topic {log.topic!r}")


def leader_changed(log: Log) -> WebError:
    """Return the error that it is unknown whether records were published."""
    return WebError(
        "leader_changed",
        f"log {log.number} of the topic {log.topic!r} got another leader: the records may be published or not",
    )


def refused_request(error: RequestError) -> WebError:
    """Return the error for a request that the HTTP server does not accept."""
    code = {408: "request_timeout", 413: "too_large", 431: "too_large"}.get(error.status, "bad_request")
    return WebError(code, str(error), status=error.status)


def topic_not_found(topic: str) -> WebError:
    """Return the error that a topic does not exist."""
    return WebError("topic_not_found", f"there is no topic {topic!r}")


def log_not_found(topic: str, number: int, log_count: int) -> WebError:
    """Return the error that a log of a topic does not exist."""
    return WebError("log_not_found", f"the topic {topic!r} has the logs 0 to {log_count - 1}, and not {number}")


def queue_not_found(queue: str) -> WebError:
    """Return the error that a queue does not exist, which is a share group."""
    return WebError("group_not_found", f"there is no share group {queue!r}: create the queue first")


def group_not_found(group: str) -> WebError:
    """Return the error that a group does not exist."""
    return WebError("group_not_found", f"there is no group {group!r}")
