"""Simulated clusters: the real state machines on a virtual clock and a simulated network. A seed determines everything.

    python -m tests.simulation --seeds 10000
    python -m tests.simulation --seed 4711

docs/contributing/simulation.md describes it.
"""

from tests.simulation.plan import Member, Plan, Step, make_plan
from tests.simulation.running import Outcome, run_plan, run_seed, shrink
from tests.simulation.violations import Violation

__all__ = ["Member", "Outcome", "Plan", "Step", "Violation", "make_plan", "run_plan", "run_seed", "shrink"]
