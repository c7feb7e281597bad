"""What every part of the suite speaks of: roles, dialects, clauses, checks, events and results. Values only."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import attrs


class Role(enum.Enum):
    """Who takes part, by the letter that prefixes what it says in the grammar's traffic rules."""

    TOWER = "T"
    PRODUCER = "P"
    CONSUMER = "C"
    STORE = "S"

    @property
    def title(self) -> str:
        """The role's name, in lower case."""
        return self.name.lower()


class Dialect(enum.Enum):
    """How messages are put into frames: as RFC 46 writes it, or as the C and Java implementations do."""

    RFC46 = "rfc46"
    LIBDAFKA = "libdafka"


class Level(enum.Enum):
    """How binding a clause is, in the words of RFC 2119. What is not among them is tested like a MUST.

    `GRAMMAR` is what a grammar rule or its comment determines; `DEPLOYED` is what every implementation relies on and
    the RFC does not write down.
    """

    MUST = "MUST"
    MUST_NOT = "MUST NOT"
    SHALL = "SHALL"
    SHALL_NOT = "SHALL NOT"
    REQUIRED = "REQUIRED"
    SHOULD = "SHOULD"
    SHOULD_NOT = "SHOULD NOT"
    RECOMMENDED = "RECOMMENDED"
    MAY = "MAY"
    GRAMMAR = "grammar"
    DEPLOYED = "deployed"

    @property
    def is_binding(self) -> bool:
        """Is a node that does otherwise in violation?"""
        return self not in {Level.SHOULD, Level.SHOULD_NOT, Level.RECOMMENDED, Level.MAY}


@attrs.frozen
class Clause:
    """One demand of the protocol.

    Attributes:
        id: its name, as in `ack.sent`.
        section: the RFC's section that it is from.
        level: how binding it is.
        text: the demand, paraphrased.
        roles: whose demand it is.
        untestable: why it cannot be tested from outside; empty where it can.
        readings: where the RFC contradicts itself: each reading's name, and what it says.
        holds: the name of the reading that the suite takes.
        erratum: the entry of docs/reference/errata.md that says why; 0 where there is none.
        dialects: the dialects that it applies to.
    """

    id: str
    section: str
    level: Level
    text: str
    roles: tuple[Role, ...]
    untestable: str = ""
    readings: Mapping[str, str] = attrs.field(factory=dict)
    holds: str = ""
    erratum: int = 0
    dialects: tuple[Dialect, ...] = tuple(Dialect)


class Kind(enum.Enum):
    """What an event of a trace is."""

    MESSAGE = "message"
    SUBSCRIPTION = "subscription"
    BEACON = "beacon"
    LINE = "line"
    NOTE = "note"


@attrs.define
class Event:
    """Something that was said during a scenario, or (of a run of alike messages) the first of several.

    Attributes:
        at: seconds since the scenario began.
        sender: who said it: the label of a node ("P", "C2"), "tower", or "input" and "output" for lines.
        receiver: to whom.
        kind: what it is.
        label: the message's name in the grammar, "subscribe", "unsubscribe", "beacon", "line", or a note's text.
        fields: its parts, decoded for reading, in order.
        frames: the frames in hexadecimal, long ones cut (with an ellipsis).
        count: how many messages this stands for.
        fault: what is wrong with it; empty where nothing is.
        fault_field: the field that is wrong, where it is one.
    """

    at: float
    sender: str
    receiver: str
    kind: Kind
    label: str
    fields: tuple[tuple[str, str], ...] = ()
    frames: tuple[str, ...] = ()
    count: int = 1
    fault: str = ""
    fault_field: str = ""


@attrs.frozen
class Check:
    """One clause held against what the target did.

    Attributes:
        clause: the clause's name.
        holds: did the target do as it says?
        message: what was found, where it did not: one sentence that names the fault.
        event: the place in the trace of what was wrong; None where something is missing rather than wrong.
        reading: the reading that the target follows, for a clause that has several.
    """

    clause: str
    holds: bool
    message: str = ""
    event: int | None = None
    reading: str = ""


class Outcome(enum.Enum):
    """How a scenario ended. `BROKEN` where the target could not be run at all, or died unasked."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    BROKEN = "broken"


@attrs.frozen
class ScenarioResult:
    """What came of one scenario in one dialect.

    Attributes:
        scenario: its name.
        title: what it shows, in a sentence.
        role: the target's role.
        dialect: the dialect that was spoken.
        clauses: the clauses that it tests.
        outcome: how it ended.
        checks: everything that was checked, in order.
        trace: everything that was said.
        seconds: how long it took.
        reason: why it was skipped or broken.
    """

    scenario: str
    title: str
    role: Role
    dialect: Dialect
    clauses: tuple[str, ...]
    outcome: Outcome
    checks: tuple[Check, ...] = ()
    trace: tuple[Event, ...] = ()
    seconds: float = 0.0
    reason: str = ""


class Verdict(enum.Enum):
    """What a run says of a clause. `DOES` and `DOES_NOT` are for clauses that bind nobody (SHOULD, MAY)."""

    CONFORMS = "conforms"
    VIOLATES = "violates"
    NOT_TESTED = "not tested"
    DOES = "does"
    DOES_NOT = "does not"


@attrs.frozen
class ClauseVerdict:
    """A clause, what came of it in one dialect, and through which scenarios.

    Attributes:
        clause: the clause.
        dialect: the dialect.
        verdict: what came of it.
        scenarios: the names of those that decided it: the ones that found a violation, or else those that tested it.
        reading: the reading that the target follows, where the clause has several and it could be told.
        reason: why it was not tested.
    """

    clause: Clause
    dialect: Dialect
    verdict: Verdict
    scenarios: tuple[str, ...] = ()
    reading: str = ""
    reason: str = ""


@attrs.frozen
class Run:
    """A whole run of the suite against one target.

    Attributes:
        target: its name.
        started_at: when it began, in seconds since the epoch.
        seconds: how long it took.
        results: every scenario's, in the order of their names.
        verdicts: every clause's in every dialect that was run.
        missing_roles: the roles that the target lacks or that were not asked for, and why.
    """

    target: str
    started_at: float
    seconds: float
    results: tuple[ScenarioResult, ...]
    verdicts: tuple[ClauseVerdict, ...]
    missing_roles: Mapping[Role, str] = attrs.field(factory=dict)

    @property
    def conforms(self) -> bool:
        """Is no binding clause violated, and did every scenario run?"""
        is_violated = any(verdict.verdict is Verdict.VIOLATES for verdict in self.verdicts)
        return not is_violated and all(result.outcome is not Outcome.BROKEN for result in self.results)
