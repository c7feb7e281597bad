"""The security settings of a node: the combinations that are refused, and the options of its sockets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dafka.config import Config
from dafka.errors import ConfigError
from dafka.transport.keys import KEY_FILE_BYTES_MAX, AuthorizedKeys, KeyPair, read_public_keys, write_key_file
from dafka.transport.security import Security, open_security


@pytest.fixture(scope="module")
def pair() -> KeyPair:
    return KeyPair.generate("node")


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


def test_complete_settings_are_read(files: dict[str, str], pair: KeyPair) -> None:
    tower = KeyPair.generate()
    security = opened(**files, tower_keys=(tower.public,))
    assert security is not None
    assert (security.pair, security.tower_keys, len(security.authorized)) == (pair, (tower.public,), 1)
    assert pair.public in security.authorized
    assert tower.public not in security.authorized


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


class Options:
    """Takes the options of a socket."""

    def __init__(self) -> None:
        self.set: dict[str, object] = {}

    def set_options(self, **options: object) -> None:
        self.set.update(options)


def test_a_bound_socket_asks_the_handler_and_a_connecting_one_expects_a_key(pair: KeyPair, tmp_path: Path) -> None:
    security = make_security(pair, tmp_path / "list")
    bound, connecting = Options(), Options()
    security.require_keys(bound)  # type: ignore[arg-type]
    secret, public = pair.secret.encode(), pair.public.encode()
    assert bound.set == {
        "curve_server": 1,
        "curve_secretkey": secret,
        "zap_domain": b"dafka",
        "zap_enforce_domain": 1,
    }
    other = KeyPair.generate().public
    security.expect_key(connecting, other)  # type: ignore[arg-type]
    expected = {"curve_serverkey": other.encode(), "curve_publickey": public, "curve_secretkey": secret}
    assert connecting.set == expected


@pytest.mark.parametrize(("extra", "is_read"), [(0, True), (1, False)])
def test_a_file_of_keys_has_a_largest_size(extra: int, is_read: bool, pair: KeyPair, tmp_path: Path) -> None:
    text = f"{pair.public} name\n"
    path = tmp_path / "list"
    path.write_text(text + "#" * (KEY_FILE_BYTES_MAX - len(text) + extra))
    if is_read:
        assert read_public_keys(path) == {pair.public: "name"}
    else:
        with pytest.raises(ConfigError, match="at most 1048576 bytes"):
            read_public_keys(path)


def test_a_key_file_that_cannot_be_written_is_named(pair: KeyPair, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot write the key file .*: No such file or directory"):
        write_key_file(tmp_path / "missing" / "key", pair)


def test_keys_without_a_name_are_named_after_their_file_in_a_folder_only(pair: KeyPair, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for path in (tmp_path / "list", folder / "alice.pub"):
        path.write_text(f"{pair.public}\n")
    assert AuthorizedKeys(tmp_path / "list", "").names() == {pair.public: ""}
    assert AuthorizedKeys(folder, "").names() == {pair.public: "alice"}
    for path in (tmp_path / "list", folder / "alice.pub"):
        path.write_text(f"{pair.public} bob\n")
        assert AuthorizedKeys(path.parent if path.parent == folder else path, "").names() == {pair.public: "bob"}


def test_a_key_file_is_private_before_it_holds_the_key(
    pair: KeyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    path = tmp_path / "key"
    monkeypatch.setattr("os.fchmod", lambda fd, mode: seen.append(f"{mode:o} {path.stat().st_size}"))
    monkeypatch.setattr("os.fsync", lambda fd: seen.append(f"synced {path.stat().st_size > 100}"))
    write_key_file(path, pair)
    assert seen == ["600 0", "synced True", "synced True"]  # the file, and the folder that names it
