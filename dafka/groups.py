"""How errors leave a block that has a nursery inside: alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def single_exception() -> Iterator[None]:
    """Lets a lone exception out of the groups that nurseries wrap it in: callers need not know of nurseries."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        if error is group:
            raise
        raise error from error.__cause__
