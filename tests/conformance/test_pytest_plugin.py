"""The pytest plugin, in another project's pytest runs."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dafka_conformance import pytest_plugin
from tests.conformance.sample_targets import ATTACHED, DEAF, ENDED

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.usefixtures("restored_globals")

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 110
RFC46 = "dafka-conformance::store.acknowledges[rfc46]"
LIBDAFKA = "dafka-conformance::store.acknowledges[libdafka]"
ONE = ("--dafka-scenario", "store.acknowledges")


class Project:
    """A project with one test, in which pytest runs with the named plugins only."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self._pytester = pytester
        self.folder = pytester.path
        self.configuration = "[pytest]\nfilterwarnings = error\naddopts = --strict-markers --strict-config\n"

    def pytest(self, *arguments: str, plugins: tuple[object, ...] = ()) -> pytest.RunResult:
        """Run pytest in this process."""
        (self.folder / "pytest.ini").write_text(self.configuration)
        return self._pytester.runpytest_inprocess(
            "-p", "no:cacheprovider", *arguments, plugins=[pytest_plugin, *plugins]
        )

    def collected(self, *arguments: str) -> list[str]:
        """Return the names of the tests that are collected."""
        done = self.pytest("--collect-only", "-q", *arguments)
        assert done.ret == 0, done.outlines + done.errlines
        return [line for line in done.outlines if "::" in line]


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    for name, value in {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", "COLUMNS": "120"}.items():
        monkeypatch.setenv(name, value)
    files = {"deaf.toml": DEAF, "ended.toml": ENDED, "attached.toml": ATTACHED, "test_own.py": "def test_own(): pass\n"}
    for name, text in files.items():
        (pytester.path / name).write_text(text)
    return Project(pytester)


def test_plugin_is_loaded_only_on_request() -> None:
    entry_points = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]
    assert "pytest11" not in entry_points


def test_without_a_target_nothing_is_added_or_imported(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text(
        "import sys\n\ndef test_own():\n    assert not {'trio', 'zmq', 'rich', 'dafka'} & set(sys.modules)\n"
    )
    options = ("-W", "error", "-m", "pytest", "-p", "no:cacheprovider", "-p", pytest_plugin.__name__)
    done = subprocess.run(
        [sys.executable, *options],
        cwd=tmp_path,
        env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout


@pytest.mark.parametrize("plugins", [(), ("pytest_trio.plugin",)], ids=["alone", "pytest-trio"])
def test_scenarios_run_beside_the_projects_own_tests(project: Project, plugins: tuple[str, ...]) -> None:
    if plugins:
        project.configuration += "trio_mode = true\n"
    done = project.pytest("--dafka-target", "embedded", *ONE, "-v", "--junitxml=out.xml", plugins=plugins)
    text = "\n".join(done.outlines)
    assert done.ret == 0, text
    assert re.findall(r"^(\S+) PASSED", text, re.MULTILINE) == ["test_own.py::test_own", RFC46, LIBDAFKA]
    assert "collected 3 items" in text
    assert ElementTree.parse(project.folder / "out.xml").getroot()[0].get("tests") == "3"


def test_violation_shows_findings_and_exchange(project: Project) -> None:
    done = project.pytest("--dafka-target", "deaf.toml", "--dafka-patience", "0.1", "-rf", *ONE)
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    text = "\n".join(done.outlines)
    for part in (
        "1 failed, 1 passed",
        "store.acknowledges in rfc46",
        "beacon.interval (SHALL, Node Discovery and Presence): A node sends beacons to the tower",
        "    no beacon of the store arrived within 0.8 s",
        f"FAILED {RFC46}",
    ):
        assert part in text
    assert re.search(r"^ +0\.\d{3}  ·  the store starts$", text, re.MULTILINE)
    assert "Traceback" not in text


def test_target_that_cannot_be_run_fails_with_the_reason(project: Project) -> None:
    done = project.pytest("--dafka-target", "ended.toml", *ONE)
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    assert "exit status 1: no license" in done.stdout.str()


def test_missing_role_or_ability_is_skipped(project: Project) -> None:
    done = project.pytest("--dafka-target", "attached.toml", "--dafka-scenario", "*.grammar.publish.01", "-rs", *ONE)
    assert done.ret == 0
    for part in ("1 passed, 2 skipped", "remote has no store", "remote has no way to give it records to publish"):
        assert part in done.stdout.str()


def test_options_select_roles_dialects_and_scenarios(project: Project) -> None:
    embedded = ("--dafka-target", "embedded")
    names = project.collected(*embedded)
    assert {name.partition("::")[2].partition(".")[0] for name in names} >= {"store", "consumer", "producer"}
    names = project.collected(*embedded, "--dafka-role", "consumer", "--dafka-dialect", "libdafka")
    assert all(re.fullmatch(r"dafka-conformance::consumer\..*\[libdafka\]", name) for name in names[1:])
    assert len(names) > 100
    assert project.collected(*embedded, *ONE, "-k", "rfc46") == [RFC46]
    assert project.collected(*embedded, *ONE, "-m", "dafka_conformance") == [RFC46, LIBDAFKA]
    assert project.collected(*embedded, "-k", "not dafka-conformance") == ["test_own.py::test_own"]


def test_target_in_the_configuration_is_ignored_if_tests_are_named(project: Project) -> None:
    project.configuration += "dafka_target = embedded\n"
    assert project.collected(*ONE) == ["test_own.py::test_own", RFC46, LIBDAFKA]
    assert project.collected(*ONE, "test_own.py") == ["test_own.py::test_own"]


WRONG = {
    "--dafka-target nosuch": "unknown target 'nosuch': expected dafka, embedded, libdafka, ",
    "--dafka-target libdafka --dafka-set bin": "--dafka-set: expected NAME=VALUE, not 'bin'",
    "--dafka-target embedded --dafka-role king": "--dafka-role: expected tower or producer or consumer or ",
    "--dafka-target embedded --dafka-dialect x": "--dafka-dialect: expected rfc46 or libdafka, not 'x'",
    "--dafka-target deaf.toml --dafka-dialect libdafka": "deaf cannot send the dialect libdafka: expected rfc46",
    "--dafka-target embedded --dafka-scenario x.*": "no scenario matches 'x.*'; run dafka-conformance list to",
    "--dafka-target embedded --dafka-patience 0": "--dafka-patience: expected a factor from 0.1 to 100, not 0",
}


@pytest.mark.parametrize("options", WRONG)
def test_wrong_option_is_a_usage_error(project: Project, options: str) -> None:
    done = project.pytest(*options.split())
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in done.errlines if line]
    assert line.startswith(f"ERROR: {WRONG[options]}")
