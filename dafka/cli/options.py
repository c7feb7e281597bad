"""The command's options: those that change a setting, and the types of the others.

An option that changes a setting has the setting's name: `--grace-ms` is `grace_ms` of the section `[node]`. To add one,
decorate the command with `setting_option`, or add it to one of the groups below. `node_options`, `tower_options` and
`log_options` give the command its `config`, with the settings that the options changed.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click
from click.shell_completion import CompletionItem
from click.types import FuncParamType

from dafka.cli.terminal import COMMAND_LOG, UsageMistake, start_logging
from dafka.config import Config
from dafka.config.configuration import SECTIONS, change_section, load_config
from dafka.config.loading import log_unknown_variables, parse_value
from dafka.config.values import format_duration_ms, parse_duration_ms, parse_size_bytes, parse_time_ms
from dafka.errors import ConfigError, MissingExtraError
from dafka.roles.logging_events import ConfigFileUnused
from dafka.storage.plugin_helpers import now_ms

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

UNUSED_FILE = Path("dafka.toml")
"""A file that looks like a configuration, and is read only if `--config` names it."""

_GIVEN = "dafka.settings"
"""The key in click's context of the settings that options have changed."""


def parsed_type(parse: Callable[[str], Any]) -> click.ParamType[Any]:
    """Return the type of an option whose text a function parses; its `ValueError` says what was expected."""

    def convert(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return FuncParamType(convert)


def _positive(parse: Callable[[str], int], expected: str) -> Callable[[str], int]:
    def convert(text: str) -> int:
        number = parse(text)
        if not number:
            raise ValueError(f"expected {expected} above 0, not {text!r}")
        return number

    return convert


DURATION = parsed_type(_positive(parse_duration_ms, "a duration"))
"""The type of an option that is a duration and no setting, such as `--timeout 10s`. Its value is in milliseconds."""

TIME = parsed_type(lambda text: parse_time_ms(text, now_ms()))
"""The type of an option that is a time: how long ago, or an ISO 8601 time. Its value is in milliseconds since 1970."""

BYTES = parsed_type(_positive(parse_size_bytes, "a size"))
"""The type of an option that is a size and no setting. Its value is in bytes."""


class SettingOption(click.Option):
    """An option that changes the setting `setting` of the section `section`."""

    def __init__(self, *args: Any, section: str, setting: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section
        self.setting = setting

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete paths as the shell does, and choices."""
        is_path = self.metavar in {"FILE", "PATH"}
        return [CompletionItem(incomplete, type="file")] if is_path else super().shell_complete(ctx, incomplete)


def setting_option(
    section: str, name: str, text: str, metavar: str = "", *, flag: str = "", default: str = "", multiple: bool = False
) -> Decorator:
    """Add an option that changes a setting of the command's `config`.

    The option has the setting's name unless `flag` says more: `--log-level`. The help shows `metavar` for its value, or
    the setting's unit, and `default` if the default itself says too little.
    """
    flag = flag or f"--{name.replace('_', '-')}"
    kind = SECTIONS[section]
    hint = get_type_hints(kind)[name]
    choices = click.Choice(get_args(hint)) if get_origin(hint) is Literal else None
    unit = "DURATION" if name.endswith("_ms") else "SIZE" if name.endswith("_bytes") else "N"

    def remember(context: click.Context, _parameter: click.Parameter, value: Any) -> None:
        if value is None or value == ():
            return
        try:
            changed = parse_value(kind, name, ",".join(value) if multiple else value, flag)
        except ConfigError as error:
            raise click.BadParameter(str(error).removeprefix(f"{flag}: ")) from None
        context.meta.setdefault(_GIVEN, {})[section, name] = changed

    own_default = getattr(kind(), name)
    if name.endswith("_ms"):
        own_default = format_duration_ms(own_default)
    shown = default or (", ".join(own_default) if isinstance(own_default, tuple) else own_default)
    return click.option(
        flag,
        f"{section}_{name}",
        cls=SettingOption,
        section=section,
        setting=name,
        metavar=None if choices else metavar or unit,
        type=choices,
        multiple=multiple,
        expose_value=False,
        callback=remember,
        help=f"{text}  [default: {shown}]",
    )


def add_options(*options: Decorator) -> Decorator:
    """Add options to a command. The help lists them in this order."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _towers_options(which: str, default: str = "") -> Decorator:
    """Add the options that name towers; without a default, the help shows the settings' own."""
    sub, pub = (f"{which} tower's {kind} endpoint, in place of --tower; may be repeated." for kind in ("SUB", "PUB"))
    return add_options(
        setting_option(
            "beacon",
            "tower",
            f"{which} tower; PORT is that of its SUB endpoint. Repeat it for several towers.",
            "HOST[:PORT]",
            default=default or "127.0.0.1:5556",
            multiple=True,
        ),
        setting_option("beacon", "tower_sub", sub, "ENDPOINT", default=default, multiple=True),
        setting_option("beacon", "tower_pub", pub, "ENDPOINT", default=default, multiple=True),
    )


_NODE_OPTIONS = add_options(
    setting_option(
        "node", "bind", "The endpoint at which this node listens to its peers, such as tcp://*:*.", "ENDPOINT"
    ),
    setting_option(
        "beacon",
        "advertise",
        "The host under which peers reach this node.",
        "HOST",
        default="the address that the tower sees",
    ),
    setting_option("node", "wire", "The dialect to send; both are understood."),
    setting_option("node", "grace_ms", "How long to finish work after a signal, such as 10s."),
    setting_option(
        "security",
        "tower_keys",
        "The towers' public key, or a file with it; repeat it if towers have different keys.",
        "KEY",
        default="none",
        multiple=True,
    ),
)

_TOWER_OPTIONS = add_options(
    setting_option("security", "key_file", "The secret key, made by `dafka keys new`.", "FILE", default="none"),
    setting_option(
        "security",
        "authorized_keys",
        "A file or folder of public keys: the nodes and towers that may connect.",
        "PATH",
        default="none",
    ),
    setting_option(
        "metrics",
        "listen",
        "Serve /metrics, /livez and /readyz here; a port alone is one of 127.0.0.1.",
        "[ADDRESS:]PORT",
        flag="--metrics-listen",
        default="not served",
    ),
)

_LOG_OPTIONS = add_options(
    setting_option("log", "level", "The lowest level to log.", flag="--log-level"),
    setting_option("log", "format", "One sentence or one JSON object per line.", flag="--log-format"),
)

_CONFIG_OPTIONS = add_options(
    click.option("--config", "config_path", type=click.Path(), metavar="FILE", help="A TOML file with settings."),
    click.option("-v", "--verbose", count=True, help="Log what happens (--log-level info); -vv for more."),
)


def _give_config(*options: Decorator) -> Decorator:
    """Return a decorator that adds options to a command, and gives it `config`."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def wrapper(*args: Any, config_path: str | None = None, verbose: int = 0, **others: Any) -> Any:
            return command(*args, config=_make_config(config_path, verbose), **others)

        return add_options(*options)(wrapper)

    return decorate


def _make_config(path: str | None, verbose: int) -> Config:
    """Load the settings, change those that options gave, and start logging as they say."""
    with usage_mistakes():
        config, unknown_variables = load_config(path, os.environ)
        if verbose:
            config = config.with_log(level="info" if verbose == 1 else "debug")
        given: dict[str, dict[str, Any]] = {}
        for (section, name), value in click.get_current_context().meta.get(_GIVEN, {}).items():
            given.setdefault(section, {})[name] = value
        for section, settings in given.items():
            config = change_section(config, section, settings)
        start_logging(config.log)
    log_unknown_variables(unknown_variables)
    if path is None and UNUSED_FILE.exists():
        COMMAND_LOG.write(ConfigFileUnused(str(UNUSED_FILE)), logging.WARNING)
    return config


_SHARED_OPTIONS = (_TOWER_OPTIONS, _LOG_OPTIONS, _CONFIG_OPTIONS)

node_options = _give_config(_towers_options("A"), _NODE_OPTIONS, *_SHARED_OPTIONS)
"""Adds the options of every node to a command, which gets `config`."""

up_options = _give_config(
    _towers_options("Another", default="only this process's tower"), _NODE_OPTIONS, *_SHARED_OPTIONS
)
"""Adds the options of a node that runs beside its own tower to a command, which gets `config`."""

tower_options = _give_config(*_SHARED_OPTIONS)
"""Adds the options that towers and nodes share to a command, which gets `config`."""

config_options = _give_config(_CONFIG_OPTIONS)
"""Adds `--config` and `-v` to a command, which gets `config`."""

log_options = _give_config(_LOG_OPTIONS)
"""Adds `--log-level` and `--log-format` to a command, which gets `config`."""


@contextmanager
def usage_mistakes() -> Iterator[None]:
    """Turn the error of a wrong setting, or of a missing extra, into a `UsageMistake`."""
    try:
        yield
    except (ConfigError, MissingExtraError) as error:
        raise UsageMistake(str(error)) from None
