"""The Java that Spark runs on: found where Spark looks for it, and known to be new enough before it is started."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from dafka.errors import ConfigError

OLDEST_VERSION = 17
"""What Spark 4 needs."""

VERSION_TIMEOUT_S = 60.0

INSTALL_COMMANDS = {
    "apt-get": "apt-get install openjdk-17-jre-headless",
    "dnf": "dnf install java-17-openjdk-headless",
    "apk": "apk add openjdk17-jre-headless",
    "brew": "brew install openjdk@17",
}
"""How to get it, by the program that is there to get it with."""


def check_java(environment: Mapping[str, str] | None = None) -> int:
    """The major version of the Java that Spark would start: that of `JAVA_HOME`, else the first on `PATH`.

    Raises `ConfigError`, which says what to install, where there is none or one older than `OLDEST_VERSION`.
    """
    environment = os.environ if environment is None else environment
    path, place = _find(environment)
    version = _version_of(path, place)
    if version < OLDEST_VERSION:
        raise ConfigError(f"{place} is Java {version}, and {_advice()}")
    return version


def _find(environment: Mapping[str, str]) -> tuple[str, str]:
    """The program, and how to speak of it."""
    home = environment.get("JAVA_HOME")
    if home:
        path = Path(home, "bin", "java")
        if not os.access(path, os.X_OK) or path.is_dir():
            raise ConfigError(f"JAVA_HOME is {home}, where there is no bin/java, and {_advice()}")
        return str(path), f"JAVA_HOME, {home},"
    found = shutil.which("java", path=environment.get("PATH", ""))
    if found is None:
        raise ConfigError(f"there is no java on PATH, JAVA_HOME is not set, and {_advice()}")
    return found, found


def _version_of(path: str, place: str) -> int:
    try:
        done = subprocess.run(
            [path, "-version"], capture_output=True, timeout=VERSION_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = getattr(error, "strerror", None) or f"no answer in {VERSION_TIMEOUT_S:.0f} s"
        raise ConfigError(f"{place} does not run ({reason}), and {_advice()}") from None
    answer = (done.stderr + done.stdout).decode(errors="replace")
    # "17.0.15", "26", "21-ea", and, up to Java 8, "1.8.0_402".
    found = re.search(r'version "(?:1\.)?(\d+)', answer)
    if done.returncode or found is None:
        raise ConfigError(f"{place} does not say which Java it is, and {_advice()}")
    return int(found[1])


def _advice() -> str:
    known = next((command for program, command in INSTALL_COMMANDS.items() if shutil.which(program)), None)
    how = f"install it ({known})" if known else "install it, such as OpenJDK 17"
    return f"Spark needs Java {OLDEST_VERSION} or newer: {how}, or set JAVA_HOME to where it is"


def main() -> int:
    """`python -m dafka.spark.java`: exit status 0, or 2 with the sentence on standard error."""
    try:
        check_java()
    except ConfigError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
