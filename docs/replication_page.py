"""Writes the table of a replica's transitions into the page about the safety of replication."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from dafka.broker.core.replication.effects import Acknowledge, AdvanceHighWatermark, Lead, StepDown
from dafka.broker.core.replication.records import EpochStart, Vote, VoteRequest
from dafka.broker.core.replication.transitions import EVERY_STATE, Transition

PAGE = Path(__file__).parent / "explanation" / "replication-safety.md"
BEGIN, END = "<!-- transitions: written by docs/generate.py -->\n", "<!-- end of transitions -->\n"

EFFECTS: dict[type, str] = {
    VoteRequest: "write a VoteRequest",
    Vote: "write a Vote",
    EpochStart: "write the EpochStart",
    StepDown: "step down, if it led",
    Lead: "lead",
    Acknowledge: "acknowledge",
    AdvanceHighWatermark: "advance the high watermark",
}


def replication_page() -> str:
    """Return the page with the present table."""
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{''.join(_rows())}{END}{after}"


def _rows() -> Iterator[str]:
    yield "| transition | from | event | condition | to | effects |\n| --- | --- | --- | --- | --- | --- |\n"
    for transition in Transition:
        row = transition.value
        cells = (
            f"`{transition.name}`",
            _states(row.sources),
            row.event,
            row.condition,
            _states(row.targets) or "the same",
            "; ".join(EFFECTS[each] for each in row.effects),
        )
        yield f"| {' | '.join(cells)} |\n"


def _states(names: Sequence[str]) -> str:
    """Return the names of states. `Leader (+ election)` stands for the state with an election and the one without."""
    if set(names) == set(EVERY_STATE):
        return "any"
    found = []
    for name in names:
        state, _, election = name.partition(" + ")
        if not election:
            found.append(f"{name} (+ election)" if f"{name} + election" in names else name)
        elif state not in names:
            found.append(name)
    return ", ".join(found)
