from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

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


@pytest.mark.parametrize("text", ["", "x", "x" * 39, "x" * 41, "~" * 40, "#" * 40, "é" * 40])
def test_invalid_keys_are_recognized(text: str) -> None:
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


def test_a_list_is_read_again_when_it_changes(tmp_path: Path) -> None:
    one, two, own = (KeyPair.generate().public for _ in range(3))
    path = tmp_path / "list"
    path.write_text(f"{one} one\n")
    keys = AuthorizedKeys(path, own)
    assert one in keys
    assert own in keys
    assert two not in keys
    assert keys.refresh() is None
    path.write_text(f"{one} one\n{two}\n")
    assert keys.refresh() == set()
    assert two in keys
    path.write_text(f"{two} two\n")
    assert keys.refresh() == {one}
    assert one not in keys


def test_a_folder_is_read_again_when_it_changes(tmp_path: Path) -> None:
    one, two = (KeyPair.generate() for _ in range(2))
    folder = tmp_path / "folder"
    folder.mkdir()
    write_key_file(folder / "one.key", one)
    (folder / ".hidden").write_text("rubbish")
    (folder / "below").mkdir()
    keys = AuthorizedKeys(folder, "")
    assert keys.names() == {one.public: "one"}
    (folder / "two.pub").write_text(f"{two.public}\n")
    assert keys.refresh() == set()
    assert keys.names() == {one.public: "one", two.public: "two"}
    (folder / "one.key").unlink()
    assert keys.refresh() == {one.public}


def test_an_unreadable_change_keeps_the_former_keys_and_is_reported_once(tmp_path: Path) -> None:
    one, two = (KeyPair.generate().public for _ in range(2))
    path = tmp_path / "list"
    path.write_text(f"{one}\n")
    keys = AuthorizedKeys(path, "")
    path.write_text(f"{one}\nhalf a li")
    with pytest.raises(ConfigError, match="line 2"):
        keys.refresh()
    assert keys.refresh() is None
    assert one in keys
    path.unlink()
    with pytest.raises(ConfigError, match="No such file"):
        keys.refresh()
    assert keys.refresh() is None
    assert one in keys
    path.write_text(f"{two}\n")
    assert keys.refresh() == {one}
    assert two in keys


def test_damage_after_a_repair_is_reported_again(tmp_path: Path) -> None:
    """Also if the file looks the same, as one that is edited several times within the resolution of its time."""
    one = KeyPair.generate().public
    path = tmp_path / "list"
    path.write_text(f"{one}\n")
    modified_ns = time.time_ns() + 3600 * 10**9  # it counts as young for the whole test
    set_time(path, modified_ns)
    keys = AuthorizedKeys(path, "")
    for _ in range(2):
        path.write_text("x" * len(f"{one}\n"))
        set_time(path, modified_ns)
        with pytest.raises(ConfigError, match="line 1"):
            keys.refresh()
        assert keys.refresh() is None
        path.write_text(f"{one}\n")
        set_time(path, modified_ns)
        assert keys.refresh() is None
        assert one in keys


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


def set_time(path: Path, modified_ns: int) -> None:
    os.utime(path, ns=(modified_ns, modified_ns))


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


def test_a_list_that_becomes_empty_revokes_every_key(tmp_path: Path) -> None:
    one, two, own = (KeyPair.generate().public for _ in range(3))
    path = tmp_path / "list"
    path.write_text(f"{one}\n{two}\n{own}\n")
    keys = AuthorizedKeys(path, own)
    path.write_text("")
    assert keys.refresh() == {one, two}
    assert one not in keys
    assert own in keys


def test_an_edit_without_a_change_of_size_is_read_whenever_it_happens(tmp_path: Path) -> None:
    one, two = (KeyPair.generate().public for _ in range(2))
    path = tmp_path / "list"
    for step_ns in (1, 1_000, 1_000_000, 999_999_999, 1_000_000_000, 60_000_000_000):
        begin_ns = (time.time_ns() // 10**9 - 3600) * 10**9
        path.write_text(f"{one}\n")
        set_time(path, begin_ns)
        keys = AuthorizedKeys(path, "")
        path.write_text(f"{two}\n")
        set_time(path, begin_ns + step_ns)
        assert keys.refresh() == {one}, step_ns
        assert one not in keys
        assert two in keys
        path.write_text(f"{one}\n")
        set_time(path, begin_ns)  # an older copy is put back
        assert keys.refresh() == {two}, step_ns


def test_an_edit_without_a_change_of_size_or_time_is_read_if_the_file_was_young(tmp_path: Path) -> None:
    """Two edits within the resolution of the file system's times have the same time."""
    one, two, three = (KeyPair.generate().public for _ in range(3))
    path = tmp_path / "list"
    path.write_text(f"{one}\n")
    now_ns = time.time_ns()
    set_time(path, now_ns)
    keys = AuthorizedKeys(path, "")
    for former, key in ((one, two), (two, three)):
        path.write_text(f"{key}\n")
        set_time(path, now_ns)
        assert keys.refresh() == {former}
        assert key in keys
    path.write_text("x" * 41)
    set_time(path, now_ns)
    with pytest.raises(ConfigError, match="line 1"):
        keys.refresh()
    assert keys.refresh() is None
    path.write_text(f"{one}\n")
    set_time(path, now_ns)
    assert keys.refresh() == {three}


def test_a_young_file_of_a_folder_is_read_although_the_others_are_old(tmp_path: Path) -> None:
    one, two, three = (KeyPair.generate().public for _ in range(3))
    folder = tmp_path / "folder"
    folder.mkdir()
    for name, key, modified_ns in (("old", one, 10**18), ("young", two, time.time_ns() + 3600 * 10**9)):
        (folder / name).write_text(f"{key}\n")
        set_time(folder / name, modified_ns)
    keys = AuthorizedKeys(folder, "")
    modified_ns = (folder / "young").stat().st_mtime_ns
    (folder / "young").write_text(f"{three}\n")
    set_time(folder / "young", modified_ns)
    assert keys.refresh() == {two}
    assert one in keys
    assert three in keys


def test_a_list_that_is_replaced_by_a_file_of_the_same_size_and_time_is_read(tmp_path: Path) -> None:
    one, two = (KeyPair.generate().public for _ in range(2))
    path, other = tmp_path / "list", tmp_path / "other"
    for file, key in ((path, one), (other, two)):
        file.write_text(f"{key}\n")
        set_time(file, 10**18)
    keys = AuthorizedKeys(path, "")
    other.replace(path)
    assert keys.refresh() == {one}
    assert two in keys


def test_a_change_of_size_alone_is_read(tmp_path: Path) -> None:
    one, two = (KeyPair.generate().public for _ in range(2))
    path = tmp_path / "list"
    path.write_text(f"{one}\n{two}\n")
    set_time(path, 10**18)
    keys = AuthorizedKeys(path, "")
    path.write_text(f"{two}\n")
    set_time(path, 10**18)
    assert keys.refresh() == {one}


def test_an_old_list_is_not_read_again_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "list"
    path.write_text(f"{KeyPair.generate().public}\n")
    set_time(path, 10**18)
    keys = AuthorizedKeys(path, "")
    reads: list[Path] = []
    monkeypatch.setattr(module, "read_public_keys", reads.append)
    assert keys.refresh() is None
    assert reads == []


def test_a_folder_that_loses_its_last_file_and_then_itself_is_noticed(tmp_path: Path) -> None:
    one = KeyPair.generate().public
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "one.pub").write_text(f"{one}\n")
    keys = AuthorizedKeys(folder, "")
    (folder / "one.pub").unlink()
    assert keys.refresh() == {one}
    assert keys.refresh() is None
    folder.rmdir()
    with pytest.raises(ConfigError, match="No such file"):
        keys.refresh()
    assert keys.refresh() is None


@pytest.mark.parametrize("name", ["none", "none/"])
def test_a_missing_list_is_an_error_at_the_start(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the authorized keys .*: No such file or directory"):
        AuthorizedKeys(tmp_path / name, "")
