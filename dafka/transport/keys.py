"""CURVE keys and their files, in the format of ZeroMQ's certificates (CZMQ's zcert, pyzmq's `zmq.auth`).

A public key is written as 40 characters of Z85 (ZeroMQ RFC 32) and is not confidential. The secret key is stored only
in its file. A file that other users of the machine can read is refused.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import zmq

from dafka.durable_files import sync_folder
from dafka.endpoints import is_key
from dafka.errors import ConfigError
from dafka.watched_files import WatchedFiles

KEY_LENGTH = 40
"""The characters of a public key in Z85."""

KEY_FILE_BYTES_MAX = 2**20
"""The largest file of keys that is read, in bytes. A larger file is not a list of keys."""

_ENTRY = re.compile(r'\s*(public-key|secret-key|name)\s*=\s*"([^"]*)"\s*')
_HEADING = "# A secret key: its holder is this node. Keep it private. `dafka keys show` prints its public key.\n"


@attrs.frozen
class KeyPair:
    """The keys of one node, in Z85, and the name in the key file. `repr` does not show the secret key."""

    public: str
    secret: str = attrs.field(repr=False)
    name: str = ""

    @classmethod
    def generate(cls, name: str = "", draw: Callable[[], tuple[bytes, bytes]] = zmq.curve_keypair) -> KeyPair:
        """Create a new pair. Its public key does not begin with `-` or `#`, which mark options and comments."""
        while True:
            public, secret = draw()
            if public[:1] not in b"-#":
                return cls(public.decode("ascii"), secret.decode("ascii"), name)


def write_key_file(path: Path, pair: KeyPair) -> None:
    """Create a key file durably that only its owner can read (mode 0600).

    Raise `ConfigError` if the file exists already, or cannot be written.
    """
    text = f'{_HEADING}metadata\n    name = "{pair.name}"\n'
    text += f'curve\n    public-key = "{pair.public}"\n    secret-key = "{pair.secret}"\n'
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(path.parent)
    except FileExistsError:
        raise ConfigError(f"{path} exists already; a key file is never overwritten: choose another name") from None
    except OSError as error:
        raise ConfigError(f"cannot write the key file {path}: {error.strerror}") from None


def read_key_file(path: Path) -> KeyPair:
    """Read the keys of a node from a file made by `write_key_file`, CZMQ or pyzmq.

    Raise `ConfigError` if the file cannot be read, can be read by other users, or holds no pair of keys.
    """
    text, mode = _read_text(path, "key file")
    if mode & 0o077:
        raise ConfigError(f"key file {path} can be read by other users (mode {mode:04o}): chmod 600 {path}")
    entries = _entries(text)
    public, secret = entries.get("public-key", ""), entries.get("secret-key", "")
    if not secret:
        found = "only a public key" if public else "no key"
        raise ConfigError(f"key file {path} holds {found}: expected a file made by `dafka keys new`")
    if not is_key(secret) or zmq.curve_public(secret.encode("ascii")).decode("ascii") != public:
        raise ConfigError(f"key file {path} is damaged: its two keys do not belong together; restore it from a backup")
    return KeyPair(public, secret, entries.get("name", ""))


def read_public_keys(path: Path) -> dict[str, str]:
    """Read a file of public keys: a certificate, or one key on each line with an optional name after it.

    Return the names, by public key. Empty lines and lines that begin with `#` are ignored. Raise `ConfigError` if the
    file cannot be read, or a line holds no key.
    """
    text, _ = _read_text(path, "file of public keys")
    entries = _entries(text)
    if "public-key" in entries:
        if not is_key(entries["public-key"]):
            raise ConfigError(f"{path}: expected 40 characters of Z85 as public-key, not {entries['public-key']!r}")
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
    """Return a public key that is given as text in Z85, or as the path of a file that holds it.

    Raise `ConfigError` if the text is neither, or the file does not hold exactly one key.
    """
    if is_key(text):
        return text
    if not os.path.exists(text):
        if len(text) != KEY_LENGTH or "/" in text:
            raise ConfigError(f"there is no file {text!r}, and it is no public key, which has {KEY_LENGTH} characters")
        raise ConfigError(f"expected a public key (40 characters of Z85) or a file that holds one, not {text!r}")
    keys = list(read_public_keys(Path(text)))
    if len(keys) != 1:
        raise ConfigError(f"expected one public key in {text}, not {len(keys)}")
    return keys[0]


class AuthorizedKeys:
    """The public keys of the peers that may connect, from a file or a folder that is read again when it changes.

    If the changed file cannot be read, the former keys remain authorized, so that a typing error does not lock peers
    out. The node's own public key is always authorized.
    """

    def __init__(self, path: Path, own: str) -> None:
        """Read the keys. Raise `ConfigError` if they cannot be read."""
        self.path = path
        self.own = own
        self._files = WatchedFiles(lambda: key_files(path), lambda: _read_keys(path))

    def __contains__(self, key: str) -> bool:
        """Return whether a key is authorized."""
        return key == self.own or key in self._files.value

    def __len__(self) -> int:
        """Return the number of keys in the file or folder."""
        return len(self._files.value)

    def names(self) -> dict[str, str]:
        """Return the names in the file or folder, by public key."""
        return dict(self._files.value)

    def refresh(self) -> set[str] | None:
        """Read the keys again if the file or folder has changed.

        Return the keys that are no longer authorized; None if the keys are the same as before. Raise `ConfigError` if
        the changed file cannot be read, once for each change; the former keys remain.
        """
        former = self._files.value
        if not self._files.refresh() or former.keys() == self._files.value.keys():
            return None
        return {key for key in former if key not in self}


def key_files(path: Path) -> Iterator[Path]:
    """Yield a file itself, or the files of a folder that are not hidden."""
    if path.is_dir():
        yield from sorted(each for each in path.iterdir() if each.is_file() and not each.name.startswith("."))
    else:
        yield path


def _read_keys(path: Path) -> dict[str, str]:
    keys: dict[str, str] = {}
    try:
        path.stat()
        files = list(key_files(path))
    except OSError as error:
        raise _unreadable(path, error) from None
    for file in files:
        for key, name in read_public_keys(file).items():
            keys[key] = name or (file.stem if file != path else "")
    return keys


def _unreadable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"cannot read the authorized keys {path}: {os.strerror(error.errno or 0)}")


def _entries(text: str) -> dict[str, str]:
    found = (_ENTRY.fullmatch(line) for line in text.splitlines())
    return {match[1]: match[2] for match in found if match is not None}


def _read_text(path: Path, what: str) -> tuple[str, int]:
    """Return the text and the permissions of a file, both from one open file."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            content = file.read(KEY_FILE_BYTES_MAX + 1)
        if len(content) > KEY_FILE_BYTES_MAX:
            raise ConfigError(f"{what} {path}: expected at most {KEY_FILE_BYTES_MAX} bytes; is it another file?")
        return content.decode("utf-8"), mode
    except OSError as error:
        raise ConfigError(f"cannot read the {what} {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{what} {path}: expected text") from None
