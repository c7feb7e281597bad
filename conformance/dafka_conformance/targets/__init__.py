"""What the suite tests: an implementation of Dafka, started from a target file, embedded, or attached to."""

from dafka_conformance.targets.base import (
    Ability,
    Attachment,
    Delivery,
    Node,
    Request,
    Reset,
    Target,
    TargetError,
)
from dafka_conformance.targets.loader import open_target, shipped_targets

__all__ = [
    "Ability",
    "Attachment",
    "Delivery",
    "Node",
    "Request",
    "Reset",
    "Target",
    "TargetError",
    "open_target",
    "shipped_targets",
]
