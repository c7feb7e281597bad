"""The command: `python -m tests.mutation`, or `make mutants`."""

from __future__ import annotations

import argparse
import random
import signal
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import attrs

from tests.mutation.mutants import Mutant, digest, mutants_of, read
from tests.mutation.overlay import copy_of_repository
from tests.mutation.report import AIM, is_alive, score, write_page
from tests.mutation.runner import Result, build_map, kept_results, run_mutants
from tests.mutation.scope import Room, git, lines_changed_since, read_rooms


def main() -> int:
    """Run mutants; return 1 if one survives that is not known, or if there are untested lines."""
    options = _parse()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    changed = lines_changed_since(_base(options.since)) if options.since else None
    results: list[Result] = []
    # The work tree may change while the mutants run.
    with copy_of_repository() as tree:
        rooms = [room for room in read_rooms(tree) if not options.room or room.name in options.room]
        chosen = {room: _choose(tree, room, changed, options.file) for room in rooms}
        if options.untested:
            return 1 if sum(_list_untested(tree, room, own, options.jobs) for room, own in chosen.items()) else 0
        mutants = [mutant for each in chosen.values() for mutant in each]
        if options.sample is not None and options.sample < len(mutants):
            mutants = random.Random(options.seed).sample(mutants, options.sample)
        for room, own in chosen.items():
            if taken := sorted(set(own) & set(mutants), key=attrs.astuple):
                results += _run(tree, room, taken, options)
    if options.page:
        write_page(results, options.seed)
        return _conclude_sample(results)
    return _conclude(results)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description="Count the mutants that tests miss.")
    parser.add_argument("--room", action="append", help="a room, such as broker/core/log (default: all)")
    parser.add_argument("--file", action="append", help="a pattern of files (default: all)")
    parser.add_argument("--since", metavar="COMMIT", help="only lines that have changed since then")
    parser.add_argument("--sample", type=int, help="a random sample of this many mutants")
    parser.add_argument("--seed", type=int, default=1, help="of the sample (default: 1)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("--again", action="store_true", help="also run mutants whose results are known")
    parser.add_argument("--alive", action="store_true", help="run those again that survived, with the tests of today")
    parser.add_argument("--untested", action="store_true", help="only list the lines that no test of their room runs")
    parser.add_argument("--page", action="store_true", help="write the page of results; fail below the aim")
    return parser.parse_args()


def _base(commit: str) -> str:
    return git("merge-base", commit, "HEAD").strip()


def _choose(tree: Path, room: Room, changed: dict[str, set[int]] | None, patterns: list[str] | None) -> list[Mutant]:
    chosen = []
    for file in room.files:
        if patterns and not any(fnmatchcase(file, pattern) for pattern in patterns):
            continue
        if changed is not None and file not in changed:
            continue
        for mutant in mutants_of(file, read(tree, file)):
            lines = range(mutant.line, mutant.line_end + 1)
            if changed is None or any(line in changed[file] for line in lines):
                chosen.append(mutant)
    return chosen


def _run(tree: Path, room: Room, mutants: list[Mutant], options: argparse.Namespace) -> list[Result]:
    """Return the results of mutants: those that are known, and those of a run."""
    sources = {file: digest(read(tree, file)) for file in {mutant.file for mutant in mutants}}
    known = {} if options.again else kept_results()
    if options.alive:
        mutants = [each for each in mutants if is_alive(known.get((each, sources[each.file])))]
        known = {}
    found = [known[key] for mutant in mutants if (key := (mutant, sources[mutant.file])) in known]
    unknown = [mutant for mutant in mutants if (mutant, sources[mutant.file]) not in known]
    if unknown:
        _say(f"{room.name}: {len(unknown)} mutants, and {len(found)} with known results")
        tests = build_map(tree, room, set(sources), options.jobs, _say)
        found += run_mutants(tree, unknown, tests, options.jobs, _say)
    return found


def _list_untested(tree: Path, room: Room, mutants: list[Mutant], jobs: int) -> int:
    """List the lines of mutants that no test of a room runs, and return how many there are."""
    sources = {file: read(tree, file).splitlines() for file in {mutant.file for mutant in mutants}}
    if not sources:
        return 0
    tests = build_map(tree, room, set(sources), jobs, _say)
    lines = sorted({(mutant.file, mutant.line) for mutant in mutants if not tests.runs(mutant)})
    for file, line in lines:
        _say(f"{file}:{line} {sources[file][line - 1].strip()}")
    return len(lines)


def _conclude(results: list[Result]) -> int:
    found = score("all", results)
    killed = sum(not is_alive(each) for each in results)
    known = len(results) - killed - len(found.survivors)
    _say(f"{len(results)} mutants, {killed} killed, {known} known survivors")
    if found.survivors:
        _say(f"\n{len(found.survivors)} new survivors. Add a test for each, or an entry to survivors.toml:\n")
        for each in sorted(found.survivors, key=lambda each: attrs.astuple(each.mutant)):
            mutant = each.mutant
            _say(f"{mutant.file}:{mutant.line} {mutant.function} ({mutant.operator}, {each.outcome})")
            _say(f"    - {each.before}\n    + {each.after}")
    return 1 if found.survivors else 0


def _conclude_sample(results: list[Result]) -> int:
    share = score("all", results).share
    _say(f"{share:.1%} of {len(results)} mutants are noticed by the tests of their rooms; the aim is {AIM:.0%}")
    return 0 if share >= AIM else 1


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
