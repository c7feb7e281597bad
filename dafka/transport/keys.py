"""CURVE keys and their files, in the form of ZeroMQ's certificates (CZMQ's zcert, pyzmq's `zmq.auth`).

A public key is written as 40 characters of Z85. It is shown to anybody; the secret key stands in its file alone, which
nobody but its owner may read.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import attrs
import zmq

from dafka.endpoints import is_key
from dafka.errors import ConfigError

KEY_FILE_BYTES_MAX = 2**20
"""Nobody's list of keys is larger: what is, is another kind of file, and is not read."""

_ENTRY = re.compile(r'\s*(public-key|secret-key|name)\s*=\s*"([^"]*)"\s*')
_HEADING = (
    "# A secret key: whoever has it is this node. `dafka keys show` tells its public key, which others may know.\n"
)


@attrs.frozen
class KeyPair:
    """A node's own keys. The secret one is not shown where this is printed.

    Attributes:
        public: the public key, in Z85.
        secret: the secret key, in Z85.
        name: what the file says whose it is; may be empty.
    """

    public: str
    secret: str = attrs.field(repr=False)
    name: str = ""

    @classmethod
    def generate(cls, name: str = "") -> KeyPair:
        """A new pair, of which the public key looks neither like an option nor like a comment."""
        while True:
            public, secret = zmq.curve_keypair()
            if public[:1] not in b"-#":
                return cls(public.decode("ascii"), secret.decode("ascii"), name)


def write_key_file(path: Path, pair: KeyPair) -> None:
    """Makes the file, with mode 0600. Raises `ConfigError` where something is there already, or it cannot be made."""
    text = f'{_HEADING}metadata\n    name = "{pair.name}"\n'
    text += f'curve\n    public-key = "{pair.public}"\n    secret-key = "{pair.secret}"\n'
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        raise ConfigError(f"{path} is there already, and a key is not written over") from None
    except OSError as error:
        raise ConfigError(f"cannot write the key file {path}: {error.strerror}") from None


def read_key_file(path: Path) -> KeyPair:
    """Reads a secret key and its public one.

    Raises `ConfigError` where the file cannot be read, can be read by others, or holds no pair of keys.
    """
    text, mode = _read_text(path, "key file")
    if mode & 0o077:
        raise ConfigError(f"key file {path} is open to others (mode {mode:04o}): chmod 600 {path}")
    entries = _entries(text)
    public, secret = entries.get("public-key", ""), entries.get("secret-key", "")
    if not secret:
        what = "a public key alone" if public else "no key"
        raise ConfigError(f"key file {path} holds {what}: expected a file made by `dafka keys new`")
    if not is_key(secret) or zmq.curve_public(secret.encode("ascii")).decode("ascii") != public:
        raise ConfigError(f"key file {path} is damaged: its keys are no pair")
    return KeyPair(public, secret, entries.get("name", ""))


def read_public_keys(path: Path) -> dict[str, str]:
    """The names by public key that a file holds: a certificate, or a key a line with whatever name behind it.

    Raises `ConfigError` where it cannot be read, or a line is neither a key nor empty nor a comment (`# ...`).
    """
    text, _ = _read_text(path, "file of public keys")
    entries = _entries(text)
    if "public-key" in entries:
        if not is_key(entries["public-key"]):
            raise ConfigError(f"{path}: its public-key is not 40 characters of Z85")
        return {entries["public-key"]: entries.get("name", "")}
    keys: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        word, name = [*line.split(maxsplit=1), "", ""][:2]
        if is_key(word):
            keys[word] = name.strip()
        elif word and not word.startswith("#"):
            raise ConfigError(f"{path}, line {number}: expected a public key (40 characters of Z85), and then a name")
    return keys


def parse_public_key(text: str) -> str:
    """The public key that this is, or that the file of this name holds. Raises `ConfigError` where there is not one."""
    if is_key(text):
        return text
    if not os.path.exists(text):
        raise ConfigError(f"expected a public key (40 characters of Z85), or a file that holds one, not {text!r}")
    keys = list(read_public_keys(Path(text)))
    if len(keys) != 1:
        raise ConfigError(f"{text} holds {len(keys)} public keys: expected one")
    return keys[0]


def _entries(text: str) -> dict[str, str]:
    found = (_ENTRY.fullmatch(line) for line in text.splitlines())
    return {match[1]: match[2] for match in found if match is not None}


def _read_text(path: Path, what: str) -> tuple[str, int]:
    """The file's text and its permissions, both of the same file."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            octets = file.read(KEY_FILE_BYTES_MAX + 1)
        if len(octets) > KEY_FILE_BYTES_MAX:
            raise ConfigError(f"{what} {path} is too large to be one")
        return octets.decode("utf-8"), mode
    except OSError as error:
        raise ConfigError(f"cannot read the {what} {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{what} {path} is not text") from None


_State: TypeAlias = tuple[tuple[str, int, int, int], ...]
"""By which a change is noticed: the files, and of each its number, its size and when it was written."""


class AuthorizedKeys:
    """The public keys that are let in.

    What cannot be read when it changes leaves the former keys in force: a slip in an editor locks nobody out.

    Attributes:
        path: the file or folder.
        own: the node's own public key, which need not be listed.
    """

    def __init__(self, path: Path, own: str) -> None:
        """Reads the keys. Raises `ConfigError` where they cannot be read."""
        self.path = path
        self.own = own
        self._state = _look(path)
        self._keys = _read_keys(path)

    def __contains__(self, key: str) -> bool:
        return key == self.own or key in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def names(self) -> dict[str, str]:
        """By public key, what the list says whose it is."""
        return dict(self._keys)

    def refresh(self) -> set[str] | None:
        """Reads the keys again where they have changed since; gives those that are authorized no longer.

        None where the keys are the same. Raises `ConfigError`, once a change, where they cannot be read; then the
        former ones stay.
        """
        try:
            state = _look(self.path)
        except ConfigError:
            if not self._state:
                return None
            self._state = ()
            raise
        if state == self._state:
            return None
        self._state = state
        former, self._keys = self._keys, _read_keys(self.path)
        if former.keys() == self._keys.keys():
            return None
        return {key for key in former if key not in self}


def key_files(path: Path) -> Iterator[Path]:
    """The files that `path` stands for: itself, or those in the folder that are not hidden."""
    if path.is_dir():
        yield from sorted(each for each in path.iterdir() if each.is_file() and not each.name.startswith("."))
    else:
        yield path


def _read_keys(path: Path) -> dict[str, str]:
    keys: dict[str, str] = {}
    try:
        files = list(key_files(path))
    except OSError as error:
        raise _unreadable(path, error) from None
    for file in files:
        for key, name in read_public_keys(file).items():
            keys[key] = name or (file.stem if file != path else "")
    return keys


def _look(path: Path) -> _State:
    try:
        found = [(file, file.stat()) for file in key_files(path)]
    except OSError as error:
        raise _unreadable(path, error) from None
    return tuple((str(file), status.st_ino, status.st_size, status.st_mtime_ns) for file, status in found)


def _unreadable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"cannot read the authorized keys {path}: {os.strerror(error.errno or 0)}")
