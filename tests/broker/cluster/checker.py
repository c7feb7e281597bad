"""Checks the history of a run against Jepsen's questions for queues and logs. It knows nothing of dafka.

    python -m tests.broker.cluster.checker [--branch] FOLDER

It reads the files that `history.py` describes. Those of the reader `contents`, which has read every log from its first
record to its end after the last fault was healed, tell what is in the logs in the end. It finds broken promises:

| kind | the promise |
| --- | --- |
| lost | an acknowledged record is in its log |
| duplicated | no record is in its log twice |
| reordered | a producer's records of a log are in the order in which it sent them |
| phantom | every record in a log was sent |
| damaged | a reader gets whole records |
| moved | an acknowledged record is at the offset that its producer was told |
| split acknowledgement | no two records were acknowledged at the same offset of the same log |
| changed | a reader gets the record at an offset that is there in the end |
| gap | a member of a group gets one record after another; those of the last second may come again |
| skipped | a group gets every record of a log |
| stale read | a log ends nowhere below an offset that was acknowledged before the question was asked |
| lost commit | a group continues no earlier than at a confirmed commit, unless an unanswered one can have followed |
| phantom commit | a group continues at no offset behind all that its members have committed |
| moved commit | a group continues exactly where a member has committed |
| gave up | an idempotent producer goes on |
| unread | each log was read to its end |

Under the policy "branch", records that were acknowledged on either side of a split get new offsets when it heals, and
readers of the losing side go back, groups to where the branches part. Records that one producer sent to both sides may
change their order. So `moved`, `split acknowledgement`, `changed`, `gap`, `stale read`, `lost commit`, `moved commit`
and `reordered` are then no findings.
"""

from __future__ import annotations

import argparse
import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.broker.cluster.histories import Log, Run, load

FINDINGS_MAX = 10
"""How many findings of a kind are described. The others are only counted."""

MAJORITY_ONLY = frozenset(
    ("moved", "split acknowledgement", "changed", "gap", "stale read", "lost commit", "moved commit", "reordered")
)
"""The promises that are not made under the policy "branch"."""


class Finding(NamedTuple):
    """A broken promise.

    Attributes:
        kind: Its kind.
        text: What was found.
        affected: How many records it is about.
    """

    kind: str
    text: str
    affected: int = 1


def check(logs: Iterable[tuple[int, Log]], *, is_majority: bool = True) -> list[Finding]:
    """Return the promises that were broken. The logs are read one at a time, and each is forgotten."""
    found: list[Finding] = []
    for number, log in logs:
        found += [Finding("gave up", text) for text in log.fatal]
        found += [Finding("damaged", text) for text in log.bad]
        if number >= 0:
            found += check_contents(number, log)
            found += check_acknowledged(number, log)
            found += check_split_acknowledgements(number, log)
            found += check_ends(number, log)
            found += check_reads(number, log)
            found += check_groups(number, log)
    return [each for each in found if is_majority or each.kind not in MAJORITY_ONLY]


def check_contents(number: int, log: Log) -> Iterator[Finding]:
    """Check the records that are in a log against those that were sent."""
    if log.end < 0:
        yield Finding("unread", f"log {number} was not read to its end")
    expected = 0
    for run in log.contents:
        if run.offset != expected:
            yield Finding("gap", f"log {number} was read from {run.offset} on where {expected} was due")
        expected = run.end_offset
    for producer, runs in by_producer(log.contents).items():
        sent = log.sent.get(producer, 0)
        yield from (
            Finding("phantom", f"log {number} has {describe(run)}; {sent} were sent", run.end - max(sent, run.first))
            for run in runs
            if run.end > sent
        )
        twice = find_twice(runs)
        for run, count in twice.items():
            yield Finding("duplicated", f"log {number} has {describe(run)}, {count} of them also elsewhere", count)
        highest = 0
        for run in runs:
            if run.first < highest and run not in twice:
                yield Finding("reordered", f"log {number} has {describe(run)} behind its {highest - 1}", run.length)
            highest = max(highest, run.end)


def find_twice(runs: Sequence[Run]) -> dict[Run, int]:
    """Return the runs that have records of others, and of how many."""
    found: dict[Run, int] = {}
    end = 0
    for run in sorted(runs, key=lambda each: (each.first, each.offset)):
        if run.first < end:
            found[run] = min(end, run.end) - run.first
        end = max(end, run.end)
    return found


def check_acknowledged(number: int, log: Log) -> Iterator[Finding]:
    """Check that the acknowledged records are in a log, and at the offsets that were told."""
    contents = {producer: sorted(runs, key=first_of) for producer, runs in by_producer(log.contents).items()}
    for producer, acknowledged in by_producer(log.acknowledged).items():
        held = contents.get(producer, [])
        for run in sorted(acknowledged, key=first_of):
            missing = run.length
            moved = 0
            for part in overlapping(held, run):
                missing -= part.length
                if run.offset >= 0 and part.offset != run.offset + part.first - run.first:
                    moved += part.length
            if missing > 0:
                yield Finding(
                    "lost", f"log {number} lacks {missing} of {describe(run)}, which were acknowledged", missing
                )
            if moved:
                yield Finding("moved", f"log {number} has {moved} of {describe(run)} elsewhere", moved)


def check_split_acknowledgements(number: int, log: Log) -> Iterator[Finding]:
    """Check that no two records were acknowledged at the same offset."""
    before: Run | None = None
    for run in sorted((each for each in log.acknowledged if each.offset >= 0), key=offset_of):
        if before is not None and run.offset < before.end_offset:
            count = min(before.end_offset, run.end_offset) - run.offset
            yield Finding(
                "split acknowledgement",
                f"of log {number}, {describe(before)} and {describe(run)} were acknowledged",
                count,
            )
        if before is None or run.end_offset > before.end_offset:
            before = run


def check_ends(number: int, log: Log) -> Iterator[Finding]:
    """Check that no log was said to end below what was acknowledged before the question."""
    acknowledged = sorted((each.time, each.end_offset) for each in log.acknowledged if each.offset >= 0)
    times = [time for time, _ in acknowledged]
    ends: list[int] = []
    for _, end in acknowledged:
        ends.append(max(end, ends[-1] if ends else 0))
    for asked in log.ends:
        position = bisect_right(times, asked.begun)
        if position and asked.offset < ends[position - 1]:
            late = asked.begun - times[bisect_right(ends, asked.offset)]
            yield Finding(
                "stale read",
                f"{asked.reader} was told at {asked.time:.3f} that log {number} ends at {asked.offset}, and "
                f"{ends[position - 1]} was acknowledged before, from {late * 1000:.0f} ms before the question on",
                ends[position - 1] - asked.offset,
            )


def check_reads(number: int, log: Log) -> Iterator[Finding]:
    """Check that what was read at an offset is there in the end."""
    offsets = [run.offset for run in log.contents]
    for reader, run in log.reads:
        wrong = run.length
        position = max(bisect_right(offsets, run.offset) - 1, 0)
        while position < len(offsets) and offsets[position] < run.end_offset:
            there = log.contents[position]
            if there.producer == run.producer and there.first - there.offset == run.first - run.offset:
                wrong -= max(min(there.end_offset, run.end_offset) - max(there.offset, run.offset), 0)
            position += 1
        if wrong:
            yield Finding("changed", f"{reader} read {describe(run)} in log {number}; {wrong} are not there", wrong)


def check_groups(number: int, log: Log) -> Iterator[Finding]:
    """Check that members of groups continue where their groups are, and that each group gets all records."""
    for group, events in sorted(log.groups.items()):
        name = f"the group {group} in log {number}"
        tried = {-1, *(each.offset for each in events.commits)}
        done = sorted((each.time, each.offset) for each in events.commits if each.is_done)
        answered = {(each.begun, each.offset) for each in events.commits if each.is_done}
        open_since: dict[int, float] = {}
        for each in events.commits:
            if (each.begun, each.offset) not in answered:  # it can still be executed, at any later time
                open_since.setdefault(each.offset, each.begun)
        times = [time for time, _ in done]
        highest: list[int] = []
        for _, offset in done:
            highest.append(max(offset, highest[-1] if highest else 0))
        for start in events.assigns:
            position = bisect_right(times, start.begun)
            is_open = open_since.get(start.offset, float("inf")) < start.begun
            if position and start.offset < highest[position - 1] and not is_open:
                text = f"{name} continues at {start.offset}, and {highest[position - 1]} was committed"
                yield Finding("lost commit", text, highest[position - 1] - max(start.offset, 0))
            if start.offset not in tried:
                kind = "phantom commit" if start.offset > max(tried) else "moved commit"
                yield Finding(kind, f"{name} continues at {start.offset}, which nobody has committed")
        for gap in events.gaps:
            yield Finding("gap", f"{name}: {gap}")
        yield from check_covered(name, log, events.got)


def check_covered(name: str, log: Log, got: Sequence[Run]) -> Iterator[Finding]:
    """Check that the records that a group was given are all of a log."""
    given = {producer: sorted(runs, key=first_of) for producer, runs in by_producer(got).items()}
    for producer, runs in by_producer(log.contents).items():
        for run in runs:
            missing = run.length - sum(part.length for part in overlapping(given.get(producer, []), run))
            if missing > 0:
                yield Finding("skipped", f"{name} was not given {missing} of {describe(run)}", missing)


def by_producer(runs: Iterable[Run]) -> dict[int, list[Run]]:
    """Return runs by their producers, in the same order."""
    found: dict[int, list[Run]] = {}
    for run in runs:
        found.setdefault(run.producer, []).append(run)
    return found


def overlapping(runs: Sequence[Run], wanted: Run) -> Iterator[Run]:
    """Return the parts of runs, sorted by their first numbers, that have records of another run, each once."""
    position = bisect_right(runs, wanted.first, key=first_of)
    while position and runs[position - 1].end > wanted.first:
        position -= 1
    reached = wanted.first
    for each in range(position, len(runs)):
        run = runs[each]
        if run.first >= wanted.end:
            return
        begin, stop = max(run.first, reached), min(run.end, wanted.end)
        if begin < stop:
            yield Run(run.producer, begin, stop - begin, run.offset + begin - run.first, run.time)
            reached = stop


def first_of(run: Run) -> int:
    return run.first


def offset_of(run: Run) -> int:
    return run.offset


def describe(run: Run) -> str:
    """Return which records a run has, for people."""
    at = f" at {run.offset}" if run.offset >= 0 else ""
    if run.length == 1:
        return f"record {run.first} of producer {run.producer}{at}"
    return f"records {run.first} to {run.end - 1} of producer {run.producer}{at}"


def summarize(findings: Sequence[Finding]) -> list[str]:
    """Return lines that describe findings, and count those that are too many to describe."""
    lines: list[str] = []
    counts: dict[str, list[Finding]] = {}
    for each in findings:
        counts.setdefault(each.kind, []).append(each)
    for kind, all_found in counts.items():
        total = sum(each.affected for each in all_found)
        lines.append(f"{kind}: {len(all_found)} findings, of {total} in all")
        lines += [f"    {each.text}" for each in all_found[:FINDINGS_MAX]]
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(prog="checker", description="Check the history of a run.")
    parser.add_argument("folder", type=Path, help="the folder with the histories")
    parser.add_argument("--branch", action="store_true", help='the availability was "branch"')
    found = parser.parse_args()
    findings = check(load(found.folder), is_majority=not found.branch)
    print("\n".join(summarize(findings)) or "no promise was broken")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
