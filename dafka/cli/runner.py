"""Runs a command's trio program: signals end it cleanly, and errors are one sentence and an exit status.

Exit status 0: done, or ended by the operator. 1: it could not be done. 2: it was asked for wrongly.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NoReturn

import click
import trio

from dafka.config import Config
from dafka.errors import ConfigError, DafkaError, DiscoveryError, StorageError
from dafka.protocol import TowersHeard, TowersSilent
from dafka.roles import EventFeed
from dafka.roles.node import single_exception


def run(program: Callable[[], Awaitable[int]], *, interrupted_status: int = 0) -> NoReturn:
    """Runs a program to its end or until SIGINT or SIGTERM cancels it, and exits with the status it gives.

    `interrupted_status` is the status where a signal ended it.
    """
    try:
        status = trio.run(_until_signal, program, interrupted_status)
    except DafkaError as error:
        click.echo(f"Error: {error}", err=True)
        status = 2 if isinstance(error, (ConfigError, StorageError)) else 1
    sys.stdout.flush()
    sys.exit(status)


async def _until_signal(program: Callable[[], Awaitable[int]], interrupted_status: int) -> int:
    status = interrupted_status

    async def run_program() -> None:
        nonlocal status
        status = await program()
        nursery.cancel_scope.cancel()

    with single_exception(), trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_program)
            async for _ in signals:
                # Whoever asks twice does not want to wait for a clean end.
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                nursery.cancel_scope.cancel()
    return status


@asynccontextmanager
async def tower_required(events: EventFeed, config: Config) -> AsyncIterator[None]:
    """Raises `DiscoveryError` into the block where no tower is heard for the configured time from the start on."""

    async def watch() -> None:
        async for event in events:
            if isinstance(event, TowersHeard):
                return
            if isinstance(event, TowersSilent):
                endpoints = ", ".join(config.beacon.pub_addresses)
                raise DiscoveryError(
                    f"no tower answers at {endpoints} (for {event.seconds:.0f} s); "
                    "start one with `dafka up`, or name another with --tower-sub and --tower-pub"
                )

    with single_exception():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            yield
            nursery.cancel_scope.cancel()
