"""The options of commands: each changes its setting, and later sources override earlier ones."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from dafka.cli import options
from dafka.cli.options import config_options, log_options, node_options, tower_options, up_options
from dafka.config import Config
from dafka.config.configuration import load_config

GROUPS = {"node": node_options, "up": up_options, "tower": tower_options, "config": config_options, "log": log_options}


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the logging of the tests as it is, and the environment out of them."""
    monkeypatch.setattr(options, "start_logging", lambda config: None)
    monkeypatch.setattr(options.os, "environ", {})  # type: ignore[attr-defined]
    monkeypatch.chdir(tmp_path)


def config_of(group: Callable[..., Any], *arguments: str) -> Config:
    given: list[Config] = []

    @click.command()
    @group
    def command(config: Config) -> None:
        given.append(config)

    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 0, result.output
    return given[0]


@pytest.mark.parametrize("group", GROUPS)
def test_without_options_the_defaults_apply(group: str) -> None:
    assert config_of(GROUPS[group]) == load_config(None, {})[0]


VALUES = {
    "--tower": "10.0.0.1:7000",
    "--tower-sub": "tcp://10.0.0.1:1",
    "--tower-pub": "tcp://10.0.0.1:2",
    "--tower-keys": "key",
}


@pytest.mark.parametrize("group", ["node", "up"])
@pytest.mark.parametrize("flag", VALUES)
def test_options_of_towers_may_be_repeated(group: str, flag: str) -> None:
    first, second = VALUES[flag], VALUES[flag].replace("0.1", "0.2").replace("key", "other")
    once, twice = config_of(GROUPS[group], flag, first), config_of(GROUPS[group], flag, first, flag, second)
    if flag == "--tower-keys":
        assert twice.security.tower_keys == ("key", "other")
    else:
        towers = ((*each.beacon.tower_sub, *each.beacon.tower_pub) for each in (once, twice))
        assert [sum("10.0.0" in tower for tower in each) for each in towers] == (
            [2, 4] if flag == "--tower" else [1, 2]
        )


@pytest.mark.parametrize(
    ("arguments", "level"), [([], "warning"), (["-v"], "info"), (["-vv"], "debug"), (["-vvv"], "debug")]
)
def test_more_v_log_more(arguments: list[str], level: str) -> None:
    assert config_of(node_options, *arguments).log.level == level
    assert config_of(node_options, *arguments, "--log-level", "error").log.level == "error"


def test_options_override_the_file(tmp_path: Path) -> None:
    path = tmp_path / "settings"
    path.write_text('[node]\ngrace_ms = "3s"\nlinger_ms = "4s"\n[log]\nlevel = "error"\n')
    config = config_of(node_options, "--config", str(path), "--grace-ms", "5s")
    assert (config.node.grace_ms, config.node.linger_ms, config.log.level) == (5000, 4000, "error")


def test_a_file_that_looks_like_the_configuration_and_is_not_read_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "dafka.toml").write_text('[node]\ngrace_ms = "3s"\n')
    assert config_of(node_options) == Config()
    (record,) = caplog.records
    assert (record.levelno, record.name) == (logging.WARNING, "dafka.command")
    assert "./dafka.toml is not read" in record.getMessage()
    caplog.clear()
    assert config_of(node_options, "--config", "dafka.toml").node.grace_ms == 3000
    assert caplog.records == []
