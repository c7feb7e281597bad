"""Records what this process does to the files below a folder through the functions of `os` and `open`.

Unlike `recorder.c`, it needs no other process, and sees nothing that is not Python, such as SQLite.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dafka.storage.filelog import syncing
from tests.power.recording import Entry, Kind

FOLDER_CHANGES = {
    "unlink": Kind.UNLINK,
    "remove": Kind.UNLINK,
    "mkdir": Kind.MAKE_FOLDER,
    "rmdir": Kind.REMOVE_FOLDER,
}
"""The functions of `os` that change a folder, other than renames."""

_BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"


class Recorder:
    """The recorded entries, and the marks between them.

    Attributes:
        entries: The entries so far.
        failing_syncs: The number of syncs that fail next.
        is_failing_folders: Whether syncs of folders fail.
        may_sync: While it is not set, syncs wait.
    """

    def __init__(self, root: Path) -> None:
        self.entries: list[Entry] = []
        self.failing_syncs = 0
        self.is_failing_folders = False
        self.may_sync = threading.Event()
        self.may_sync.set()
        self._root = str(root.resolve())
        self._real: dict[str, Any] = {}
        self._paths: dict[int, str] = {}
        self._lock = threading.RLock()

    def mark(self, text: str) -> None:
        self._add(Kind.MARK, first=text)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record while the block runs. Files that it opens must be closed when it ends."""
        calls = (
            *("open", "close", "write", "pwrite", "pwritev", "ftruncate", "fsync", "fdatasync"),
            *("rename", "replace"),
        )
        with pytest.MonkeyPatch.context() as patch:
            for name in calls:
                self._real[name] = getattr(os, name)
                patch.setattr(os, name, getattr(self, f"_{name}"))
            for name in FOLDER_CHANGES:
                self._real[name] = getattr(os, name)
                patch.setattr(os, name, self._changing_folder(name))
            for module in (builtins, io):
                patch.setattr(module, "open", self._open_object)
            patch.setattr(syncing, "can_sync_filesystem", lambda _fd: True)
            patch.setattr(syncing, "sync_filesystem", partial(self._sync, ends=Kind.SYNC_ALL))
            yield

    def _add(self, kind: Kind, fd: int = -1, value: int = 0, first: str | bytes = b"", second: str = "") -> None:
        with self._lock:
            data = first if isinstance(first, bytes) else os.fsencode(first)
            self.entries.append(Entry(kind, fd, value, data, os.fsencode(second)))

    def _path(self, path: Any, folder: int | None = None) -> str:
        """Return a path that is below the root; an empty one if it is not."""
        if isinstance(path, int):
            return ""
        text = os.fsdecode(path)
        if folder is not None:
            text = f"{self._paths[folder]}/{text}" if folder in self._paths else ""
        text = os.path.abspath(text) if text else text
        return text if text == self._root or text.startswith(f"{self._root}/") else ""

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        with self._lock:
            fd: int = self._real["open"](path, flags, mode, dir_fd=dir_fd)
            if found := self._path(path, dir_fd):
                self._paths[fd] = found
                self._add(Kind.OPEN, fd, flags, found)
            return fd

    def _forget(self, fd: int) -> None:
        if self._paths.pop(fd, None) is not None:
            self._add(Kind.CLOSE, fd)

    def _close(self, fd: int) -> None:
        with self._lock:
            self._forget(fd)
            self._real["close"](fd)

    def _wrote(self, fd: int, position: int, data: bytes) -> None:
        if fd in self._paths:
            self._add(Kind.WRITE, fd, position, data)

    def _write(self, fd: int, data: bytes) -> int:
        with self._lock:
            position = os.lseek(fd, 0, os.SEEK_CUR) if fd in self._paths else 0
            written: int = self._real["write"](fd, data)
            self._wrote(fd, position, bytes(data)[:written])
            return written

    def _pwrite(self, fd: int, data: bytes, position: int) -> int:
        return self._pwritev(fd, [data], position)

    def _pwritev(self, fd: int, buffers: Sequence[bytes], position: int) -> int:
        with self._lock:
            written: int = self._real["pwritev"](fd, buffers, position)
            self._wrote(fd, position, b"".join(buffers)[:written])
            return written

    def _ftruncate(self, fd: int, size: int) -> None:
        with self._lock:
            self._real["ftruncate"](fd, size)
            if fd in self._paths:
                self._add(Kind.TRUNCATE, fd, size)

    def _sync(self, fd: Any, ends: Kind = Kind.SYNC_END) -> None:
        """Sync nothing really: the recorded process is not the one that loses power."""
        number = fd if isinstance(fd, int) else fd.fileno()
        if number not in self._paths:
            return
        with self._lock:
            fails = self.failing_syncs > 0 or (self.is_failing_folders and os.path.isdir(self._paths[number]))
            self.failing_syncs -= self.failing_syncs > 0
            self._add(Kind.SYNC_BEGIN, number)
        self.may_sync.wait()
        self._add(ends, number, -1 if fails else 0)
        if fails:
            raise OSError(errno.EIO, "Input/output error")

    _fsync = _fdatasync = _sync

    def _replace(self, source: Any, target: Any) -> None:
        with self._lock:
            self._real["replace"](source, target)
            if found := self._path(target):
                self._add(Kind.RENAME, first=self._path(source), second=found)

    _rename = _replace

    def _changing_folder(self, name: str) -> Callable[..., None]:
        """Return what calls a function of `os` that changes a folder, and records it."""

        def change(path: Any, *mode: int, dir_fd: int | None = None) -> None:
            with self._lock:
                self._real[name](path, *mode, dir_fd=dir_fd)
                if found := self._path(path, dir_fd):
                    self._add(FOLDER_CHANGES[name], first=found)

        return change

    def _open_object(
        self, file: Any, mode: str = "r", buffering: int = -1, encoding: str | None = None, *rest: Any, **options: Any
    ) -> Any:
        is_below = file in self._paths if isinstance(file, int) else bool(self._path(file))
        if not is_below or not set(mode) & set("wax+"):
            return _OPEN(file, mode, buffering, encoding, *rest, **options)
        raw = _File(self, file, mode.replace("b", "").replace("t", ""))
        if buffering == 0:
            return raw
        buffered = io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding=encoding or "utf-8")


_OPEN = builtins.open


class _File(io.FileIO):
    """A file that Python has opened, and whose writes are recorded."""

    def __init__(self, recorder: Recorder, file: Any, mode: str) -> None:
        self._recorder = recorder
        super().__init__(file, mode, opener=lambda path, flags: recorder._open(path, flags, 0o666))

    def write(self, data: Any, /) -> int:
        with self._recorder._lock:
            position = self.tell()
            written = super().write(data)
            self._recorder._wrote(self.fileno(), position, bytes(data)[:written])
            return written

    def close(self) -> None:
        with self._recorder._lock:
            if not self.closed:
                self._recorder._forget(self.fileno())
            super().close()


@contextmanager
def another_boot(name: str = "after the power failure") -> Iterator[None]:
    """Report another identifier of the system's boot during the block."""
    from dafka.storage.filelog.catalog import boot_id

    def open_file(file: Any, *arguments: Any, **options: Any) -> Any:
        return io.BytesIO(name.encode()) if file == _BOOT_ID_PATH else _OPEN(file, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builtins, "open", open_file)
        boot_id.cache_clear()
        yield
    boot_id.cache_clear()
