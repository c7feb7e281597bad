import pytest
from click.testing import CliRunner

from dafka import __version__
from dafka.cli import main
from dafka.transport import choose_loops


@pytest.mark.parametrize("choice", ["", "off"])
def test_version_tells_which_transport_is_in_use(choice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAFKA_ACCELERATOR", choice)
    found = CliRunner().invoke(main, ["--version"])
    assert (found.exit_code, found.output) == (0, f"dafka, version {__version__} (transport: {choose_loops().name})\n")


def test_version_with_a_transport_that_there_is_not_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAFKA_ACCELERATOR", "yes")
    found = CliRunner().invoke(main, ["--version"])
    assert (found.exit_code, found.output) == (2, "Error: DAFKA_ACCELERATOR: expected on or off, not 'yes'\n")
