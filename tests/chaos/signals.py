"""Ends a run of chaos at Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable

import trio


async def until_signal(run: Callable[[float], Awaitable[list[str]]], length_s: float) -> list[str]:
    """Run until the end or Ctrl-C, which ends all processes and skips the checks.

    Args:
        run: Runs for a number of seconds, and returns the problems.
        length_s: How long to run, in seconds.

    Returns:
        The problems.
    """
    problems = ["interrupted"]
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                async for _ in signals:
                    nursery.cancel_scope.cancel()

        nursery.start_soon(wait)
        problems = await run(length_s)
        nursery.cancel_scope.cancel()
    return problems
