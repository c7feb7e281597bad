"""Whole clusters of the real state machines, on a virtual clock and a simulated network, decided by a seed.

python -m dafka.testing.simulation --seeds 10000
python -m dafka.testing.simulation --seed 4711
"""

from dafka.testing.simulation.plan import Member, Plan, Step, make_plan
from dafka.testing.simulation.running import Outcome, run_plan, run_seed, shrink
from dafka.testing.simulation.violations import Violation

__all__ = ["Member", "Outcome", "Plan", "Step", "Violation", "make_plan", "run_plan", "run_seed", "shrink"]
