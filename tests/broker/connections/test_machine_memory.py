"""How much memory the process may use, as control groups of both versions say it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dafka.broker.connections import machine_memory
from dafka.broker.connections.machine_memory import UNKNOWN_BYTES, cgroup_limits, find_memory_bytes

MIB = 2**20


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("pages", "limit", "expected"),
    [(1000, "max", 4_000_000), (1000, "5000000", 4_000_000), (1000, "3999999", 3_999_999), (10**7, "max", 4 * 10**10)]
    + [(each, "max", UNKNOWN_BYTES) for each in (0, -1000, AttributeError, OSError, ValueError)],
)
def test_memory_is_that_of_the_machine_or_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pages: int | type[Exception], limit: str, expected: int
) -> None:
    def sysconf(name: str) -> int:
        if not isinstance(pages, int):
            raise pages
        return {"SC_PHYS_PAGES": pages, "SC_PAGE_SIZE": 4000}[name]

    monkeypatch.setattr(os, "sysconf", sysconf)
    write(tmp_path / "own", "0::/a\n")
    write(tmp_path / "a" / "memory.max", limit)
    monkeypatch.setattr(machine_memory, "_CGROUPS", tmp_path)
    monkeypatch.setattr(machine_memory, "_OWN_CGROUPS", tmp_path / "own")
    assert find_memory_bytes() == expected


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": f"{MIB}\n"}, [MIB]),
        ("0::/a/b\n", {"a/b/memory.max": f"{2 * MIB}\n", "a/memory.max": f"{MIB}\n"}, [2 * MIB, MIB]),
        ("0::/outside/name\n", {"memory.max": f"{MIB}\n"}, [MIB]),  # in a container
        ("0::/../../x\n", {"memory.max": f"{MIB}\n"}, [MIB]),
        ("5:cpu,memory:/a\n0::/\n", {"memory/a/memory.limit_in_bytes": f"{MIB}\n"}, [MIB]),
        ("5:cpu:/a\n", {"memory/a/memory.limit_in_bytes": f"{MIB}\n"}, []),
        ("nonsense\n0::/\n", {"memory.max": "nonsense\n"}, []),
        ("0::/\n", {"memory.max": "0\n"}, []),
    ],
)
def test_limits_of_control_groups(tmp_path: Path, own: str, files: dict[str, str], expected: list[int]) -> None:
    write(tmp_path / "own", own)
    for name, text in files.items():
        write(tmp_path / "mounted" / name, text)
    assert cgroup_limits(tmp_path / "mounted", tmp_path / "own") == expected


def test_system_without_control_groups_has_no_limits(tmp_path: Path) -> None:
    assert cgroup_limits(tmp_path, tmp_path / "own") == []
