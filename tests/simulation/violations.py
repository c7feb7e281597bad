"""The exception for a broken promise."""

from __future__ import annotations


class Violation(Exception):  # noqa: N818 - it is the product's error, not the caller's
    """A promise was broken: its name, and a description. A shrunk plan breaks the same one."""

    def __init__(self, promise: str, detail: str) -> None:
        self.promise = promise
        self.detail = detail
        super().__init__(f"{promise}: {detail}")
