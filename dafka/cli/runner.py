"""Runs a command's trio program: signals end it cleanly, and errors are one sentence and an exit status.

Exit status 0: done, or ended by the operator. 1: it could not be done. 2: it was asked for wrongly.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NoReturn, Protocol

import attrs
import trio

from dafka.cli.terminal import COMMAND_LOG, report_error
from dafka.config import Config
from dafka.errors import ConfigError, DafkaError, DiscoveryError, MissingExtraError, StorageError
from dafka.groups import single_exception
from dafka.protocol import RefusedByPeer, TowersHeard, TowersSilent
from dafka.roles import EventFeed
from dafka.roles.log_events import Stopping
from dafka.transport import raise_descriptors_max

IMPATIENCE_S = 1.0
"""A signal this long after the first one does not wait for a clean end. `timeout` sends two at once, and means one."""


REFUSED_S = 1.0
"""A node that a tower has refused looks so long for another tower."""


class SettlingNode(Protocol):
    """A producer or a consumer."""

    @property
    def events(self) -> EventFeed:
        """What happened to it."""

    async def wait_settled(self) -> None:
        """Waits until the nodes of a running cluster have been found."""


@attrs.frozen
class Ending:
    """What a signal does.

    Attributes:
        begin: called at the first one, and does not wait.
        grace_s: how long the program may then take to end by itself before it is cancelled.
        limit_s: how long until the process ends, whatever still runs in it.
    """

    begin: Callable[[], None] = lambda: None
    grace_s: float = 0.0
    limit_s: float = math.inf


def run(
    program: Callable[[], Awaitable[int]],
    *,
    interrupted: Callable[[], int] = lambda: 0,
    ending: Ending = Ending(),
) -> NoReturn:
    """Runs a program to its end or until a signal ends it, and exits with the status it gives.

    Where SIGINT, SIGTERM or SIGHUP had it cancelled, `interrupted` is called afterwards and gives the status.
    """
    raise_descriptors_max()
    try:
        status = trio.run(_until_signal, program, interrupted, ending)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        status = 0
    except DafkaError as error:
        report_error(error)
        status = 2 if isinstance(error, (ConfigError, MissingExtraError, StorageError)) else 1
    except OSError as error:
        _discard_output()
        report_error(error.strerror or error)
        status = 1
    sys.exit(status)


async def _until_signal(program: Callable[[], Awaitable[int]], interrupted: Callable[[], int], ending: Ending) -> int:
    status = 0
    scope = trio.CancelScope()
    ending_since = math.inf
    # Whoever has a hangup ignored, as nohup does, wants the program to go on.
    hangup = [] if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else [signal.SIGHUP]

    async def run_program() -> None:
        nonlocal status
        with scope:
            status = await program()
        nursery.cancel_scope.cancel()

    with single_exception(), trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, *hangup) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_program)
            async for number in signals:
                now = trio.current_time()
                if ending_since == math.inf:
                    ending_since = now
                    COMMAND_LOG.write(Stopping(signal.Signals(number).name))
                    _limit(ending.limit_s)
                    ending.begin()
                    scope.deadline = now + ending.grace_s
                elif now - ending_since >= IMPATIENCE_S and not scope.cancel_called:
                    ending_since = now
                    scope.cancel()
                elif now - ending_since >= IMPATIENCE_S:
                    signal.signal(number, signal.SIG_DFL)
                    os.kill(os.getpid(), number)
    return interrupted() if scope.cancelled_caught else status


def _limit(seconds: float) -> None:
    """Ends the process after so long, whichever thread still waits for a disk."""

    def give_up() -> None:
        report_error(f"not ended {seconds:.0f} s after the signal; ended without finishing")
        os._exit(1)

    if seconds < math.inf:
        timer = threading.Timer(seconds, give_up)
        timer.daemon = True
        timer.start()


def _discard_output() -> None:
    """What is still buffered cannot be written; the interpreter would try again, and complain, when it exits."""
    if sys.stdout is not None:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


@asynccontextmanager
async def tower_required(
    events: EventFeed, config: Config, settling: SettlingNode | None = None
) -> AsyncIterator[None]:
    """Raises `DiscoveryError` into the block where no tower is heard for the configured time from the start on.

    Likewise where a tower refuses this node's key, and none is heard in the moment after; and where a tower is heard,
    and the node that is to settle does not hear itself through it.
    """

    async def watch() -> None:
        await _wait_heard(events, config)
        if settling is None:
            return
        with trio.move_on_after(config.node.tower_timeout_ms / 1000) as scope:
            await settling.wait_settled()
        if scope.cancelled_caught:
            raise DiscoveryError(
                f"the tower at {', '.join(config.beacon.tower_pub)} is heard, but what is sent to "
                f"{', '.join(config.beacon.tower_sub)} does not come back from it; "
                "see that --tower-sub and --tower-pub name the same tower"
            )

    with single_exception():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            yield
            nursery.cancel_scope.cancel()


async def _wait_heard(events: EventFeed, config: Config) -> None:
    """Returns when a tower is heard. Raises `DiscoveryError` where none is, or where they refuse this node's key."""
    towers = (*config.beacon.tower_sub, *config.beacon.tower_pub)
    hint = "start one with `dafka up`, or name another with --tower-sub and --tower-pub"

    with trio.CancelScope() as patience:
        async for event in events:
            if isinstance(event, TowersHeard):
                return
            if isinstance(event, RefusedByPeer) and event.endpoint in towers:
                hint = str(event)
                if event.is_certain:
                    patience.deadline = min(patience.deadline, trio.current_time() + REFUSED_S)
            if isinstance(event, TowersSilent):
                where = ", ".join(config.beacon.tower_pub)
                raise DiscoveryError(f"no tower answers at {where} (for {event.seconds:.0f} s); {hint}")
    raise DiscoveryError(f"no tower lets this node in: {hint}")
