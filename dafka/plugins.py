"""Storage and discovery plugins, which are found by their entry points (`dafka.storage`, `dafka.discovery`)."""

from __future__ import annotations

from typing import Any

from dafka.errors import LocalError


def load_plugin(group: str, name: str, error: type[LocalError]) -> Any:
    """Load the plugin that an entry point names.

    Args:
        group: The entry-point group, such as `dafka.storage`.
        name: The name of the entry point.
        error: The exception to raise.

    Returns:
        The object that the entry point names.

    Raises:
        LocalError: `error`, if no such plugin is installed, or it cannot be imported.
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
