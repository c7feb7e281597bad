"""Run plans, and find the shortest plan that still breaks the same promise."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs

from tests.simulation.cluster import Cluster
from tests.simulation.plan import Plan, make_plan
from tests.simulation.violations import Violation

RUNS_MAX = 400
"""Plans that are tried to shrink one."""

PROBLEM = "an exception"
"""The broken promise if the product raises an exception."""


@attrs.frozen
class Outcome:
    """The result of a plan. `promise` names the broken promise and `detail` describes it; both are empty if none is."""

    plan: Plan
    promise: str
    detail: str
    events: int
    seconds: float

    @property
    def is_good(self) -> bool:
        return not self.promise


def run_seed(seed: int) -> Outcome:
    return run_plan(make_plan(seed))


def run_plan(plan: Plan, note: Callable[[float, str], None] | None = None) -> Outcome:
    """Run one simulation. `note` gets each line of the history, with the time in virtual seconds."""
    cluster = Cluster(plan, note)
    promise = detail = ""
    try:
        cluster.run()
    except Violation as violation:
        promise, detail = violation.promise, violation.detail
    except Exception as error:  # any exception of the product is a broken promise
        promise, detail = f"{PROBLEM}: {type(error).__name__}", str(error)
    return Outcome(plan, promise, detail, cluster.clock.events, cluster.clock.now)


def shrink(outcome: Outcome) -> Outcome:
    """Return a smaller plan that breaks the same promise: without steps, nodes or settings that it does not need."""
    runs = 0
    best, found = outcome, True
    while found:
        found = False
        for plan in _smaller(best.plan):
            runs += 1
            if runs > RUNS_MAX:
                return best
            tried = run_plan(plan)
            if tried.promise == outcome.promise:
                best, found = tried, True
                break
    return best


def _smaller(plan: Plan) -> Iterator[Plan]:
    steps = plan.steps
    size = len(steps) // 2
    while size:
        for start in range(0, len(steps), size):
            yield attrs.evolve(plan, steps=steps[:start] + steps[start + size :])
        size //= 2
    towers = [member.name for member in plan.members if member.role == "tower"]
    for index, member in enumerate(plan.members):
        if member.name in towers and len(towers) == 1:
            continue
        left = tuple(step for step in steps if member.name not in step.who)
        yield attrs.evolve(plan, members=plan.members[:index] + plan.members[index + 1 :], steps=left)
    for index, member in enumerate(plan.members):
        plain = attrs.evolve(member, joins=0.0, lag=0.0, pace=0.0, queue_max=1_000_000, saves=False, fixed_port=False)
        if plain != member:
            yield attrs.evolve(plan, members=(*plan.members[:index], plain, *plan.members[index + 1 :]))
    for index, step in enumerate(steps):
        if step.kind == "publish" and step.amount > 1:
            fewer = attrs.evolve(step, amount=step.amount // 2)
            yield attrs.evolve(plan, steps=(*steps[:index], fewer, *steps[index + 1 :]))
    if plan.second_network:
        yield attrs.evolve(plan, second_network=False)
