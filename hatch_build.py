"""Build hooks: compile the accelerators into the wheel, and make README.md's links absolute for an index.

A wheel with them serves every CPython from 3.11 on (the stable ABI) on its platform. Without a C compiler,
or with `DAFKA_BUILD_ACCELERATOR=off`, the wheel is pure Python and serves every platform.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface
from packaging.tags import platform_tags

ACCELERATORS = ("dafka/transport", "dafka/batches")
"""The packages that have one: its sources in the folder `accelerator`, and what is compiled from them beside it."""

SOURCES = "accelerator/*.c"
TARGET = "_accelerator.abi3.so"
FLAGS = ["-shared", "-fPIC", "-O2", "-std=c11", "-fvisibility=hidden", "-Wall", "-Wextra"]

REPOSITORY = "https://github.com/dafka/dafka/blob/main/"
RAW_FILES = "https://raw.githubusercontent.com/dafka/dafka/main/"

OLDEST_GLIBC = (2, 17)
"""The oldest glibc that a wheel claims to run on. No supported Linux distribution has an older one."""


class ReadmeHook(MetadataHookInterface):
    """Sets the project's long description: README.md, with links that work outside the repository."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the `readme` field."""
        text = Path(self.root, "README.md").read_text("utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": with_absolute_links(text)}


class AcceleratorHook(BuildHookInterface[Any]):
    """Compiles accelerators for a wheel. An editable install gets them next to their source; no other build does."""

    _folder: TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and add the results to the wheel. On failure, warn and build a pure-Python wheel."""
        if self.target_name != "wheel":
            return
        if version == "editable":
            folder = Path(self.root)
            self.clean([version])
        else:
            self._folder = TemporaryDirectory()
            folder = Path(self._folder.name)
        targets = {f"{package}/{TARGET}": folder / package / TARGET for package in ACCELERATORS}
        reason = _obstacle() or _compile_all(Path(self.root), targets)
        if reason:
            self.app.display_warning(f"Building without the accelerators ({reason}); they are optional.")
            return
        if version != "editable":
            build_data["force_include"].update({str(target): name for name, target in targets.items()})
        build_data["pure_python"] = False
        build_data["tag"] = f"cp311-abi3-{platform_tag(*targets.values())}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled outside the source tree."""
        if self._folder is not None:
            self._folder.cleanup()

    def clean(self, versions: list[str]) -> None:
        """Remove the accelerators of an editable install."""
        for package in ACCELERATORS:
            Path(self.root, package, TARGET).unlink(missing_ok=True)


def with_absolute_links(text: str) -> str:
    """Return Markdown text whose links to files of this repository are URLs."""

    def absolute(match: re.Match[str]) -> str:
        is_image, before, target = match.groups()
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        return f"{is_image}{before}({RAW_FILES if is_image else REPOSITORY}{target})"

    return re.sub(r"(!?)(\[[^\]]*\])\(([^)\s]+)\)", absolute, text)


def platform_tag(*libraries: Path) -> str:
    """Return the platform that compiled libraries run on, as a wheel's name has it.

    On Linux with glibc, the manylinux tag follows from the newest glibc symbol that they need (PEP 600). They link to
    libc alone, so that nothing else decides where they run.
    """
    tags = list(platform_tags())
    code = b"".join(library.read_bytes() for library in libraries)
    versions = [(int(major), int(minor)) for major, minor in re.findall(rb"\0GLIBC_(\d+)\.(\d+)", code)]
    if versions and any(tag.startswith("manylinux") for tag in tags):
        major, minor = max(*versions, OLDEST_GLIBC)
        return f"manylinux_{major}_{minor}_{platform.machine()}"
    return tags[0]


def _obstacle() -> str:
    """Return why the accelerators cannot be built here; empty if it can."""
    if os.environ.get("DAFKA_BUILD_ACCELERATOR") == "off":
        return "DAFKA_BUILD_ACCELERATOR is off"
    if sys.platform == "win32" or platform.python_implementation() != "CPython":
        return "they need CPython on a POSIX system"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "a free-threaded Python has no stable ABI"
    return ""


def _compile_all(root: Path, targets: dict[str, Path]) -> str:
    """Compile all accelerators or none, and return the reason of a failure in one line; empty on success."""
    for target in targets.values():
        target.parent.mkdir(parents=True, exist_ok=True)
    for name, target in targets.items():
        reason = _compile(sorted((root / name).parent.glob(SOURCES)), target)
        if reason:
            for other in targets.values():
                other.unlink(missing_ok=True)
            return reason
    return ""


def _compile(sources: list[Path], target: Path) -> str:
    """Compile, and return the reason of a failure in one line; empty on success."""
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
