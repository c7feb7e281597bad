"""The files in `deploy/`: the dashboard, the alerting rules and the systemd units, compared with what dafka exports."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import click
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from dafka.broker import metrics as broker_metrics
from dafka.cli import main
from dafka.operations.metrics import BUILD_INFO, BUILD_LABELS, COMMIT_SECONDS, COUNTERS, GAUGES, make_registry
from dafka.operations.monitor import Monitor
from tests.cli.harness import FREE, MODULE, Dafka

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = (DEPLOY / "prometheus" / "dafka.rules.yml").read_text("utf-8")
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
EXPOSURE_MAX = 20
"""Tenths of the points of `systemd-analyze security`."""

_STRING = re.compile(r'"[^"]*"')
_METRIC = re.compile(r"\b(?:dafka|process)_[a-z_]+")
_GROUPING = re.compile(r"\b(?:by|on|ignoring)\s*\(([^)]*)\)")
_SELECTOR = re.compile(r"\{([^}]*)\}")


def exported_labels() -> dict[str, set[str]]:
    """Return the labels of each sample that Prometheus stores, with the labels that it adds."""
    labels = {f"{name}_total": {"role", *described.labels} for name, described in COUNTERS.items()}
    labels |= {name: {"role", *described.labels} for name, described in GAUGES.items()}
    labels |= {f"{name}_total": set(described.labels) for name, described in broker_metrics.COUNTERS.items()}
    labels |= {name: set(described.labels) for name, described in broker_metrics.GAUGES.items()}
    labels |= {f"{COMMIT_SECONDS}_{part}": {"role"} for part in ("sum", "count")}
    labels |= {f"{COMMIT_SECONDS}_bucket": {"role", "le"}, BUILD_INFO: set(BUILD_LABELS)}
    text = generate_latest(make_registry(Monitor())).decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels.setdefault(sample.name, set(sample.labels))
    return {name: {*found, "instance", "job"} for name, found in labels.items()}


EXPORTED = exported_labels()


def check_expression(expression: str) -> set[str]:
    """Check the metrics and labels of an expression, and return the labels."""
    bare = _STRING.sub('""', expression)
    metrics = set(_METRIC.findall(bare))
    assert metrics, expression
    assert metrics <= EXPORTED.keys(), expression
    known = set.union(*(EXPORTED[metric] for metric in metrics))
    used = {label.strip() for group in _GROUPING.findall(bare) for label in group.split(",") if label.strip()}
    used |= {matcher.split("=")[0].rstrip("!~ ") for group in _SELECTOR.findall(bare) for matcher in group.split(",")}
    assert used - {""} <= known, expression
    assert bare.count("(") == bare.count(")"), expression
    return known


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DEPLOY / "grafana" / "dafka.json").read_text("utf-8"))
    return found


def test_an_unknown_metric_or_label_is_noticed() -> None:
    for wrong in ("rate(dafka_record_total[5m])", "sum by (tpoic) (dafka_peers)", 'dafka_peers{topic="t"}', "sum(up"):
        with pytest.raises(AssertionError):
            check_expression(wrong)


@pytest.mark.parametrize("panel", dashboard()["panels"], ids=lambda panel: str(panel["title"]))
def test_a_panel_shows_metrics_that_are_exported(panel: dict[str, Any]) -> None:
    assert panel["type"] in ("timeseries", "stat")
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert panel["title"]
    assert panel["description"]
    assert panel["targets"]
    assert panel["fieldConfig"]["defaults"]["unit"] in ("short", "ops", "Bps", "bytes", "s")
    references = [target["refId"] for target in panel["targets"]]
    assert len(set(references)) == len(references)
    for target in panel["targets"]:
        assert target["datasource"] == panel["datasource"]
        labels = check_expression(target["expr"])
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels
        assert set(re.findall(r"\$(\w+)", target["expr"])) <= {"instance", "__rate_interval"}


def test_panels_have_ids_and_places_of_their_own() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    assert all(place["x"] >= 0 and place["y"] >= 0 and place["x"] + place["w"] <= 24 for place in places)
    for one, other in combinations(places, 2):
        is_beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        is_below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert is_beside or is_below


def test_the_dashboard_offers_its_variables() -> None:
    found = dashboard()
    assert (found["title"], found["schemaVersion"]) == ("dafka", 39)
    variables = {variable["name"]: variable for variable in found["templating"]["list"]}
    assert set(variables) == {"datasource", "instance"}
    assert variables["datasource"]["query"] == "prometheus"
    assert variables["instance"]["query"]["query"] == f"label_values({BUILD_INFO}, instance)"


def test_every_metric_by_topic_is_on_the_dashboard() -> None:
    shown = " ".join(target["expr"] for panel in dashboard()["panels"] for target in panel["targets"])
    assert {"dafka_topic_records_total", "dafka_topic_lag_records"} <= set(_METRIC.findall(shown))


def test_alerting_rules_use_metrics_that_are_exported() -> None:
    rules = re.findall(
        r"^      - alert: (\w+)\n        expr: (.+)\n(?:        for: (\d+m)\n)?"
        r"        labels: \{severity: (critical|warning)\}\n"
        r'        annotations:\n          summary: "(.+)"$',
        RULES,
        re.MULTILINE,
    )
    assert len(rules) == RULES.count("- alert:") == len({name for name, *_ in rules})
    for _, expression, _, _, summary in rules:
        labels = check_expression(expression)
        assert set(re.findall(r"\$labels\.(\w+)", summary)) <= labels


def read_unit(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(path.read_text("utf-8"))
    return parser


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_runs_a_command_that_exists(path: Path) -> None:
    service = read_unit(path)["Service"]
    program, name, *arguments = service["ExecStart"].split()
    assert program == "/usr/local/bin/dafka"
    command = main.get_command(click.Context(main), name)
    assert command is not None
    known = {flag for parameter in command.params for flag in parameter.opts}
    assert {argument for argument in arguments if argument.startswith("--")} <= known
    assert service["Type"] == "notify"
    if name in {"store", "up"}:
        assert service["WorkingDirectory"] == f"%S/{service['StateDirectory']}"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_is_hardly_exposed(path: Path) -> None:
    command = ["systemd-analyze", "security", "--offline=yes", "--no-pager", f"--threshold={EXPOSURE_MAX}", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-400:] + done.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_systemd_finds_no_mistake_in_a_unit(path: Path, tmp_path: Path) -> None:
    installed = tmp_path / path.name
    installed.write_text(path.read_text("utf-8").replace("/usr/local/bin/dafka", "/bin/true"), "utf-8")
    done = subprocess.run(["systemd-analyze", "verify", str(installed)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def system_calls(name: str) -> set[str]:
    """Return the system calls of one of systemd's groups, or the one that has the name."""
    if not name.startswith("@"):
        return {name}
    command = ["systemd-analyze", "syscall-filter", "--no-pager", name]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    members = [line.strip() for line in listed if line.startswith("    ") and "#" not in line]
    return set[str]().union(*map(system_calls, members))


def refused_calls(path: Path) -> set[str]:
    """Return the system calls that a unit's filters do not let through."""
    permitted = set[str]()
    for line in re.findall(r"^SystemCallFilter=(.*)$", path.read_text("utf-8"), re.MULTILINE):
        calls = set[str]().union(*map(system_calls, line.removeprefix("~").split()))
        permitted = permitted - calls if line.startswith("~") else permitted | calls
    return system_calls("@known") - permitted


@pytest.mark.skipif(None in map(shutil.which, ("systemd-analyze", "strace")), reason="needs systemd-analyze and strace")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_lets_the_system_calls_of_its_command_through(path: Path, dafka: Dafka, tower: list[str]) -> None:
    """systemd reads no command: strace refuses what the unit refuses, from the start of the command to its end."""
    name = read_unit(path)["Service"]["ExecStart"].split()[1]
    storage = ("--storage", f"filelog:{dafka.folder / 'records'}")
    endpoints = ("--sub", FREE, "--pub", FREE)
    options = {
        "store": (*storage, *tower),
        "tower": endpoints,
        "up": (*storage, *endpoints, "--kafka", "0", "--http", "0"),
    }
    refused = ",".join(f"?{call}" for call in sorted(refused_calls(path)))
    strace = ("strace", "--daemonize", "--follow-forks", "--seccomp-bpf", f"--output={dafka.folder / 'calls'}")
    command = (*strace, f"--trace={refused}", f"--inject={refused}:error=EPERM", *MODULE)
    running = dafka.start(name, *options[name], "-v", command=command)
    running.wait_errors("Found the cluster" if name != "tower" else "Listening")
    assert running.end().status == 0, running.errors
