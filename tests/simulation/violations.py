"""The exception for a broken promise."""

from __future__ import annotations


class Violation(Exception):  # noqa: N818 - it is the product's error, not the caller's
    """A promise was broken.

    Attributes:
        promise: The name of the promise. A shrunk plan breaks the same one.
        detail: A description of the violation.
    """

    def __init__(self, promise: str, detail: str) -> None:
        self.promise = promise
        self.detail = detail
        super().__init__(f"{promise}: {detail}")
