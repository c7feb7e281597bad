"""Every command and option: its help, the values that it takes, and those that it refuses. `test_docs` has the list."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import click
import pytest
from click.testing import CliRunner, Result
from click.types import FuncParamType

from dafka.cli import COMMANDS, main, options
from dafka.cli.options import config_options, log_options, node_options, tower_options, up_options
from dafka.config import Config
from dafka.config.configuration import SECTIONS, load_config
from tests.config.test_settings import ROWS, Row

NO_CHECK = {"text", "counted"}
"""Kinds whose every text the parser takes; what is wrong with one is told when it is used."""

TAKEN: dict[str, list[tuple[str, Any]]] = {
    "duration": [("500ms", 500), ("1.5s", 1500), ("2w", 1_209_600_000), ("1ms", 1)],
    "size": [("1", 1), ("64MiB", 2**26), ("10GB", 10**10)],
    "time": [("2023-11-14T22:13:20Z", 1_700_000_000_000), ("1969-01-01", 0)],
    "timestamp": [
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("0", 0),
        ("1970-01-01", 0),
        (str(2**63 - 1), 2**63 - 1),
    ],
    "separator": [("=", b"="), (r"\t", b"\t"), (r"\\\xff", b"\\\xff"), ("%", b"%"), ("ab", b"ab")],
    "header": [("a=b=c", ("a", b"b=c")), ("a=", ("a", b"")), ("a", ("a", None)), ("a b=\udcff", ("a b", b"\xff"))],
    "assignment": [("a=b=c", ("a", "b=c")), ("a=", ("a", ""))],
    "numbers": [("3", [3]), ("1,2,3", [1, 2, 3])],
}
REFUSED = {
    "flag": ["1", "", "true"],
    "duration": ["", "soon", "nan", "10", "0s", "0", "-1", "-1s", "0.1ms", "7dd"],
    "size": ["", "0", "0B", "-1", "1G", "big", "0.1"],
    "time": ["", "yesterday", "90", "2h30", "2026-13-01"],
    "timestamp": ["", "noon", "1969-12-31T23:59:59Z", str(2**63), "-1", "1.5", "\u00b2"],
    "separator": ["", r"\n", r"\x0a", r"\q", r"\x4", "\\"],
    "header": ["", "=1", "=", "\udcff=1"],
    "assignment": ["", "x", "=1"],
    "numbers": ["", "x", "1,", "1,x", "-1"],
    "target": ["", "soon", "-1"],
}


CHECKED = {"DURATION", "SIZE", "TIME", "NAME=VALUE", "N", "N,N,...", "OFFSET", "SEQUENCE"}
"""What the help calls values of which the parser does not take every text."""

PARSED = {
    "--key-separator": "separator",
    "--header": "header",
    "--timestamp": "timestamp",
    "--since": "time",
    "--bytes": "size",
    "--set": "assignment",
    "--replicas": "numbers",
    "--to": "target",
}
"""The kinds of the options whose values are parsed by functions; those of the others are durations."""


def kind_of(option: click.Parameter) -> str:
    """Return the kind of the values of an option or argument: the setting that it changes, or what it takes."""
    kind = option.type
    if isinstance(option, options.SettingOption):
        return f"{option.section}.{option.setting}"
    if isinstance(option, click.Option) and (option.is_flag or option.count):
        return "flag" if option.is_flag else "counted"
    if isinstance(kind, click.Choice):
        return "|".join(kind.choices)
    if isinstance(kind, click.IntRange):
        return f"{kind.min}.."
    return PARSED.get(option.opts[-1], "duration") if isinstance(kind, FuncParamType) else "text"


@attrs.frozen
class Line:
    """A command with the least arguments that it needs, and each of its options with the kind of its values."""

    command: tuple[str, ...]
    found: click.Command

    @property
    def needed(self) -> list[str]:
        needed = []
        for each in self.found.params:
            kind = kind_of(each)
            sample = "latest" if kind == "target" else kind.partition("|")[0] if "|" in kind else "1"
            if each.required:
                needed.append(f"{each.opts[-1]}={sample}" if isinstance(each, click.Option) else sample)
        return needed

    @property
    def kinds(self) -> dict[str, str]:
        return {each.opts[-1]: kind_of(each) for each in self.found.params if isinstance(each, click.Option)}

    def parse_values(self, *arguments: str) -> click.Context:
        parent = click.Context(main, info_name="dafka")
        return self.found.make_context(self.command[-1], [*self.needed, *arguments], parent=parent)

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(main, [*self.command, *arguments])


def lines() -> Iterator[Line]:
    """Yield all commands, and the commands of groups. Their page has each with its options."""
    for name in COMMANDS:
        command = main.get_command(click.Context(main), name)
        assert command is not None
        members = command.commands.items() if isinstance(command, click.Group) else None
        yield from (Line((name, member), found) for member, found in members or ())
        if members is None:
            yield Line((name,), command)


LINES = list(lines())
each_command = pytest.mark.parametrize("line", LINES, ids=lambda line: " ".join(line.command))


def setting(kind: str) -> Row | None:
    return next((row for row in ROWS if f"{row.section}.{row.name}" == kind), None)


def refused(kind: str) -> list[str]:
    """Return texts that an option of this kind does not take."""
    if (row := setting(kind)) is not None:
        is_any = row.kind in {"text", "texts"}
        lists = row.kind in {"endpoints", "towers"}
        texts = [each for each in row.refused() if isinstance(each, str) and (each or not lists)]
        numbers = [str(each) for each in row.refused() if type(each) is int and row.kind in {"ms", "bytes", "count"}]
        return [] if is_any else [*texts, *numbers]
    if "|" in kind:
        return ["", "x", kind, kind.partition("|")[0].swapcase()]
    if kind.endswith(".."):
        return ["", "x", "1.5", str(int(kind.removesuffix("..")) - 1)]
    assert kind in REFUSED or kind in NO_CHECK, kind
    return REFUSED.get(kind, [])


def sentence_of(result: Result) -> str:
    """Return the sentence of a mistake, which comes last and alone."""
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert "Traceback" not in result.stderr
    sentences = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert result.stderr.splitlines()[-1:] == sentences, result.stderr
    return sentences[0]


@each_command
def test_help_is_a_success_that_names_and_describes_every_option(line: Line) -> None:
    for option in ("-h", "--help"):
        result = line.run(option)
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout.startswith(f"Usage: main {' '.join(line.command)} [OPTIONS]")
    words = " ".join(result.stdout.split())
    for flag in (*line.kinds, "--help"):
        described = re.search(rf"(?<![\w-]){flag}(?![\w-])", result.stdout)
        assert described is not None, flag
    for each in line.found.params:
        if isinstance(each, click.Option):
            assert each.help, each.opts
            assert " ".join(each.help.split()[:3]) in words
    assert line.found.help is not None
    assert " ".join(line.found.help.split()[:4]) in words
    assert line.found.get_short_help_str(200).rstrip(".") == line.found.help.split(".")[0].replace("\n", " ").strip()


@each_command
def test_the_help_shows_the_default_that_applies(line: Line) -> None:
    """Words stand for a default that says too little, such as 0, and for towers if the command has one of its own."""
    for each in line.found.params:
        if not isinstance(each, options.SettingOption):
            continue
        kind = SECTIONS[each.section]
        own = getattr(kind(), each.setting)
        found = re.search(r"  \[default: (.+)\]$", each.help or "")
        assert found is not None, each.opts
        if own in ("", (), 0, -1):
            assert re.search("[a-z]{2}|:", found[1]), each.opts
        elif line.command == ("up",) and each.section == "beacon":
            assert found[1] == "only this process's tower"
        else:
            given = line.parse_values(f"{each.opts[-1]}={found[1]}").meta["dafka.settings"]
            assert getattr(kind(**{each.setting: given[each.section, each.setting]}), each.setting) == own, each.opts


def test_an_option_of_a_setting_has_its_name_its_unit_and_its_default() -> None:
    for row in ROWS:

        @click.command()
        @options.setting_option(row.section, row.name, "What it is.", multiple=row.kind in {"texts", "endpoints"})
        @options.setting_option(row.section, row.name, "Other.", "THIS", flag="--other", default="that")
        def command() -> None: ...

        first, other = command.params
        kind = SECTIONS[row.section]
        own = getattr(kind(), row.name)
        assert (first.opts, other.opts) == ([f"--{row.name.replace('_', '-')}"], ["--other"])
        unit = "DURATION" if row.kind == "ms" else "SIZE" if row.name.endswith("_bytes") else "N"
        units = (None, None) if row.kind == "choice" else (unit, "THIS")
        assert (first.metavar, other.metavar) == units, row
        helps = [each.help or "" for each in (first, other) if isinstance(each, options.SettingOption)]
        assert helps[1] == "Other.  [default: that]"
        shown = helps[0].removeprefix("What it is.  [default: ").removesuffix("]")
        if row.kind == "ms":
            assert getattr(kind(**{row.name: shown}), row.name) == own
            assert shown != str(own) or own <= 0, row
        else:
            assert shown == (", ".join(own) if isinstance(own, tuple) else str(own)), row


@each_command
def test_a_wrong_use_is_one_sentence_that_names_the_option(line: Line) -> None:
    if line.command != ("spark",):  # its script takes all further arguments
        assert sentence_of(line.run(*line.needed, "--unheard-of")).startswith("Error: No such option '--unheard-of'")
    for place in range(len(line.needed)):
        if line.command == ("completion",):  # click lists the shells on further lines
            break
        fewer = [*line.needed[:place], *line.needed[place + 1 :]]
        assert sentence_of(line.run(*fewer)).startswith("Error: Missing "), fewer
    for flag, kind in line.kinds.items():
        for value in refused(kind):
            sentence = sentence_of(line.run(*line.needed, f"{flag}={value}"))
            names = f"Option '{flag}' does not take a value." if kind == "flag" else f"Invalid value for '{flag}': "
            assert sentence.startswith(f"Error: {names}"), (flag, value, sentence)
        if kind not in {"flag", "counted"}:
            assert sentence_of(line.run(*line.needed, flag)) == f"Error: Option '{flag}' requires an argument."


NO_ADDRESSES = [
    *(("--kafka", each, "expected HOST:PORT, such as 127.0.0.1:9092") for each in ("nowhere", "localhost:*")),
    *(("--http", each, "expected a URL such as http://127.0.0.1:8080") for each in ("ftp://x", "8081", "http://a/b")),
]
"""Options that name a broker, a text that is no address, and what was expected."""


def test_commands_that_ask_a_broker_expect_its_address(tmp_path: Path) -> None:
    for flag, text, expected in NO_ADDRESSES:
        for line in [each for each in LINES if each.kinds.get(flag) == "text"]:
            needed = [str(tmp_path / "file")] if line.command == ("cluster", "snapshot") else line.needed
            confirmed = ["--yes"] if "--yes" in line.kinds else []
            if line.command != ("cluster", "restore"):  # it reads the file first
                sentence = sentence_of(line.run(*needed, *confirmed, f"{flag}={text}"))
                assert sentence == f"Error: {flag}: {expected}, not '{text}'", line.command


@each_command
def test_a_value_that_is_taken_reaches_the_command_or_its_setting(line: Line) -> None:
    names = {each.opts[-1]: each for each in line.found.params}
    for flag, kind in line.kinds.items():
        option = names[flag]
        assert kind not in NO_CHECK or option.metavar not in CHECKED, flag
        row = setting(kind)
        if row is not None:
            texts = [each for each in row.taken() if isinstance(each[0], str) and (each[0] or row.kind in {"text"})]
            numbers = [(str(value), value) for value, _ in row.taken() if type(value) is int and value >= 0]
            for text, value in (*texts, *numbers):
                found = line.parse_values(f"{flag}={text}").meta["dafka.settings"]
                assert found.keys() == {(row.section, row.name)}, flag
                given = found[row.section, row.name]
                changed = SECTIONS[row.section](**{row.name: given})
                assert getattr(changed, row.name) == value, (flag, text)
            continue
        if kind == "flag":
            assert option.name is not None
            assert (line.parse_values().params[option.name], line.parse_values(flag).params[option.name]) == (
                False,
                True,
            )
            continue
        if kind.endswith(".."):
            least = int(kind.removesuffix(".."))
            taken: list[tuple[str, Any]] = [(str(least), least), (str(2**40), 2**40)]
        elif "|" in kind:
            taken = [(each, each) for each in kind.split("|")]
        else:
            taken = TAKEN.get(kind, [])
        for text, value in taken:
            assert option.name is not None
            found = line.parse_values(f"{flag}={text}").params[option.name]
            assert found == (value if not option.multiple else (value,)), (flag, text)


# The options of commands: each changes its setting, and later sources override earlier ones

GROUPS = {"node": node_options, "up": up_options, "tower": tower_options, "config": config_options, "log": log_options}


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the logging of the tests as it is, and settings in the environment out of them.

    Another `os.environ` would stay with modules that are first imported here.
    """
    monkeypatch.setattr(options, "start_logging", lambda config: None)
    for name in [name for name in os.environ if name.startswith(("DAFKA_", "COLUMNS"))]:
        monkeypatch.delenv(name)
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
