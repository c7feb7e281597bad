"""Finds a target by what the user calls it: a shipped one's name, a target file, or a Python factory."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from dafka_conformance.targets.base import Target, TargetError
from dafka_conformance.targets.embedded import EmbeddedTarget
from dafka_conformance.targets.file_target import FileTarget
from dafka_conformance.targets.target_file import read_target_file

_FOLDER = Path(__file__).parent
_EMBEDDED = "embedded"


def shipped_targets() -> tuple[str, ...]:
    """The names of the targets that come with the suite."""
    return tuple(sorted([_EMBEDDED, *(path.stem for path in _FOLDER.glob("*.toml"))]))


def open_target(name_or_path: str, variables: Mapping[str, str]) -> Target:
    """The target of this name; `variables` are what the user set for it.

    A name is one of `shipped_targets`, the path of a `.toml` file (see `description`), or `package.module:factory`:
    something that, called with the variables as keyword arguments, gives a `Target`.

    Raises `TargetError` where there is none, or where it is described wrongly.
    """
    if name_or_path == _EMBEDDED:
        return _call(name_or_path, EmbeddedTarget, variables)
    if name_or_path in shipped_targets():
        return FileTarget(read_target_file(_FOLDER / f"{name_or_path}.toml", variables))
    if name_or_path.endswith(".toml"):
        return FileTarget(read_target_file(Path(name_or_path), variables))
    module, separator, factory = name_or_path.partition(":")
    if separator and "/" not in name_or_path:
        return _call(name_or_path, _import(module, factory), variables)
    raise TargetError(
        f"there is no target {name_or_path!r}: expected {', '.join(shipped_targets())}, "
        "the path of a .toml file, or a Python factory as in package.module:factory"
    )


def _import(module: str, name: str) -> object:
    folder = os.getcwd()
    if folder not in sys.path:  # a command that was installed does not have it, as `python -m` would
        sys.path.insert(0, folder)
    try:
        found: object = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:  # whatever the user's module raises
        raise TargetError(f"cannot import the target {module}:{name}: {type(error).__name__}: {error}") from None
    return found


def _call(name: str, factory: object, variables: Mapping[str, str]) -> Target:
    if not callable(factory):
        raise TargetError(f"{name} is no target: expected a class or a function that gives a Target")
    try:
        inspect.signature(factory).bind(**variables)
    except TypeError as error:
        takes = ", ".join(inspect.signature(factory).parameters) or "nothing"
        raise TargetError(f"{name} was given the wrong variables ({error}): it takes {takes}") from None
    try:
        target = factory(**variables)
    except TargetError:
        raise
    except Exception as error:  # as with the import
        raise TargetError(f"{name} gave no target: {type(error).__name__}: {error}") from None
    if not isinstance(target, Target):
        raise TargetError(f"{name} is no target: it gave {target!r}, expected a Target")
    return target
