"""A scenario: what it shows, of whom, which clauses it tests, and how it is played."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable

import attrs

from dafka_conformance.model import Dialect, Role
from dafka_conformance.targets.base import Ability, Reset
from dafka_conformance.testbed.testbed import Testbed


@attrs.frozen
class Scenario:
    """One scenario for one role.

    Attributes:
        name: its name, as in `store.acknowledges`.
        title: what it shows, in a sentence.
        role: the target's role.
        clauses: the clauses that it tests; what it checks without naming a clause is the first.
        run: plays it on a stage whose target is running (unless `starts` says that it starts it itself).
        needs: what it must be able to do with the target.
        dialects: the dialects that it can be played in.
        shares: may it be played with a target that other scenarios have been played with?
        starts: does it start the target itself?
        reset: where a consumer begins.
        topic: the topic; None where it does not matter, and each time is another one.
        script: how it is played, for reading.
        is_heavy: does it need the machine for itself?
    """

    name: str
    title: str
    role: Role
    clauses: tuple[str, ...]
    run: Callable[[Testbed], Awaitable[None]]
    needs: frozenset[Ability] = frozenset()
    dialects: tuple[Dialect, ...] = tuple(Dialect)
    shares_target: bool = False
    starts_target: bool = False
    reset: Reset = Reset.EARLIEST
    topic: bytes | None = None
    script: tuple[str, ...] = ()
    runs_alone: bool = False


class ScenarioRegistry:
    """The scenarios that are written in Python, as their modules are imported."""

    def __init__(self) -> None:
        self.scenarios: list[Scenario] = []

    def add(
        self,
        name: str,
        *clauses: str,
        needs: Iterable[Ability] = (),
        dialects: tuple[Dialect, ...] = tuple(Dialect),
        shares_target: bool = False,
        starts_target: bool = False,
        reset: Reset = Reset.EARLIEST,
        topic: bytes | None = None,
        runs_alone: bool = False,
    ) -> Callable[[Callable[[Testbed], Awaitable[None]]], Callable[[Testbed], Awaitable[None]]]:
        """Adds a scenario; its name begins with the target's role, its docstring's first sentence is the title."""

        def add(play: Callable[[Testbed], Awaitable[None]]) -> Callable[[Testbed], Awaitable[None]]:
            role = next(role for role in Role if role.title == name.partition(".")[0])
            self.scenarios.append(
                Scenario(
                    name,
                    " ".join((play.__doc__ or "").split()),
                    role,
                    clauses,
                    play,
                    needs=frozenset(needs) | ({Ability.START} if starts_target else set()),
                    dialects=dialects,
                    shares_target=shares_target,
                    starts_target=starts_target,
                    reset=reset,
                    topic=topic,
                    script=tuple(inspect.getsource(play).splitlines()),
                    runs_alone=runs_alone,
                )
            )
            return play

        return add
