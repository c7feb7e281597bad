"""What is raised for records of brokers and groups, JSON text that any node can publish, which are malformed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dafka.errors import StorageFormatError


@contextmanager
def format_errors(what: str) -> Iterator[None]:
    """Raise `StorageFormatError` where text is no JSON, or a field is missing or has a wrong type.

    Only decoding belongs in the block: a mistake of what handles a record must not be taken for a malformed one.

    Args:
        what: What is decoded, for the message.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError) as error:
        raise StorageFormatError(f"{what} is malformed: {error!r}") from None
