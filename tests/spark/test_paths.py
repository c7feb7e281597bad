"""The stores that each form of a path names, and the errors if there is none."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from dafka.errors import StorageError
from dafka.spark.options import Options
from dafka.spark.paths import PATH_OPTIONS, StoreFinder
from tests.spark.stores import A, batch, fill

THIRD_PARTY = Path(__file__).parents[1] / "storage/third_party/dafka_pickle.py"


def finder(*paths: object) -> StoreFinder:
    given = {"path": str(paths[0])} if len(paths) == 1 else {"paths": json.dumps([str(path) for path in paths])}
    return StoreFinder(Options(given, PATH_OPTIONS, "reading stores"))


def find(*paths: object) -> list[str]:
    return finder(*paths).find_stores()


@pytest.fixture
def stores(tmp_path: Path) -> Path:
    """A folder with two stores, and files that are no stores."""
    folder = tmp_path / "stores"
    folder.mkdir()
    fill(f"sqlite:{folder}/a.db", batch("orders", A, 0, 1))
    fill(f"filelog:{folder}/log", batch("orders", A, 0, 1))
    (folder / "notes.txt").write_text("not a store")
    (folder / "empty.db").touch()
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    with sqlite3.connect(folder / "foreign.db") as connection:
        connection.execute("CREATE TABLE records (id)")
    connection.close()
    return folder


def test_a_store_a_folder_a_pattern_and_a_list_name_each_store_once(stores: Path) -> None:
    assert find(stores / "a.db") == [f"sqlite:{stores}/a.db"]
    assert find(stores / "log") == find(f"{stores}/log/") == [f"filelog:{stores}/log"]
    both = [f"sqlite:{stores}/a.db", f"filelog:{stores}/log"]
    assert find(stores) == find(f"{stores}/") == both
    assert find(f"{stores}/*.db") == find(f"{stores.parent}/**/?.db") == [f"sqlite:{stores}/a.db"]
    assert find(stores / "log", stores, stores / "a.db") == [f"filelog:{stores}/log", f"sqlite:{stores}/a.db"]


def test_urls_of_files_and_of_storages_and_the_home_folder(stores: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spaced = stores / "a b.db"
    fill(f"sqlite:{spaced}", batch("orders", A, 0, 1))
    assert find(spaced.as_uri()) == find(f"file:{spaced}") == find(f"file://localhost{spaced}") == [f"sqlite:{spaced}"]
    monkeypatch.chdir(stores)
    assert find("sqlite:a.db") == find("a.db") == [f"sqlite:{stores}/a.db"]
    assert find("filelog:log") == [f"filelog:{stores}/log"]
    monkeypatch.setenv("HOME", str(stores))
    assert find("~/a.db") == find("sqlite:~/a.db") == [f"sqlite:{stores}/a.db"]


@pytest.mark.parametrize(
    "name", ["a,b.db", "a:b.db", "50%.db", "a#b;c.db", "[1].db", "naïve.db", "a'b\".db", os.fsdecode(b"\xff.db")]
)
def test_a_store_with_an_unusual_name(tmp_path: Path, name: str) -> None:
    fill(f"sqlite:{tmp_path / name}", batch("orders", A, 0, 1))
    assert find(tmp_path / name) == find(tmp_path) == [f"sqlite:{tmp_path / name}"]


def test_a_path_with_a_question_mark_is_refused(stores: Path) -> None:
    (stores / "a.db").rename(stores / "a?.db")
    with pytest.raises(StorageError, match=r"a\?\.db: a store with a question mark in its path has no URL"):
        find(stores / "a?.db")


def test_the_url_of_an_installed_plugin_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = tmp_path / "site/dafka_pickle-1.0.dist-info"
    metadata.mkdir(parents=True)
    shutil.copy(THIRD_PARTY, tmp_path / "site")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: dafka-pickle\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[dafka.storage]\npickle = dafka_pickle:open_pickle\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert find("pickle:/anywhere?option=1") == ["pickle:/anywhere?option=1"]


def test_stores_that_appear_and_disappear_are_noticed(stores: Path) -> None:
    found = finder(stores)
    first = found.find_stores()
    fill(f"sqlite:{stores}/empty.db", batch("orders", A, 0, 1))
    assert found.find_stores() == sorted([*first, f"sqlite:{stores}/empty.db"], key=lambda url: url.partition(":")[2])
    (stores / "a.db").write_bytes(b"")
    (stores / "empty.db").unlink()
    shutil.rmtree(stores / "log")
    fill(f"sqlite:{stores}/new.db", batch("orders", A, 0, 1))
    (stores / "new.db").replace(stores / "notes.txt")
    assert found.find_stores() == [f"sqlite:{stores}/a.db", f"sqlite:{stores}/notes.txt"]  # a known store stays one


def test_unchanged_files_are_not_opened_again(stores: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = finder(stores)
    first = found.find_stores()
    monkeypatch.setattr("dafka.spark.paths.connect", None)
    assert found.find_stores() == first


def test_side_files_of_an_open_store_are_not_opened(stores: Path) -> None:
    """Opening and closing `-shm` as a database would release the locks that this process has on it."""
    with sqlite3.connect(stores / "a.db") as connection:
        connection.execute("SELECT * FROM records").fetchone()
        names = {path.name for path in stores.iterdir()}
        assert {"a.db-wal", "a.db-shm"} <= names
        before = lock_count(stores / "a.db-shm")
        assert before
        find(stores)
        assert lock_count(stores / "a.db-shm") == before
    connection.close()


def lock_count(path: Path) -> int:
    inode = path.stat().st_ino
    locks = Path("/proc/locks").read_text().splitlines()
    return sum(f":{inode} " in line and f" {os.getpid()} " in line for line in locks)
