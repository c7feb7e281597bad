"""Files are read again when they change: each edit is seen, and nothing is read without need."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from random import Random

import attrs
import pytest

from dafka.errors import ConfigError
from dafka.watched_files import SETTLED_S, WatchedFiles

RESOLUTION_S = 2.0
"""The coarsest modification times of a file system."""
DAMAGED = "?"


@attrs.define
class Folder:
    """A folder of files on a file system with coarse times, at a time that a test chooses."""

    path: Path
    now_s: float = 1000.0
    reads: int = 0

    def write(self, name: str, text: str, *, is_replaced: bool = False) -> None:
        target = self.path / (".new" if is_replaced else name)
        target.write_text(text)
        modified_s = self.now_s // RESOLUTION_S * RESOLUTION_S
        os.utime(target, (modified_s, modified_s))
        target.replace(self.path / name)

    def list_files(self) -> list[Path]:
        return sorted(each for each in self.path.iterdir() if each.name != ".new")

    def read(self) -> dict[str, str]:
        self.reads += 1
        found = {each.name: each.read_text() for each in self.path.iterdir()}
        if DAMAGED in found.values():
            raise ConfigError("damaged")
        return found

    def watch(self) -> WatchedFiles[dict[str, str]]:
        return WatchedFiles(self.list_files, self.read, lambda: self.now_s)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    found = Folder(tmp_path)
    found.write("a", "0")
    return found


def test_every_edit_is_seen_at_the_next_look_and_damage_is_reported_once(folder: Folder) -> None:
    random = Random(1)
    watched = folder.watch()
    known = folder.read()
    for step in range(3000):
        is_damage_known = DAMAGED in {each.read_text() for each in folder.path.iterdir()}
        if random.random() < 0.5:
            name, text = random.choice("ab"), random.choice(["1", "2", "3", DAMAGED])
            folder.write(name, text, is_replaced=random.random() < 0.3)
            is_damage_known = False
        try:
            now: dict[str, str] | None = folder.read()
        except ConfigError:
            now = None
        if now is not None:
            assert watched.refresh() == (now != known), step
            known = now
        elif not is_damage_known:
            # The same damage, written again within the resolution of times, is no other change.
            with suppress(ConfigError):
                watched.refresh()
        assert watched.refresh() is False, step
        assert watched.value == known, step
        folder.now_s += random.choice([0.0, 0.4, 1.0, 2.5, 10.0])


def test_damage_is_an_error_once_and_again_after_another_change(folder: Folder) -> None:
    watched = folder.watch()
    for text in ("?", "1", "?", "?"):
        folder.now_s += RESOLUTION_S
        folder.write("a", text)
        if text == DAMAGED:
            with pytest.raises(ConfigError, match="damaged"):
                watched.refresh()
        else:
            assert watched.refresh()
        assert not watched.refresh()
    assert watched.value == {"a": "1"}


def test_files_that_stay_as_they_are_are_read_until_they_have_settled(folder: Folder) -> None:
    watched = folder.watch()
    reads = []
    for waited_s in (0.0, SETTLED_S / 2, SETTLED_S / 2 - 0.01, 0.01, 0.0, 1000.0):
        folder.now_s += waited_s
        watched.refresh()
        reads.append(folder.reads)
    assert reads == [2, 3, 4, 5, 5, 5]


def test_a_folder_that_cannot_be_read_has_no_files(folder: Folder) -> None:
    watched = folder.watch()
    folder.now_s += SETTLED_S
    assert not watched.refresh()
    hidden = folder.path.rename(folder.path.with_name("hidden"))
    with pytest.raises(FileNotFoundError):  # what `read` raises
        watched.refresh()
    hidden.rename(folder.path)
    folder.write("a", "1")
    assert watched.refresh()
    assert watched.value == {"a": "1"}


def test_files_that_go_are_an_error_once_and_their_last_value_stays(folder: Folder) -> None:
    path = folder.path / "a"

    def read() -> str:
        if not path.exists():
            raise ConfigError("there is no file")
        return path.read_text()

    watched = WatchedFiles(lambda: [path], read, lambda: folder.now_s)
    for former, text in (("0", "1"), ("1", "2")):
        path.unlink()
        with pytest.raises(ConfigError, match="there is no file"):
            watched.refresh()
        assert (watched.refresh(), watched.value) == (False, former)
        folder.write("a", text)
        assert (watched.refresh(), watched.value) == (True, text)


@pytest.mark.parametrize(("text", "is_replaced"), [("1", True), ("12", False)])
def test_an_edit_that_keeps_the_time_is_seen_by_its_size_or_by_the_other_file(
    folder: Folder, text: str, is_replaced: bool
) -> None:
    watched = folder.watch()
    modified_ns = (folder.path / "a").stat().st_mtime_ns
    folder.now_s += SETTLED_S
    assert not watched.refresh()
    folder.write("a", text, is_replaced=is_replaced)
    os.utime(folder.path / "a", ns=(modified_ns, modified_ns))
    assert watched.refresh()
    assert watched.value == {"a": text}
