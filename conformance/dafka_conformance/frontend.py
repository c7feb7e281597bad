"""What the command and the pytest plugin share: they are not asynchronous, and take variables as texts."""

from __future__ import annotations

import resource
import signal
from collections.abc import Awaitable, Callable, Sequence

import trio

from dafka_conformance.grammar import Grammar
from dafka_conformance.model import Dialect, Role, Run
from dafka_conformance.stage.ledger import Ledger
from dafka_conformance.stage.trace import Trace
from dafka_conformance.stage.watch import Watch
from dafka_conformance.targets import TargetError

OPEN_FILES = 4096
"""More than a run with any number of targets at once needs."""


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
    _allow_open_files()
    finished: list[Run] = []
    caught: list[int] = []
    heeded = [each for each in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(each) is not signal.SIG_IGN]

    async def main() -> None:
        scope = trio.CancelScope()

        async def heed() -> None:
            async for number in signals:  # further ones change nothing while targets are being ended
                caught.append(number)
                scope.cancel()

        with trio.open_signal_receiver(signal.SIGTERM, *heeded) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(heed)
                with scope:
                    finished.append(await play())
                nursery.cancel_scope.cancel()

    trio.run(main)
    if not finished:
        raise EndedBySignalError(caught[0])
    return finished[0]


def _allow_open_files() -> None:
    """Every socket is a file or two, and some systems begin with as few as 256."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def parse_settings(settings: Sequence[str], option: str) -> dict[str, str]:
    """The variables of NAME=VALUE texts; `option` is what they were given with.

    Raises `TargetError` for a text that is no such pair, and for a name that is given twice.
    """
    variables: dict[str, str] = {}
    for setting in settings:
        name, is_set, value = setting.partition("=")
        if not name or not is_set:
            raise TargetError(f"{option} takes NAME=VALUE, not {setting!r}")
        if name in variables:
            raise TargetError(f"{option} gives {name} twice: expected it once")
        variables[name] = value
    return variables


def watched_clauses(grammar: Grammar) -> set[str]:
    """The clauses that everything a target says is held against, whatever the scenario."""
    clauses = {"beacon.interval", "publisher.bound", "subscriber.connects"}
    for dialect in Dialect:
        watch = Watch(grammar, Role.STORE, dialect, Ledger(), Trace(lambda: 0.0), lambda *_: None)
        watch.names |= grammar.formats.by_name.keys()
        clauses |= watch.conforming()
    return clauses
