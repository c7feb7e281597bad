"""Compiles the transport accelerator when the package is built or installed; without a C compiler it is left out.

A wheel with it serves every CPython from 3.11 on (the stable ABI) on its platform; one without it serves anywhere.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags

SOURCES = "dafka/transport/accelerator/*.c"
TARGET = "dafka/transport/_accelerator.abi3.so"
FLAGS = ["-shared", "-fPIC", "-O2", "-std=c11", "-fvisibility=hidden", "-Wall", "-Wextra"]


class AcceleratorHook(BuildHookInterface[Any]):
    """Builds the accelerator beside its source, and puts it into the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles for a wheel, also an editable one; a failure is a warning, and leaves a wheel of Python alone."""
        if self.target_name != "wheel":
            return
        target = Path(self.root, TARGET)
        target.unlink(missing_ok=True)
        reason = _obstacle() or _compile(sorted(Path(self.root).glob(SOURCES)), target)
        if reason:
            self.app.display_warning(f"The transport accelerator is left out ({reason}); the pure-Python loops serve.")
            return
        build_data["artifacts"].append(TARGET)
        build_data["pure_python"] = False
        build_data["tag"] = f"cp311-abi3-{_platform_tag()}"

    def clean(self, versions: list[str]) -> None:
        """Removes what was built."""
        Path(self.root, TARGET).unlink(missing_ok=True)


def _obstacle() -> str:
    """Why it is not even tried; empty where nothing stands in the way."""
    if sys.platform == "win32" or platform.python_implementation() != "CPython":
        return "it needs CPython on a POSIX system"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "a free-threaded Python has no stable ABI"
    return ""


def _compile(sources: list[Path], target: Path) -> str:
    """Empty where it went well, else the reason in one line."""
    named = os.environ.get("CC", "")
    compiler = shlex.split(named) if named else [name for name in ("cc", "gcc", "clang") if shutil.which(name)][:1]
    if not compiler:
        return "there is no C compiler"
    system = ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-ldl"]
    include = sysconfig.get_path("include")
    extra = shlex.split(os.environ.get("CFLAGS", ""))
    command = [*compiler, *FLAGS, *extra, f"-I{include}", *map(str, sources), "-o", str(target), *system]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return f"{compiler[0]}: {error.strerror}"
    if done.returncode:
        return next((line for line in done.stderr.splitlines() if "error" in line), f"{compiler[0]} failed")
    return ""


def _platform_tag() -> str:
    """This platform's own: what was linked here has not been tried on the older ones that the other tags promise."""
    return next(tag for tag in platform_tags() if not tag.startswith(("manylinux", "musllinux")))
