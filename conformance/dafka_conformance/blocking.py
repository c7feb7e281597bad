"""Runs the suite from a program that is not asynchronous, and lets signals end it so that no target is left running."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable

import trio

from dafka.roles.scope import single_exception
from dafka_conformance.model import Run


class EndedBySignalError(Exception):
    """A signal ended the run before its time; everything that it had started is gone.

    Attributes:
        number: the signal.
    """

    def __init__(self, number: int) -> None:
        self.number = signal.Signals(number)
        super().__init__(f"ended by {self.number.name}")


def run_blocking(play: Callable[[], Awaitable[Run]]) -> Run:
    """Plays a run to its end, in an event loop of its own; to be called in the main thread.

    Raises `EndedBySignalError` where SIGINT, SIGTERM or SIGHUP came meanwhile. One that whoever started this program
    ignores, as nohup does, is ignored here too.
    """
    finished: list[Run] = []
    caught: list[int] = []
    heeded = [each for each in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(each) is not signal.SIG_IGN]

    async def main() -> None:
        scope = trio.CancelScope()

        async def heed() -> None:
            async for number in signals:  # further ones change nothing while targets are being ended
                caught.append(number)
                scope.cancel()

        with single_exception(), trio.open_signal_receiver(signal.SIGTERM, *heeded) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(heed)
                with scope:
                    finished.append(await play())
                nursery.cancel_scope.cancel()

    trio.run(main)
    if not finished:
        raise EndedBySignalError(caught[0])
    return finished[0]
