"""What all suites share: brokers, the program that runs the tests, and the results that it writes."""

from __future__ import annotations

import enum
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import attrs

from dafka.broker.access.credentials import derive_credential
from dafka.broker.access.users_file import User, write_users
from dafka.broker.core.scram_credentials import ITERATIONS_MIN
from tests.cli.harness import Dafka
from tests.kafka.server.secured import EVERYTHING

COMMAND = (sys.executable, "-m", "dafka")
STAND_IN = Path(__file__).parent / "stand_in"
"""What replaces parts of a checkout that start Kafka."""


class Verdict(enum.Enum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@attrs.frozen
class Outcome:
    verdict: Verdict
    reason: str = ""
    """Why the suite skipped the test."""


Outcomes = Mapping[str, Outcome]


@attrs.frozen
class Run:
    """One run of a suite."""

    checkout: Path
    """The client's repository, built as its own documentation says."""
    folder: Path
    """An empty folder for everything that the run writes."""
    tests: tuple[str, ...] = ()
    """The names of the tests to run, as they are in outcomes; all if empty. A suite may run more."""

    @property
    def report(self) -> Path:
        """The file for the results."""
        return self.folder / "report"

    def execute(
        self, command: Sequence[str], variables: Mapping[str, str], folder: Path, *, keep: bool = False
    ) -> None:
        """Run a program in a folder until it ends. Its exit status is ignored.

        With `keep`, what it prints is the report.
        """
        environment = {**os.environ, **variables}
        with self.report.open("wb") if keep else nullcontext() as file:
            subprocess.run(command, cwd=folder, env=environment, stdout=file, check=False)

    @contextmanager
    def brokers(self, *listen: str, settings: str = "", first: int = 0) -> Iterator[str]:
        """Start a cluster with a broker at each address, and yield the addresses of all, separated by commas.

        The brokers have the ids from `first` on.
        """
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        config = folder / "dafka.toml"
        config.write_text(settings, "utf-8")
        dafka = Dafka(folder)
        try:
            if len(listen) > 1:
                dafka.start_tower()
            started = []
            for number, address in enumerate(listen, first):
                storage = f"filelog:{folder}/log-{number}"
                options = ["--kafka", address, "--storage", storage, "--config", str(config), "--number", str(number)]
                if not address.endswith(":0"):
                    options += ["--advertised-listener", address]
                if len(listen) > 1:
                    options += ["--initial-brokers", str(len(listen))]
                    started.append((dafka.start_node("broker", *options), 1))
                else:
                    started.append((dafka.start_up(*options), 2))
            yield ",".join(broker.wait_output(line + 1)[line].split()[-1] for broker, line in started)
        finally:
            dafka.close()


@attrs.frozen
class Suite:
    client: str
    tests: str
    """Which of the client's tests these are."""
    run: Callable[[Run], Outcomes]


def add_users(folder: Path, passwords: Mapping[str, Mapping[str, str]]) -> Path:
    """Write a file of users who may do everything, with a password for each mechanism of SCRAM."""
    path = folder / "users"
    users = {
        name: User(
            name,
            {each: derive_credential(each, password, ITERATIONS_MIN) for each, password in found.items()},
            EVERYTHING,
        )
        for name, found in passwords.items()
    }
    write_users(path, users)
    return path


def run_pytest(run: Run, files: Sequence[str], *options: str, folder: Path, **variables: str) -> Outcomes:
    """Run tests in a folder by the first Python of `PATH`."""
    names = sorted({each.partition(".")[2].partition("[")[0] for each in run.tests})
    selected = ["-k", " or ".join(names)] if names else []
    command = ["python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=120", f"--junitxml={run.report}"]
    run.execute([*command, *options, *selected, *files], variables, folder)
    return read_junit(run.report)


def run_go(run: Run, package: str, *options: str, **variables: str) -> Outcomes:
    """Run the tests of a package of the checkout by `go test`."""
    if run.tests:
        names = sorted({each.partition("/")[0] for each in run.tests})
        options = (*options, "-run", f"^({'|'.join(map(re.escape, names))})$")
    command = ("go", "test", "-json", "-count=1", "-timeout=3h", *options, ".")
    run.execute(command, variables, run.checkout / package, keep=True)
    return read_go(run.report)


def name_by_class(case: Element) -> str:
    """Return the class and the name of a test of pytest."""
    return f"{(case.get('classname') or '').rpartition('.')[2]}.{case.get('name')}"


def read_junit(path: Path, name_of: Callable[[Element], str] = name_by_class) -> Outcomes:
    """Return the outcomes in a file of JUnit's format."""
    found: dict[str, Outcome] = {}
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = name_of(case)
        kinds = {child.tag: child for child in case}
        if kinds.keys() & {"failure", "error"}:
            found[name] = Outcome(Verdict.FAILED)
        elif "skipped" in kinds:
            found.setdefault(name, Outcome(Verdict.SKIPPED, kinds["skipped"].get("message") or ""))
        else:
            found.setdefault(name, Outcome(Verdict.PASSED))
    return found


def read_go(path: Path) -> Outcomes:
    """Return the outcomes that `go test -json` has printed. A test with subtests counts only if it fails by itself."""
    verdicts = {"pass": Verdict.PASSED, "fail": Verdict.FAILED, "skip": Verdict.SKIPPED}
    found: dict[str, Outcome] = {}
    started: set[str] = set()
    printed: dict[str, str] = {}
    for line in path.read_text("utf-8").splitlines():
        event = json.loads(line)
        test = event.get("Test")
        if test is None:
            continue
        started.add(test)
        if event["Action"] == "output" and not event["Output"].lstrip().startswith(("---", "===")):
            printed[test] = event["Output"].strip().partition(": ")[2]
        elif event["Action"] in verdicts:
            reason = printed.get(test, "") if event["Action"] == "skip" else ""
            found[test] = Outcome(verdicts[event["Action"]], reason)
    found |= {test: Outcome(Verdict.FAILED) for test in started - found.keys()}  # the process has ended before them
    parents = {name.rpartition("/")[0] for name in found}
    is_explained = {
        name.rpartition("/")[0] for name, each in found.items() if each.verdict is Verdict.FAILED and "/" in name
    }
    return {
        name: each
        for name, each in found.items()
        if name not in parents or (each.verdict is Verdict.FAILED and name not in is_explained)
    }
