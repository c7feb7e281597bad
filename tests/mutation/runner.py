"""Runs mutants: for each, the tests that run its line, the fastest first, until one fails."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from functools import partial
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import attrs
import pytest

from tests.mutation.coverage_map import FOLDER, ModuleMap, load_map, measure_module
from tests.mutation.forked import Outcome, run_forked, run_pytest
from tests.mutation.mutants import Mutant, changed_lines, digest, read
from tests.mutation.overlay import copy_of_tree, enter_overlay, preload
from tests.mutation.scope import Room

TESTS_S = 60.0
"""The tests of one mutant together take this long at most; the slowest are left out."""

FIRST_TESTS = 60
FIRST_MODULES = 2
"""The first round of a mutant's tests has no more than these."""

DEFINITIONS_TESTS = (
    "tests/cli/test_every_option.py",
    "tests/test_promised_numbers.py",
    "tests/test_docs.py",
    "tests/storage/test_each_storage.py::test_every_storage_has_the_defaults_of_the_interface",
)
"""These tests look at what importing a file defines, such as numbers and options, and need not run a line of it."""

_NAMES = {Outcome.PASSED: "survived", Outcome.FAILED: "killed", Outcome.TIMEOUT: "timeout"}
_COLLECT_S = 300.0
_LONG_AGO = 1_000_000_000
_top: Path
"""The copy of the repository of this worker process."""


@attrs.frozen
class Round:
    """Tests that one process runs.

    Attributes:
        names: the tests.
        seconds: the time that they take.
    """

    names: list[str]
    seconds: float


@attrs.frozen
class Result:
    """The result of a mutant.

    Attributes:
        mutant: the mutant.
        outcome: `killed`, `timeout`, `survived`, or `untested` if no test runs its line.
        before: the lines that it changes.
        after: the lines that it makes of them.
        source: the digest of the file.
    """

    mutant: Mutant
    outcome: str
    before: str
    after: str
    source: str


def _within(limit_s: float, durations: dict[str, float]) -> list[str]:
    """Return the fastest tests that together take no longer than a time, or the fastest one."""
    chosen: list[str] = []
    for duration_s, name in sorted((duration_s, name) for name, duration_s in durations.items()):
        limit_s -= duration_s
        if limit_s < 0 and chosen:
            break
        chosen.append(name)
    return chosen


def in_rounds(tests: Sequence[str]) -> Iterator[list[str]]:
    """Split tests into a first round, of few modules, and the rest: most mutants need the first round only."""
    modules = Counter(name.partition("::")[0] for name in tests)
    near = {module for module, _ in modules.most_common(FIRST_MODULES)}
    first = [name for name in tests if name.partition("::")[0] in near][:FIRST_TESTS]
    yield first
    if rest := [name for name in tests if name not in set(first)]:
        yield rest


class Map:
    """The maps of several test modules together."""

    def __init__(self, modules: Iterable[ModuleMap]) -> None:
        self._modules = list(modules)
        self._durations = {name: each for module in self._modules for name, each in module.durations.items()}

    @property
    def modules(self) -> list[str]:
        """The test modules that have tests."""
        return list({name.partition("::")[0]: None for name in self._durations})

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Return the tests that run a mutant's lines, the fastest first, and then those of definitions."""
        found = self._select(lambda module: module.tests_of(mutant.file, mutant.line, mutant.line_end))
        definitions = {name for name in found if name.startswith(DEFINITIONS_TESTS)}
        # Importing a file runs its definitions, also in a test that needs none of them.
        if not found or mutant.is_definition:
            found = self._select(lambda module: module.tests_of_file(mutant.file))
            definitions = {name for name in self._durations if name.startswith(DEFINITIONS_TESTS)}
        # Nothing of a file of definitions only, such as a table, is run: any test may look at them.
        if not found and mutant.is_definition:
            found = self._durations
        # The tests of definitions are few, and the only ones that notice some mutants: the limit is not for them.
        others = {name: duration_s for name, duration_s in found.items() if name not in definitions}
        return [*_within(TESTS_S, others), *sorted(definitions, key=self._durations.__getitem__)]

    def runs(self, mutant: Mutant) -> bool:
        """Return whether a test runs a mutant's lines, or importing the file does."""
        return mutant.is_definition or any(
            module.tests_of(mutant.file, mutant.line, mutant.line_end) for module in self._modules
        )

    def rounds(self, mutant: Mutant) -> list[Round]:
        """Return the rounds of a mutant's tests, each with the seconds that it takes."""
        return [
            Round(names, sum(map(self._durations.__getitem__, names))) for names in in_rounds(self.tests_of(mutant))
        ]

    def _select(self, tests_of: Callable[[ModuleMap], set[str]]) -> dict[str, float]:
        return {name: module.durations[name] for module in self._modules for name in tests_of(module)}


def build_map(tree: Path, room: Room, files: set[str], jobs: int, say: Callable[[str], None]) -> Map:
    """Return which near tests run which lines of the files; measure those that are not known."""
    missing = [module for module in room.test_modules if load_map(module, tree, files) is None]
    if missing:
        say(f"{room.name}: measuring {len(missing)} test modules")
        with _open_pool(tree, jobs) as pool:
            futures = {pool.submit(_measure_one, module): module for module in missing}
            for future in as_completed(futures):
                if not future.result():
                    say(f"{futures[future]}: failed tests are not used")
    maps = [load_map(module, tree, files) for module in room.test_modules]
    found = Map(each for each in maps if each is not None)
    if not found.modules:
        raise RuntimeError(f"no test of {room.name} passes; see {FOLDER}/map/*.log")
    return found


def run_mutants(
    tree: Path, mutants: Sequence[Mutant], known: Map, jobs: int, say: Callable[[str], None]
) -> list[Result]:
    """Run mutants and return what became of them; say which survive."""
    results = []
    started = time.monotonic()
    with _open_pool(tree, jobs, known.modules) as pool:
        work = [pool.submit(_run_one, mutant, known.rounds(mutant)) for mutant in mutants]
        for number, future in enumerate(as_completed(work), 1):
            result = future.result()
            results.append(result)
            _keep(result)
            if result.outcome in {"survived", "untested"}:
                mutant = result.mutant
                say(f"{result.outcome}: {mutant.file}:{mutant.line} {mutant.operator} #{mutant.occurrence}")
                say(f"    - {result.before}\n    + {result.after}")
            if number % 100 == 0:
                say(f"{number} of {len(work)} mutants, {time.monotonic() - started:.0f} s")
    return results


RESULTS = FOLDER / "results.jsonl"


def _keep(result: Result) -> None:
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(attrs.asdict(result)) + "\n")


def kept_results() -> dict[tuple[Mutant, str], Result]:
    """Return the latest result of each mutant of each state of its file."""
    found: dict[tuple[Mutant, str], Result] = {}
    if RESULTS.is_file():
        for line in RESULTS.read_text(encoding="utf-8").splitlines():
            fields = json.loads(line)
            result = Result(**{**fields, "mutant": Mutant(**fields["mutant"])})
            found[result.mutant, result.source] = result
    return found


class _open_pool:  # noqa: N801 (used as a context manager only)
    """Worker processes, each with a copy of the repository."""

    def __init__(self, tree: Path, jobs: int, modules: Sequence[str] = ()) -> None:
        self._tree = tree
        self._jobs = jobs
        self._modules = modules
        self._stack = ExitStack()

    def __enter__(self) -> ProcessPoolExecutor:
        preload()
        context = multiprocessing.get_context("fork")
        overlays = context.SimpleQueue()
        for _ in range(self._jobs):
            overlays.put(str(self._stack.enter_context(copy_of_tree(self._tree))))
        executor = ProcessPoolExecutor(
            self._jobs, mp_context=context, initializer=partial(_begin_worker, overlays, self._modules)
        )
        # If it is interrupted, it does not begin what still waits.
        self._stack.callback(executor.shutdown, cancel_futures=True)
        return executor

    def __exit__(self, *error: object) -> None:
        self._stack.close()


def _begin_worker(overlays: SimpleQueue[str], modules: Sequence[str]) -> None:
    global _top  # noqa: PLW0603 (one for each worker process)
    _top = Path(overlays.get())
    enter_overlay(_top)
    if not modules:  # only measures
        return
    # Everything is compiled once, so that a mutant's process compiles only the mutated file.
    arguments = ["--collect-only", *modules]
    outcome = run_forked(partial(run_pytest, arguments, []), _top.parent / "output", _COLLECT_S, _COLLECT_S)
    if outcome is not Outcome.PASSED:
        sys.stderr.write((_top.parent / "output").read_text(errors="replace"))
        raise RuntimeError("the near tests cannot be collected")


def _measure_one(module: str) -> bool:
    return measure_module(module, _top)


def _run_one(mutant: Mutant, rounds: list[Round]) -> Result:
    source = read(_top, mutant.file)
    mutated = mutant.apply(source)
    before, after = changed_lines(source, mutated)
    if not rounds:
        return Result(mutant, "untested", before, after, digest(source))
    path = _top / mutant.file
    original = path.stat()
    path.write_text(mutated, encoding="utf-8")
    # A compiled file belongs to a source of one second and size. This source has a time of its own.
    changed_at = _LONG_AGO + time.time_ns() // 1000 % 1_000_000_000
    os.utime(path, (changed_at, changed_at))
    try:
        outcomes = (_run_round(each) for each in rounds)
        outcome = next((each for each in outcomes if each is not Outcome.PASSED), Outcome.PASSED)
    finally:
        path.write_text(source, encoding="utf-8")
        os.utime(path, ns=(original.st_atime_ns, original.st_mtime_ns))
    return Result(mutant, _NAMES[outcome], before, after, digest(source))


def _run_round(tests: Round) -> Outcome:
    output = _top.parent / "output"
    return run_forked(partial(_run_tests, tests.names), output, 60 + 8 * tests.seconds, 10 + 5 * tests.seconds)


def _run_tests(tests: list[str]) -> int:
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    modules = dict.fromkeys(name.partition("::")[0] for name in tests)
    return run_pytest(["-x", f"--basetemp={_top.parent}/tmp", *modules], [_Selection(tests)])


class _Selection:
    """A pytest plugin that runs certain tests, in a given order."""

    def __init__(self, names: list[str]) -> None:
        self._order = {name: number for number, name in enumerate(names)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self._order), key=lambda item: self._order[item.nodeid]
        )
