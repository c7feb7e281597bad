from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import zmq.auth

from dafka.endpoints import is_key
from dafka.errors import ConfigError
from dafka.transport import KeyPair
from dafka.transport import keys as module
from dafka.transport.keys import AuthorizedKeys, parse_public_key, read_key_file, read_public_keys, write_key_file


@pytest.fixture
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


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "holds no key"),
        ('public-key = "x"', "holds only a public key"),
        ('secret-key = "short"', "is damaged: its two keys do not belong together"),
        ("\xff".encode("latin-1"), "expected text"),
        (b"x" * 2**21, "expected at most 1048576 bytes"),
    ],
)
def test_a_file_that_is_not_a_key_file_is_refused(tmp_path: Path, text: str | bytes, error: str) -> None:
    path = tmp_path / "key"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(0o600)
    assert error in message(path)


def test_keys_that_do_not_belong_together_are_refused(tmp_path: Path, pair: KeyPair) -> None:
    path = tmp_path / "key"
    write_key_file(path, KeyPair(KeyPair.generate().public, pair.secret))
    assert "its two keys do not belong together" in message(path)


def test_the_error_names_a_missing_key_file(tmp_path: Path) -> None:
    assert message(tmp_path / "none") == f"cannot read the key file {tmp_path / 'none'}: No such file or directory"


NO_KEYS: list[str] = ["", "x", "x" * 39, "x" * 41, "~" * 40, "#" * 40, "é" * 40]


def test_invalid_keys_are_recognized() -> None:
    for text in NO_KEYS:
        assert not is_key(text)


def test_a_list_has_a_key_and_an_optional_name_on_each_line(tmp_path: Path) -> None:
    one, two, three = (KeyPair.generate().public for _ in range(3))
    path = tmp_path / "list"
    path.write_text(f"# keys of the first floor\n{one} one of them\r\n\n  {two}\t two\n{three}")
    assert read_public_keys(path) == {one: "one of them", two: "two", three: ""}


def test_the_error_names_the_invalid_line_of_a_list(tmp_path: Path) -> None:
    path = tmp_path / "list"
    path.write_text(f"{KeyPair.generate().public}\noops\n")
    with pytest.raises(ConfigError, match="list, line 2: expected a public key"):
        read_public_keys(path)


@pytest.mark.parametrize("text", ["", "x" * 39, "#" * 40])
def test_a_certificate_with_an_invalid_public_key_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "certificate"
    path.write_text(f'curve\n    public-key = "{text}"\n')
    with pytest.raises(ConfigError, match=f"certificate: expected 40 characters of Z85 as public-key, not '{text}'"):
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
        lines = [f"{key}\n" for key in self.random.sample(KEYS, self.random.randrange(3))]
        broken = [] if is_valid or self.random.random() < 0.7 else [f"{DAMAGE}\n"]
        text = "".join([*lines, *broken])
        target = file.with_name(".new") if self.random.random() < 0.3 else file
        target.write_text(text)
        target.replace(file)
        self.texts[file] = text

    def read(self) -> dict[str, str] | None:
        """Return the names of the keys; None if a file is damaged."""
        if any(DAMAGE in text for text in self.texts.values()):
            return None
        found = [
            (key, file.stem if self.is_folder else "") for file, text in self.texts.items() for key in text.split()
        ]
        return dict(sorted(found, key=lambda pair: pair[1]))


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
            assert keys.names().keys() == known.keys(), (seed, step)
            assert [key for key in KEYS if key in keys] == [key for key in KEYS if key in known or key == own]


@pytest.mark.parametrize("is_folder", [True, False])
def test_a_list_that_disappears_is_reported_once_and_its_keys_remain(is_folder: bool, tmp_path: Path) -> None:
    path = tmp_path / "list"
    file = path / "one.pub" if is_folder else path
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"{KEYS[0]}\n")
    keys = AuthorizedKeys(path, "")
    assert keys.names() == {KEYS[0]: "one" if is_folder else ""}
    file.unlink()
    if is_folder:
        assert keys.refresh() == {KEYS[0]}
        path.rmdir()
    for _ in range(2):
        with pytest.raises(ConfigError, match="No such file"):
            keys.refresh()
        assert keys.refresh() is None
        assert (KEYS[0] in keys) is not is_folder
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"{KEYS[1]}\n")
        assert keys.refresh() == (set() if is_folder else {KEYS[0]})
        file.write_text(f"{KEYS[0]}\n")
        assert keys.refresh() == {KEYS[1]}
        file.unlink()
        if is_folder:
            assert keys.refresh() == {KEYS[0]}
            path.rmdir()


def test_a_list_without_keys_authorizes_this_node_only(tmp_path: Path) -> None:
    own, other = (KeyPair.generate().public for _ in range(2))
    path = tmp_path / "list"
    path.write_text("# nobody yet\n\n")
    keys = AuthorizedKeys(path, own)
    assert len(keys) == 0
    assert keys.names() == {}
    assert own in keys
    assert other not in keys
    assert "" not in keys
