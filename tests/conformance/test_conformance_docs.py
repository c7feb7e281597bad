"""The examples of docs/how-to/conformance.md work, and the page documents all keys, placeholders and options."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from dafka.testing import open_cluster
from dafka_conformance import pytest_plugin
from dafka_conformance.catalog import Catalog
from dafka_conformance.interpreters.script_runner import read_scenarios
from dafka_conformance.model import Dialect, Outcome, Role, Run
from dafka_conformance.report.findings import failures
from dafka_conformance.runner import run
from dafka_conformance.scenario import Scenario
from dafka_conformance.targets import Ability, Target, TargetError, open_target, shipped_targets
from dafka_conformance.targets.target_file import BUILTIN_PLACEHOLDERS, NODE_PLACEHOLDERS

pytestmark = pytest.mark.usefixtures("restored_globals")

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "conformance.md").read_text("utf-8")
PATIENCE = 3.0
"""The factor for time limits: the programs of the page are shell scripts, which start slowly on a busy machine."""

PROGRAMS = {
    "mydafka-tower": 'dafka tower --sub "tcp://127.0.0.1:$2" --pub "tcp://127.0.0.1:$4"',
    "mydafka-store": """
        if [ "$1" = --config ]; then . "$2"; else folder=$2 sub=$4 pub=$5 wire=rfc46; fi
        dafka store --storage "sqlite:$folder/store.db" --tower-sub "$sub" --tower-pub "$pub" --wire "$wire"
    """,
    "mydafka-produce": """
        wire=rfc46
        if [ "$1" = --wire ]; then wire=$2; shift 2; fi
        dafka produce --close-timeout-ms 1000s --tower-sub "$2" --tower-pub "$3" --wire "$wire" -- "$4"
    """,
    "mydafka-consume": """
        wire=rfc46 format='%s\\n' start=--from-beginning
        if [ "$1" = --from ]; then
            format='%t %p %o %s\\n'
            if [ "$2" = end ]; then start=-v; fi
            shift 2
        fi
        if [ "$1" = --wire ]; then wire=$2; shift 2; fi
        dafka consume --format "$format" "$start" --tower-sub "$2" --tower-pub "$3" --wire "$wire" -- "$4"
    """,
}
"""The programs of the page's example, as wrappers of this project's command."""


def examples(language: str) -> list[str]:
    """Return the page's examples in a language, without their indentation."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```$", PAGE, re.MULTILINE | re.DOTALL)
    return [re.sub(rf"^{indent}", "", text, flags=re.MULTILINE) for indent, text in found]


SMALL, COMPLETE, ATTACHED, SCRIPT = examples("toml")
FACTORY, PROGRAM, SCENARIO = examples("python")


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    return Catalog.load()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with the page's target files, with their programs on the path."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, script in PROGRAMS.items():
        command = script.replace("dafka ", f'exec "{sys.executable}" -m dafka ')
        (programs / name).write_text(f"#!/bin/sh\n{command}\n")
        (programs / name).chmod(0o755)
    (tmp_path / "mydafka.toml").write_text(SMALL, "utf-8")
    (tmp_path / "complete.toml").write_text(COMPLETE, "utf-8")
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def play(catalog: Catalog, target: Target, patterns: Sequence[str]) -> Run:
    finished = await run(catalog, target, patterns=patterns, jobs=2, patience=PATIENCE)
    assert [result.scenario for result in finished.results if result.outcome is not Outcome.PASSED] == [], [
        finding.message for failure in failures(finished) for finding in failure.findings
    ]
    return finished


def with_scenarios(catalog: Catalog, scenarios: Iterable[Scenario]) -> Catalog:
    return attrs.evolve(catalog, scenarios={scenario.name: scenario for scenario in scenarios})


async def test_small_target_file_works(folder: Path, catalog: Catalog) -> None:
    patterns = ["producer.grammar.publish.01", "consumer.grammar.publish.02"]  # the program tests the store
    finished = await play(catalog, open_target("mydafka.toml", {}), patterns)
    assert {result.scenario for result in finished.results} == set(patterns)


async def test_complete_target_file_works(folder: Path, catalog: Catalog) -> None:
    target = open_target("complete.toml", {"bin": "programs"})
    assert {role: len(abilities) for role, abilities in target.abilities.items()} == {
        Role.TOWER: 1,
        Role.STORE: 2,
        Role.PRODUCER: 3,
        Role.CONSUMER: 4,
    }
    assert Ability.KILL in target.abilities[Role.STORE]
    patterns = ["store.acknowledges"]  # the smaller file has the other roles
    finished = await play(catalog, target, patterns)
    assert {result.dialect for result in finished.results} == set(Dialect)


async def test_attaching_to_a_running_node_works(tmp_path: Path, catalog: Catalog) -> None:
    async with open_cluster() as cluster:
        beacon = cluster.config.beacon
        text = ATTACHED.replace("tcp://127.0.0.1:5556", str(beacon.tower_sub[0]))
        text = text.replace("tcp://127.0.0.1:5557", str(beacon.tower_pub[0]))
        assert text.count("tcp://") == 2
        (tmp_path / "staging.toml").write_text(text, "utf-8")
        target = open_target(str(tmp_path / "staging.toml"), {})
        finished = await play(catalog, target, ["store.acknowledges"])
        assert len(finished.results) == 1
        assert finished.target == "staging"


async def test_factory_works(folder: Path, catalog: Catalog) -> None:
    (folder / "mytarget.py").write_text(FACTORY, "utf-8")
    finished = await play(catalog, open_target("mytarget:MyTarget", {}), ["store.acknowledges"])
    assert len(finished.results) == 1


def test_program_works(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(PROGRAM, "<program>", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr() == ("store.acknowledges rfc46 passed\n", "")


async def test_scripted_scenario_works(tmp_path: Path, catalog: Catalog) -> None:
    (tmp_path / "store.toml").write_text(SCRIPT, "utf-8")
    scenarios = read_scenarios(tmp_path / "store.toml")
    assert set(scenarios[0].clauses) <= {clause.id for clause in catalog.clauses}
    finished = await play(with_scenarios(catalog, scenarios), open_target("embedded", {}), ())
    assert len(finished.results) == 2


async def test_scenario_in_python_works(catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conformance_example.py").write_text(SCENARIO, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    example: Any = __import__("conformance_example")
    (scenario,) = example.SCENARIOS.scenarios
    assert scenario.title == "A store acknowledges each producer's records to that producer."
    finished = await play(with_scenarios(catalog, [scenario]), open_target("embedded", {}), ())
    assert len(finished.results) == 2


STRANGE = """
name = "strange"
dialects = ["rfc46"]

[store]
command = ["sh", "{sub}", "{pub}"]

[consumer]
command = ["sh", "{sub}", "{pub}"]

[producer.attach]
sub = "tcp://127.0.0.1:1"
pub = "tcp://127.0.0.1:2"
topic = "orders"

[tower]
command = ["sh", "{sub}", "{pub}"]
"""


@pytest.mark.parametrize("before", ["[store]", "[consumer]", "[producer.attach]", "[tower]", 'name = "strange"'])
def test_every_key_of_a_target_file_is_documented(tmp_path: Path, before: str) -> None:
    (tmp_path / "strange.toml").write_text(STRANGE.replace(before, f"{before}\nodd = 1"), "utf-8")
    with pytest.raises(TargetError, match="unknown key 'odd': expected ") as caught:
        open_target(str(tmp_path / "strange.toml"), {})
    keys = str(caught.value).partition("expected ")[2].split(", ")
    assert [key for key in keys if f"`{key}`" not in PAGE and not re.search(rf"\[([a-z]+\.)?{key}\]", PAGE)] == []


def test_every_placeholder_target_and_option_is_documented() -> None:
    names = NODE_PLACEHOLDERS | BUILTIN_PLACEHOLDERS | {"topic", "reset", "content", "address", "sequence"}
    assert [name for name in sorted(names) if f"`{{{name}}}`" not in PAGE] == []
    assert [name for name in shipped_targets() if f"`{name}`" not in PAGE] == []
    options = re.findall(r'"(--dafka-[a-z]+)"', Path(str(pytest_plugin.__file__)).read_text("utf-8"))
    assert [option for option in options if option not in PAGE] == []


def test_every_scenario_and_clause_that_is_named_exists(catalog: Catalog) -> None:
    names = re.findall(r"dafka-conformance (?:show|explain) ([a-z.-]+)", (ROOT / "conformance/README.md").read_text())
    assert names
    assert [name for name in names if name not in catalog.scenarios and name not in catalog.clauses] == []
    named = set(re.findall(r"`((?:tower|store|producer|consumer)\.[a-z.-]+[a-z0-9*])`", PAGE))
    assert "consumer.catch-up" in named
    assert [name for name in named if not catalog.select(patterns=[name]) and name not in catalog.clauses] == []
    found_in = set(re.findall(r"^\| `.*?` \| `([a-z.-]+)` \|", PAGE, re.MULTILINE))
    assert "fetch.pages" in found_in
    assert [name for name in found_in if name not in catalog.clauses] == []
