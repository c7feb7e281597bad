"""Which records of clients a topic refuses, against a loop over all records, and what its leader sets in batches."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka.batches import Compression, TimestampType, check_crc, decode_batch, encode_batch
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.log.record_rules import RECORD_ERRORS_MAX, RecordRules, rules_of
from dafka.broker.core.metadata.topics import Topic
from dafka.config import Config
from dafka.packed_bytes import Repeated, pack
from dafka.records import NO_TIMESTAMP

NOW = 1_700_000_000_000
HOUR_MS = 3_600_000


def rules(**settings: str) -> RecordRules:
    return rules_of(
        Topic("t", "1D", settings={name.replace("_", "."): each for name, each in settings.items()}), Config()
    )


KEYS = st.one_of(st.none(), st.lists(st.sampled_from([None, b"", b"k"]), min_size=1, max_size=8))
LIMITS = st.sampled_from([0, 1, 5, HOUR_MS, 2**63 - 1])
TIMES = st.sampled_from(
    [NO_TIMESTAMP, 0, 1, 2**62, *(NOW + each for each in (-HOUR_MS, -6, -5, -2, -1, 0, 1, 2, 5, 6, HOUR_MS))]
)


@given(KEYS, st.data(), st.booleans(), st.booleans(), LIMITS, LIMITS)
def test_each_record_that_breaks_a_rule_is_named_and_no_other(
    keys: list[bytes | None] | None,
    data: Any,
    is_compacted: bool,
    is_append_time: bool,
    before: int,
    after: int,
) -> None:
    count = 3 if keys is None else len(keys)
    times = data.draw(
        st.one_of(
            st.none(),
            st.lists(TIMES, min_size=count, max_size=count),
            TIMES.map(lambda time: Repeated(time, count)),
        )
    )
    found = rules(
        cleanup_policy="compact,delete" if is_compacted else "delete",
        message_timestamp_type="LogAppendTime" if is_append_time else "CreateTime",
        message_timestamp_before_max_ms=str(before),
        message_timestamp_after_max_ms=str(after),
    ).find_refused(count, keys, times, NOW)
    keyless = [number for number in range(count) if is_compacted and (keys is None or keys[number] is None)]
    untimely = [
        number
        for number, time in enumerate(times or ())
        if not is_append_time and time != NO_TIMESTAMP and (time > NOW + after or time < NOW - before)
    ]
    if not keyless and not untimely:
        assert found is None
        return
    assert found is not None
    assert found.error_code is (ErrorCode.INVALID_TIMESTAMP if untimely else ErrorCode.INVALID_RECORD)
    assert [each.number for each in found.problems] == keyless + untimely
    messages = [each.message for each in found.problems]
    assert all("key" in each for each in messages[: len(keyless)])
    for number, message in zip(untimely, messages[len(keyless) :], strict=True):
        time = (times or [])[number]
        name, limit = ("after", after) if time > NOW else ("before", before)
        assert f"message.timestamp.{name}.max.ms is {limit}" in message
        assert str(time) in message
    assert messages[0] in found.message


def test_packed_keys_are_all_there_and_the_number_of_named_records_is_limited() -> None:
    compacted = rules(cleanup_policy="compact")
    assert compacted.find_refused(2, pack([b"", b"k"]), None, NOW) is None
    for keys in (None, [None] * 2 * RECORD_ERRORS_MAX):
        found = compacted.find_refused(2 * RECORD_ERRORS_MAX, keys, [2**62] * 2 * RECORD_ERRORS_MAX, NOW)
        assert found is not None
        assert (len(found.problems), found.error_code) == (RECORD_ERRORS_MAX, ErrorCode.INVALID_TIMESTAMP)


@pytest.mark.parametrize("is_append_time", [True, False])
@pytest.mark.parametrize("kind", list(TimestampType))
def test_batches_get_the_topic_s_type_of_timestamps(kind: TimestampType, is_append_time: bool) -> None:
    found = rules(message_timestamp_type="LogAppendTime" if is_append_time else "CreateTime")
    data = encode_batch(0, [b"a", b"b"], timestamps=[5, 7], timestamp_type=kind, compression=Compression.ZSTD)
    ((header, stamped),) = found.set_time([(check_crc(data), data)], NOW)
    assert check_crc(stamped) == header
    assert list(decode_batch(stamped).timestamps) == ([NOW, NOW] if is_append_time else [5, 7])
    assert (stamped is data) == (kind is TimestampType.CREATE_TIME and not is_append_time)


def test_batches_are_compressed_again_only_if_the_topic_says_how_and_they_are_not() -> None:
    names = {"uncompressed": Compression.NONE} | {each.name.lower(): each for each in Compression if each.value}
    for compression in Compression:
        header = attrs.evolve(check_crc(encode_batch(0, [b"x" * 100], timestamps=0)), compression=compression)
        assert not rules().recompresses(header)
        assert not rules(compression_type="producer").recompresses(header)
        for name, wanted in names.items():
            assert rules(compression_type=name).recompresses(header) == (compression is not wanted)
    for name, level, expected in [
        ("gzip", None, None),
        ("gzip", "-1", None),
        ("gzip", "4", 4),
        ("lz4", "9", 9),
        ("zstd", "-1", -1),
        ("zstd", None, None),
    ]:
        settings = {"compression_type": name} | ({} if level is None else {f"compression_{name}_level": level})
        assert (rules(**settings).compression, rules(**settings).level) == (names[name], expected)
    assert rules(compression_type="gzip", compression_zstd_level="7").level is None
