from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

from dafka.config import BeaconConfig, Config, ConsumerConfig, NodeConfig, ProducerConfig, TowerConfig
from dafka.errors import ConfigError

LIBDAFKA = """
[beacon]
interval = 500
timeout = 2000
sub_address = "tcp://10.0.0.1:5556"
pub_address = "tcp://10.0.0.1:5557"

[tower]
sub_address = "tcp://*:6556"
pub_address = "tcp://*:6557"

[producer]
head_interval = 250
high_watermark = 5000

[consumer]
offset.reset = "earliest"
high_watermark = 6000

[store]
high_watermark = 7000
"""


def load(text: str, tmp_path: Path, environ: Mapping[str, str] | None = None) -> Config:
    path = tmp_path / "dafka.toml"
    path.write_text(text)
    return Config.load(path, environ or {})


def refused(text: str, tmp_path: Path, environ: Mapping[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load(text, tmp_path, environ)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_defaults_are_libdafkas() -> None:
    config = Config.load(environ={})
    assert config == Config()
    assert (config.beacon.interval_ms, config.beacon.timeout_ms) == (1000, 4000)
    assert config.beacon.sub_addresses == ("tcp://127.0.0.1:5556",)
    assert config.beacon.pub_addresses == ("tcp://127.0.0.1:5557",)
    assert (config.tower.sub_address, config.tower.pub_address) == ("tcp://127.0.0.1:5556", "tcp://127.0.0.1:5557")
    assert config.producer.head_interval_ms == 1000
    assert config.consumer.offset_reset == "latest"
    assert {part.high_watermark for part in (config.producer, config.consumer, config.store)} == {1_000_000}
    assert config.node.wire == "rfc46"


def test_libdafkas_keys_are_read(tmp_path: Path) -> None:
    config = load(LIBDAFKA, tmp_path)
    assert config.beacon == BeaconConfig(
        interval_ms=500,
        timeout_ms=2000,
        sub_addresses=("tcp://10.0.0.1:5556",),
        pub_addresses=("tcp://10.0.0.1:5557",),
    )
    assert config.tower == TowerConfig(sub_address="tcp://*:6556", pub_address="tcp://*:6557")
    assert config.producer == ProducerConfig(head_interval_ms=250, high_watermark=5000)
    assert config.consumer == ConsumerConfig(offset_reset="earliest", high_watermark=6000)
    assert config.store.high_watermark == 7000
    assert config.node == NodeConfig()


@pytest.mark.parametrize(
    "text",
    [
        '[consumer]\noffset.reset = "earliest"',
        '[consumer]\n"offset.reset" = "earliest"',
        '[consumer.offset]\nreset = "earliest"',
    ],
)
def test_key_with_a_dot_is_read_however_toml_spells_it(text: str, tmp_path: Path) -> None:
    assert load(text, tmp_path).consumer.offset_reset == "earliest"


def settings() -> list[tuple[str, str, str]]:
    """Every setting: its section, its attribute and its key."""
    return [
        (section.name, attribute.name, str(attribute.metadata["key"] or attribute.name))
        for section in attrs.fields(Config)
        for attribute in attrs.fields(type(getattr(Config(), section.name)))
    ]


@pytest.mark.parametrize(("section", "attribute", "key"), settings())
def test_every_setting_has_an_environment_variable(section: str, attribute: str, key: str) -> None:
    default = getattr(getattr(Config(), section), attribute)
    choices = {
        "wire": "libdafka",
        "bind": "tcp://h:1",
        "address": "h",
        "offset_reset": "earliest",
        "level": "debug",
        "format": "json",
        "listen": "h:1",
    }
    text = str(default + 1) if isinstance(default, int) else choices.get(attribute, "tcp://h:1")
    config = Config.load(environ={f"DAFKA_{section}_{key}".upper().replace(".", "_"): text})
    expected: Any = default + 1 if isinstance(default, int) else (text,) if isinstance(default, tuple) else text
    assert config == Config().override(section, **{attribute: expected})


@pytest.mark.parametrize(
    ("value", "towers"),
    [
        ('"tcp://a:1"', ("tcp://a:1",)),
        ('"tcp://a:1, tcp://b:2,"', ("tcp://a:1", "tcp://b:2")),
        ('["tcp://a:1", "ipc://b"]', ("tcp://a:1", "ipc://b")),
    ],
)
def test_several_towers_are_a_list_or_have_commas_between(value: str, towers: tuple[str, ...], tmp_path: Path) -> None:
    assert load(f"[beacon]\nsub_address = {value}", tmp_path).beacon.sub_addresses == towers


def test_environment_overrides_the_file_and_the_program_overrides_both(tmp_path: Path) -> None:
    config = load(LIBDAFKA, tmp_path, {"DAFKA_BEACON_INTERVAL": "600", "DAFKA_STORE_HIGH_WATERMARK": "8"})
    assert (config.beacon.interval_ms, config.beacon.timeout_ms) == (600, 2000)
    assert config.store.high_watermark == 8
    config = config.override("beacon", interval_ms=700, timeout_ms=None)
    assert (config.beacon.interval_ms, config.beacon.timeout_ms) == (700, 2000)
    assert config.store.high_watermark == 8


def test_process_environment_is_read_unless_another_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAFKA_BEACON_INTERVAL", "600")
    assert Config.load().beacon.interval_ms == 600
    assert Config.load(environ={}).beacon.interval_ms == 1000


def test_other_environment_variables_are_left_alone() -> None:
    assert Config.load(environ={"BEACON_INTERVAL": "5", "DAFKA_HOME": "/", "dafka_beacon_interval": "5"}) == Config()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[beacon]\ninterval = 0", "[beacon] interval"),
        ("[beacon]\ninterval = -1", "[beacon] interval"),
        ("[beacon]\ninterval = 1.5", "[beacon] interval"),
        ("[beacon]\ninterval = true", "[beacon] interval"),
        ('[beacon]\ninterval = "500"', "[beacon] interval"),
        ("[beacon]\ninterval = [500]", "[beacon] interval"),
        ("[beacon]\nsub_address = 5556", "[beacon] sub_address"),
        ("[beacon]\nsub_address = [5556]", "[beacon] sub_address"),
        ("[beacon]\nsub_address = []", "[beacon] sub_address"),
        ('[beacon]\nsub_address = ""', "[beacon] sub_address"),
        ('[beacon]\npub_address = ["tcp://a:1", "b"]', "[beacon] pub_address"),
        ("[beacon]\naddress = 1", "[beacon] address"),
        ('[tower]\nsub_address = "5556"', "[tower] sub_address"),
        ('[tower]\nsub_address = "tcp://:5556"', "[tower] sub_address"),
        ('[tower]\npub_address = "tcp://a"', "[tower] pub_address"),
        ('[tower]\npub_address = "udp://a:1"', "[tower] pub_address"),
        ("[producer]\nmin_stores = -1", "[producer] min_stores"),
        ("[producer]\nunacknowledged_records_max = 0", "[producer] unacknowledged_records_max"),
        ('[consumer]\noffset.reset = "first"', "[consumer] offset.reset"),
        ('[node]\nwire = "http"', "[node] wire"),
        ("[node]\nmessage_bytes_max = 1023", "[node] message_bytes_max"),
        ("[beacon]\nintervall = 500", "unknown key 'intervall' in [beacon]"),
        ("[beacon]\ninterval_ms = 500", "unknown key 'interval_ms' in [beacon]"),
        ("[consumer]\noffset.start = 1", "unknown key 'offset.start' in [consumer]"),
        ("[becaon]\ninterval = 500", "unknown section [becaon]"),
        ("interval = 500", "'interval' stands outside of a section"),
        ("[beacon\n", "dafka.toml is not TOML"),
        (f"[beacon]\ninterval = {'9' * 5000}", "dafka.toml is not TOML"),
    ],
)
def test_mistake_in_the_file_is_named_in_one_sentence(text: str, named: str, tmp_path: Path) -> None:
    assert named in refused(text, tmp_path)


@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [
        ("DAFKA_BEACON_INTERVAL", "0", "[beacon] interval"),
        ("DAFKA_BEACON_INTERVAL", "", "[beacon] interval"),
        ("DAFKA_BEACON_INTERVAL", "1s", "[beacon] interval"),
        ("DAFKA_BEACON_INTERVAL", "\u00b2", "[beacon] interval"),
        ("DAFKA_BEACON_INTERVAL", "9" * 5000, "[beacon] interval"),
        ("DAFKA_CONSUMER_OFFSET_RESET", "first", "[consumer] offset.reset"),
        ("DAFKA_BEACON_SUB_ADDRESS", "5556", "[beacon] sub_address"),
    ],
)
def test_mistake_in_the_environment_is_named_in_one_sentence(
    variable: str, value: str, named: str, tmp_path: Path
) -> None:
    assert named in refused("", tmp_path, {variable: value})


def test_mistake_of_the_program_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^interval: expected a whole number of at least 1, not 0$"):
        BeaconConfig(interval_ms=0)
    with pytest.raises(ConfigError, match=r"^\[beacon\] interval: "):
        Config().override("beacon", interval_ms=0)


@pytest.mark.parametrize("missing", ["nowhere.toml", "."])
def test_file_that_cannot_be_read_is_named(missing: str, tmp_path: Path) -> None:
    path = tmp_path / missing
    with pytest.raises(ConfigError, match="cannot read the configuration") as caught:
        Config.load(path, {})
    assert str(path) in str(caught.value)


def test_file_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "latin.toml"
    path.write_bytes(b'[beacon]\naddress = "\xff"')
    with pytest.raises(ConfigError, match=r"latin\.toml is not TOML"):
        Config.load(path, {})
