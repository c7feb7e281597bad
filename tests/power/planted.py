"""Planted bugs: each breaks in a few lines, as a mistake would, a promise that only a power failure shows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import pytest

from dafka.storage.filelog import catalog, files, layout, positions
from dafka.storage.filelog.partition import PartitionLog
from dafka.storage.filelog.syncing import Syncer
from dafka.storage.filelog.writer import LogWriter
from dafka.storage.sqlite.storage import SqliteStorage
from dafka.storage.sqlite.write_ahead_log import WriteAheadLog

Patch = pytest.MonkeyPatch


def sqlite_commits_without_sync(patch: Patch) -> None:
    run = SqliteStorage._run_transaction

    async def relaxed(self: SqliteStorage, change: Any, *, without_sync: bool = False) -> Any:
        return await run(self, change, without_sync=True)

    patch.setattr(SqliteStorage, "_run_transaction", relaxed)


def sqlite_stays_relaxed_after_trim(patch: Patch) -> None:
    @contextmanager
    def without_sync(self: WriteAheadLog) -> Any:
        self._writer.execute("PRAGMA synchronous = NORMAL")
        yield

    patch.setattr(WriteAheadLog, "without_sync", without_sync)


def sqlite_acknowledges_unsynced_log(patch: Patch) -> None:
    patch.setattr(WriteAheadLog, "sync_found", lambda self: None)


def sqlite_flush_does_nothing(patch: Patch) -> None:
    patch.setattr(WriteAheadLog, "flush", lambda self: None)


def new_folder_entries_not_synced(patch: Patch) -> None:
    sync = LogWriter._sync_appended
    patch.setattr(LogWriter, "_sync_appended", lambda self, appends, _: sync(self, appends, set()))


def folders_above_not_synced(patch: Patch) -> None:
    make = LogWriter._make_folders
    patch.setattr(LogWriter, "_make_folders", lambda self, log: make(self, log) and set())


def failed_sync_forgets_folders(patch: Patch) -> None:
    def make_folders(self: LogWriter, log: Any) -> set[str]:
        return set(files.make_folders(log.folder))

    patch.setattr(LogWriter, "_make_folders", make_folders)


def segment_not_synced(patch: Patch) -> None:
    patch.setattr(Syncer, "_sync_file", lambda self, path: None)


def found_records_not_synced(patch: Patch) -> None:
    patch.setattr(LogWriter, "sync_logs", lambda self, logs: None)


def flush_forgets_unsynced(patch: Patch) -> None:
    def flush(self: Syncer) -> None:
        with self._changed:
            paths, folders = self._files, self._folders
            self._files, self._folders = set(), set()
        self.sync_now(paths, folders)

    patch.setattr(Syncer, "flush", flush)


def flush_skips_folders(patch: Patch) -> None:
    sync = Syncer.sync_now
    patch.setattr(Syncer, "sync_now", lambda self, paths, _: sync(self, paths, []))


def failed_append_not_rewritten(patch: Patch) -> None:
    def append(self: LogWriter, batches: Any) -> None:
        appends = self._plan_appends(batches)
        folders = self._begin_segments(appends)
        for each in appends:
            self._write_rows(each)
            with self.pool.open_file(each.path) as fd:
                files.write_at(fd, each.buffers, each.position)
        for _ in range(5):  # tries to sync again what Linux has forgotten
            try:
                self._sync_appended(appends, folders)
            except OSError:
                continue
            break
        for each in appends:
            self._commit(each)

    patch.setattr(LogWriter, "append", append)


def _replace_without_sync(path: str, data: bytes, *, is_durable: bool = True) -> None:
    files.replace_file(path, data, is_durable=False)
    files.sync_folder(path.rpartition("/")[0])


def positions_not_synced(patch: Patch) -> None:
    patch.setattr(positions, "replace_file", _replace_without_sync)


def positions_folder_not_synced(patch: Patch) -> None:
    patch.setattr(positions, "sync_folder", lambda path: None)


def identity_not_synced(patch: Patch) -> None:
    patch.setattr(layout, "replace_file", _replace_without_sync)


def folder_of_the_log_not_synced(patch: Patch) -> None:
    patch.setattr(layout, "sync_folder", lambda path: None)


def slots_trusted_after_power_failure(patch: Patch) -> None:
    patch.setattr(catalog, "_is_trusted", lambda header: catalog._parse_header(header)[0] == catalog._MAGIC)


def segments_of_closed_log_come_back(patch: Patch) -> None:
    close = LogWriter.close

    def forget(self: LogWriter) -> None:
        self._unlinked_in.clear()
        close(self)

    patch.setattr(LogWriter, "close", forget)


def earliest_written_after_segments_are_dropped(patch: Patch) -> None:
    patch.setattr(PartitionLog, "write_earliest", lambda self, sequence, latest_at: None)


BUGS: dict[str, Callable[[Patch], None]] = {
    name.replace("_", "-"): value
    for name, value in list(globals().items())
    if callable(value) and not name.startswith("_") and value.__module__ == __name__
}

SQLITE = "sqlite:{folder}/s.db"
FILELOG = "filelog:{folder}/log?segment_bytes=4000"


def url_of(bug: str) -> str:
    """Return the storage that shows a planted bug."""
    if bug == "sqlite-flush-does-nothing":
        return f"{SQLITE}?synchronous=NORMAL"
    if bug.startswith("sqlite"):
        return SQLITE
    return f"{FILELOG}&fsync=never" if bug.startswith("flush") else FILELOG
