"""Runs a command's trio program: signals stop it cleanly, and an error is one sentence and an exit status.

Exit status 0: the job was done, or the operator stopped a command that runs until then. 1: it could not be done. 2: the
command was used wrongly. 130, 143, 129: SIGINT, SIGTERM or SIGHUP ended it before its job was done.
"""

from __future__ import annotations

import ctypes
import math
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import NoReturn, TypeVar

import attrs
import trio

from dafka.cli.advice import with_advice
from dafka.cli.terminal import COMMAND_LOG, report_error
from dafka.config import Config
from dafka.errors import ConfigError, DafkaError, DiscoveryError, MissingExtraError, StorageError
from dafka.exceptions import unwrap_group
from dafka.operations import Monitor, Notifier, begin_stopping, open_operations
from dafka.protocol import RefusedByPeer, TowerHostUnresolved, TowersHeard, TowersSilent
from dafka.roles import Consumer, EventFeed, Observer, Producer
from dafka.roles.logging_events import MetricsServed, Stopping
from dafka.transport import diagnose_connection, raise_descriptors_max

_T = TypeVar("_T")

SECOND_SIGNAL_S = 1.0
"""A signal this long after the first one cancels the program. `timeout` sends two signals at once and means one."""

EXTRA_END_S = 5.0
"""How long a process that is stopping may take beyond `grace_ms` and `linger_ms` before it is killed."""

REFUSED_S = 1.0
"""How long a node that a tower has refused waits for another tower."""

LARGE_BYTES = 2**22
"""Buffers from this size on are returned to the system when they are freed, if the process uses glibc."""

KEPT_BYTES = 2**25
"""How much of what smaller ones leave is kept for the next ones, which makes these faster."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


@attrs.frozen
class Shutdown:
    """The steps that a command takes when a signal stops it.

    `begin`, which does not block, is called at the first signal. The program then has `grace_s` to return before it is
    cancelled. The process exits after `limit_s` in any case.
    """

    begin: Callable[[], None] = lambda: None
    grace_s: float = 0.0
    limit_s: float = math.inf


def run(
    program: Callable[[], Awaitable[int]],
    *,
    interrupted: Callable[[], int | None] = lambda: None,
    shutdown: Shutdown = Shutdown(),
) -> NoReturn:
    """Run a program, which returns the exit status, until it returns or a signal stops it, and exit the process.

    `interrupted` is called if SIGINT, SIGTERM or SIGHUP had the program cancelled. It returns the exit status, or None
    if the job was not done: the exit status is then 128 and the number of the signal, as shells report it.
    """
    raise_descriptors_max()
    return_freed_memory()
    try:
        status = trio.run(_run_until_signal, program, interrupted, shutdown)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        status = 0
    except DafkaError as error:
        report_error(with_advice(error))
        status = 2 if isinstance(error, (ConfigError, MissingExtraError, StorageError)) else 1
    except OSError as error:
        _discard_output()
        report_error(error.strerror or error)
        status = 1
    sys.exit(status)


async def _run_until_signal(
    program: Callable[[], Awaitable[int]], interrupted: Callable[[], int | None], shutdown: Shutdown
) -> int:
    status = 0
    first_signal = 0
    scope = trio.CancelScope()
    stopping_since = math.inf
    # nohup ignores hangups so that the program continues.
    hangup = [] if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else [signal.SIGHUP]

    async def run_program() -> None:
        nonlocal status
        with scope:
            status = await program()
        nursery.cancel_scope.cancel()

    with unwrap_group(), trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, *hangup) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_program)
            async for number in signals:
                now = trio.current_time()
                if stopping_since == math.inf:
                    stopping_since = now
                    first_signal = number
                    COMMAND_LOG.write(Stopping(signal.Signals(number).name))
                    _exit_after(shutdown.limit_s)
                    shutdown.begin()
                    scope.deadline = now + shutdown.grace_s
                elif now - stopping_since >= SECOND_SIGNAL_S and not scope.cancel_called:
                    stopping_since = now
                    scope.cancel()
                elif now - stopping_since >= SECOND_SIGNAL_S:
                    signal.signal(number, signal.SIG_DFL)
                    os.kill(os.getpid(), number)
    if not scope.cancelled_caught:
        return status
    interrupted_status = interrupted()
    return 128 + first_signal if interrupted_status is None else interrupted_status


def _exit_after(seconds: float) -> None:
    """Exit the process after a time, even if a thread is still waiting for a disk."""

    def give_up() -> None:
        report_error(f"not stopped {seconds:.0f} s after the signal; exited without finishing")
        os._exit(1)

    if seconds < math.inf:
        timer = threading.Timer(seconds, give_up)
        timer.daemon = True
        timer.start()


def _discard_output() -> None:
    """Redirect standard output to nowhere; otherwise the interpreter would try to write it again when it exits."""
    if sys.stdout is not None:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


class Supervisor:
    """Metrics, health, notifications to the service manager, and a clean stop, for a command that runs nodes.

    `roles` are those of the nodes, such as `store`; `monitor` has the nodes that run.
    """

    def __init__(self, config: Config, *roles: str) -> None:
        self.monitor = Monitor(*roles)
        self.metrics_url: str | None = None
        self.is_stopping = False
        self._config = config
        self._notifier = Notifier.from_environment()
        self._waiting: trio.CancelScope | None = None

    def shutdown(self, *, is_graceful: bool) -> Shutdown:
        """Return what a signal does: a graceful program returns by itself, any other is cancelled at once."""
        grace_s = self._config.node.grace_ms / 1000
        limit_s = grace_s + self._config.node.linger_ms / 1000 + EXTRA_END_S
        return Shutdown(self._stop, grace_s if is_graceful else 0.0, limit_s)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Serve metrics, if they are configured, and notify the service manager during the block."""
        metrics = self._config.metrics
        async with open_operations(self.monitor, metrics.listen, self._notifier, metrics.topics_max) as url:
            if url is not None:
                COMMAND_LOG.write(MetricsServed(f"{url}/metrics"))
            self.metrics_url = url
            yield

    async def wait_unless_stopping(self, wait: Callable[[], Awaitable[_T]]) -> _T | None:
        """Return the result of `wait`, or None as soon as a signal has stopped the command."""
        if not self.is_stopping:
            with trio.CancelScope() as self._waiting:
                return await wait()
        return None

    def _stop(self) -> None:
        self.is_stopping = True
        begin_stopping(self.monitor, self._notifier)
        if self._waiting is not None:
            self._waiting.cancel()


@asynccontextmanager
async def require_tower(node: Producer | Consumer | Observer, config: Config) -> AsyncIterator[None]:
    """Run a block, and end it with an error if the node can use no tower.

    It is for commands with a job to finish. A daemon runs on: its node logs that it hears no tower, and keeps trying.

    Raise `DiscoveryError` if no tower is heard for `tower_timeout_ms` from the start, if the only towers heard refuse
    the node's key, or if the node does not hear its own beacon through the tower.
    """

    async def watch() -> None:
        await _wait_tower_heard(node.events, config)
        with trio.move_on_after(config.node.tower_timeout_ms / 1000) as scope:
            await node.wait_settled()
        if scope.cancelled_caught:
            raise DiscoveryError(
                f"the tower at {', '.join(config.beacon.tower_pub)} is heard, but does not pass on what is sent to "
                f"{', '.join(config.beacon.tower_sub)}; check that --tower-sub and --tower-pub name the same tower"
            )

    with unwrap_group():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            yield
            nursery.cancel_scope.cancel()


async def _wait_tower_heard(events: EventFeed, config: Config) -> None:
    """Wait for a tower; raise `DiscoveryError` with the cause if none is heard, or if all of them refuse this node."""
    towers = (*config.beacon.tower_sub, *config.beacon.tower_pub)
    refusal: RefusedByPeer | None = None
    unresolved: TowerHostUnresolved | None = None

    with trio.CancelScope() as refused:
        async for event in events:
            if isinstance(event, TowersHeard):
                return
            if isinstance(event, RefusedByPeer) and event.endpoint in towers:
                refusal = event
                if event.is_certain:
                    refused.deadline = min(refused.deadline, trio.current_time() + REFUSED_S)
            if isinstance(event, TowerHostUnresolved):
                unresolved = event
            if isinstance(event, TowersSilent) and refusal is None and unresolved is not None:
                raise DiscoveryError(
                    f"the tower's host name {unresolved.host!r} cannot be resolved: {unresolved.reason}; "
                    "check the name, or name another tower with --tower"
                )
            if isinstance(event, TowersSilent) and refusal is None:
                where = ", ".join(config.beacon.tower_pub)
                problems = [await diagnose_connection(endpoint) for endpoint in config.beacon.tower_pub]
                problem = next((f": {each}" for each in problems if each), "")
                raise DiscoveryError(
                    f"no tower answered at {where} within {event.seconds:.0f} s{problem}; "
                    "start one with `dafka up`, or name another with --tower"
                )
            if isinstance(event, TowersSilent):
                break
    raise DiscoveryError(f"no tower accepts this node: {with_advice(refusal)}")


def return_freed_memory() -> None:
    """Fix the thresholds of glibc's allocator.

    Otherwise it raises them up to 32 MiB with each larger buffer that is freed, and later ones then leave holes that
    the process keeps: a process that has once unpacked large records would keep the memory of many of them.
    """
    if sys.platform != "linux":
        return
    with suppress(AttributeError, OSError):  # another C library
        allocator = ctypes.CDLL(None)
        allocator.mallopt(_MMAP_THRESHOLD, LARGE_BYTES)
        allocator.mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
