"""What a scenario finds out: each clause that was held against the target, and what was wrong."""

from __future__ import annotations

from dafka_conformance.model import Check
from dafka_conformance.stage.trace import Trace

FINDINGS_MAX = 10
"""Findings of one scenario about one clause: further ones would tell nothing new."""


class UnmetError(Exception):
    """Something that the scenario cannot go on without did not happen; its check has been recorded."""


class Findings:
    """Attributes:
    trace: everything that was said.
    checks: what was checked so far.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.checks: list[Check] = []

    def check(self, clause: str, holds: bool, message: str = "", event: int | None = None, reading: str = "") -> bool:
        """Records whether a clause holds; where not, `message` says what is wrong. Gives `holds`."""
        self.checks.append(Check(clause, holds, "" if holds else message, event, reading))
        if not holds and event is not None:
            self.trace.mark(event, message)
        return holds

    def require(self, clause: str, holds: bool, message: str, event: int | None = None) -> None:
        """As `check`; raises `UnmetError` where it does not hold."""
        if not self.check(clause, holds, message, event):
            raise UnmetError(message)

    def report(self, clause: str, message: str, event: int, field: str = "", reading: str = "") -> None:
        """Records what is wrong with an event, unless the same has been found before."""
        alike = [check for check in self.checks if check.clause == clause and not check.holds]
        if len(alike) < FINDINGS_MAX and all(check.message != message for check in alike):
            self.checks.append(Check(clause, False, message, event, reading))
        self.trace.mark(event, message, field)
