"""The pytest plugin, in another project's pytest runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree

import attrs
import pytest

ROOT = Path(__file__).parents[2]
PLUGIN = "dafka_conformance.pytest_plugin"
TIMEOUT_S = 110
RFC46 = "dafka-conformance::store.acknowledges[rfc46]"
LIBDAFKA = "dafka-conformance::store.acknowledges[libdafka]"
DEAF = """
name = "deaf"
dialects = ["rfc46"]

[store]
command = ["{python}", "-c", "import time; time.sleep(100)", "{sub}", "{pub}"]
"""
ATTACHED = """
name = "remote"
dialects = ["rfc46"]

[producer.attach]
sub = "tcp://127.0.0.1:1"
pub = "tcp://127.0.0.1:2"
topic = "orders"
"""


@attrs.frozen
class Project:
    """A project with one test, in which pytest runs with the named plugins only."""

    folder: Path

    def pytest(self, *arguments: str, plugins: tuple[str, ...] = (PLUGIN,)) -> subprocess.CompletedProcess[str]:
        options = [part for plugin in plugins for part in ("-p", plugin)]
        return subprocess.run(
            [sys.executable, "-W", "error", "-m", "pytest", "-p", "no:cacheprovider", *options, *arguments],
            cwd=self.folder,
            env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", "COLUMNS": "120"},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    def usage_error(self, *arguments: str) -> str:
        """Return the line of pytest's usage error."""
        done = self.pytest(*arguments)
        assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout
        assert "INTERNALERROR" not in done.stdout
        (line,) = done.stderr.strip().splitlines()
        return line.removeprefix("ERROR: ")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nfilterwarnings = error\naddopts = --strict-markers --strict-config\n"
    )
    (tmp_path / "test_own.py").write_text("def test_own() -> None:\n    pass\n")
    (tmp_path / "deaf.toml").write_text(DEAF)
    (tmp_path / "attached.toml").write_text(ATTACHED)
    return Project(tmp_path)


def collected(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if "::" in line]


def test_plugin_is_loaded_only_on_request() -> None:
    entry_points = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]
    assert "pytest11" not in entry_points
    assert import_module(PLUGIN).pytest_addoption


def test_without_a_target_nothing_is_added_or_imported(project: Project) -> None:
    (project.folder / "test_own.py").write_text(
        "import sys\n\ndef test_own():\n    assert not {'trio', 'zmq', 'rich', 'dafka'} & set(sys.modules)\n"
    )
    done = project.pytest()
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


@pytest.mark.parametrize("plugins", [(PLUGIN,), (PLUGIN, "pytest_trio.plugin")], ids=["alone", "pytest-trio"])
def test_scenarios_run_beside_the_projects_own_tests(project: Project, plugins: tuple[str, ...]) -> None:
    if len(plugins) > 1:
        with (project.folder / "pytest.ini").open("a") as file:
            file.write("trio_mode = true\n")
    options = ("--dafka-target", "embedded", "--dafka-scenario", "store.acknowledges", "-v", "--junitxml=out.xml")
    done = project.pytest(*options, plugins=plugins)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"^(\S+) PASSED", done.stdout, re.MULTILINE) == ["test_own.py::test_own", RFC46, LIBDAFKA]
    assert "collected 3 items" in done.stdout
    assert ElementTree.parse(project.folder / "out.xml").getroot()[0].get("tests") == "3"


def test_violation_shows_findings_and_exchange(project: Project) -> None:
    options = ("--dafka-target", "deaf.toml", "--dafka-patience", "0.1", "-rf")
    done = project.pytest(*options, "--dafka-scenario", "store.acknowledges")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "1 failed, 1 passed" in done.stdout
    assert "store.acknowledges in rfc46" in done.stdout
    assert "beacon.interval (SHALL, Node Discovery and Presence): A node sends beacons to the tower" in done.stdout
    assert "    no beacon of the store arrived within 0.8 s" in done.stdout
    assert re.search(r"^ +0\.\d{3}  ·  the store starts$", done.stdout, re.MULTILINE)
    assert f"FAILED {RFC46}" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_target_that_cannot_be_run_fails_with_the_reason(project: Project) -> None:
    (project.folder / "deaf.toml").write_text(
        DEAF.replace("import time; time.sleep(100)", "raise SystemExit('no disk')")
    )
    done = project.pytest("--dafka-target", "deaf.toml", "--dafka-scenario", "store.acknowledges")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "exit status 1: no disk" in done.stdout


def test_missing_role_or_ability_is_skipped(project: Project) -> None:
    options = ("--dafka-target", "attached.toml", "--dafka-scenario", "*.grammar.publish.01", "-rs")
    done = project.pytest(*options, "--dafka-scenario", "store.acknowledges")
    assert done.returncode == 0, done.stdout
    assert "1 passed, 2 skipped" in done.stdout
    assert "remote has no store" in done.stdout
    assert "remote has no way to give it records to publish" in done.stdout


def test_options_select_roles_dialects_and_scenarios(project: Project) -> None:
    options = ("--collect-only", "-q", "--dafka-target", "embedded")
    names = collected(project.pytest(*options))
    assert {name.partition("::")[2].partition(".")[0] for name in names} >= {"store", "consumer", "producer"}
    names = collected(project.pytest(*options, "--dafka-role", "consumer", "--dafka-dialect", "libdafka"))
    assert all(re.fullmatch(r"dafka-conformance::consumer\..*\[libdafka\]", name) for name in names[1:])
    assert len(names) > 100
    names = collected(project.pytest(*options, "--dafka-scenario", "store.acknowledges", "-k", "rfc46"))
    assert names == [RFC46]
    names = collected(project.pytest(*options, "--dafka-scenario", "store.acknowledges", "-m", "dafka_conformance"))
    assert names == [RFC46, LIBDAFKA]
    names = collected(project.pytest(*options, "-k", "not dafka-conformance"))
    assert names == ["test_own.py::test_own"]


def test_target_in_the_configuration_is_ignored_if_tests_are_named(project: Project) -> None:
    with (project.folder / "pytest.ini").open("a") as file:
        file.write("dafka_target = embedded\n")
    options = ("--collect-only", "-q", "--dafka-scenario", "store.acknowledges")
    assert collected(project.pytest(*options)) == ["test_own.py::test_own", RFC46, LIBDAFKA]
    assert collected(project.pytest(*options, "test_own.py")) == ["test_own.py::test_own"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--dafka-target nosuch", "unknown target 'nosuch': expected dafka, embedded, libdafka, "),
        ("--dafka-target nosuch.toml", "cannot read the target file nosuch.toml: No such file or directory"),
        ("--dafka-target libdafka", "libdafka needs the folder of dafka_towerd"),
        ("--dafka-target libdafka --dafka-set bin", "--dafka-set: expected NAME=VALUE, not 'bin'"),
        (
            "--dafka-target embedded --dafka-role king",
            "--dafka-role: expected tower or producer or consumer or ",
        ),
        ("--dafka-target embedded --dafka-dialect x", "--dafka-dialect: expected rfc46 or libdafka, not 'x'"),
        ("--dafka-target deaf.toml --dafka-dialect libdafka", "deaf cannot send the dialect libdafka: expected rfc46"),
        (
            "--dafka-target embedded --dafka-scenario x.*",
            "no scenario matches 'x.*'; run dafka-conformance list to see all",
        ),
        ("--dafka-target embedded --dafka-patience 0", "--dafka-patience: expected a factor from 0.1 to 100, not 0"),
    ],
)
def test_wrong_option_is_a_usage_error(project: Project, options: str, sentence: str) -> None:
    assert project.usage_error(*options.split()).startswith(sentence)
