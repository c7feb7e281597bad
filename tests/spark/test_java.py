from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dafka.errors import ConfigError
from dafka.spark.java import INSTALL_COMMANDS, check_java

NEEDED = "Spark needs Java 17 or newer"


def make_java(folder: Path, script: str) -> Path:
    """Create a program `bin/java` that runs a script, and return the folder."""
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return folder


def answer(version: str) -> str:
    return (
        f"""echo 'Picked up JAVA_TOOL_OPTIONS: -Dversion="3"' >&2; echo 'openjdk version "{version}" 2025-04-15' >&2"""
    )


@pytest.mark.parametrize(
    ("version", "major"),
    [("1.8.0_402", 8), ("11.0.22", 11), ("16", 16), ("17", 17), ("17.0.15", 17), ("21.0.3+9-LTS", 21), ("26-ea", 26)],
)
def test_the_version_is_recognized_and_an_old_one_refused(version: str, major: int, tmp_path: Path) -> None:
    home = make_java(tmp_path, answer(version))
    by_home, by_path = {"JAVA_HOME": str(home)}, {"PATH": f"{tmp_path}/none:{home}/bin"}
    if major >= 17:
        assert check_java(by_home) == check_java(by_path) == major
        return
    with pytest.raises(ConfigError, match=f"JAVA_HOME, {home}, is Java {major}, and {NEEDED}: install it"):
        check_java(by_home)
    with pytest.raises(ConfigError, match=f"^{home}/bin/java is Java {major}, and {NEEDED}"):
        check_java(by_path)


def test_java_home_has_priority_over_path(tmp_path: Path) -> None:
    old, new = make_java(tmp_path / "old", answer("11")), make_java(tmp_path / "new", "echo 'v version \"21\"'")
    assert check_java({"JAVA_HOME": str(new), "PATH": f"{old}/bin"}) == 21


def test_what_is_not_java(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"there is no java on PATH, JAVA_HOME is not set, and {NEEDED}"):
        check_java({"PATH": str(tmp_path)})
    with pytest.raises(ConfigError, match=f"JAVA_HOME is {tmp_path}, which has no bin/java, and {NEEDED}"):
        check_java({"JAVA_HOME": str(tmp_path), "PATH": os.environ["PATH"]})
    for number, script in enumerate(["echo no runtime >&2; exit 1", "echo hello", "echo 'version \"17\"'; exit 3"]):
        home = make_java(tmp_path / f"{number}", script)
        with pytest.raises(ConfigError, match=f"does not print its version, and {NEEDED}"):
            check_java({"JAVA_HOME": str(home)})
    (home / "bin" / "java").write_bytes(b"\x7fELF")
    with pytest.raises(ConfigError, match="does not run"):
        check_java({"JAVA_HOME": str(home)})


@pytest.mark.parametrize("program", INSTALL_COMMANDS)
def test_the_advice_is_for_this_system(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / program).write_text("#!/bin/sh\n")
    (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError) as caught:
        check_java({})
    assert INSTALL_COMMANDS[program] in str(caught.value)


def test_the_check_as_a_program(tmp_path: Path) -> None:
    home = make_java(tmp_path, "echo 'version \"17.0.1\"'")
    given = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    for more, status, error in (
        ({"PATH": "/none"}, 2, "Error: there is no java on PATH"),
        ({"JAVA_HOME": str(home)}, 0, ""),
    ):
        command = [sys.executable, "-m", "dafka.spark.java"]
        done = subprocess.run(command, env=given | more, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (status, "", bool(error))
        assert done.stderr.startswith(error)
