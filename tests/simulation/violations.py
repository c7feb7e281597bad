"""What a simulation raises where a promise is broken."""

from __future__ import annotations


class Violation(Exception):  # noqa: N818 - it is the product's error, not the caller's
    """A promise was broken.

    Attributes:
        promise: which, in a few words; shrinking keeps to the same one.
        detail: what was seen.
    """

    def __init__(self, promise: str, detail: str) -> None:
        self.promise = promise
        self.detail = detail
        super().__init__(f"{promise}: {detail}")
