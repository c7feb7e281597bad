"""A copy of the repository in which mutants are written: the work tree itself is never changed."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.mutation.scope import ROOT, git

_PRELOADED = (
    "_pytest.assertion.rewrite",
    "anyio._backends._trio",
    "asyncio",
    "attrs",
    "click",
    "coverage",
    "crc32c",
    "filelock",
    "h11",
    "hypothesis.stateful",
    "prometheus_client",
    "psutil",
    "pytest_timeout",
    "pytest_trio.plugin",
    "sqlite3",
    "rich.console",
    "rich.progress",
    "rich.table",
    "structlog",
    "trio.testing",
    "zmq",
)


@contextmanager
def copy_of_tree(tree: Path) -> Iterator[Path]:
    """Copy a copy of the repository; remove it in the end."""
    with _temporary_folder() as folder:
        yield Path(shutil.copytree(tree, folder / "tree"))


@contextmanager
def copy_of_repository() -> Iterator[Path]:
    """Copy the files that git tracks, as they are in the work tree, and compiled ones; remove the copy in the end."""
    with _temporary_folder() as folder:
        top = folder / "tree"
        names = git("ls-files", "--cached", "--others", "--exclude-standard").splitlines()
        compiled = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("dafka/**/*.so")]
        for name in (*names, *compiled):
            if (ROOT / name).is_file():
                (top / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, top / name)
        yield top


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="dafka-mutants-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def enter_overlay(top: Path) -> None:
    """Have this process, and those that it starts, import the packages of the copy."""
    assert not any(name == "dafka" or name.startswith("dafka.") for name in sys.modules)
    os.chdir(top)
    inside = [str(top), str(top / "conformance")]
    os.environ["PYTHONPATH"] = os.pathsep.join(inside)
    sys.path[:] = [*inside, *(path for path in sys.path if path not in {"", str(ROOT), str(ROOT / "conformance")})]
    import tests

    tests.__path__[:] = [str(top / "tests")]


def preload() -> None:
    """Import the libraries that the tests use, so that forked processes share them and do not collect them."""
    for name in _PRELOADED:
        __import__(name)
    gc.freeze()
