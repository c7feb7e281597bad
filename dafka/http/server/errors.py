"""Errors that clients of HTTP and WebSocket are answered with. Both give them the same codes."""

from __future__ import annotations

from collections.abc import Iterable

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
    "leader_unavailable": 503,
    "leader_changed": 503,
    "broker_unavailable": 503,
}
"""The status of the answer of each code."""


class WebError(Exception):
    """A request is refused.

    Args:
        code: One of `STATUSES`.
        message: What is wrong, and what would be right.
        status: The status of the answer, if it is another one than that of the code.
        headers: Further headers of the answer.
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
        """Return the error as clients get it."""
        return {"code": self.code, "message": self.message}


def topic_not_found(topic: str) -> WebError:
    """Return the error that there is no topic of a name."""
    return WebError("topic_not_found", f"there is no topic {topic!r}")


def log_not_found(topic: str, number: int, log_count: int) -> WebError:
    """Return the error that a topic has no log of a number."""
    return WebError("log_not_found", f"the topic {topic!r} has the logs 0 to {log_count - 1}, and not {number}")


def group_not_found(group: str) -> WebError:
    """Return the error that there is no group of a name."""
    return WebError("group_not_found", f"there is no group {group!r}")
