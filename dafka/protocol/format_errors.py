"""Converts errors in decoding JSON records of brokers and groups, which any node can publish."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from dafka.errors import StorageFormatError


class UnknownFieldError(ValueError):
    """An object has a field that this version of dafka does not know."""


@contextmanager
def format_errors(what: str) -> Iterator[None]:
    """Raise `StorageFormatError` if text is not JSON, or a field is missing or has a wrong type.

    The message names what was decoded. Put only decoding in the block, so that errors of other code are not reported as
    a malformed record.
    """
    try:
        yield
    except UnknownFieldError as error:
        raise StorageFormatError(
            f"{what} has the field {error}, which this version of dafka does not know: update dafka"
        ) from None
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError) as error:
        raise StorageFormatError(f"{what} is malformed: {_explain(error)}") from None


def _explain(error: Exception) -> str:
    """Return what is wrong in a text, for readers who do not know Python."""
    if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)):
        return "expected JSON"
    if isinstance(error, KeyError) and isinstance(error.args[0], str):
        return f"the field {error} is missing"
    return "a value is not as expected"
