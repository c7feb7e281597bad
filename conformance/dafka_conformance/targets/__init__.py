"""Targets: the implementations of Dafka that the suite tests.

A target is started by commands in a target file (`file_target`), runs already and is attached to (`file_target`), or is
Python code in the suite's process (`embedded`, or any factory). `Target` and `Node` are the interfaces for a new kind.
"""

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
