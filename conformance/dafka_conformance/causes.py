"""Causes and consequences: which findings of a scenario follow from another one.

A node whose RECORDs are malformed cannot be seen to publish, so a scenario that waits for a RECORD fails as well. Only
the malformed RECORD says something about the node. Each clause therefore has a layer, and a finding is a consequence of
an earlier finding of the same scenario in a lower layer. A clause is not judged by consequences.

Only a message that the target sent is a cause. What is missing may itself be the consequence of something unseen.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from dafka_conformance.clauses import Clauses
from dafka_conformance.model import Check, Clause


def attribute_causes(checks: Sequence[Check], clauses: Clauses) -> list[Check]:
    """Return the checks of a scenario, each consequence with its cause.

    Args:
        checks: The checks in the order in which they were made.
        clauses: All clauses. A finding about a clause that is not binding is no cause.

    Returns:
        The checks, in the same order.
    """
    attributed: list[Check] = []
    cause: Clause | None = None
    for check in checks:
        if check.holds:
            attributed.append(check)
            continue
        clause = clauses.get(check.clause)
        if cause is not None and cause.layer < clause.layer:
            attributed.append(attrs.evolve(check, because=cause.id))
            continue
        attributed.append(check)
        if check.event is not None and clause.level.is_binding and (cause is None or clause.layer < cause.layer):
            cause = clause
    return attributed
