"""Errors for parts of dafka whose optional dependency (an extra) is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dafka.errors import MissingExtraError


@contextmanager
def require_extra(extra: str, feature: str) -> Iterator[None]:
    """Turn a failed import in the block into an error that names the extra to install.

    Args:
        extra: The name of the extra, as in `pip install 'dafka[EXTRA]'`.
        feature: The part of dafka that needs the packages, as the start of the error message.

    Raises:
        MissingExtraError: A package that is imported in the block is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0].replace("_", "-")
        if package in {"", "dafka"}:
            raise
        raise MissingExtraError(f"{feature} needs {package}: pip install 'dafka[{extra}]'") from None
