"""Makes the changes of the cluster that requests ask for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import trio

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.metadata.commands import name_requester
from dafka.errors import ConfigError, NoControllerError, RefusedChangeError, StorageError
from dafka.kafka.apis.shared.registry import RequestContext

TIMEOUT_MS = 60_000
"""The time limit of requests that name none."""


class RefusedPartError(Exception):
    """A part of a request is not possible, with the error for the client."""

    def __init__(self, message: str, error_code: ErrorCode = ErrorCode.INVALID_REQUEST) -> None:
        super().__init__(message)
        self.error_code = error_code


_T = TypeVar("_T")
_R = TypeVar("_R")


async def make_change(change: Awaitable[None], timeout_ms: int = TIMEOUT_MS) -> tuple[ErrorCode, str | None]:
    """Wait until a change is made. Return the error for the client and its message; NONE and None if it is made.

    A change that takes longer than the time limit of its request may be made later. The error is REQUEST_TIMED_OUT.
    """
    try:
        with trio.move_on_after(max(timeout_ms, 0) / 1000) as scope:
            await change
    except RefusedChangeError as refused:
        return ErrorCode(refused.error_code), str(refused)
    except ConfigError as refused:
        return ErrorCode.INVALID_REQUEST, str(refused)
    except NoControllerError as error:
        return ErrorCode.NOT_CONTROLLER, str(error)
    except StorageError as error:
        return ErrorCode.KAFKA_STORAGE_ERROR, str(error)
    if scope.cancelled_caught:
        return ErrorCode.REQUEST_TIMED_OUT, f"not confirmed within {timeout_ms} ms: look whether it was made"
    return ErrorCode.NONE, None


async def make_all(make: Callable[[_T], Awaitable[_R]], items: Iterable[_T]) -> list[_R]:
    """Make many changes at once, so that they share writes. Return their results in order."""
    asked = list(items)
    results: dict[int, _R] = {}

    async def run(number: int, item: _T) -> None:
        results[number] = await make(item)

    async with trio.open_nursery() as nursery:
        for number, item in enumerate(asked):
            nursery.start_soon(run, number, item)
    return [results[number] for number in range(len(asked))]


def requester_of(context: RequestContext) -> str:
    """Return who sends a request, as commands in the log of metadata name it."""
    return name_requester(context.user, context.host)
