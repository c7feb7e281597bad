"""The tests of a room: `make test-room ROOM=broker/core` runs what is about dafka/broker/core, and nothing else.

`tests/` mirrors `dafka/`. A folder or file that has no folder of its name in `tests/` belongs to the nearest folder
above it that has one.
"""

from __future__ import annotations

import sys
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[1]

ELSEWHERE = {
    "asyncio": ("tests/asyncio", "tests/clients"),
    "blocking": ("tests/blocking", "tests/clients"),
    "clients": ("tests/clients", "tests/asyncio", "tests/blocking"),
    "storage": ("tests/storage", "tests/power"),
    "testing": ("tests/testing", "tests/storage/test_contract.py"),
}
"""Rooms whose tests are not, or not only, in a folder of their name."""


def find_tests(room: str, root: Path = ROOT) -> list[str]:
    """Return the paths of the tests of a room, from the top of the repository.

    Args:
        room: A folder or a file of dafka/, with or without `dafka/` in front, such as `broker/core`.
        root: The top of the repository.

    Raises:
        ValueError: There is no such folder or file.
    """
    path = PurePosixPath(room.strip("/").removeprefix("dafka").strip("/"))
    if not (root / "dafka" / path).exists():
        raise ValueError(f"dafka/{path} does not exist: ROOM is a folder or a file of dafka/, such as broker/core")
    for each in (path, *path.parents):
        if str(each) in ELSEWHERE:
            return list(ELSEWHERE[str(each)])
        if str(each) != "." and (root / "tests" / each / "__init__.py").is_file():
            return [f"tests/{each}"]
    return sorted(each.relative_to(root).as_posix() for each in (root / "tests").glob("test_*.py"))


def main(arguments: list[str]) -> int:
    """Run the tests of the room that the first argument names; the others are pytest's."""
    if not arguments or not arguments[0]:
        sys.stderr.write("name a room: make test-room ROOM=broker/core\n")
        return 2
    try:
        tests = find_tests(arguments[0])
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return int(pytest.main(["-q", *tests, *arguments[1:]]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
