"""Sample runs for the tests of verdicts and reports."""

from __future__ import annotations

import attrs

from dafka_conformance.model import Check, Clause, Dialect, Event, Kind, Level, Outcome, Role, Run, ScenarioResult
from dafka_conformance.verdicts import judge_clauses

DIALECTS = (Dialect.RFC46, Dialect.LIBDAFKA)

ACK_SENT = Clause(
    "ack.sent", "The ACK Command", Level.SHALL, "A store acknowledges what it saved to its producer.", (Role.STORE,)
)
HEAD_REGULAR = Clause(
    "head.regular", "The HEAD Command", Level.SHALL, "A producer sends HEAD at a regular interval.", (Role.PRODUCER,)
)
HELLO_ANSWERED = Clause(
    "hello.answered", "The HELLO Command", Level.SHOULD, "A consumer answers STORE-HELLO.", (Role.CONSUMER,)
)
FETCH_TOPIC = Clause(
    "fetch.topic",
    "The FETCH Command",
    Level.SHALL,
    "FETCH is sent to the partition.",
    (Role.CONSUMER, Role.STORE),
    readings={"partition": "to the producer's address", "requestor": "to the consumer's own address"},
    holds="partition",
    erratum=3,
)
RECORD_KEPT = Clause(
    "record.kept",
    "The RECORD Command",
    Level.MUST_NOT,
    "A producer deletes no record before an ACK.",
    (Role.PRODUCER,),
    untestable="what a node keeps in memory does not show",
)
TOWER_REPEATS = Clause(
    "tower.repeats", "Node Discovery and Presence", Level.SHALL, "A tower repeats beacons.", (Role.TOWER,)
)
CLAUSES = (TOWER_REPEATS, ACK_SENT, HEAD_REGULAR, FETCH_TOPIC, HELLO_ANSWERED, RECORD_KEPT)

ACK_FAULT = "the ACK names record 9, but record 5 is the last one that was sent"


def message(
    at: float, sender: str, receiver: str, label: str, *, count: int = 1, fault_field: str = "", **fields: str
) -> Event:
    """A message of a trace, with plausible frames."""
    return Event(
        at=at,
        sender=sender,
        receiver=receiver,
        kind=Kind.MESSAGE,
        label=label,
        fields=tuple(fields.items()),
        frames=(f"{label}{fields}".encode().hex()[:96], "aaa54d0108"),
        count=count,
        fault_field=fault_field,
    )


def exchange(events: int = 6, topic: str = "orders", *, fault: bool = True) -> tuple[Event, ...]:
    """A store that is sent records and acknowledges; its last message is the faulty one."""
    start = (
        Event(0.0, "S", "P", Kind.SUBSCRIPTION, "subscribe", (("command", "RECORD"),)),
        Event(0.001, "S", "tower", Kind.BEACON, "beacon", (("port", "4711"),)),
    )
    records = tuple(
        message(0.01 * n, "P", "S", "RECORD", address="P", subject=topic, sequence=str(n), content="x" * 20)
        for n in range(1, events - 2)
    )
    field = "sequence" if fault else ""
    return *start, *records, message(0.01 * events, "S", "P", "ACK", address="S", sequence="9", fault_field=field)


def result(scenario: str, clause: Clause, **changes: object) -> ScenarioResult:
    """A scenario that passed, with changes."""
    base = ScenarioResult(
        scenario=scenario,
        title=f"What {scenario} shows.",
        role=clause.roles[0],
        dialect=Dialect.RFC46,
        clauses=(clause.id,),
        outcome=Outcome.PASSED,
        checks=(Check(clause.id, holds=True),),
        seconds=0.25,
    )
    return attrs.evolve(base, **changes)  # type: ignore[arg-type]


def failed(scenario: str = "store-acks", events: int = 6, **changes: object) -> ScenarioResult:
    """A scenario that failed: the store acknowledged a record that it was never sent."""
    trace = exchange(events)
    settings: dict[str, object] = {
        "outcome": Outcome.FAILED,
        "checks": (Check(ACK_SENT.id, holds=False, message=ACK_FAULT, event=len(trace) - 1),),
        "trace": trace,
    }
    return result(scenario, ACK_SENT, **(settings | changes))


def run_of(*results: ScenarioResult, missing_roles: dict[Role, str] | None = None, target: str = "sample") -> Run:
    """A run of these results."""
    missing_roles = missing_roles or {}
    return Run(
        target=target,
        started_at=1_790_000_000.0,
        seconds=74.2,
        results=results,
        verdicts=judge_clauses(CLAUSES, results, DIALECTS, missing_roles),
        missing_roles=missing_roles,
    )


def mixed_run() -> Run:
    """A run with every outcome: passed, failed in both dialects, skipped, broken; and with no tower."""
    return run_of(
        result("fetch-from-requestor", FETCH_TOPIC, checks=(Check(FETCH_TOPIC.id, True, reading="requestor"),)),
        result("head-interval", HEAD_REGULAR, outcome=Outcome.SKIPPED, checks=(), reason="it cannot be fed"),
        result(
            "head-interval",
            HEAD_REGULAR,
            dialect=Dialect.LIBDAFKA,
            outcome=Outcome.BROKEN,
            checks=(),
            reason="it ended with status 1",
        ),
        result("hello", HELLO_ANSWERED, checks=(Check(HELLO_ANSWERED.id, False, "no CONSUMER-HELLO came"),)),
        failed(),
        failed(dialect=Dialect.LIBDAFKA),
        missing_roles={Role.TOWER: "the target file has no [tower]"},
    )
