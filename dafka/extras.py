"""What may be installed beside dafka: packages of extras, and plugins, which are found by their entry points."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dafka.errors import LocalError, MissingExtraError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_found: dict[tuple[str, str], EntryPoint] = {}


@contextmanager
def require_extra(extra: str, feature: str) -> Iterator[None]:
    """Raise `MissingExtraError` if a package that the block imports for a feature is not installed.

    The error names the feature and the extra to install.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0].replace("_", "-")
        if package in {"", "dafka"}:
            raise
        raise MissingExtraError(f"{feature} needs {package}: pip install 'dafka[{extra}]'") from None


def load_plugin(group: str, name: str, error: type[LocalError]) -> Any:
    """Return the object that an entry point names in a group such as `dafka.storage`.

    Raise `error` if no such plugin is installed, or it cannot be imported.
    """
    kind = group.rpartition(".")[2]
    if (group, name) not in _found:
        from importlib.metadata import entry_points  # noqa: PLC0415 (slow to load)

        # Cached, because it reads the metadata of every installed package.
        installed = {(group, entry.name): entry for entry in entry_points(group=group)}
        _found.update(installed)
        if (group, name) not in installed:
            names = ", ".join(sorted(name for _, name in installed)) or "none"
            raise error(f"unknown {kind} {name!r}: installed are {names}")
    try:
        return _found[group, name].load()
    except (ImportError, AttributeError) as reason:
        raise error(f"{kind} {name!r} cannot be loaded: {reason}") from reason
