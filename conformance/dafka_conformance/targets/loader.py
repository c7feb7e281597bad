"""Opens a target by the name that the user gives: a shipped target, a target file, or a Python factory."""

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
    """Return the names of the targets that come with the suite."""
    return tuple(sorted([_EMBEDDED, *(path.stem for path in _FOLDER.glob("*.toml"))]))


def open_target(name_or_path: str, variables: Mapping[str, str]) -> Target:
    """Return the target with this name.

    Args:
        name_or_path: One of `shipped_targets`, the path of a `.toml` file (see `target_file`), or
            `package.module:factory`, a callable that returns a `Target`.
        variables: The values of the file's variables, or the keyword arguments of the factory.

    Returns:
        The target, not started.

    Raises:
        TargetError: There is no such target, or its description is wrong.
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
        f"unknown target {name_or_path!r}: expected {', '.join(shipped_targets())}, "
        "the path of a .toml file, or a Python factory package.module:factory"
    )


def _import(module: str, name: str) -> object:
    folder = os.getcwd()
    if folder not in sys.path:  # an installed command does not search the current folder, as `python -m` does
        sys.path.insert(0, folder)
    try:
        found: object = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:  # the user's module may raise anything
        raise TargetError(f"cannot import the target {module}:{name}: {type(error).__name__}: {error}") from None
    return found


def _call(name: str, factory: object, variables: Mapping[str, str]) -> Target:
    if not callable(factory):
        raise TargetError(f"{name} is not a target: expected a class or function that returns a Target")
    try:
        inspect.signature(factory).bind(**variables)
    except TypeError as error:
        takes = ", ".join(inspect.signature(factory).parameters) or "no variables"
        raise TargetError(f"{name} cannot be called with these variables ({error}): expected {takes}") from None
    try:
        target = factory(**variables)
    except TargetError:
        raise
    except Exception as error:  # the user's factory may raise anything
        raise TargetError(f"{name} failed: {type(error).__name__}: {error}") from None
    if not isinstance(target, Target):
        raise TargetError(f"{name} returned {target!r}: expected a Target")
    return target
