"""A scenario (a test case): its role, the clauses that it tests, and the function that runs it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable

import attrs

from dafka_conformance.model import Dialect, Role
from dafka_conformance.targets.base import Ability, Reset
from dafka_conformance.testbed.testbed import Testbed


@attrs.frozen
class Scenario:
    """A scenario for one role.

    Attributes:
        name: Its name, such as `store.acknowledges`.
        title: One sentence that says what it tests.
        role: The role of the target.
        clauses: The clauses that it tests. A check that names no clause is about the first one.
        run: Runs the scenario on a testbed whose target is running, or not started if `starts_target`.
        needs: The abilities that the target must have.
        dialects: The dialects that it can run in.
        shares_target: Whether it can run on a target that has already run other scenarios.
        starts_target: Whether it starts the target itself.
        reset: The position at which a consumer starts.
        topic: The topic; None for a new one each time.
        script: Its steps or source code, for `dafka-conformance show`.
        runs_alone: Whether no other scenario may run at the same time, because it loads the machine.
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
    """The scenarios of a module that are written in Python. Each module has one, as `SCENARIOS`."""

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
        """Return a decorator that adds a function as a scenario. Its docstring is the scenario's title.

        Args:
            name: The scenario's name. Its first part is the role of the target, as in `store.durable`.
            *clauses: The ids of the clauses that it tests.
            needs: The abilities that the target must have.
            dialects: The dialects that it can run in.
            shares_target: Whether it can run on a target that has already run other scenarios.
            starts_target: Whether it starts the target itself.
            reset: The position at which a consumer starts.
            topic: The topic; None for a new one each time.
            runs_alone: Whether no other scenario may run at the same time.

        Returns:
            The decorator.
        """

        def add(run: Callable[[Testbed], Awaitable[None]]) -> Callable[[Testbed], Awaitable[None]]:
            role = next(role for role in Role if role.title == name.partition(".")[0])
            self.scenarios.append(
                Scenario(
                    name,
                    " ".join((run.__doc__ or "").split()),
                    role,
                    clauses,
                    run,
                    needs=frozenset(needs) | ({Ability.START} if starts_target else set()),
                    dialects=dialects,
                    shares_target=shares_target,
                    starts_target=starts_target,
                    reset=reset,
                    topic=topic,
                    script=tuple(inspect.getsource(run).splitlines()),
                    runs_alone=runs_alone,
                )
            )
            return run

        return add
