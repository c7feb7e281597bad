"""Finds the Java that Spark would run on, and checks its version before Spark starts.

This module needs none of the packages of the extra. `python -m dafka.spark.java` runs the check.
"""

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
"""The oldest major version of Java that Spark 4 runs on."""

VERSION_TIMEOUT_S = 60.0
"""The timeout of `java -version`, in seconds."""

INSTALL_COMMANDS = {
    "apt-get": "apt-get install openjdk-17-jre-headless",
    "dnf": "dnf install java-17-openjdk-headless",
    "apk": "apk add openjdk17-jre-headless",
    "brew": "brew install openjdk@17",
}
"""The command that installs Java, by package manager."""


def check_java(environment: Mapping[str, str] | None = None) -> int:
    """Check the Java that Spark would start: the one in `JAVA_HOME`, or else the first on `PATH`.

    Args:
        environment: The environment variables, by default those of this process.

    Returns:
        The major version.

    Raises:
        ConfigError: If there is no Java or it is older than `OLDEST_VERSION`. The message says how to install it.
    """
    environment = os.environ if environment is None else environment
    path, shown = _find_java(environment)
    version = _read_version(path, shown)
    if version < OLDEST_VERSION:
        raise ConfigError(f"{shown} is Java {version}, and {_advice()}")
    return version


def _find_java(environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the path of the program, and its name for messages."""
    home = environment.get("JAVA_HOME")
    if home:
        path = Path(home, "bin", "java")
        if not os.access(path, os.X_OK) or path.is_dir():
            raise ConfigError(f"JAVA_HOME is {home}, which has no bin/java, and {_advice()}")
        return str(path), f"JAVA_HOME, {home},"
    found = shutil.which("java", path=environment.get("PATH", ""))
    if found is None:
        raise ConfigError(f"there is no java on PATH, JAVA_HOME is not set, and {_advice()}")
    return found, found


def _read_version(path: str, shown: str) -> int:
    try:
        done = subprocess.run(
            [path, "-version"], capture_output=True, timeout=VERSION_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = getattr(error, "strerror", None) or f"no answer in {VERSION_TIMEOUT_S:.0f} s"
        raise ConfigError(f"{shown} does not run ({reason}), and {_advice()}") from None
    answer = (done.stderr + done.stdout).decode(errors="replace")
    # "17.0.15", "26", "21-ea", and, up to Java 8, "1.8.0_402".
    found = re.search(r'version "(?:1\.)?(\d+)', answer)
    if done.returncode or found is None:
        raise ConfigError(f"{shown} does not print its version, and {_advice()}")
    return int(found[1])


def _advice() -> str:
    command = next((command for program, command in INSTALL_COMMANDS.items() if shutil.which(program)), None)
    how = f"install it ({command})" if command else "install it, such as OpenJDK 17"
    return f"Spark needs Java {OLDEST_VERSION} or newer: {how}, or set JAVA_HOME to its directory"


def main() -> int:
    """Run the check as a program: return exit status 0, or 2 with the message on standard error."""
    try:
        check_java()
    except ConfigError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
