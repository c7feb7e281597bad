"""A text is replaced as a whole, and is on the disk when that is done."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from dafka import durable_files
from dafka.durable_files import replace_text, sync_folder


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_gets_the_mode_and_one_that_exists_keeps_its_own(tmp_path: Path) -> None:
    path = tmp_path / "text"
    replace_text(path, "first\n", 0o600)
    assert (path.read_text(), mode_of(path)) == ("first\n", 0o600)
    path.chmod(0o640)
    replace_text(path, "größer\n", 0o600)
    assert (path.read_text("utf-8"), mode_of(path)) == ("größer\n", 0o640)
    replace_text(path, "secret\n", 0o600, keeps_mode=False)
    assert (path.read_text(), mode_of(path)) == ("secret\n", 0o600)


def test_the_text_is_synced_before_it_is_visible_and_its_name_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "text"
    path.write_text("former")
    done: list[tuple[str, str]] = []
    fsync = os.fsync

    def record(descriptor: int) -> None:
        found = os.fstat(descriptor)
        place = os.readlink(f"/proc/self/fd/{descriptor}")
        assert Path(place).is_relative_to(tmp_path), "a file of another file system cannot be put in its place"
        done.append(("folder" if stat.S_ISDIR(found.st_mode) else "file", path.read_text()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    opened = os.listdir("/proc/self/fd")
    replace_text(path, "new", 0o600)
    assert done == [("file", "former"), ("folder", "new")]
    assert os.listdir("/proc/self/fd") == opened


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_failure_leaves_the_former_text_and_nothing_else(
    function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "text"
    path.write_text("former")

    def fail(*_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(os, function, fail)
    opened = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="no space"):
        replace_text(path, "new", 0o600)
    assert path.read_text() == "former"
    assert list(tmp_path.iterdir()) == [path]
    if function == "fsync":
        with pytest.raises(OSError, match="no space"):
            sync_folder(tmp_path)
    assert os.listdir("/proc/self/fd") == opened


class Library:
    """A C library whose calls fail with an error, and that says which file system a file is on."""

    def __init__(self, kind: int = 0xEF53, error: int = 0) -> None:
        self._kind, self._error = kind, error
        self.synced: list[int] = []

    def fstatfs(self, fd: int, found: ctypes.Array[ctypes.c_char]) -> int:
        assert fd == 7
        ctypes.c_long.from_buffer(found).value = self._kind
        return -1 if self._error else 0

    def syncfs(self, fd: int) -> int:
        self.synced.append(fd)
        ctypes.set_errno(self._error)
        return -1 if self._error else 0


def test_a_whole_file_system_is_synced_only_where_that_reaches_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    ext4, xfs, btrfs, fuse, tmpfs = 0xEF53, 0x58465342, 0x9123683E, 0x65735546, 0x01021994
    for library, can_sync in (
        *((Library(kind), kind not in {fuse, tmpfs}) for kind in (ext4, xfs, btrfs, fuse, tmpfs)),
        (Library(ext4, errno.EBADF), False),
        (None, False),
    ):
        monkeypatch.setattr(durable_files, "_find_library", lambda library=library: library)
        assert durable_files.can_sync_filesystem(7) is can_sync
    with pytest.raises(NotImplementedError):
        durable_files.sync_filesystem(7)
    library = Library()
    monkeypatch.setattr(durable_files, "_find_library", lambda: library)
    durable_files.sync_filesystem(7)
    assert library.synced == [7]
    library = Library(error=errno.ENOSPC)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)) as caught:
        durable_files.sync_filesystem(7)
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize(
    ("system", "pointer_bytes", "release", "is_used"),
    [
        ("linux", 8, "5.8.0-63-generic", True),
        ("linux", 8, "5.10", True),
        ("linux", 8, "6.rc1", True),
        ("linux", 8, "5.7.19", False),
        ("linux", 8, "4.19.0", False),
        ("linux", 4, "6.1", False),
        ("darwin", 8, "23.1", False),
    ],
)
def test_a_system_that_hides_failed_writes_is_not_asked_to_sync(
    system: str, pointer_bytes: int, release: str, is_used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_files, "sys", SimpleNamespace(platform=system))
    monkeypatch.setattr(durable_files, "platform", SimpleNamespace(release=lambda: release))
    monkeypatch.setattr(durable_files, "struct", SimpleNamespace(calcsize={"P": pointer_bytes}.__getitem__))
    library = durable_files._find_library.__wrapped__()
    assert (library is not None) == is_used
    if library is not None:
        assert library.syncfs(-1) == -1
        assert ctypes.get_errno() == errno.EBADF, "it keeps the error"
