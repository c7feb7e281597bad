"""Errors for parts of dafka whose optional dependency (an extra) is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dafka.errors import MissingExtraError


@contextmanager
def require_extra(extra: str, feature: str) -> Iterator[None]:
    """Raise `MissingExtraError` if a package that the block imports for a feature is not installed.

    The error names the feature and the extra to install.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0].replace("_", "-")
        if package in {"", "dafka"}:
            raise
        raise MissingExtraError(f"{feature} needs {package}: pip install 'dafka[{extra}]'") from None
