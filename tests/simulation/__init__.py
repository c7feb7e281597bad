"""Whole clusters of the real state machines, on a virtual clock and a simulated network, decided by a seed.

python -m tests.simulation --seeds 10000
python -m tests.simulation --seed 4711
"""

from tests.simulation.plan import Member, Plan, Step, make_plan
from tests.simulation.running import Outcome, run_plan, run_seed, shrink
from tests.simulation.violations import Violation

__all__ = ["Member", "Outcome", "Plan", "Step", "Violation", "make_plan", "run_plan", "run_seed", "shrink"]
