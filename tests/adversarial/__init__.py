"""Adversarial peers: the messages that they send, and what happens to the roles that receive them.

`python -m tests.adversarial --target store` attacks a store;
docs/explanation/adversarial-peers.md describes what is expected.
"""

from tests.adversarial.attacks import NODE_ATTACKS, TOWER_ATTACKS, Target, generate

__all__ = ["NODE_ATTACKS", "TOWER_ATTACKS", "Target", "generate"]
