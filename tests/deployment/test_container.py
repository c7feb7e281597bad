"""The image of the Containerfile, built and run by podman: see docs/contributing/testing.md."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.harness import wait_for
from tests.kafka.server.clients import Confluent, Message
from tests.ports import free_port

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

PROJECT = Path(__file__).parents[2]
PODMAN = shlex.split(os.environ.get("PODMAN", "podman"))
BUILD_OPTIONS = shlex.split(os.environ.get("PODMAN_BUILD_OPTIONS", ""))
"""Options for a network of its own kind, such as the volume with a proxy's certificate."""

IMAGE = "localhost/dafka-test"
BASE = "docker.io/library/debian:trixie-slim"
USER = 10001


def podman(*arguments: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [*PODMAN, *map(str, arguments)]
    return subprocess.run(command, cwd=PROJECT, input=stdin, capture_output=True, text=True, check=False, timeout=800)


def run(*arguments: str | Path, stdin: str = "") -> str:
    done = podman(*arguments, stdin=stdin)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    if shutil.which(PODMAN[0]) is None:
        pytest.skip("podman is not installed")
    tried = podman("run", "--rm", BASE, "true")
    if tried.returncode:
        pytest.skip(f"podman cannot run {BASE} here: {tried.stderr.strip().splitlines()[-1]}")
    run("build", *BUILD_OPTIONS, "--format", "docker", "--tag", IMAGE, ".")
    yield IMAGE
    podman("rmi", IMAGE)


@pytest.fixture
def volume() -> Iterator[str]:
    name = f"dafka-test-{os.getpid()}"
    yield name
    podman("rm", "--force", name)
    podman("volume", "rm", "--force", name)


def start(image: str, volume: str, port: int, *options: str) -> None:
    """Start a container with a read-only root and no capabilities."""
    address = f"127.0.0.1:{port}"
    published = ("--publish", f"{address}:9092", "--env", f"DAFKA_KAFKA_ADVERTISED_LISTENER={address}")
    hardening = ("--read-only", "--cap-drop", "all", "--security-opt", "no-new-privileges")
    run(
        "run",
        "--detach",
        "--name",
        volume,
        "--volume",
        f"{volume}:/var/lib/dafka",
        *published,
        *hardening,
        *options,
        image,
    )


def wait_healthy(name: str) -> None:
    """Wait until the container's own check succeeds."""
    wait_for(lambda: podman("healthcheck", "run", name).returncode == 0 or None, lambda: podman("logs", name).stderr)


def test_it_does_not_serve_everybody_unless_it_is_told_to(image: str) -> None:
    done = podman("run", "--rm", image)
    assert done.returncode == 2
    assert "clients that do not authenticate could connect to 0.0.0.0" in done.stderr


def test_records_stay_in_the_volume(image: str, volume: str) -> None:
    port, allowed = free_port(), ("--env", "DAFKA_CLIENTS_ALLOW_UNAUTHENTICATED=on")
    start(image, volume, port, *allowed)
    wait_healthy(volume)
    Confluent().write(f"127.0.0.1:{port}", "orders", [Message(b"one")], "lz4")
    consumed = run("exec", volume, "dafka", "consume", "orders", "--from-beginning", "--count", "1")
    assert consumed == "one\n"
    fetch = "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:8080/').status)"
    assert run("exec", volume, "python3", "-c", fetch) == "200\n"
    assert run("exec", volume, "id", "-u") == f"{USER}\n"
    run("stop", "--time", "30", volume)
    assert run("inspect", "--format", "{{.State.ExitCode}}", volume) == "0\n"
    run("rm", volume)

    start(image, volume, port, *allowed)
    wait_healthy(volume)
    assert [each.value for each in Confluent().read(f"127.0.0.1:{port}", "orders", 1)] == [b"one"]


def test_users_are_made_in_the_volume(image: str, volume: str) -> None:
    mounted = ("--volume", f"{volume}:/var/lib/dafka")
    command = ("user", "add", "alice", "--users", "users", "--everything")
    run("run", "--rm", "--interactive", *mounted, image, *command, stdin="secret\n")
    port = free_port()
    start(image, volume, port, "--env", "DAFKA_CLIENTS_USERS=users")
    wait_healthy(volume)
    login = {"sasl_username": "alice", "sasl_password": "secret"}
    client = Confluent(security_protocol="SASL_PLAINTEXT", sasl_mechanism="SCRAM-SHA-512", **login)
    assert client.write(f"127.0.0.1:{port}", "orders", [Message(b"one")], "none") == [0]
