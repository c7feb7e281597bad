"""Finding plugins by entry point: `dafka.storage` and `dafka.discovery`, ours and anybody's."""

from __future__ import annotations

from typing import Any

from dafka.errors import LocalError


def load_plugin(group: str, name: str, error: type[LocalError]) -> Any:
    """What the entry point `name` of `group` stands for.

    Raises `error` where no such plugin is installed (naming those that are), or it cannot be imported.
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
