"""Reads settings from TOML files and environment variables, and explains unknown names.

A setting has one name everywhere: `interval_ms` of the section `[beacon]` is the environment variable
`DAFKA_BEACON_INTERVAL_MS` and the attribute `Config.beacon.interval_ms`. An unknown name in a file is
refused; an unknown variable is ignored, with a warning.
"""

from __future__ import annotations

import difflib
import logging
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs

from dafka.errors import ConfigError

Sections = Mapping[str, type[Any]]
"""The attrs class of each section."""

Values = dict[str, dict[str, Any]]
"""Values by section and setting."""

PREFIX = "DAFKA_"

OTHER_VARIABLES = frozenset({"DAFKA_ACCELERATOR"})
"""Environment variables with the prefix that are not settings."""

_LOG = logging.getLogger("dafka.config")


def check_value(kind: type[Any], name: str, value: Any, source: str) -> None:
    """Raise `ConfigError` if the value of a setting is invalid.

    The error begins with the source of the value, such as `--grace-ms` or `DAFKA_NODE_GRACE_MS`.
    """
    try:
        kind(**{name: value})
    except ConfigError as error:
        raise ConfigError(f"{source}: {str(error).removeprefix(f'{name}: ')}") from None


def parse_value(kind: type[Any], name: str, text: str, source: str) -> str | int:
    """Parse the text of a setting from the command line or the environment, and check it as `check_value` does."""
    value: str | int = text
    if attrs.fields_dict(kind)[name].type in (int, "int"):
        with suppress(ValueError):  # a duration or a size, or a value that the setting's validator refuses
            value = int(text)
    check_value(kind, name, value, source)
    return value


def variable_name(section: str, name: str) -> str:
    """Return the environment variable of a setting."""
    return f"{PREFIX}{section}_{name}".upper().replace(".", "_")


def read_file(path: Path, sections: Sections) -> Values:
    """Read the settings of a TOML file.

    Raise `ConfigError` if it cannot be read, is not TOML, or has an unknown section, an unknown setting or an invalid
    value.
    """
    try:
        with path.open("rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from None
    except ValueError as error:  # not TOML, not UTF-8, or a number of thousands of digits
        raise ConfigError(f"{path} is not TOML: {error}") from None
    try:
        return {section: _read_section(section, values, sections) for section, values in document.items()}
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _read_section(section: str, values: Any, sections: Sections) -> dict[str, Any]:
    if section not in sections:
        if not isinstance(values, dict):
            homes = [f"[{name}]" for name, kind in sections.items() if section in attrs.fields_dict(kind)]
            home = " or ".join(homes) or "such as [beacon]"
            raise ConfigError(f"{section!r} is outside of a section; write it below the line of its section, {home}")
        advice = _did_you_mean(section, sections, "[{}]") or f"expected one of {', '.join(sections)}"
        raise ConfigError(f"unknown section [{section}]: {advice}")
    if not isinstance(values, dict):
        raise ConfigError(f"{section!r} is the name of a section: expected [{section}], and its settings below it")
    kind = sections[section]
    flat = dict(_flatten(values))
    for name, value in flat.items():
        if name not in attrs.fields_dict(kind):
            names = list(attrs.fields_dict(kind))
            advice = _did_you_mean(name, names, "{}") or f"expected one of {', '.join(names)}"
            raise ConfigError(f"unknown setting {name!r} in [{section}]: {advice}")
        check_value(kind, name, value, f"[{section}] {name}")
    return flat


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Join the nested names of a TOML table with dots: `offset.reset = ...` becomes the name `offset.reset`."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _did_you_mean(name: str, names: Iterable[str], form: str) -> str:
    close = difflib.get_close_matches(name, list(names), 1, 0.75)
    return f"did you mean {form.format(close[0])}?" if close else ""


def read_environment(environ: Mapping[str, str], sections: Sections) -> tuple[Values, list[str]]:
    """Read the settings of environment variables. Raise `ConfigError` if a setting cannot have its value.

    Also return the names of the unknown variables with the prefix `DAFKA_`, some with a suggested name.
    """
    known = {
        variable_name(section, name): (section, name)
        for section, kind in sections.items()
        for name in attrs.fields_dict(kind)
    }
    values: Values = {}
    unknown = []
    for variable, text in environ.items():
        if not variable.startswith(PREFIX) or variable in OTHER_VARIABLES:
            continue
        if variable in known:
            section, name = known[variable]
            values.setdefault(section, {})[name] = parse_value(sections[section], name, text, variable)
        else:
            advice = _did_you_mean(variable, known, "{}")
            unknown.append(f"{variable} ({advice})" if advice else variable)
    return values, unknown


def log_unknown_variables(unknown: list[str]) -> None:
    """Log a warning about environment variables with the prefix that are not settings."""
    if unknown:
        _LOG.warning("Ignored environment variables that are not settings: %s", ", ".join(unknown))
