"""What a user says with `.option(name, value)`: names are looked up, values parsed, mistakes named.

Spark hands all options over as text, in a mapping that does not mind upper and lower case. Everything that is wrong
with one raises `ConfigError`, in one sentence that begins with the option's name.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from dafka.config import Config
from dafka.errors import ConfigError, DiscoveryError

_Value = TypeVar("_Value")
_Word = TypeVar("_Word", bound=str)

SPARKS_OWN = {"checkpointlocation", "queryname", "outputmode"}
"""Options that Spark takes for itself, and hands on all the same."""

CLUSTER_OPTIONS = ("towers", "config", "wire", "discoveryTimeout")
"""Where a running cluster is, and how to speak there: what `cluster_config` reads."""

SUB_PORT, PUB_PORT = 5556, 5557

_NO_TOWERS: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())


class Options:
    """The options of one reader or writer."""

    def __init__(self, given: Mapping[str, str], allowed: Iterable[str], purpose: str) -> None:
        """Raises `ConfigError` where one is given that is not among those allowed. `purpose`: "reading stores"."""
        names = {name.lower(): name for name in allowed}
        self._values = {names[key.lower()]: value for key, value in given.items() if key.lower() in names}
        for key in given:
            if key.lower() not in names and key.lower() not in SPARKS_OWN:
                near = difflib.get_close_matches(key.lower(), names, 1)
                hint = f"did you mean {names[near[0]]}?" if near else f"known are {', '.join(sorted(names.values()))}"
                raise ConfigError(f"option {key}: there is none of this name for {purpose}; {hint}")

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str, default: str = "") -> str:
        """An option's text; `default` where it is not given."""
        return self._values.get(name, default)

    def parse(self, name: str, parser: Callable[[str], _Value], expected: str, default: _Value) -> _Value:
        """An option's value; `ConfigError` where `parser` raises `ValueError`, for it is not as `expected`."""
        if name not in self._values:
            return default
        text = self._values[name]
        try:
            return parser(text)
        except ValueError:
            raise ConfigError(f"option {name}: expected {expected}, not {_shown(text)}") from None

    def number(self, name: str, default: int | None = None, *, minimum: int = 1) -> int | None:
        """A whole number of at least `minimum`."""

        def parser(text: str) -> int | None:
            value = int(text)
            if not minimum <= value < 2**63:
                raise ValueError
            return value

        return self.parse(name, parser, f"a whole number from {minimum} up, below 2**63", default)

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        words = ("false", "true")
        return self.parse(name, lambda text: bool(words.index(text.strip().lower())), "true or false", default)

    def choice(self, name: str, choices: tuple[_Word, ...], default: _Word) -> _Word:
        """One of these words."""

        return self.parse(name, lambda text: choices[choices.index(text)], " or ".join(choices), default)


def cluster_config(options: Options) -> Config:
    """The settings of a node that Spark runs: `config` names a TOML file, `towers` where the towers are.

    `towers` has, with commas between them, `HOST` or `HOST:SUB_PORT:PUB_PORT`. Raises `ConfigError`.
    """
    config = Config.load(options.text("config") or None)
    if "towers" in options:
        expected = "HOST or HOST:SUB_PORT:PUB_PORT, with commas between several"
        subs, pubs = options.parse("towers", _parse_towers, expected, _NO_TOWERS)
        config = config.with_beacon(tower_sub=subs, tower_pub=pubs)
    if "wire" in options:
        config = config.with_node(wire=options.choice("wire", ("rfc46", "libdafka"), "rfc46"))
    timeout = options.number("discoveryTimeout")
    return config if timeout is None else config.with_node(tower_timeout_ms=timeout)


@contextmanager
def naming_towers() -> Iterator[None]:
    """Where the cluster is not found, says with which option it is."""
    try:
        yield
    except DiscoveryError as error:
        raise DiscoveryError(f"{error} (option towers)") from None


def _parse_towers(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    subs, pubs = [], []
    for tower in text.split(","):
        host, sub, pub = _split_tower(tower.strip())
        subs.append(f"tcp://{host}:{sub}")
        pubs.append(f"tcp://{host}:{pub}")
    return tuple(subs), tuple(pubs)


def _split_tower(tower: str) -> tuple[str, int, int]:
    head, bracket, tail = tower.rpartition("]")
    host, *ports = tail.split(":")
    numbers = [int(port) for port in ports] or [SUB_PORT, PUB_PORT]
    host = head + bracket + host
    if not host or "/" in host or len(numbers) != 2 or not all(0 < number < 2**16 for number in numbers):
        raise ValueError
    return host, numbers[0], numbers[1]


def _shown(text: str) -> str:
    return repr(text if len(text) <= 100 else f"{text[:100]}...")
