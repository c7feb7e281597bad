"""Makes the changes of the cluster that requests ask for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

import trio

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.metadata.commands import name_requester
from dafka.errors import ConfigError, NoControllerError, RefusedChangeError, StorageError
from dafka.kafka.apis.shared.registry import RequestContext

_T = TypeVar("_T")
_R = TypeVar("_R")


async def make_change(change: Awaitable[None]) -> tuple[ErrorCode, str | None]:
    """Wait until a change is made. Return the error for the client and its message; NONE and None if it is made."""
    try:
        await change
    except RefusedChangeError as refused:
        return ErrorCode(refused.error_code), str(refused)
    except ConfigError as refused:
        return ErrorCode.INVALID_REQUEST, str(refused)
    except NoControllerError as error:
        return ErrorCode.NOT_CONTROLLER, str(error)
    except StorageError as error:
        return ErrorCode.KAFKA_STORAGE_ERROR, str(error)
    return ErrorCode.NONE, None


async def make_all(make: Callable[[_T], Awaitable[_R]], items: Iterable[_T]) -> Sequence[_R]:
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
    return name_requester("" if context.source == context.host else context.source, context.host)
