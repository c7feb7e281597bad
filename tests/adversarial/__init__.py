"""Adversarial peers: the messages that they send, and what happens to the roles that receive them.

`python -m benchmarks.adversarial --target store` attacks a store that runs as a process;
docs/explanation/adversarial-peers.md describes what is expected.
"""

from tests.adversarial.attacks import NODE_ATTACKS, TOWER_ATTACKS, Target, generate

__all__ = ["NODE_ATTACKS", "TOWER_ATTACKS", "Target", "generate"]
