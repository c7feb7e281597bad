"""Settings from files, from the environment and from programs: their names, their values, and the errors."""

import logging
import time
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path

import pytest

from dafka.cli.groups import parse_target
from dafka.cli.record_lines import parse_timestamp
from dafka.config import Config
from dafka.config.loading import variable_name
from dafka.config.values import format_duration_ms, parse_duration_ms, parse_size_bytes, parse_time_ms
from dafka.errors import ConfigError
from dafka.text import format_time, parse_time


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


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[becaon]\ninterval_ms = 500", "unknown section [becaon]: did you mean [beacon]?"),
        ("[pigeons]\n", "unknown section [pigeons]: expected one of node, beacon, tower, security,"),
        (
            "interval_ms = 500",
            "'interval_ms' is outside of a section; write it below the line of its section, [beacon] or [cold]",
        ),
        (
            "pigeons = 500",
            "'pigeons' is outside of a section; write it below the line of its section, such as [beacon]",
        ),
        ("[beacon\n", " is not TOML: "),
        (f"[beacon]\ninterval_ms = {'9' * 5000}", " is not TOML: "),
    ],
)
def test_mistake_in_the_file_is_named_in_one_sentence(text: str, named: str, tmp_path: Path) -> None:
    assert refused(text, tmp_path).startswith(named)


def test_the_words_of_errors_name_what_is_expected(tmp_path: Path) -> None:
    for section, name, value, expected in (
        *(
            ("beacon", "interval_ms", each, "from 1 up, or a duration such as 500ms, 10s or 7d")
            for each in ("1y", "\u00b2", "9" * 5000, "0.5ms")
        ),
        ("node", "message_bytes_max", "x", "from 1024 to 536870912, or a size such as 64MiB or 10GB"),
        ("beacon", "tower_sub", "5556", "an endpoint such as tcp://127.0.0.1:5556"),
        ("beacon", "advertise", "a b", "a host name or address, such as 10.0.0.7 or [fe80::1]"),
        ("metrics", "listen", "x", "a port, or an address and a port, such as 9464 or 10.0.0.7:9464"),
    ):
        with pytest.raises(ConfigError) as caught:
            Config.load(environ={variable_name(section, name): value})
        sentence = str(caught.value)
        assert sentence.startswith(f"{variable_name(section, name)}: expected ")
        assert sentence.endswith(f"{expected}, not {value!r}")
    assert refused("[beacon]\ntower_sub = []", tmp_path).endswith("such as tcp://127.0.0.1:5556, not none")


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("nowhere.toml", "cannot read the configuration"),
        (".", "cannot read the configuration"),
        ("latin.toml", "latin.toml is not TOML"),
    ],
)
def test_file_that_cannot_be_read_is_named(name: str, named: str, tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes(b'[beacon]\nadvertise = "\xff"')
    with pytest.raises(ConfigError, match=named) as caught:
        Config.load(tmp_path / name, {})
    assert str(tmp_path / name) in str(caught.value)


Units = dict[str, Fraction | int]
SECONDS: Units = {"ms": Fraction(1, 1000), "s": 1, "m": 60, "h": 3600, "d": 24 * 3600, "w": 7 * 24 * 3600}
DECIMAL: Units = {"": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15}
SIZES = DECIMAL | {f"{prefix}iB": 2 ** (10 * power) for power, prefix in enumerate("KMGTP", 1)}


def test_every_unit_is_a_factor_in_any_case_with_fractions_and_spaces() -> None:
    for parse, units, scale in ((parse_duration_ms, SECONDS, 1000), (parse_size_bytes, SIZES, 1)):
        for unit, factor in units.items():
            for number in ("0", "1", "7", "90", "1.5", "0.25", "12.125", "9" * 12):
                exact = Fraction(number) * factor * scale
                for text in (f"{number}{unit}", f" {number} {unit.upper()} ", f"{number}{unit.lower()}"):
                    if 0 < exact < 1:
                        with pytest.raises(ValueError, match=r"^expected "):
                            parse(text)
                    else:
                        assert parse(text) == int(exact), text
    assert (parse_size_bytes("1048576"), parse_duration_ms("0s")) == (2**20, 0)


def test_a_duration_is_shown_as_it_is_parsed() -> None:
    for shown in ("0ms", "1ms", "999ms", "1s", "1500ms", "90s", "1m", "25h", "1d", "6d", "1w", "30d"):
        assert format_duration_ms(parse_duration_ms(shown)) == shown


def test_quantity_that_is_none_is_refused() -> None:
    durations = ("", "0", "d", "-7d", "0.1ms", "7dd", "7 d d", "1e3s", "inf", "7d\n7d", "\u0667d", "1.s", ".5s")
    sizes = ("", "GB", "-1", "0.5", "1G", "1EB", "1 000", "1,000")
    for parse, texts in ((parse_duration_ms, durations), (parse_size_bytes, sizes)):
        for text in texts:
            with pytest.raises(ValueError, match=r"^expected a (duration|size) such as ") as caught:
                parse(text)
            assert str(caught.value).endswith(f", not {text!r}")
    for text in ("7", " 7 "):
        with pytest.raises(ValueError, match=f"not '{text}': write 7s or 7ms$"):
            parse_duration_ms(text)


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
    [lambda text: parse_time_ms(text, NOW_MS), parse_timestamp, lambda text: parse_target(text).time_ms, parse_time],
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
