"""Unwraps and describes the exception groups of blocks that contain a nursery."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unwrap_group() -> Iterator[None]:
    """Raise a single exception without the groups that nurseries wrap it in."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        if error is group:
            raise
        raise error from error.__cause__


def describe_group(group: BaseExceptionGroup[BaseException]) -> str:
    """Return the messages of all exceptions in a group and in the groups within it."""
    return "; ".join(
        describe_group(each) if isinstance(each, BaseExceptionGroup) else str(each) for each in group.exceptions
    )
