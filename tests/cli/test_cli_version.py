import pytest
from click.testing import CliRunner

from dafka import __version__
from dafka.batches import records_codec
from dafka.cli import main
from dafka.transport import choose_loops


@pytest.mark.parametrize("choice", ["", "off"])
def test_version_names_the_transport_and_the_codec(choice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAFKA_ACCELERATOR", choice)
    found = CliRunner().invoke(main, ["--version"])
    parts = f"transport: {choose_loops().name}, batches: {records_codec().name}"
    expected = f"dafka, version {__version__} ({parts})\n"
    assert (found.exit_code, found.output) == (0, expected)


def test_version_refuses_an_unknown_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAFKA_ACCELERATOR", "yes")
    found = CliRunner().invoke(main, ["--version"])
    assert (found.exit_code, found.output) == (2, "Error: DAFKA_ACCELERATOR: expected on or off, not 'yes'\n")
