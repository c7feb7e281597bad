"""The values that all parts of the suite share: roles, dialects, clauses, checks, events and results."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import attrs


class Role(enum.Enum):
    """A role of the protocol. The value is the letter that prefixes its messages in the grammar's traffic rules."""

    TOWER = "T"
    PRODUCER = "P"
    CONSUMER = "C"
    STORE = "S"

    @property
    def title(self) -> str:
        """The role's name in lower case."""
        return self.name.lower()


class Dialect(enum.Enum):
    """A layout of messages in frames: that of RFC 46, or that of the C and Java implementations."""

    RFC46 = "rfc46"
    LIBDAFKA = "libdafka"


class Level(enum.Enum):
    """The level of a clause: a keyword of RFC 2119, or one of three more.

    `GRAMMAR`: a grammar rule or its comment determines it. `DEPLOYED`: every implementation relies on it, although the
    RFC does not state it. Both bind as a MUST does. `USUAL`: deployed nodes do it, but no other node relies on it; it
    does not bind.
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
    USUAL = "usual"

    @property
    def is_binding(self) -> bool:
        """Whether a node must follow the clause to conform."""
        return self not in {Level.SHOULD, Level.SHOULD_NOT, Level.RECOMMENDED, Level.MAY, Level.USUAL}


class Layer(enum.IntEnum):
    """The subject of a clause. Clauses of a layer can only be judged where those of the lower layers hold."""

    FORM = 1
    """The frames of a single message, and which role may send it."""
    CONNECTION = 2
    """Beacons, connections and subscriptions: whether nodes can reach each other at all."""
    ADDRESSING = 3
    """The receiver and the partition of a message: topic frames, addresses and subjects."""
    NUMBERING = 4
    """The sequences of a partition."""
    BEHAVIOR = 5
    """The actions of a node, and their order."""


@attrs.frozen
class Clause:
    """A requirement of the protocol.

    Attributes:
        id: Its name, such as `ack.sent`.
        section: The RFC's section that it is from.
        level: The keyword that says how binding it is.
        text: The requirement, paraphrased.
        roles: The roles that it applies to.
        untestable: The reason why it cannot be tested from outside; empty if it can.
        readings: If the RFC contradicts itself, the interpretations by name.
        holds: The name of the reading that the suite tests.
        erratum: The entry of docs/reference/errata.md that gives the reason; 0 for none.
        dialects: The dialects that it applies to.
        layer: The layer that it belongs to.
        absent: The reading that a target follows if it does not send the demanded message; empty for no reading.
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
    layer: Layer = Layer.BEHAVIOR
    absent: str = ""


class Kind(enum.Enum):
    """The kind of an event in a trace."""

    MESSAGE = "message"
    SUBSCRIPTION = "subscription"
    BEACON = "beacon"
    LINE = "line"
    NOTE = "note"


@attrs.define
class Event:
    """An event of a trace, or several similar messages in a row.

    Attributes:
        at: The time in seconds since the scenario began.
        sender: The label of the sending node ("P", "C2"), "tower", or "input" for lines that the target reads.
        receiver: The label of the receiving node, "tower", or "output" for lines that the target writes.
        kind: The kind of event.
        label: The message's name in the grammar, "subscribe", "unsubscribe", "beacon", "line", or a note's text.
        fields: Its fields as readable text, in order.
        frames: The frames in hexadecimal; long ones are truncated, with an ellipsis.
        count: The number of messages that this event stands for.
        fault: A description of its fault; empty if there is none.
        fault_field: The name of the wrong field, if one field is wrong.
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


DELIVERY = "delivery"
"""The missing thing in a check of a consumer that did not deliver a record."""


@attrs.frozen
class Check:
    """A check of the target's behavior against one clause.

    Attributes:
        clause: The clause's id.
        holds: Whether the target follows the clause.
        message: If it does not, one sentence that names the fault.
        event: The index in the trace of the faulty event; None if something is missing.
        reading: The reading that the target follows, for a clause with several.
        because: The id of the violated clause that this finding is a consequence of; empty if it is none.
        missing: The name of the message that did not arrive, or `DELIVERY`; empty if the fault is another one.
    """

    clause: str
    holds: bool
    message: str = ""
    event: int | None = None
    reading: str = ""
    because: str = ""
    missing: str = ""

    @property
    def is_finding(self) -> bool:
        """Whether it says that the target does not follow the clause. A consequence of another finding does not."""
        return not self.holds and not self.because


class Outcome(enum.Enum):
    """The outcome of a scenario. `BROKEN` means that the target could not be run, `ERROR` that the suite failed."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    BROKEN = "broken"
    ERROR = "error"

    @property
    def is_wrong(self) -> bool:
        """Whether the scenario ran or should have run, and did not pass."""
        return self not in {Outcome.PASSED, Outcome.SKIPPED}

    @property
    def was_judged(self) -> bool:
        """Whether the scenario ran to a judgement of the target."""
        return self in {Outcome.PASSED, Outcome.FAILED}


@attrs.frozen
class ScenarioResult:
    """The result of one scenario in one dialect.

    Attributes:
        scenario: The scenario's name.
        title: One sentence that says what it tests.
        role: The target's role.
        dialect: The dialect.
        clauses: The ids of the clauses that it tests.
        outcome: The outcome.
        checks: All checks, in order.
        trace: All events, in order.
        seconds: The duration.
        reason: The reason why it was skipped, is broken, or ended with an error of the suite.
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
    """A run's verdict on a clause. `DOES` and `DOES_NOT` are for clauses that do not bind (such as SHOULD and MAY).

    `NOT_JUDGED` is for clauses that only fail where another clause is violated, which may be the reason.
    """

    CONFORMS = "conforms"
    VIOLATES = "violates"
    NOT_TESTED = "not tested"
    NOT_JUDGED = "not judged"
    DOES = "does"
    DOES_NOT = "does not"


NO_SCENARIO = "no scenario of this run tests it"
"""The reason why a clause was not tested whose scenarios were not selected."""


@attrs.frozen
class ClauseVerdict:
    """The verdict on one clause in one dialect.

    Attributes:
        clause: The clause.
        dialect: The dialect.
        verdict: The verdict.
        scenarios: The names of the scenarios that decided it: those that found a violation, or else all that tested it.
        reading: The reading that the target follows, if the clause has several and the run could determine it.
        reason: The reason why it was not tested or not judged.
    """

    clause: Clause
    dialect: Dialect
    verdict: Verdict
    scenarios: tuple[str, ...] = ()
    reading: str = ""
    reason: str = ""


@attrs.frozen
class Run:
    """A run of the suite against one target.

    Attributes:
        target: The target's name.
        started_at: The start in seconds since the epoch.
        seconds: The duration.
        results: The results of the scenarios, in the order of their names.
        verdicts: The verdict on every clause in every dialect of the run.
        missing_roles: The roles that the target does not have or that were not selected, with the reasons.
        is_complete: Whether it ran to its end. If not, the scenarios that did not finish are skipped.
    """

    target: str
    started_at: float
    seconds: float
    results: tuple[ScenarioResult, ...]
    verdicts: tuple[ClauseVerdict, ...]
    missing_roles: Mapping[Role, str] = attrs.field(factory=dict)
    is_complete: bool = True

    @property
    def conforms(self) -> bool:
        """Whether the run is complete, no binding clause is violated, and every scenario could be run."""
        is_violated = any(verdict.verdict is Verdict.VIOLATES for verdict in self.verdicts)
        could_run = all(result.outcome.was_judged or result.outcome is Outcome.SKIPPED for result in self.results)
        return self.is_complete and could_run and not is_violated
