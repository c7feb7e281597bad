"""The source distribution and the wheels: built, installed into an empty environment, and tried.

Needs a package index, from which the build backend and the dependencies are installed.
"""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from pathlib import Path

import attrs
import pytest

from tests.cli.harness import Dafka

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
REQUIRED_MAX = 10
"""Packages that an installation without extras may require by name."""


@attrs.frozen
class Wheel:
    """A wheel that was built, and whether a C compiler was there."""

    path: Path
    is_compiled: bool

    @property
    def files(self) -> list[str]:
        with zipfile.ZipFile(self.path) as archive:
            return archive.namelist()

    @property
    def metadata(self) -> Message:
        (name,) = [name for name in self.files if name.endswith(".dist-info/METADATA")]
        with zipfile.ZipFile(self.path) as archive:
            return email.message_from_bytes(archive.read(name))


def run(*command: str | Path, **environment: str) -> None:
    done = subprocess.run(
        [*map(str, command)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "build", "--sdist", "--outdir", folder, ROOT)
    (path,) = folder.glob("dafka-*.tar.gz")
    return path


@pytest.fixture(scope="module", params=["compiler", "no compiler"])
def wheel(request: pytest.FixtureRequest, sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Wheel:
    is_compiled = request.param == "compiler"
    if is_compiled and not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("wheel")
    compiler = {} if is_compiled else {"CC": "false"}
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", folder, sdist, **compiler)
    (path,) = folder.glob("dafka-*.whl")
    return Wheel(path, is_compiled)


@pytest.fixture(scope="module")
def environment(wheel: Wheel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the commands of an environment that has only the wheel installed."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", folder)
    run(folder / "bin" / "python", "-m", "pip", "install", wheel.path)
    return folder / "bin"


@pytest.fixture
def command(environment: Path, tmp_path: Path) -> Dafka:
    """The installed command."""
    return Dafka(tmp_path, (str(environment / "dafka"),))


def test_wheel_is_named_for_what_it_holds(wheel: Wheel) -> None:
    libraries = [name for name in wheel.files if name.endswith(".so")]
    if wheel.is_compiled:
        assert sorted(libraries) == ["dafka/batches/_accelerator.abi3.so", "dafka/transport/_accelerator.abi3.so"]
        assert "-cp311-abi3-" in wheel.path.name
        if sys.platform == "linux":
            assert re.search(r"-(manylinux_2_\d+|musllinux_1_\d+)_[a-z0-9_]+\.whl$", wheel.path.name)
    else:
        assert libraries == []
        assert wheel.path.name.endswith("-py3-none-any.whl")


def test_wheel_holds_the_packages_alone(wheel: Wheel) -> None:
    tops = {name.split("/")[0] for name in wheel.files}
    assert {name for name in tops if not name.endswith(".dist-info")} == {"dafka"}
    assert not [name for name in wheel.files if "accelerator/" in name]
    assert "dafka/py.typed" in wheel.files


def test_source_distribution_has_what_its_makefile_uses(sdist: Path) -> None:
    """It has all files of the repository except the settings of CI and of pre-commit."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("this is not a clone of the repository")
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert {*listed.stdout.splitlines()} - packed == {".ci/run", ".pre-commit-config.yaml"}


def test_few_packages_are_required(wheel: Wheel) -> None:
    required = [each for each in wheel.metadata.get_all("Requires-Dist", []) if "extra ==" not in each]
    assert 0 < len(required) <= REQUIRED_MAX


def test_links_of_the_description_work_outside_the_repository(wheel: Wheel) -> None:
    description = wheel.metadata.get_payload()
    assert isinstance(description, str)
    targets = re.findall(r"\]\(([^)\s]+)\)", description)
    assert targets
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []


def test_no_pytest_plugin_is_loaded_unasked(environment: Path) -> None:
    program = "from importlib.metadata import entry_points; print(*entry_points(group='pytest11'))"
    done = subprocess.run([environment / "python", "-c", program], capture_output=True, text=True, check=True)
    assert "dafka" not in done.stdout


def test_first_example_of_the_readme_runs(wheel: Wheel, environment: Path, command: Dafka) -> None:
    example = re.search(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert example is not None
    version = command.run("--version").output.decode()
    assert ("transport: compiled, batches: compiled" in version) is wheel.is_compiled, version
    assert ("pure Python" in version) is (not wheel.is_compiled), version
    try:
        command.start_up("--storage", f"sqlite:{command.folder / 'dafka.db'}")
        sub, pub = command.options[1::2]
        done = subprocess.run(
            [environment / "python", "-W", "error", "-c", example[1]],
            env=command.environment({"DAFKA_BEACON_TOWER_SUB": sub, "DAFKA_BEACON_TOWER_PUB": pub}),
            cwd=command.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    finally:
        command.close()
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("orders "), done.stdout
    assert len(done.stdout.splitlines()) == 1001


def test_missing_extra_is_one_sentence(environment: Path, command: Dafka) -> None:
    ended = command.run("tower", "--log-format", "json")
    assert (ended.status, ended.error) == (2, "JSON logging needs structlog: pip install 'dafka[json-logs]'")
    ended = command.run("bench")
    assert (ended.status, ended.error) == (2, "'dafka bench' needs dafka-bench: pip install dafka-bench")


def test_other_distributions_need_no_extra_of_dafka(environment: Path, command: Dafka, tmp_path: Path) -> None:
    """The suite and the benchmarks are built in copies of their folders, as if these were elsewhere."""
    for name in ("conformance", "benchmarks"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", tmp_path / "wheels", tmp_path / name)
    run(environment / "python", "-m", "pip", "install", *(tmp_path / "wheels").iterdir())
    run(environment / "dafka-conformance", "run", "embedded", "--scenario", "store.acknowledges")
    assert command.run("bench", "--help").status == 0
