"""Keys and their files, lists of authorized keys, and the security settings of a node."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import zmq.auth

from dafka.config import Config
from dafka.endpoints import is_key
from dafka.errors import ConfigError
from dafka.transport import keys as module
from dafka.transport.keys import (
    KEY_FILE_BYTES_MAX,
    AuthorizedKeys,
    KeyPair,
    parse_public_key,
    read_key_file,
    read_public_keys,
    write_key_file,
)
from dafka.transport.security import Security, open_security


@pytest.fixture(scope="module")
def pair() -> KeyPair:
    return KeyPair.generate("orders")


def message(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        read_key_file(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_written_key_file_is_readable_only_by_its_owner(tmp_path: Path, pair: KeyPair) -> None:
    before = os.umask(0)
    try:
        write_key_file(tmp_path / "key", pair)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert read_key_file(tmp_path / "key") == pair
    public, secret = zmq.auth.load_certificate(tmp_path / "key")
    assert (public.decode(), (secret or b"").decode()) == (pair.public, pair.secret)


def test_a_key_file_made_by_pyzmq_is_read(tmp_path: Path) -> None:
    public, secret = zmq.auth.create_certificates(tmp_path, "node")
    Path(secret).chmod(0o600)
    pair = read_key_file(Path(secret))
    assert read_public_keys(Path(public)) == {pair.public: ""}


def test_repr_does_not_show_the_secret_key(pair: KeyPair) -> None:
    assert pair.secret not in repr(pair) + str(pair)


def test_generated_keys_do_not_look_like_options_or_comments() -> None:
    drawn = iter([(b"-a", b"1"), (b"#b", b"2"), (b"c-#", b"3"), (b"d", b"4")])
    assert KeyPair.generate("name", lambda: next(drawn)) == KeyPair("c-#", "3", "name")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_key_file_that_other_users_can_read_is_refused(tmp_path: Path, pair: KeyPair, mode: int) -> None:
    path = tmp_path / "key"
    write_key_file(path, pair)
    path.chmod(mode)
    assert message(path) == f"key file {path} can be read by other users (mode {mode:04o}): chmod 600 {path}"


def test_a_key_file_is_not_overwritten(tmp_path: Path, pair: KeyPair) -> None:
    path = tmp_path / "key"
    write_key_file(path, pair)
    with pytest.raises(ConfigError, match="exists already; a key file is never overwritten"):
        write_key_file(path, KeyPair.generate())
    assert read_key_file(path) == pair


def test_what_is_not_a_key_file_is_refused(tmp_path: Path, pair: KeyPair) -> None:
    path = tmp_path / "key"
    assert message(path) == f"cannot read the key file {path}: No such file or directory"
    write_key_file(path, KeyPair(KeyPair.generate().public, pair.secret))
    assert "its two keys do not belong together" in message(path)
    for data, error in (
        (b"", "holds no key"),
        (b'public-key = "x"', "holds only a public key"),
        (b'secret-key = "short"', "is damaged: its two keys do not belong together"),
        (b"\xff", "expected text"),
        (b"x" * 2**21, "expected at most 1048576 bytes"),
    ):
        path.write_bytes(data)
        assert error in message(path)
    with pytest.raises(ConfigError, match=r"cannot write the key file .*: No such file or directory"):
        write_key_file(tmp_path / "missing" / "key", pair)


def test_invalid_keys_are_recognized() -> None:
    assert not any(map(is_key, ("", "x", "x" * 39, "x" * 41, "~" * 40, "#" * 40, "é" * 40)))


def test_an_invalid_list_or_certificate_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "list"
    errors = {f"{KEYS[0]}\noops\n": "list, line 2: expected a public key"}
    for text in ("", "x" * 39, "#" * 40):
        wanted = f"list: expected 40 characters of Z85 as public-key, not '{text}'"
        errors[f'curve\n    public-key = "{text}"\n'] = wanted
    for content, error in errors.items():
        path.write_text(content)
        with pytest.raises(ConfigError, match=error):
            read_public_keys(path)
    name = f"{KEYS[0]} name\n"
    path.write_text(name + "#" * (KEY_FILE_BYTES_MAX - len(name)))
    assert read_public_keys(path) == {KEYS[0]: "name"}
    path.write_text(name + "#" * (KEY_FILE_BYTES_MAX - len(name) + 1))
    with pytest.raises(ConfigError, match="at most 1048576 bytes"):
        read_public_keys(path)


def test_a_public_key_is_given_as_text_or_as_a_file(tmp_path: Path, pair: KeyPair) -> None:
    path = tmp_path / "public"
    path.write_text(f"{pair.public} orders\n")
    assert parse_public_key(pair.public) == parse_public_key(str(path)) == pair.public
    path.write_text("")
    with pytest.raises(ConfigError, match=r"expected one public key in .*, not 0"):
        parse_public_key(str(path))
    path.write_text(f"{pair.public} orders\n{KeyPair.generate().public} more\n")
    with pytest.raises(ConfigError, match=r"expected one public key in .*, not 2"):
        parse_public_key(str(path))
    for missing in (str(tmp_path / "none"), "none", "a/" + "~" * 38):
        with pytest.raises(ConfigError, match="there is no file"):
            parse_public_key(missing)
    with pytest.raises(ConfigError, match="expected a public key"):
        parse_public_key("~" * 40)


@pytest.mark.parametrize("is_start", [True, False])
def test_a_folder_that_disappears_while_it_is_read_is_an_error(
    is_start: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    (path / "one.pub").write_text(f"{KeyPair.generate().public}\n")
    keys = None if is_start else AuthorizedKeys(path, "")
    list_files = module.key_files
    looks = 0

    def fail_at_the_second_look(path: Path) -> Iterator[Path]:
        nonlocal looks
        looks += 1
        if looks == 2:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        return list_files(path)

    monkeypatch.setattr(module, "key_files", fail_at_the_second_look)
    with pytest.raises(ConfigError, match=r"cannot read the authorized keys .*folder: No such file or directory"):
        AuthorizedKeys(path, "") if keys is None else keys.refresh()
    assert looks == 2


DAMAGE = "~" * 40
"""A line as long as that of a key."""
KEYS = [KeyPair.generate().public for _ in range(4)]


class Edited:
    """A file or a folder of keys that is edited, and what a node must know of it."""

    def __init__(self, path: Path, random: Random) -> None:
        self.path = path
        self.random = random
        self.texts: dict[Path, str] = {}
        self.is_folder = random.random() < 0.5
        if self.is_folder:
            path.mkdir()
            (path / "below").mkdir()
            (path / ".hidden").write_text("rubbish")
        self.edit(is_valid=True)

    def edit(self, *, is_valid: bool = False) -> None:
        """Write, replace or remove one file."""
        file = self.random.choice([self.path / "a.pub", self.path / "b.pub"]) if self.is_folder else self.path
        if self.is_folder and file in self.texts and self.random.random() < 0.2:
            file.unlink()
            del self.texts[file]
            return
        keys = self.random.sample(KEYS, self.random.randrange(3))
        lines = ["# nobody else\n\n", *(f"{key}{self.random.choice(('', ' bob'))}\n" for key in keys)]
        broken = [] if is_valid or self.random.random() < 0.7 else [f"{DAMAGE}\n"]
        text = "".join([*lines, *broken])
        target = file.with_name(".new") if self.random.random() < 0.3 else file
        target.write_text(text)
        target.replace(file)
        self.texts[file] = text

    def read(self) -> dict[str, str] | None:
        """Return the names of the keys, by default that of their file in a folder; None if a file is damaged."""
        if any(DAMAGE in text for text in self.texts.values()):
            return None
        lines = [(file, line) for file, text in sorted(self.texts.items()) for line in text.splitlines()]
        named = [(file, *line.partition(" ")[::2]) for file, line in lines if line and line[0] != "#"]
        return {key: name or (file.stem if self.is_folder else "") for file, key, name in named}


def test_edits_of_a_list_apply_and_damage_is_reported_once(tmp_path: Path) -> None:
    own = KEYS[0]
    for seed in range(60):
        edited = Edited(tmp_path / f"{seed}", Random(seed))
        keys = AuthorizedKeys(edited.path, own)
        known = edited.read()
        assert known is not None
        for step in range(8):
            was_damaged = edited.read() is None
            edited.edit()
            now = edited.read()
            if now is None:
                with contextlib.suppress(ConfigError):
                    assert keys.refresh() is None, (seed, step)
                    assert was_damaged, f"seed {seed}, step {step}: the damage was not reported"
            else:
                revoked = None if now.keys() == known.keys() else known.keys() - now.keys() - {own}
                assert keys.refresh() == revoked, (seed, step)
                known = now
            assert keys.refresh() is None, (seed, step)
            assert (keys.names() if now is not None else known) == known, (seed, step)
            assert (len(keys), "" in keys) == (len(known), False), (seed, step)
            assert [key for key in KEYS if key in keys] == [key for key in KEYS if key in known or key == own]


@pytest.mark.parametrize("name", ["none", "none/"])
def test_a_missing_list_is_an_error_at_the_start(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the authorized keys .*: No such file or directory"):
        AuthorizedKeys(tmp_path / name, "")


# The security of a node


@pytest.fixture
def files(tmp_path: Path, pair: KeyPair) -> dict[str, str]:
    """Settings that are complete."""
    write_key_file(tmp_path / "key", pair)
    (tmp_path / "authorized").write_text(f"{KeyPair.generate().public} peer\n")
    return {"key_file": str(tmp_path / "key"), "authorized_keys": str(tmp_path / "authorized")}


def opened(**settings: Any) -> Security | None:
    return open_security(Config().with_security(**settings))


def make_security(pair: KeyPair, path: Path, *tower_keys: str) -> Security:
    path.touch()
    return Security(pair, AuthorizedKeys(path, pair.public), tower_keys)


def test_without_settings_the_cluster_is_plain() -> None:
    assert opened() is None


@pytest.mark.parametrize(
    ("names", "tower_keys", "error"),
    [
        (["authorized_keys"], (), "authorized_keys: expected a key_file"),
        (["key_file"], (), "key_file: expected authorized_keys"),
        ([], (KeyPair.generate().public,), "tower_keys: expected a key_file"),
        (["key_file", "authorized_keys"], ("x",), "tower_keys: there is no file 'x'"),
    ],
)
def test_incomplete_or_invalid_settings_are_no_plain_cluster(
    files: dict[str, str], names: list[str], tower_keys: tuple[str, ...], error: str
) -> None:
    with pytest.raises(ConfigError, match=rf"\[security\] {error}"):
        opened(**{name: files[name] for name in names}, tower_keys=tower_keys)


@pytest.mark.parametrize(
    ("keys", "index", "count", "expected"),
    [
        *(("A", 0, 1, "A"), ("A", 2, 3, "A"), ("AB", 0, 2, "A"), ("AB", 1, 2, "B"), ("ABC", 2, 3, "C")),
        *(("", 0, 1, None), ("AB", 0, 1, None), ("AB", 0, 3, None), ("ABC", 0, 2, None)),
    ],
)
def test_towers_share_a_key_or_have_one_each(
    keys: str, index: int, count: int, expected: str | None, pair: KeyPair, tmp_path: Path
) -> None:
    security = make_security(pair, tmp_path / "list", *keys)
    if expected:
        assert security.tower_key(index, count) == expected
    else:
        with pytest.raises(ConfigError, match=r"\[security\] tower_keys: expected"):
            security.tower_key(index, count)


def test_a_key_file_is_private_before_it_holds_the_key(
    pair: KeyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    path = tmp_path / "key"
    monkeypatch.setattr(
        "os.fchmod", lambda _, mode: seen.append(f"{path.stat().st_mode & 0o777:o} {mode:o} {path.stat().st_size}")
    )
    monkeypatch.setattr("os.fsync", lambda fd: seen.append(f"synced {path.stat().st_size > 100}"))
    write_key_file(path, pair)
    assert seen == ["600 600 0", "synced True", "synced True"]  # the file, and the folder that names it
