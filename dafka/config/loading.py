"""Sections from where settings stand: TOML and the environment."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import attrs

from dafka.config.checks import key_of
from dafka.errors import ConfigError

_Section = TypeVar("_Section")


def _keys(section: type[Any]) -> dict[str, str]:
    """The attribute behind each key of a section."""
    return {key_of(attribute): attribute.name for attribute in attrs.fields(section)}


def make_section(section: type[_Section], name: str, values: Mapping[str, Any]) -> _Section:
    """The section with these values, by key. Raises `ConfigError` for an unknown key, or a value out of range."""
    keys = _keys(section)
    unknown = sorted(set(values) - set(keys))
    if unknown:
        raise ConfigError(f"unknown key {unknown[0]!r} in [{name}]: expected one of {', '.join(keys)}")
    try:
        return section(**{keys[key]: value for key, value in values.items()})
    except ConfigError as error:
        raise ConfigError(f"[{name}] {error}") from None


def read_toml(path: Path) -> dict[str, dict[str, Any]]:
    """What a file says, by section and key. Raises `ConfigError` where it cannot be read, or is not TOML."""
    try:
        with path.open("rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from None
    except ValueError as error:  # not TOML, not UTF-8, or a number of thousands of digits
        raise ConfigError(f"{path} is not TOML: {error}") from None
    for section, values in document.items():
        if not isinstance(values, dict):
            raise ConfigError(
                f"{path}: {section!r} stands outside of a section; expected [{section}] or a section's key"
            )
    return {section: _flatten(values) for section, values in document.items()}


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """TOML's `offset.reset = ...` is a table in a table; here it is one key."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat.update(_flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def read_variable(sections: Mapping[str, type[Any]], name: str, text: str) -> Iterator[tuple[str, str, str | int]]:
    """The setting that an environment variable stands for, if any."""
    for section, kind in sections.items():
        for attribute in attrs.fields(kind):
            key = key_of(attribute)
            if name == f"DAFKA_{section}_{key}".upper().replace(".", "_"):
                yield section, key, _parse_number(text) if attribute.type in (int, "int") else text


def _parse_number(text: str) -> str | int:
    """The number, or what stands there instead, for the setting's check to refuse."""
    try:
        return int(text)
    except ValueError:
        return text
