"""What the members of a group have handled, and whether it is as promised."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import attrs

TOPIC = "orders"
GROUP = "billing"


@attrs.frozen
class Handling:
    """One batch that a member has handled, or begun to.

    Attributes:
        member: The member.
        first: The sequence of its first record.
        end: The sequence after its last record.
        begun: When it began, in seconds.
        ended: When it ended; the time of the kill if the member was killed before.
        saved: When the member knew that its position was saved; None if it never did.
    """

    member: str
    first: int
    end: int
    begun: float
    ended: float
    saved: float | None = None


@attrs.frozen
class Verdict:
    """What has been found."""

    problems: tuple[str, ...]
    handled: int
    repeated: int
    handovers: int
    overlap_s: float


def read_ledgers(paths: Iterable[Path], killed: Mapping[str, float]) -> dict[str, list[Handling]]:
    """Return what was handled, by partition, in the order of time."""
    found: dict[str, list[Handling]] = defaultdict(list)
    for path in paths:
        times: dict[tuple[str, str, int], dict[str, float]] = defaultdict(dict)
        ends: dict[tuple[str, str, int], int] = {}
        for line in path.read_text().splitlines():
            kind, member, at, partition, first, end = json.loads(line)
            times[member, partition, first][kind] = at
            ends[member, partition, first] = end
        for (member, partition, first), at in times.items():
            over = at.get("end", killed.get(member.rpartition("/")[2], at["begin"]))
            found[partition].append(
                Handling(member, first, ends[member, partition, first], at["begin"], over, at.get("saved"))
            )
    return {partition: sorted(each, key=lambda one: one.begun) for partition, each in found.items()}


def judge(handled: Mapping[str, list[Handling]], ends: Mapping[str, int], frozen: Mapping[str, list[range]]) -> Verdict:
    """Check what was handled."""
    problems: list[str] = []
    total = repeated = handovers = 0
    overlap_s = 0.0
    for partition, end in ends.items():
        reached = 0
        saved: list[tuple[float, int]] = []
        before: Handling | None = None
        for each in handled.get(partition, []):
            if each.first > reached:
                problems.append(f"{partition}: {reached} to {each.first - 1} were skipped at {each.begun:.3f}")
            known = _saved_before(saved, each.begun)
            if each.first < known:
                problems.append(
                    f"{partition}: {each.member} began at {each.first} at {each.begun:.3f}, though {known} was saved"
                )
            total += each.end - each.first
            repeated += max(min(reached, each.end) - each.first, 0)
            reached = max(reached, each.end)
            if before is not None and before.member != each.member:
                handovers += 1
                overlap_s = max(overlap_s, _overlap_s(before, each, frozen))
            if each.saved is not None:
                saved.append((each.saved, each.end))
            before = each
        if reached != end:
            problems.append(f"{partition}: {reached} of {end} records were handled")
    return Verdict(tuple(problems), total, repeated, handovers, overlap_s)


def _saved_before(saved: list[tuple[float, int]], at: float) -> int:
    """Return the position that had been saved before a time."""
    return max((sequence for saved_at, sequence in saved if saved_at < at), default=0)


def _overlap_s(before: Handling, after: Handling, frozen: Mapping[str, list[range]]) -> float:
    """Return for how long both were handled, but for the time in which one of them was frozen."""
    begin, end = round(after.begun * 1000), round(min(before.ended, after.ended) * 1000)
    still = 0
    for member in (before.member, after.member):
        for each in frozen.get(member.rpartition("/")[2], []):
            still += max(min(end, each.stop) - max(begin, each.start), 0)
    return max(end - begin - still, 0) / 1000
