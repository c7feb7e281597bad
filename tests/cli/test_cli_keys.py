from __future__ import annotations

import os
import re
import shlex
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dafka.cli import main
from dafka.endpoints import is_key
from dafka.transport.keys import read_key_file
from tests.cli.harness import FREE, Dafka


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def keys(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["keys", *arguments])


def error(result: Result) -> str:
    (line,) = result.stderr.splitlines()
    assert (result.exit_code, line[:7]) == (2, "Error: ")
    return line[7:]


def test_new_key_file_is_private_and_its_secret_is_not_printed(folder: Path) -> None:
    result = keys("new", "orders.key")
    key, name = result.stdout.split()
    assert (result.exit_code, is_key(key), name) == (0, True, "orders")
    pair = read_key_file(folder / "orders.key")
    assert pair.public == key
    assert stat.S_IMODE((folder / "orders.key").stat().st_mode) == 0o600
    shown = keys("show", "orders.key")
    assert (shown.exit_code, shown.stdout) == (0, result.stdout)
    assert pair.secret not in result.output + shown.output


def test_key_is_authorized_once_in_a_file(folder: Path) -> None:
    public = keys("new", "orders.key", "--name", "the orders").stdout
    (folder / "orders.pub").write_text(public)
    for source in ("orders.pub", "orders.key", public.split()[0]):
        assert keys("authorize", source, "--authorized-keys", "list").exit_code == 0
    assert (folder / "list").read_text() == public
    (folder / "list").write_text(public.rstrip("\n"))
    other, former = keys("new", "other.key").stdout, (folder / "list").stat().st_ino
    assert keys("authorize", "other.key", "--authorized-keys", "list").exit_code == 0
    assert (folder / "list").read_text() == public + other
    assert (folder / "list").stat().st_ino != former, "the list is replaced as a whole"
    assert keys("show", "list").stdout == public + other
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("name", "place", "file"),
    [("..", "in/", ""), ("Ann O'N. 2", "in/", "Ann_O_N._2-"), ("Ann O'N. 2", "there", "Ann_O_N._2-")],
)
def test_a_key_in_a_folder_has_the_name_of_its_owner_if_that_has_letters(
    folder: Path, name: str, place: str, file: str
) -> None:
    """A folder that exists needs no slash."""
    (folder / "there").mkdir()
    made = keys("new", "a.key", "--name", name).stdout
    assert keys("authorize", "a.key", "--authorized-keys", place, "--name", name).exit_code == 0
    (path,) = (folder / place).iterdir()
    assert path.name == f"{file}{made[:8].encode().hex()}.pub"
    assert path.read_text() == made
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_refused_nodes_get_an_error_with_advice(dafka: Dafka, folder: Path) -> None:
    for name in ("hub", "node", "stranger"):
        keys("new", f"{name}.key")
    for name in ("hub", "node"):
        keys("authorize", f"{name}.key", "--authorized-keys", "list")
    for name in ("hub", "stranger"):
        (folder / f"{name}.pub").write_text(keys("show", f"{name}.key").stdout)
    up = dafka.start_up("--key-file", "hub.key", "--authorized-keys", "list", "--storage", "memory:")
    member = ["--authorized-keys", "list", "--tower-keys", "hub.pub"]
    stranger = dafka.start_node("consume", "t", "--key-file", "stranger.key", *member)
    keyless = dafka.start_node("consume", "t", environment={"DAFKA_NODE_TOWER_TIMEOUT_MS": "3000"})
    produced = dafka.node("produce", "t", "--key-file", "node.key", *member, stdin=b"0\n1\n2\n")
    assert (produced.status, produced.errors) == (0, "")
    consumed = dafka.node("consume", "t", "--key-file", "node.key", *member, "--from-beginning", "--count", "3")
    assert (consumed.status, consumed.output) == (0, b"0\n1\n2\n")
    for running, sentence in (
        (stranger, "its key is not authorized there; to authorize it, run there: dafka keys authorize"),
        (keyless, "this node has no key; if it belongs to a closed cluster, use --key-file and --authorized-keys"),
    ):
        ended = running.wait()
        assert (ended.status, ended.output) == (1, b"")
        last = ended.errors.splitlines()[-1]
        assert last.startswith("Error: ")
        assert sentence in last
    public = (folder / "stranger.pub").read_text().split()[0]
    up.wait_errors(
        f"Refused 127.0.0.1: its public key {public} is not authorized here; "
        f"to authorize it, run: dafka keys authorize '{public}' --authorized-keys list"
    )
    up.wait_errors("Refused a connection without a key; if it belongs to the cluster, start it with --key-file")
    assert up.end().status == 0


def test_commands_of_the_security_page_work(dafka: Dafka, folder: Path) -> None:
    """Run every command of docs/how-to/security.md, with local endpoints in place of the page's machines."""
    guide = (Path(__file__).parents[2] / "docs" / "how-to" / "security.md").read_text()
    block = next(each for each in re.findall(r"```sh\n(.*?)```", guide, re.DOTALL) if "dafka keys new" in each)
    text = b"one\ntwo\n"
    for line in block.replace("\\\n", " ").splitlines():
        words = replace_endpoints(shlex.split(line, comments=True), dafka.options)
        if not words:
            continue
        if words[:2] == ["dafka", "up"]:
            dafka.start_up(*words[2:], "--storage", "memory:")
        elif words[0] == "dafka" and words[1] == "produce":
            assert dafka.run(*words[1:], stdin=text).status == 0
        elif words[0] == "dafka" and words[1] == "consume":
            ended = dafka.run(*words[1:], "--count", "2")
            assert (ended.status, ended.output) == (0, text)
        elif words[0] == "dafka":
            output = words[words.index(">") + 1] if ">" in words else None
            result = CliRunner().invoke(main, [word for word in words[1:] if word not in (">", output)])
            assert result.exit_code == 0, result.stderr
            if output is not None:
                (folder / output).write_text(result.stdout)
        else:
            assert words[0] in ("scp", "chmod"), words
    assert os.path.exists(folder / "authorized")


def replace_endpoints(words: list[str], options: list[str]) -> list[str]:
    """Return the command with free loopback ports, and the endpoints of this test's tower."""
    places = {"--sub": FREE, "--pub": FREE, "--bind": FREE, **dict(zip(options[::2], options[1::2], strict=True))}
    return [places.get(before, word) for before, word in zip(["", *words], words, strict=False)]
