"""Hostile peers: what they send, and what becomes of the roles that they send it to.

`python -m tests.adversarial --target store` attacks a store;
docs/explanation/adversarial-peers.md tells what is expected.
"""

from tests.adversarial.families import BEACON_FAMILIES, FAMILIES, Aim, generate

__all__ = ["BEACON_FAMILIES", "FAMILIES", "Aim", "generate"]
