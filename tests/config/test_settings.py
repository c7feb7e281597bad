"""Every setting against its page: its default, what it takes, what it refuses, and which source applies."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from dafka.config import Config
from dafka.config.configuration import SECTIONS
from dafka.errors import ConfigError

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "configuration.md"
LINE = re.compile(r"^\| `(\w+)` \| `\w+` \| [^|]* \| ([^|]*) \| (?:`([^`]*)`|empty)[^|]* \|", re.MULTILINE)
KINDS = {
    "text": "text",
    "text, or a list of texts": "texts",
    "an endpoint such as tcp://127.0.0.1:5556": "endpoint",
    "endpoints such as tcp://127.0.0.1:5556": "endpoints",
    "a host name or address, such as 10.0.0.7 or [fe80::1]": "host",
    "a port, or an address and a port, such as 9464 or 10.0.0.7:9464": "listen_address",
    "the id of a cluster, 32 hexadecimal digits in upper case": "cluster_id",
}
"""By what a setting takes, its kind. Other settings take numbers in limits, or one of several words."""

STRICTER = {"tower": "towers", "advertised_listener": "advertised"}
"""The settings that take only some of these values."""


@attrs.frozen
class Row:
    section: str
    name: str
    kind: str
    limits: str
    default: Any
    takes: str

    @classmethod
    def parse(cls, section: str, name: str, takes: str, default: str) -> Row:
        kind, limits = STRICTER.get(name, KINDS.get(takes, "choice")), takes.replace(" or ", "|")
        if numbers := re.fullmatch(
            r"a (whole number|number of \w+) (?:of at least|from) (-?\d+)(?: to (\d+))?(?: up)?", takes
        ):
            kind = {"whole number": "count", "number of milliseconds": "ms", "number of bytes": "bytes"}[numbers[1]]
            return cls(section, name, kind, f"{numbers[2]}..{numbers[3] or ''}", int(default), takes)
        listed = tuple(default.split(", ")) if default else ()
        return cls(section, name, kind, limits, listed if kind in LISTS else default, takes)

    @property
    def variable(self) -> str:
        return f"DAFKA_{self.section}_{self.name}".upper()

    def refused(self) -> list[Any]:
        """Return values that the setting does not take."""
        match self.kind:
            case "choice":
                return ["", "x", self.limits, self.limits.partition("|")[0].upper(), 1, True, None, ["x"]]
            case kind if kind in REFUSED:
                return [*REFUSED[kind], 1, True, [1]]
        least, _, most = self.limits.partition("..")
        outside = [int(least) - 1, *([int(most) + 1] if most else [])]
        return [*outside, -2, True, 1.5, [7], None, "", "x", "-7", *FOREIGN_UNITS[self.kind]]

    def taken(self) -> list[tuple[Any, Any]]:
        """Return at least two values that the setting takes, each with the value that it then has."""
        match self.kind:
            case "choice":
                return [(each, each) for each in self.limits.split("|")]
            case kind if kind in TAKEN:
                return TAKEN[kind]
        least, _, most = self.limits.partition("..")
        bounds = [int(least), int(most or 2**40)]
        return [*((each, each) for each in bounds), *UNITS[self.kind]]


NUMBERS = ("ms", "bytes", "count")
LISTS = ("texts", "endpoints", "towers")
UNITS: dict[str, list[tuple[Any, Any]]] = {
    "ms": [("10s", 10_000), ("1.5 H", 5_400_000)],
    "bytes": [("64KiB", 65_536), ("1 mb", 1_000_000)],
    "count": [],
}
FOREIGN_UNITS = {"ms": ["64KiB"], "bytes": ["10s"], "count": ["10s", "64KiB"]}
ENDPOINTS_REFUSED = ["x", "tcp://", "tcp://a", "tcp://:1", "udp://a:1", "tcp://a:65536", "tcp://a:b"]
LISTEN_REFUSED = ["x", "a:", "a:b", ":", "a:65536", "99999", "a b:1", "::1", "[x]:1", None]
REFUSED: dict[str, list[Any]] = {
    "text": [None, ["a"], 1.5],
    "texts": [None, ["a", 1]],
    "endpoint": ["", None, *ENDPOINTS_REFUSED],
    "endpoints": ["", [], None, *ENDPOINTS_REFUSED, ["tcp://a:1", "b"]],
    "listen_address": LISTEN_REFUSED,
    "advertised": [*LISTEN_REFUSED, "0", "a:0"],
    "cluster_id": ["x", "A" * 31, "A" * 33, "a" * 32, "G" * 32, None],
    "host": ["a b", "a:1", "::1", "h" * 256, "[::1", None],
    "towers": ["a:b", "a:0", "a:65535", "a:1:1", "::1", "tcp://a:1", None],
}
TAKEN: dict[str, list[tuple[Any, Any]]] = {
    "text": [("x", "x"), (" 10s,y ", " 10s,y "), ("", "")],
    "texts": [("x", ("x",)), ("x, y,", ("x", "y")), (["x", "y,z"], ("x", "y,z"))],
    "endpoint": [("tcp://*:7", "tcp://*:7"), ("ipc://x", "ipc://x"), ("tcp://[::1]:*", "tcp://[::1]:*")],
    "endpoints": [
        ("tcp://a:1", ("tcp://a:1",)),
        ("tcp://a:1, tcp://b:2,", ("tcp://a:1", "tcp://b:2")),
        (["tcp://a:1", "ipc://b"], ("tcp://a:1", "ipc://b")),
    ],
    "listen_address": [("0", "0"), ("65535", "65535"), ("h:1", "h:1"), ("[::1]:1", "[::1]:1"), ("", "")],
    "advertised": [("1", "1"), ("h:65535", "h:65535"), ("", "")],
    "cluster_id": [("0F" * 16, "0F" * 16), ("A" * 32, "A" * 32), ("", "")],
    "host": [("h", "h"), ("h" * 255, "h" * 255), ("[fe80::1]", "[fe80::1]"), ("", "")],
    "towers": [("h:1", ("h:1",)), ("h, [::1]:7", ("h", "[::1]:7")), (["h:1:3"], ("h:1:3",))],
}
ROWS = [
    Row.parse(section, *row)
    for section, text in re.findall(
        r"^## \[(\w+)\]\n(.*?)(?=^## |\Z)", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    for row in LINE.findall(text)
]
each_section = pytest.mark.parametrize("section", SECTIONS)


def rows_of(section: str) -> list[Row]:
    return [row for row in ROWS if row.section == section]


@each_section
def test_every_section_has_a_method_whose_parameters_are_its_settings(section: str) -> None:
    _, *parameters = inspect.signature(getattr(Config, f"with_{section}")).parameters
    assert parameters == list(attrs.fields_dict(SECTIONS[section]))


def test_the_page_has_every_setting_in_its_order() -> None:
    settings = [(section, name) for section, kind in SECTIONS.items() for name in attrs.fields_dict(kind)]
    assert [(row.section, row.name) for row in ROWS] == settings
    assert {name: type(getattr(Config(), name)) for name in attrs.fields_dict(Config)} == SECTIONS


def values_of(config: Config) -> dict[tuple[str, str], Any]:
    return {(row.section, row.name): getattr(getattr(config, row.section), row.name) for row in ROWS}


DEFAULTS = {(row.section, row.name): row.default for row in ROWS}


def changed(config: Config) -> dict[tuple[str, str], Any]:
    """Return the settings that do not have their default; of towers, without the endpoints that follow from them."""
    found = {path: value for path, value in values_of(config).items() if value != DEFAULTS[path]}
    if ("beacon", "tower") in found:
        found = {path: value for path, value in found.items() if path[1] not in ("tower_sub", "tower_pub")}
    return found


def in_file(folder: Path, row: Row, value: Any) -> Path:
    path = folder / "dafka.toml"
    path.write_text(f"[{row.section}]\n{row.name} = {json.dumps(value)}\n")
    return path


def sources(row: Row, value: Any, folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield each source that can give a value, and what its errors begin with."""
    yield f"[{row.section}] ", lambda: getattr(Config(), f"with_{row.section}")(**{row.name: value})
    if value is not None:
        yield (f"{folder / 'dafka.toml'}: [{row.section}] ", lambda: Config.load(in_file(folder, row, value), {}))
    if isinstance(value, str) or (row.kind in NUMBERS and type(value) is int):
        yield f"{row.variable}: ", lambda: Config.load(environ={row.variable: str(value)})


@each_section
def test_a_setting_takes_the_values_of_its_kind_from_each_source(section: str, tmp_path: Path) -> None:
    assert values_of(Config()) == values_of(Config.load(environ={})) == DEFAULTS
    for row in rows_of(section):
        for given, value in row.taken():
            expected = {} if value == row.default else {(section, row.name): value}
            for _, configure in sources(row, given, tmp_path):
                assert changed(configure()) == expected, (row, given)


@each_section
def test_a_setting_refuses_other_values_in_one_sentence_that_names_it(section: str, tmp_path: Path) -> None:
    for row in rows_of(section):
        words = row.takes if row.kind in {*NUMBERS, "choice"} else ""
        for value in row.refused():
            for begin, configure in sources(row, value, tmp_path):
                with pytest.raises(ConfigError) as caught:
                    configure()
                sentence = str(caught.value)
                name = "" if begin.startswith("DAFKA_") else f"{row.name}: "
                assert sentence.startswith(f"{begin}{name}expected {words}"), (row, value)
                assert "\n" not in sentence


@each_section
def test_the_environment_overrides_the_file_and_the_program_both(section: str, tmp_path: Path) -> None:
    for row in rows_of(section):
        (first, in_first), (second, in_second) = row.taken()[:2]
        variables = {row.variable: ",".join(second) if isinstance(second, list) else str(second)}
        other = ("broker", "replicas") if section != "broker" else ("tower", "nodes_max")
        path = in_file(tmp_path, row, first)
        path.write_text(f"[{other[0]}]\n{other[1]} = 7\n{path.read_text()}")
        config = Config.load(path, variables)
        expected = {other: 7, (section, row.name): in_second}
        assert changed(config) == {path: value for path, value in expected.items() if value != DEFAULTS[path]}
        again = getattr(config, f"with_{section}")(**{row.name: first})
        assert (getattr(getattr(again, section), row.name)) == in_first
        assert (getattr(getattr(config, section), row.name)) == in_second, "the original was changed"


@each_section
def test_unknown_names_are_refused_with_a_suggestion(section: str, tmp_path: Path) -> None:
    name = next(row.name for row in ROWS if row.section == section)
    path = tmp_path / "dafka.toml"
    for text, expected in (
        (f"[{section}]\n{name}x = 1", f"unknown setting '{name}x' in [{section}]: did you mean {name}?"),
        (f"[{section}]\nqqqqqqqq = 1", f"unknown setting 'qqqqqqqq' in [{section}]: expected one of {name}"),
        (f"{section} = 1", f"'{section}' is the name of a section: expected [{section}], and its settings below it"),
        (f"[{section}.{name}]\nq = 1", f"unknown setting '{name}.q' in [{section}]: "),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError) as caught:
            Config.load(path, {})
        assert str(caught.value).startswith(f"{path}: {expected}")


def test_the_storage_of_a_store_names_its_cold_tier() -> None:
    assert Config().with_store(storage="memory:").storage_url == "memory:"
    config = Config().with_store(storage="filelog:log").with_cold(storage="s3://b/p", local_retention_bytes=5)
    options = "local_retention_ms=86400000&local_retention_bytes=5&cold_segment_bytes=67108864&cold_segment_ms=86400000"
    rest = "&cold_interval_ms=60000&cold_rate_bytes=0&cold_cache_bytes=67108864&cold_timeout_ms=30000"
    assert config.storage_url == f"tiered:filelog:log?cold=s3%3A%2F%2Fb%2Fp&{options}{rest}"
    config = config.with_store(storage="filelog:log?x=1").with_cold(local_retention_ms=0)
    assert config.storage_url.startswith("tiered:filelog:log?x=1&cold=s3%3A%2F%2Fb%2Fp&local_retention_bytes=5&")
    with pytest.raises(ConfigError, match=r"^\[cold\] local_retention_ms: expected this or local_retention_bytes, or"):
        config.with_cold(local_retention_bytes=0)


def test_a_store_knows_what_it_drops_and_compacts() -> None:
    store = Config().store
    assert not store.has_retention
    for limit in ("retention_ms", "retention_bytes", "retention_records"):
        given: dict[str, Any] = {limit: 1}
        assert Config().with_store(**given).store.has_retention, limit
    store = Config().with_store(compact_topics="users.*, Exact").store
    assert [store.compacts(topic) for topic in ("users.a", "users", "Exact", "exact", "xExact")] == [
        *(True, False),
        *(True, False, False),
    ]
