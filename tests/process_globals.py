"""Settings of the whole process that a test can change: they are compared after each test, and restored."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

import attrs

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD, signal.SIGPIPE)

PYTEST_SETS = ("PYTEST_CURRENT_TEST",)
"""Environment variables that pytest changes."""


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in PYTEST_SETS}


def _restore_environment(before: dict[str, str]) -> None:
    for name in _environment().keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


Logging = dict[str, tuple[int, bool, bool, list[logging.Handler]]]


def _loggers() -> Logging:
    """Return the level, the flags and the handlers of the loggers that the product and programs set up."""
    loggers = (logging.getLogger(name) for name in ("", "dafka", "py.warnings"))
    return {each.name: (each.level, each.disabled, each.propagate, _handlers_of(each)) for each in loggers}


def _handlers_of(logger: logging.Logger, *, are_of_pytest: bool = False) -> list[logging.Handler]:
    """Return the handlers of a logger: pytest's, which come and go, or the others."""
    return [each for each in logger.handlers if type(each).__module__.startswith("_pytest.") is are_of_pytest]


def _restore_loggers(before: Logging) -> None:
    for name, (level, disabled, propagate, handlers) in before.items():
        logger = logging.getLogger(None if name == "root" else name)
        logger.setLevel(level)
        logger.disabled, logger.propagate = disabled, propagate
        logger.handlers[:] = [*_handlers_of(logger, are_of_pytest=True), *handlers]


def _handlers() -> dict[str, Any]:
    return {each.name: signal.getsignal(each) for each in SIGNALS}


def _restore_handlers(before: dict[str, Any]) -> None:
    for name, handler in before.items():
        if signal.getsignal(signal.Signals[name]) is not handler:
            signal.signal(signal.Signals[name], handler if handler is not None else signal.SIG_DFL)


def _hooks() -> dict[str, Any]:
    return {"sys.excepthook": sys.excepthook, "threading.excepthook": threading.excepthook}


def _restore_hooks(before: dict[str, Any]) -> None:
    sys.excepthook = before["sys.excepthook"]
    threading.excepthook = before["threading.excepthook"]


@attrs.define
class Constants:
    """The names in capitals of the product's modules that are loaded, and the values that they had at first.

    There are thousands, which are compared before and after each test: therefore they stand in lists, which built-in
    functions compare.
    """

    _labels: list[str] = attrs.field(factory=list)
    _namespaces: list[dict[str, Any]] = attrs.field(factory=list)
    _names: list[str] = attrs.field(factory=list)
    _values: list[Any] = attrs.field(factory=list)
    _known: set[str] = attrs.field(factory=set)
    _modules: int = 0

    def changed(self) -> dict[str, Any]:
        """Return the constants whose value is not what it was at first: by module and name."""
        if len(sys.modules) != self._modules:
            self._add_modules()
        now = list(map(dict.get, self._namespaces, self._names))
        if now == self._values:
            return {}
        found = zip(self._labels, now, self._values, strict=True)
        return {label: value for label, value, before in found if value != before}

    def restore(self, before: dict[str, Any]) -> None:
        """Set all constants to what they were."""
        for label, namespace, name, value in zip(
            self._labels, self._namespaces, self._names, self._values, strict=True
        ):
            namespace[name] = before.get(label, value)

    def _add_modules(self) -> None:
        self._modules = len(sys.modules)
        for module, loaded in list(sys.modules.items()):
            if module.startswith("dafka.") and module not in self._known:
                self._known.add(module)
                for name, value in vars(loaded).items():
                    if name.isupper() and isinstance(value, int | float | str | bytes | tuple):
                        self._labels.append(f"{module}.{name}")
                        self._namespaces.append(vars(loaded))
                        self._names.append(name)
                        self._values.append(value)


CONSTANTS = Constants()


def _restore_path(before: list[str]) -> None:
    sys.path[:] = before


@attrs.frozen
class Kind:
    """One kind of settings: how they are read and restored."""

    name: str
    read: Callable[[], Any]
    restore: Callable[[Any], None]


KINDS = (
    Kind("environment variables", _environment, _restore_environment),
    Kind("working folder", os.getcwd, os.chdir),
    Kind("signal handlers", _handlers, _restore_handlers),
    Kind("loggers", _loggers, _restore_loggers),
    Kind("hooks for exceptions", _hooks, _restore_hooks),
    Kind("default timeout of sockets", socket.getdefaulttimeout, socket.setdefaulttimeout),
    Kind("import path", lambda: list(sys.path), _restore_path),
    Kind("constants of dafka", CONSTANTS.changed, CONSTANTS.restore),
)


@attrs.frozen
class Globals:
    """The settings of the process at one time."""

    values: tuple[Any, ...]

    @classmethod
    def now(cls) -> Globals:
        """Return the settings of now."""
        return cls(tuple(kind.read() for kind in KINDS))

    def restore(self) -> list[str]:
        """Restore what has changed since, and return descriptions of it."""
        changed = []
        for kind, before in zip(KINDS, self.values, strict=True):
            after = kind.read()
            if after != before:
                kind.restore(before)
                changed.append(f"other {kind.name}: {_difference(before, after)}")
        return changed


def _difference(before: Any, after: Any) -> str:
    if isinstance(before, dict):
        names = sorted({*before, *after}, key=str)
        return ", ".join(str(name) for name in names if before.get(name) != after.get(name))
    return f"{after} instead of {before}"
