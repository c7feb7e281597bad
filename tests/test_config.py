"""Settings from files, from the environment and from programs: their names, their values, and the errors."""

import inspect
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

from dafka.cli.groups import parse_target
from dafka.cli.record_lines import parse_timestamp
from dafka.config import BeaconConfig, Config, ConsumerConfig, NodeConfig, ProducerConfig, StoreConfig, TowerConfig
from dafka.config.configuration import SECTIONS, change_section
from dafka.config.loading import variable_name
from dafka.config.values import parse_duration_ms, parse_size_bytes, parse_time_ms
from dafka.errors import ConfigError
from dafka.text import format_time, parse_time

SETTINGS = """
[beacon]
interval_ms = 500
timeout_ms = "2s"
tower_sub = "tcp://10.0.0.1:5556"
tower_pub = "tcp://10.0.0.1:5557"

[tower]
sub = "tcp://*:6556"
pub = "tcp://*:6557"

[producer]
head_interval_ms = 250
high_watermark = 5000

[consumer]
offset_reset = "earliest"
high_watermark = 6000

[store]
high_watermark = 7000
retention_bytes = "10GiB"
"""


def load(text: str, tmp_path: Path, environ: Mapping[str, str] | None = None) -> Config:
    path = tmp_path / "dafka.toml"
    path.write_text(text)
    return Config.load(path, environ or {})


def refused(text: str, tmp_path: Path, environ: Mapping[str, str] | None = None) -> str:
    """Return the error that these settings cause, without the file's path."""
    with pytest.raises(ConfigError) as caught:
        load(text, tmp_path, environ)
    message = str(caught.value)
    assert "\n" not in message
    return message.removeprefix(f"{tmp_path / 'dafka.toml'}").removeprefix(": ")


def test_defaults_are_those_of_libdafka() -> None:
    config = Config.load(environ={})
    assert config == Config()
    assert (config.beacon.interval_ms, config.beacon.timeout_ms) == (1000, 4000)
    assert config.beacon.tower_sub == ("tcp://127.0.0.1:5556",)
    assert config.beacon.tower_pub == ("tcp://127.0.0.1:5557",)
    assert (config.tower.sub, config.tower.pub) == ("tcp://127.0.0.1:5556", "tcp://127.0.0.1:5557")
    assert config.producer.head_interval_ms == 1000
    assert config.consumer.offset_reset == "latest"
    assert {part.high_watermark for part in (config.consumer, config.store)} == {1_000_000}
    assert config.node.wire == "auto"


def test_every_section_has_a_class() -> None:
    assert {name: type(getattr(Config(), name)) for name in attrs.fields_dict(Config)} == SECTIONS


def test_file_is_read(tmp_path: Path) -> None:
    config = load(SETTINGS, tmp_path)
    assert config.beacon == BeaconConfig(
        interval_ms=500,
        timeout_ms=2000,
        tower_sub=("tcp://10.0.0.1:5556",),
        tower_pub=("tcp://10.0.0.1:5557",),
    )
    assert config.tower == TowerConfig(sub="tcp://*:6556", pub="tcp://*:6557")
    assert config.producer == ProducerConfig(head_interval_ms=250, high_watermark=5000)
    assert config.consumer == ConsumerConfig(offset_reset="earliest", high_watermark=6000)
    assert config.store == StoreConfig(high_watermark=7000, retention_bytes=10 * 2**30)
    assert config.node == NodeConfig()


def all_settings() -> list[tuple[str, str]]:
    return [(section, name) for section, kind in SECTIONS.items() for name in attrs.fields_dict(kind)]


@pytest.mark.parametrize(("section", "name"), all_settings())
def test_every_setting_has_an_environment_variable(section: str, name: str) -> None:
    default = getattr(getattr(Config(), section), name)
    choices = {
        "wire": "libdafka",
        "bind": "tcp://h:1",
        "record_batches": "off",
        "compression": "zstd",
        "advertise": "h",
        "advertised_listener": "h:1",
        "auto_create_topics": "off",
        "allow_unauthenticated": "on",
        "offset_reset": "earliest",
        "level": "debug",
        "format": "json",
        "listen": "h:1",
        "tower": "h:1",
    }
    text = str(default + 1) if isinstance(default, int) else choices.get(name, "tcp://h:1")
    config = Config.load(environ={f"DAFKA_{section}_{name}".upper(): text})
    expected: Any = default + 1 if isinstance(default, int) else (text,) if isinstance(default, tuple) else text
    assert config == change_section(Config(), section, {name: expected})


SIZES_WITHOUT_UNIT = {("broker", "memory")}
"""Sizes that everybody measures in bytes, also in containers and systemd. The names of all others end with the unit."""


@pytest.mark.parametrize(("section", "name"), all_settings())
def test_milliseconds_and_bytes_take_units_in_files_variables_and_programs(
    section: str, name: str, tmp_path: Path
) -> None:
    text, expected = ("10s", 10_000) if name.endswith("_ms") else ("64KiB", 65_536)
    if not name.endswith(("_ms", "_bytes", "_bytes_max")) and (section, name) not in SIZES_WITHOUT_UNIT:
        text, expected = "10", 10
        if not isinstance(getattr(getattr(Config(), section), name), int):
            return
        assert "expected a whole number" in refused(f'[{section}]\n{name} = "10s"', tmp_path)
        return
    changed = change_section(Config(), section, {name: expected})
    assert load(f'[{section}]\n{name} = "{text}"', tmp_path) == changed
    assert Config.load(environ={variable_name(section, name): text}) == changed
    assert getattr(Config(), f"with_{section}")(**{name: text}) == changed


@pytest.mark.parametrize(
    ("value", "towers"),
    [
        ('"tcp://a:1"', ("tcp://a:1",)),
        ('"tcp://a:1, tcp://b:2,"', ("tcp://a:1", "tcp://b:2")),
        ('["tcp://a:1", "ipc://b"]', ("tcp://a:1", "ipc://b")),
    ],
)
def test_several_towers_are_a_list_or_text_with_commas(value: str, towers: tuple[str, ...], tmp_path: Path) -> None:
    assert load(f"[beacon]\ntower_sub = {value}", tmp_path).beacon.tower_sub == towers


def test_environment_overrides_the_file_and_the_program_overrides_both(tmp_path: Path) -> None:
    config = load(SETTINGS, tmp_path, {"DAFKA_BEACON_INTERVAL_MS": "600", "DAFKA_STORE_HIGH_WATERMARK": "8"})
    assert (config.beacon.interval_ms, config.beacon.timeout_ms) == (600, 2000)
    assert config.store.high_watermark == 8
    config = config.with_beacon(interval_ms=700)
    assert (config.beacon.interval_ms, config.beacon.timeout_ms) == (700, 2000)
    assert config.store.high_watermark == 8


@pytest.mark.parametrize("section", SECTIONS)
def test_every_section_has_a_method_with_its_settings_as_parameters(section: str) -> None:
    method = getattr(Config, f"with_{section}")
    parameters = list(inspect.signature(method).parameters.values())
    assert parameters[0].name == "self"
    assert [parameter.name for parameter in parameters[1:]] == list(attrs.fields_dict(SECTIONS[section]))
    assert {parameter.kind for parameter in parameters[1:]} == {inspect.Parameter.KEYWORD_ONLY}
    assert method.__doc__


def test_changed_copy_leaves_the_original_and_the_other_sections() -> None:
    original = Config().with_node(wire="libdafka")
    changed = original.with_consumer(offset_reset="earliest", buffer_bytes_max="1MiB")
    assert changed == Config(
        node=NodeConfig(wire="libdafka"), consumer=ConsumerConfig(offset_reset="earliest", buffer_bytes_max=2**20)
    )
    assert original == Config(node=NodeConfig(wire="libdafka"))


def test_process_environment_is_read_unless_another_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAFKA_BEACON_INTERVAL_MS", "600")
    assert Config.load().beacon.interval_ms == 600
    assert Config.load(environ={}).beacon.interval_ms == 1000


def test_unknown_variables_are_ignored_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    environ = {
        "BEACON_INTERVAL": "5",
        "dafka_beacon_interval": "5",
        "DAFKA_ACCELERATOR": "off",
        "DAFKA_HOME": "/",
        "DAFKA_BEACON_INTERVALL_MS": "5",
    }
    assert Config.load(environ=environ) == Config()
    assert caplog.record_tuples == [
        (
            "dafka.config",
            logging.WARNING,
            "Ignored environment variables that are not settings: DAFKA_HOME, "
            "DAFKA_BEACON_INTERVALL_MS (did you mean DAFKA_BEACON_INTERVAL_MS?)",
        )
    ]


MILLISECONDS = "expected a number of milliseconds from 1 up, or a duration such as 500ms, 10s or 7d, not "


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[beacon]\ninterval_ms = 0", f"[beacon] interval_ms: {MILLISECONDS}0"),
        ("[beacon]\ninterval_ms = -1", f"[beacon] interval_ms: {MILLISECONDS}-1"),
        ("[beacon]\ninterval_ms = 1.5", f"[beacon] interval_ms: {MILLISECONDS}1.5"),
        ("[beacon]\ninterval_ms = true", f"[beacon] interval_ms: {MILLISECONDS}True"),
        ('[beacon]\ninterval_ms = "1 year"', f"[beacon] interval_ms: {MILLISECONDS}'1 year'"),
        ("[beacon]\ninterval_ms = [500]", f"[beacon] interval_ms: {MILLISECONDS}[500]"),
        ("[beacon]\ntower_sub = 5556", "[beacon] tower_sub: expected endpoints such as tcp://127.0.0.1:5556, not 5556"),
        ("[beacon]\ntower_sub = [5556]", "[beacon] tower_sub: expected an endpoint such as tcp://127.0.0.1:5556"),
        ("[beacon]\ntower_sub = []", "[beacon] tower_sub: expected endpoints such as tcp://127.0.0.1:5556, not none"),
        ('[beacon]\ntower_sub = ""', "[beacon] tower_sub: expected endpoints such as tcp://127.0.0.1:5556, not none"),
        ('[beacon]\ntower_pub = ["tcp://a:1", "b"]', "[beacon] tower_pub: expected an endpoint"),
        ("[beacon]\nadvertise = 1", "[beacon] advertise: expected text, not 1"),
        ('[tower]\nsub = "5556"', "[tower] sub: expected an endpoint"),
        ('[tower]\nsub = "tcp://:5556"', "[tower] sub: expected an endpoint"),
        ('[tower]\npub = "tcp://a"', "[tower] pub: expected an endpoint"),
        ('[tower]\npub = "udp://a:1"', "[tower] pub: expected an endpoint"),
        ("[producer]\nmin_stores = -1", "[producer] min_stores: expected a whole number of at least 0, not -1"),
        ("[producer]\nunacknowledged_records_max = 0", "[producer] unacknowledged_records_max: expected a whole"),
        ('[consumer]\noffset_reset = "first"', "[consumer] offset_reset: expected latest or earliest, not 'first'"),
        ('[node]\nwire = "http"', "[node] wire: expected auto or rfc46 or libdafka, not 'http'"),
        (
            "[node]\nmessage_bytes_max = 1023",
            "[node] message_bytes_max: expected a number of bytes from 1024 to 536870912, or a size such",
        ),
        ("[beacon]\nintervall_ms = 500", "unknown setting 'intervall_ms' in [beacon]: did you mean interval_ms?"),
        ("[beacon]\npigeons = 5", "unknown setting 'pigeons' in [beacon]: expected one of interval_ms, timeout_ms,"),
        ("[consumer]\noffset.start = 1", "unknown setting 'offset.start' in [consumer]: "),
        ("[becaon]\ninterval_ms = 500", "unknown section [becaon]: did you mean [beacon]?"),
        ("[pigeons]\n", "unknown section [pigeons]: expected one of node, beacon, tower, security,"),
        (
            "interval_ms = 500",
            "'interval_ms' is outside of a section; write it below the line of its section, [beacon]",
        ),
        ("beacon = 500", "'beacon' is the name of a section: expected [beacon], and its settings below it"),
        ("[beacon\n", " is not TOML: "),
        (f"[beacon]\ninterval_ms = {'9' * 5000}", " is not TOML: "),
    ],
)
def test_mistake_in_the_file_is_named_in_one_sentence(text: str, named: str, tmp_path: Path) -> None:
    assert refused(text, tmp_path).startswith(named)


@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [
        ("DAFKA_BEACON_INTERVAL_MS", "0", MILLISECONDS),
        ("DAFKA_BEACON_INTERVAL_MS", "", MILLISECONDS),
        ("DAFKA_BEACON_INTERVAL_MS", "1y", MILLISECONDS),
        ("DAFKA_BEACON_INTERVAL_MS", "0.5ms", MILLISECONDS),
        ("DAFKA_BEACON_INTERVAL_MS", "\u00b2", MILLISECONDS),
        ("DAFKA_BEACON_INTERVAL_MS", "9" * 5000, MILLISECONDS),
        ("DAFKA_PRODUCER_MIN_STORES", "1s", "expected a whole number of at least 0, not '1s'"),
        ("DAFKA_CONSUMER_OFFSET_RESET", "first", "expected latest or earliest, not 'first'"),
        ("DAFKA_BEACON_TOWER_SUB", "5556", "expected an endpoint such as tcp://127.0.0.1:5556, not '5556'"),
    ],
)
def test_mistake_in_the_environment_is_named_in_one_sentence(variable: str, value: str, named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.load(environ={variable: value})
    assert str(caught.value).startswith(f"{variable}: {named}")


def test_mistake_of_the_program_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^interval_ms: expected a number of milliseconds from 1 up, or a duration "):
        BeaconConfig(interval_ms=0)
    with pytest.raises(ConfigError, match=r"^\[beacon\] interval_ms: "):
        Config().with_beacon(interval_ms="soon")


@pytest.mark.parametrize("missing", ["nowhere.toml", "."])
def test_file_that_cannot_be_read_is_named(missing: str, tmp_path: Path) -> None:
    path = tmp_path / missing
    with pytest.raises(ConfigError, match="cannot read the configuration") as caught:
        Config.load(path, {})
    assert str(path) in str(caught.value)


def test_file_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "latin.toml"
    path.write_bytes(b'[beacon]\nadvertise = "\xff"')
    with pytest.raises(ConfigError, match=r"latin\.toml is not TOML"):
        Config.load(path, {})


@pytest.mark.parametrize(
    ("parse", "text", "number"),
    [
        (parse_duration_ms, "500ms", 500),
        (parse_duration_ms, "90s", 90_000),
        (parse_duration_ms, "15m", 900_000),
        (parse_duration_ms, "12h", 43_200_000),
        (parse_duration_ms, "7d", 604_800_000),
        (parse_duration_ms, "2w", 1_209_600_000),
        (parse_duration_ms, "1.5h", 5_400_000),
        (parse_duration_ms, "0.1s", 100),
        (parse_duration_ms, " 7 D ", 604_800_000),
        (parse_duration_ms, "0s", 0),
        (parse_size_bytes, "1048576", 1_048_576),
        (parse_size_bytes, "7B", 7),
        (parse_size_bytes, "1kB", 1000),
        (parse_size_bytes, "1KB", 1000),
        (parse_size_bytes, "3MB", 3_000_000),
        (parse_size_bytes, "1GB", 10**9),
        (parse_size_bytes, "2TB", 2 * 10**12),
        (parse_size_bytes, "1PB", 10**15),
        (parse_size_bytes, "512KiB", 524_288),
        (parse_size_bytes, "1MiB", 2**20),
        (parse_size_bytes, "10GiB", 10 * 2**30),
        (parse_size_bytes, "0.5 gib", 2**29),
        (parse_size_bytes, "1TiB", 2**40),
        (parse_size_bytes, "1PiB", 2**50),
        (parse_size_bytes, "0", 0),
    ],
)
def test_units(parse: Callable[[str], int], text: str, number: int) -> None:
    assert parse(text) == number


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_duration_ms, ""),
        (parse_duration_ms, "7"),
        (parse_duration_ms, "d"),
        (parse_duration_ms, "-7d"),
        (parse_duration_ms, "0.1ms"),
        (parse_duration_ms, "7dd"),
        (parse_duration_ms, "7 d d"),
        (parse_duration_ms, "1e3s"),
        (parse_duration_ms, "inf"),
        (parse_duration_ms, "7d\n7d"),
        (parse_duration_ms, "\u0667d"),
        (parse_size_bytes, ""),
        (parse_size_bytes, "GB"),
        (parse_size_bytes, "-1"),
        (parse_size_bytes, "0.5"),
        (parse_size_bytes, "1G"),
        (parse_size_bytes, "1EB"),
        (parse_size_bytes, "1 000"),
        (parse_size_bytes, "1,000"),
    ],
)
def test_quantity_that_is_none_is_refused(parse: Callable[[str], int], text: str) -> None:
    with pytest.raises(ValueError, match=r"^expected a (duration|size) such as ") as caught:
        parse(text)
    assert f", not {text!r}" in str(caught.value)


@pytest.mark.parametrize(
    ("tower", "sub", "pub"),
    [
        ("hub.example", "tcp://hub.example:5556", "tcp://hub.example:5557"),
        ("10.0.0.1:7000", "tcp://10.0.0.1:7000", "tcp://10.0.0.1:7001"),
        ("10.0.0.1:7000:80", "tcp://10.0.0.1:7000", "tcp://10.0.0.1:80"),
        ("[::1]", "tcp://[::1]:5556", "tcp://[::1]:5557"),
        ("[fd00::1]:65534", "tcp://[fd00::1]:65534", "tcp://[fd00::1]:65535"),
    ],
)
def test_one_address_names_a_tower(tower: str, sub: str, pub: str) -> None:
    for config in (Config().with_beacon(tower=tower), Config.load(environ={"DAFKA_BEACON_TOWER": tower})):
        assert (config.beacon.tower_sub, config.beacon.tower_pub) == ((sub,), (pub,))


@pytest.mark.parametrize("tower", ["", ":5556", "a:", "a:b", "::1", "tcp://a:1", "a:65535", "a:0", "a:1:1", "a:1:2:3"])
def test_wrong_tower_is_refused(tower: str) -> None:
    with pytest.raises(ConfigError, match=r"^\[beacon\] tower: expected (a tower as|two ports)"):
        Config().with_beacon(tower=[tower])


def test_later_source_of_towers_overrides_the_other_form(tmp_path: Path) -> None:
    one_address = '[beacon]\ntower = ["a", "b:7000"]\n'
    two_endpoints = '[beacon]\ntower_sub = "tcp://c:1"\ntower_pub = "tcp://c:2"\n'
    several = load(one_address, tmp_path).beacon
    assert several.tower_sub == ("tcp://a:5556", "tcp://b:7000")
    assert several.tower_pub == ("tcp://a:5557", "tcp://b:7001")
    overridden = load(two_endpoints, tmp_path, {"DAFKA_BEACON_TOWER": "a"}).beacon
    assert (overridden.tower_sub, overridden.tower_pub) == (("tcp://a:5556",), ("tcp://a:5557",))
    overridden = load(one_address, tmp_path, {"DAFKA_BEACON_TOWER_SUB": "tcp://d:9"}).beacon
    assert (overridden.tower_sub, overridden.tower_pub) == (("tcp://d:9",), ("tcp://a:5557", "tcp://b:7001"))
    changed = Config().with_beacon(tower="a").with_beacon(interval_ms=7)
    assert changed.beacon.tower_sub == ("tcp://a:5556",)
    assert changed.with_beacon(tower="b").beacon.tower_sub == ("tcp://b:5556",)
    assert changed.with_beacon(tower_sub="tcp://e:1", tower_pub="tcp://e:2").beacon.tower == ()


def test_both_forms_of_a_tower_in_one_source_are_refused(tmp_path: Path) -> None:
    both = '[beacon]\ntower = "a"\ntower_sub = "tcp://c:1"\n'
    assert refused(both, tmp_path) == "[beacon] tower: expected either tower, or tower_sub and tower_pub, not both"


NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("2h", NOW_MS - 7_200_000),
        (" 1.5 s ", NOW_MS - 1500),
        ("0s", NOW_MS),
        ("100000w", 0),
        ("2023-11-14T22:13:20Z", NOW_MS),
        ("2023-11-14T23:13:20.250+01:00", NOW_MS + 250),
        ("20231114T221320Z", NOW_MS),
        ("1900-01-01T00:00Z", 0),
    ],
)
def test_a_time_is_how_long_ago_or_iso_8601(text: str, time_ms: int) -> None:
    assert parse_time_ms(text, NOW_MS) == time_ms


@pytest.mark.parametrize(
    "parse",
    [
        lambda text: parse_time_ms(text, NOW_MS),
        parse_timestamp,
        lambda text: parse_target(text).time_ms,
        parse_time,
    ],
    ids=["--since", "--timestamp", "group reset --to", "all"],
)
def test_a_time_that_names_no_offset_is_utc_as_those_that_are_printed(
    parse: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "UTC-2")
    time.tzset()
    try:
        assert parse("2023-11-14T22:13:20") == NOW_MS
        assert parse("2023-11-14") == NOW_MS - 80_000_000
        assert parse("2023-11-15T00:13:20+02:00") == NOW_MS
        for time_ms in (0, 1, NOW_MS + 7):
            assert parse(format_time(time_ms)) == time_ms
        assert format_time(NOW_MS + 7, "seconds") == "2023-11-14T22:13:20Z"
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("text", ["yesterday", "2h30", "2026-13-01", "90", "", "-2h", "9" * 30])
def test_a_text_that_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a duration such as 90s, 2h or 7d, or a time such as 2026-11-23T08:"):
        parse_time_ms(text, NOW_MS)
