"""Converts errors in decoding JSON records of brokers and groups, which any node can publish."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dafka.errors import StorageFormatError


@contextmanager
def format_errors(what: str) -> Iterator[None]:
    """Raise `StorageFormatError` if text is not JSON, or a field is missing or has a wrong type.

    The message names what was decoded. Put only decoding in the block, so that errors of other code are not reported as
    a malformed record.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError) as error:
        raise StorageFormatError(f"{what} is malformed: {error!r}") from None
