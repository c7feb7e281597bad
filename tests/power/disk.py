"""A disk that loses unsynced writes: it replays a recording, and returns the files that a power failure would leave.

The rules are those of POSIX on a journaling file system, at their worst:

- A write, or a change of a file's size, is durable after a sync of the file that began later. Until then it may be
  lost, in any order and in parts of 512 bytes.
- That a folder has an entry (a file that was created, renamed or unlinked) is durable after a sync of that folder.
  Until then the latest changes of the folder may be lost, but they keep their order.
- A sync of the whole file system is one of all files and folders.
- A sync that failed makes nothing durable, and no later sync makes durable what was written before it, because Linux
  forgets that such pages are not written yet (`forgets_failed`). A sync of the whole file system has no such effect:
  Linux reports the error again when the file itself is synced.
- After a failure, a file may be larger than the data that arrived. The rest is zeros.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar, TypeAlias

import attrs

from tests.power.recording import Entry, Kind

SECTOR_BYTES = 512

Tree: TypeAlias = Mapping[str, "bytes | None"]
"""The contents of files by path; None for a folder. A folder comes before what it has."""


@attrs.frozen
class Change:
    """A change of a file: data at a position, or a new size if `data` is None."""

    number: int
    position: int
    data: bytes | None

    def apply_to(self, content: bytearray) -> None:
        if self.data is None:
            del content[self.position :]
            content.extend(bytes(self.position - len(content)))
            return
        content.extend(bytes(max(self.position - len(content), 0)))
        content[self.position : self.position + len(self.data)] = self.data

    def torn(self, *, begins: bool) -> list[Change]:
        """Return the part of a write that arrives: its first sector, or its size and all but the first sector."""
        if self.data is None:
            return []
        first = SECTOR_BYTES - self.position % SECTOR_BYTES
        if begins:
            return [attrs.evolve(self, data=self.data[:first])]
        rest = Change(self.number, self.position + first, self.data[first:])
        return [rest if rest.data else Change(self.number, self.position + len(self.data), b"")]


@attrs.frozen
class Fate:
    """What a power failure leaves of the unsynced changes of one file or folder: the first ones, `kept`.

    Of the change after them, its first sector arrives (`begins`), or all but that (`ends`). None for all changes.
    """

    kept: int | None = None
    begins: bool = False
    ends: bool = False

    def apply(self, changes: list[Change]) -> list[Change]:
        """Return what arrives of the changes of a file."""
        if self.kept is None:
            return changes
        torn = changes[self.kept : self.kept + 1] if self.begins or self.ends else []
        return changes[: self.kept] + [part for each in torn for part in each.torn(begins=self.begins)]


ALL, NOTHING = Fate(), Fate(0)


class File:
    """The content of a file that is durable, and the changes since."""

    def __init__(self) -> None:
        self._durable = bytearray()
        self._changes: list[Change] = []
        self._synced: set[int] = set()
        self._forgotten: set[int] = set()
        """The numbers of the changes that a failed sync has made Linux forget."""

    @property
    def unsynced(self) -> list[Change]:
        """The changes that may be lost."""
        return [change for change in self._changes if change.number not in self._synced]

    def add_change(self, change: Change) -> None:
        self._changes.append(change)

    def sync(self, before: int) -> None:
        """Make the changes before a number durable, except forgotten ones."""
        self._synced.update(each.number for each in self._changes if each.number < before)
        self._synced -= self._forgotten
        while self._changes and self._changes[0].number in self._synced:
            change = self._changes.pop(0)
            self._synced.discard(change.number)
            change.apply_to(self._durable)

    def forget(self, before: int) -> None:
        numbers = {change.number for change in self._changes if change.number < before}
        self._forgotten |= numbers - self._synced

    def content_after(self, fate: Fate) -> bytes:
        kept = [change for change in self._changes if change.number in self._synced] + fate.apply(self.unsynced)
        content = bytearray(self._durable)
        for change in sorted(kept, key=lambda change: change.number):
            change.apply_to(content)
        return bytes(content)


Node: TypeAlias = "File | Folder"


@attrs.frozen
class Renaming:
    """A change of a folder: entries that now stand for another file, or for none."""

    number: int
    entries: dict[str, Node | None]


class Folder:
    """The durable entries of a folder, and the changes since."""

    def __init__(self) -> None:
        self.durable: dict[str, Node] = {}
        self.unsynced: list[Renaming] = []

    def entries(self, fate: Fate = ALL) -> dict[str, Node]:
        """Return the entries that a power failure leaves; by default those that the folder has."""
        found: dict[str, Node | None] = dict(self.durable)
        for change in self.unsynced[: fate.kept]:
            found.update(change.entries)
        return {name: node for name, node in found.items() if node is not None}

    def sync(self, before: int) -> None:
        count = sum(change.number < before for change in self.unsynced)
        self.durable = self.entries(Fate(count))
        del self.unsynced[:count]


class Disk:
    """The files below a folder, from the first recording of a process to a moment in the latest one.

    Args:
        root: The folder in which the process was recorded.
        forgets_failed: Whether no sync makes durable what an earlier sync of the file failed to.
    """

    def __init__(self, root: Path, *, forgets_failed: bool = True) -> None:
        self._root = str(root.resolve())
        self._forgets_failed = forgets_failed
        self._folder = Folder()
        self._open: dict[int, Node] = {}
        self._syncing: dict[int, list[int]] = {}
        self._number = 0

    def start_process(self, root: Path) -> None:
        """Begin to replay a process that was recorded in a folder. The one before has ended, and synced nothing."""
        self._root = str(root.resolve())
        self._open, self._syncing = {}, {}

    def apply(self, entry: Entry) -> None:
        self._number += 1
        apply = self._APPLY.get(entry.kind)
        if apply is not None:
            apply(self, entry)

    def tree(self, default: Fate, others: Mapping[Node, Fate] | None = None) -> Tree:
        """Return the files that a power failure leaves at this moment: `others` have other fates than the default."""
        tree: dict[str, bytes | None] = {}
        _collect(self._folder, "", default, others or {}, tree)
        return tree

    def fates(self) -> Iterator[tuple[Fate, dict[Node, Fate]]]:
        """Yield what a power failure may do at this moment: the default, and the fates of other files and folders.

        Nothing arrives, or all does, or only that of one file or folder, or all but that, or all but its last changes,
        of which one may be torn.
        """
        yield NOTHING, {}
        yield ALL, {}
        changed = [node for node in [self._folder, *(node for _, node in _walk(self._folder))] if node.unsynced]
        for node in changed:
            yield NOTHING, {node: ALL}
            count = len(node.unsynced)
            for kept in {0, count - 1}:
                yield ALL, {node: Fate(kept)}
            if isinstance(node, File):
                yield ALL, {node: Fate(count - 1, begins=True)}
                yield ALL, {node: Fate(count - 1, ends=True)}

    def _open_file(self, entry: Entry) -> None:
        folder, name = self._find(entry.first)
        node = folder if not name else folder.entries().get(name)
        if node is None:
            node = File()
            folder.unsynced.append(Renaming(self._number, {name: node}))
        elif entry.value & os.O_TRUNC and isinstance(node, File):
            node.add_change(Change(self._number, 0, None))
        self._open[entry.fd] = node

    def _close_file(self, entry: Entry) -> None:
        del self._open[entry.fd]

    def _change_file(self, entry: Entry) -> None:
        node = self._open[entry.fd]
        assert isinstance(node, File)
        node.add_change(Change(self._number, entry.value, entry.first if entry.kind is Kind.WRITE else None))

    def _begin_sync(self, entry: Entry) -> None:
        self._syncing.setdefault(entry.fd, []).append(self._number)

    def _end_sync(self, entry: Entry) -> None:
        node, before = self._open[entry.fd], self._syncing[entry.fd].pop(0)
        if entry.value == 0:
            node.sync(before)
        elif isinstance(node, File) and self._forgets_failed:
            node.forget(before)

    def _sync_all(self, entry: Entry) -> None:
        before = self._syncing[entry.fd].pop(0) if entry.fd >= 0 else self._number
        for _, node in [("", self._folder), *_walk(self._folder)] if entry.value == 0 else ():
            node.sync(before)

    def _reject(self, entry: Entry) -> None:
        path = next((name for name, node in _walk(self._folder) if node is self._open[entry.fd]), "")
        if not path.endswith("-shm"):  # SQLite builds this file again
            raise NotImplementedError(f"{path}: {entry.first.decode()}")

    def _change_folder(self, entry: Entry) -> None:
        folder, name = self._find(entry.first)
        if entry.kind is Kind.MAKE_FOLDER:
            changes: dict[str, Node | None] = {name: Folder()}
        else:
            changes = {name: None}
        if entry.kind is Kind.RENAME:
            target, new_name = self._find(entry.second)
            if target is not folder:
                raise NotImplementedError("a rename to another folder")
            changes[new_name] = folder.entries()[name]
        folder.unsynced.append(Renaming(self._number, changes))

    def _find(self, path: bytes) -> tuple[Folder, str]:
        """Return the folder of a path, and the name in it; the root and an empty name for the root itself."""
        *parents, name = os.path.relpath(os.fsdecode(path), self._root).split("/")
        folder = self._folder
        for parent in parents:
            found = folder.entries()[parent]
            assert isinstance(found, Folder)
            folder = found
        return (folder, "") if name == "." else (folder, name)

    _APPLY: ClassVar[dict[Kind, Callable[[Disk, Entry], None]]] = {
        Kind.OPEN: _open_file,
        Kind.CLOSE: _close_file,
        Kind.WRITE: _change_file,
        Kind.TRUNCATE: _change_file,
        Kind.SYNC_BEGIN: _begin_sync,
        Kind.SYNC_END: _end_sync,
        Kind.SYNC_ALL: _sync_all,
        Kind.RENAME: _change_folder,
        Kind.UNLINK: _change_folder,
        Kind.MAKE_FOLDER: _change_folder,
        Kind.REMOVE_FOLDER: _change_folder,
        Kind.UNSUPPORTED: _reject,
    }


def store_tree(tree: Tree, target: Path) -> None:
    os.mkdir(target)
    for path, content in tree.items():
        if content is None:
            os.mkdir(f"{target}/{path}")
        else:
            with open(f"{target}/{path}", "wb", buffering=0) as file:
                file.write(content)


def _walk(folder: Folder, prefix: str = "") -> list[tuple[str, Node]]:
    found: list[tuple[str, Node]] = []
    for name, node in folder.entries().items():
        found.append((prefix + name, node))
        if isinstance(node, Folder):
            found += _walk(node, f"{prefix}{name}/")
    return found


def _collect(
    folder: Folder, prefix: str, default: Fate, others: Mapping[Node, Fate], tree: dict[str, bytes | None]
) -> None:
    for name, node in folder.entries(others.get(folder, default)).items():
        path = prefix + name
        if isinstance(node, Folder):
            tree[path] = None
            _collect(node, f"{path}/", default, others, tree)
        else:
            tree[path] = node.content_after(others.get(node, default))
