"""Making written files durable: at once, after a delay, or on request."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress

from dafka.durable_files import can_sync_filesystem, sync_filesystem, sync_folder
from dafka.storage.filelog.files import FilePool

SYNC_THREADS = 8
"""The number of files that are synced concurrently. An append to many partitions must sync a file of each."""

TOGETHER_MIN = 16
"""The number of changed folders from which on new segments are synced by one sync of the file system.

A sync of each file and folder has the file system write its journal each time. But one sync of the file system also
waits for the data of other programs, so it is not worth that for few segments.
"""


class Syncer:
    """Syncs files and folders `delay_ms` after a write; if it is None, only by `flush`.

    `folder` has all of them; if it is None, they are never synced together. Every method but `close` raises `OSError`.
    """

    def __init__(self, pool: FilePool, delay_ms: int | None, folder: str | None = None) -> None:
        self._pool = pool
        self._delay_ms = delay_ms
        self._fd = -1 if folder is None else os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._device = -1 if folder is None else os.fstat(self._fd).st_dev
        self._syncs_together = folder is not None and can_sync_filesystem(self._fd)
        self._files: set[str] = set()
        self._folders: set[str] = set()
        self._failed: set[str] = set()
        self._threads: ThreadPoolExecutor | None = None
        self._flush_lock = threading.Lock()
        self._changed = threading.Condition()
        self._timer: threading.Thread | None = None
        self._error: OSError | None = None
        self._is_closing = False

    @property
    def is_immediate(self) -> bool:
        """Whether each write is synced at once."""
        return self._delay_ms == 0

    def raise_delayed_error(self) -> None:
        """Raise the error of the last delayed sync, if any, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def sync_written(self, files: Collection[str], folders: Collection[str]) -> None:
        """Sync files that were written, and folders whose files changed, now or after the delay."""
        if self._delay_ms == 0:
            self.sync_now(files, folders)
            return
        with self._changed:
            self._files.update(files)
            self._folders.update(folders)
            if self._delay_ms is not None and self._timer is None:
                self._timer = threading.Thread(target=self._run_timer, args=(self._delay_ms / 1000,), daemon=True)
                self._timer.start()
            self._changed.notify_all()

    def check_device(self, device: int) -> None:
        """Check the device of a new segment: if links lead to other file systems, segments are synced one by one."""
        if device != self._device:
            self._syncs_together = False

    def sync_segments(self, created: Collection[str], others: Collection[str], folders: Collection[str]) -> None:
        """Sync created segments and other files, and the folders that have changed, now or after the delay."""
        if self._delay_ms != 0 or len(folders) < TOGETHER_MIN or not self._syncs_together:
            self.sync_written([*created, *others], folders)
            return
        try:
            sync_filesystem(self._fd)
        except OSError:
            with self._changed:
                self._failed |= self._files  # any of these may have failed, too
            raise
        self.sync_now(others, ())

    def sync_later(self, files: Collection[str], folders: Collection[str] = ()) -> None:
        """Sync files and folders with the next `flush`, or earlier."""
        with self._changed:
            self._files.update(files)
            self._folders.update(folders)

    def sync_now(self, files: Collection[str], folders: Collection[str]) -> None:
        """Sync files and folders, several at a time. Removed ones are ignored."""
        if len(files) + len(folders) <= 1:
            for path in files:
                self._sync_file(path)
            for path in folders:
                _sync_folder(path)
        else:
            self._run_all(self._sync_file, files)
            self._run_all(_sync_folder, folders)

    def take_failed(self) -> set[str]:
        """Return the files whose sync has failed since the last call.

        The system may have dropped their written data, and a later sync would succeed nevertheless.
        """
        with self._changed:
            failed, self._failed = self._failed, set()
        return failed

    def flush(self) -> None:
        """Make everything durable."""
        with self._flush_lock:
            with self._changed:
                files, folders = self._files, self._folders
                self._files, self._folders = set(), set()
            try:
                self.sync_now(files, folders)
            except BaseException:
                with self._changed:
                    self._files |= files
                    self._folders |= folders
                raise

    def close(self) -> None:
        """Stop the threads, without syncing."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._timer is not None:
            self._timer.join()
        if self._threads is not None:
            self._threads.shutdown()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _run_timer(self, delay_s: float) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closing or self._files or self._folders)
                self._changed.wait_for(lambda: self._is_closing, delay_s)
                if self._is_closing:
                    return
            try:
                self.flush()
            except OSError as error:
                self._error = error

    def _run_all(self, sync: Callable[[str], None], paths: Collection[str]) -> None:
        """Sync several paths, and raise the first error after all have ended.

        Linux reports an error of a file once. A sync that is still running could take the error of a later write.
        """
        left, errors = iter(paths), list[BaseException]()

        def sync_rest() -> None:
            for path in left:
                try:
                    sync(path)
                except BaseException as error:
                    errors.append(error)

        if self._threads is None:
            self._threads = ThreadPoolExecutor(SYNC_THREADS, "filelog-sync")
        wait([self._threads.submit(sync_rest) for _ in range(min(SYNC_THREADS, len(paths)))])
        if errors:
            raise errors[0]

    def _sync_file(self, path: str) -> None:
        with suppress(FileNotFoundError), self._pool.open_file(path) as fd:  # the file may have been trimmed
            try:
                os.fdatasync(fd)
            except OSError:
                with self._changed:
                    self._failed.add(path)
                raise


def _sync_folder(path: str) -> None:
    with suppress(FileNotFoundError):
        sync_folder(path)
