"""Plugins, found by their entry points: the groups `dafka.storage` and `dafka.discovery`."""

from __future__ import annotations

from typing import Any

from dafka.errors import LocalError


def load_plugin(group: str, name: str, error: type[LocalError]) -> Any:
    """Load a plugin.

    Args:
        group: The entry-point group.
        name: The name of the plugin in the group.
        error: The class of the error to raise if the plugin is not installed or cannot be imported.

    Returns:
        The object that the entry point refers to.
    """
    from importlib.metadata import entry_points  # noqa: PLC0415 (slow to load)

    found = {entry.name: entry for entry in entry_points(group=group)}
    kind = group.rpartition(".")[2]
    if name not in found:
        installed = ", ".join(sorted(found)) or "none"
        raise error(f"unknown {kind} {name!r}: installed are {installed}")
    try:
        return found[name].load()
    except ImportError as reason:
        raise error(f"{kind} {name!r} cannot be loaded: {reason}") from reason
