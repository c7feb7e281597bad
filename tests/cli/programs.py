"""Takes the program of a command, which the test then runs in its own process, and what it shows meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import import_module

import attrs
import pytest
from click.testing import CliRunner

from dafka.cli import main, options
from dafka.cli.runner import Shutdown
from dafka.config import Config


@attrs.frozen
class Taken:
    """What a command gives to `dafka.cli.runner.run`."""

    program: Callable[[], Awaitable[int]]
    interrupted: Callable[[], int | None]
    shutdown: Shutdown


NO_STEPS = Shutdown()


def take_program(module: str, *arguments: str) -> Taken:
    """Return the program of a command, which a module of `dafka.cli` would run."""
    taken: list[Taken] = []

    def run(
        program: Callable[[], Awaitable[int]],
        *,
        interrupted: Callable[[], int | None] = lambda: None,
        shutdown: Shutdown = NO_STEPS,
    ) -> None:
        taken.append(Taken(program, interrupted, shutdown))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(import_module(f"dafka.cli.{module}"), "run", run)
        patched.setattr(options, "start_logging", lambda config: None)
        result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    (found,) = taken
    return found


def tower_options(config: Config) -> list[str]:
    """Return the options that name the tower of a configuration."""
    return ["--tower-sub", *config.beacon.tower_sub, "--tower-pub", *config.beacon.tower_pub]


class NotingBar:
    """A progress bar that notes what it shows, from its start to its end."""

    def __init__(self) -> None:
        self.totals: list[int | None] = []
        self.shown: list[tuple[int, str]] = []

    def __enter__(self) -> NotingBar:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        assert self.shown == []

    def stop(self) -> None:
        self.shown.append((-1, "closed"))

    def add_task(self, _text: str, *, total: int | None) -> int:
        self.totals.append(total)
        return 7

    def update(self, task: int, *, completed: int, description: str, refresh: bool, total: int | None = None) -> None:
        assert (task, refresh) == (7, True)
        self.shown.append((completed, description))
