"""The codec in C writes what the one in Python writes, and reads and refuses the same, for any records and batches."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dafka.batches import codec, decode_batch, pack_headers
from dafka.batches.codec import (
    PURE,
    VARIABLE,
    CompiledCodec,
    RecordsCodec,
    UnreadContents,
    load_compiled,
    records_codec,
)
from dafka.batches.reading import RecordsPart
from dafka.batches.writing import WrittenRecords
from dafka.errors import BatchError, ConfigError
from dafka.packed_bytes import PackedContents, pack
from tests.batches import fuzz
from tests.batches.hostile import hostile_batches
from tests.batches.samples import BYTES_MAX, RECORDS, SHAPES, Records

COMPILED = load_compiled()
needs_compiled = pytest.mark.skipif(isinstance(COMPILED, str), reason=str(COMPILED))
CODECS = [pytest.param(PURE, id="pure"), pytest.param(COMPILED, marks=needs_compiled, id="compiled")]


def written(
    codec: RecordsCodec, records: Records, bytes_max: int = 2**30, count_max: int = 2**31
) -> list[WrittenRecords]:
    headers = None if records.headers is None else pack_headers(records.headers).blocks
    return codec.write_records(records.values, records.keys, headers, array("q", records.times), bytes_max, count_max)


@needs_compiled
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(records=RECORDS, bytes_max=st.integers(0, 100), count_max=st.integers(1, 10))
def test_both_write_and_read_the_same(records: Records, bytes_max: int, count_max: int) -> None:
    assert isinstance(COMPILED, CompiledCodec)
    batches = written(PURE, records, bytes_max, count_max)
    assert written(COMPILED, records, bytes_max, count_max) == batches
    parts = [RecordsPart(b"head" + each.data, 4, each.record_count, each.base_time) for each in batches]
    pure, compiled = (each.read_records(parts) for each in (PURE, COMPILED))
    assert pure == compiled
    assert list(map(type, pure)) == list(map(type, compiled))
    assert list(pure[0]) == list(records.values)
    lazy, unread = (each.check_records(parts) for each in (PURE, COMPILED))
    is_plain = pure[1] is None and pure[2] is None and isinstance(pure[0], PackedContents)
    assert isinstance(unread[0], UnreadContents) == is_plain
    assert not is_plain or unread[0].size() == len(pure[0].data)  # type: ignore[attr-defined]
    assert not hasattr(unread[0], "other")
    assert unread == lazy == pure


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_has_limits(codec: RecordsCodec) -> None:
    values, keys, blocks = [b"12", None, b"123", b"1", b"", b"x" * 99], [b"k"] + [None] * 5, pack([b"\0"] * 6)
    counts = [each.record_count for each in codec.write_records(values, keys, blocks, None, 8, 3)]
    assert counts == [2, 3, 1]  # 5 bytes and the limit of 8; 3 records; one that is larger than the limit


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_ends_before_times_that_are_too_far_from_its_first(codec: RecordsCodec) -> None:
    times = array("q", [1, 2**63 - 1, -(2**63), -(2**63) + 1, 2**62])
    written = codec.write_records([b""] * 5, None, None, times, 2**30, 2**31)
    assert [(each.record_count, each.base_time, each.max_time) for each in written] == [
        (2, 1, 2**63 - 1),
        (2, -(2**63), -(2**63) + 1),
        (1, 2**62, 2**62),
    ]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("times", "counts"), [([0, -(2**63)], [2]), ([-1, 2**63 - 1], [1, 1]), ([1, -(2**63)], [1, 1])]
)
def test_times_in_a_batch_differ_by_64_bits_at_most(codec: RecordsCodec, times: list[int], counts: list[int]) -> None:
    written = codec.write_records([b""] * 2, None, None, array("q", times), 2**30, 2**31)
    assert [each.record_count for each in written] == counts


@pytest.mark.parametrize("codec", CODECS)
def test_contents_are_packed(codec: RecordsCodec) -> None:
    for contents in ([b"a", b"", b"bcd"], []):
        assert codec.pack(contents) == pack(contents)
    for wrong in ([b"a", None], ["text"], [bytearray(b"a")]):
        with pytest.raises(TypeError):
            codec.pack(wrong)  # type: ignore[arg-type]


@needs_compiled
@pytest.mark.parametrize("name", SHAPES)
def test_both_write_every_shape_the_same(name: str) -> None:
    assert isinstance(COMPILED, CompiledCodec)
    records = SHAPES[name]
    assert written(COMPILED, records) == written(PURE, records)
    assert COMPILED.write_records(records.values, None, None, None, 2**30, 2**31) == PURE.write_records(
        records.values, None, None, None, 2**30, 2**31
    )


@needs_compiled
def test_both_read_and_refuse_the_same() -> None:
    assert isinstance(COMPILED, CompiledCodec)
    outcomes = Counter(fuzz.check(batch, [COMPILED, PURE]) for batch in hostile_batches(seed=2, count=1_500))
    assert outcomes["well-formed"] > 100
    records = {"length", "attributes", "timestamp delta", "offset delta", "key length", "value length", "records"}
    headers = {"header count", "header name length", "header value length"}
    assert records | headers | {"magic", "count", "last offset delta", "batch"} <= set(outcomes)


def record(*body: bytes) -> bytes:
    joined = b"".join(body)
    return bytes((2 * len(joined),)) + joined


PLAIN = (b"\0", b"\0", b"\0", b"\1", b"\1", b"\0")
TOO_LONG = b"\xff\xff\xff\xff\xff\0"


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x80\x80\x80\x80\x80\x00\0", "length at byte 0: expected a number of 32 bits"),
        (b"\xff\xff\xff\xff\x10\x00\0", "length at byte 0: expected a number of 32 bits"),
        (b"\x80\x80\x80\x80\x80"[:4] + b"\x80\x80\x80", "length at byte 0: expected a number of 32 bits"),
        (b"\1" + bytes(6), "length at byte 0: expected a length from 0 to 6, not -1"),
        (b"\x0e" + bytes(6), "length at byte 0: expected a length from 0 to 6, not 7"),
        (b"\0" * 7, "attributes at byte 1: expected a complete number"),
        (record(b"\5", *PLAIN[1:]), "attributes at byte 1: expected 0, not 5"),
        (record(b"\0", b"\xff" * 9 + b"\2", *PLAIN[2:]), "timestamp delta at byte 2: expected a number of 64 bits"),
        (record(b"\0", b"\xfe" + b"\xff" * 8 + b"\1", *PLAIN[2:]), "timestamp delta at byte 2: expected a timestamp"),
        (record(*PLAIN[:2], b"\2", *PLAIN[3:]), "offset delta at byte 3: expected 0, not 1"),
        (record(*PLAIN[:2], TOO_LONG, *PLAIN[3:]), "offset delta at byte 3: expected a number of 32 bits"),
        (record(*PLAIN[:3], b"\3", *PLAIN[4:]), "key length at byte 4: expected a length from -1 to 2, not -2"),
        (record(*PLAIN[:3], b"\6", *PLAIN[4:]), "key length at byte 4: expected a length from -1 to 2, not 3"),
        (record(*PLAIN[:4], b"\4", b"\0"), "value length at byte 5: expected a length from -1 to 1, not 2"),
        (record(*PLAIN[:4], b"\2", b"\0"), "header count at byte 7: expected a complete number"),
        (record(*PLAIN[:5], b"\1"), "header count at byte 6: expected a count from 0 to 0, not -1"),
        (record(*PLAIN[:5], b"\4", b"\0\1"), "header count at byte 6: expected a count from 0 to 1, not 2"),
        (record(*PLAIN[:5], b"\2", b"\1\1"), "header name length at byte 7: expected a length from 0 to 1, not -1"),
        (record(*PLAIN[:5], b"\2", b"\0\3"), "header value length at byte 8: expected a length from -1 to 0, not -2"),
        (record(*PLAIN, b"\0"), "length at byte 0: expected 6, not 7"),
        (record(*PLAIN) + b"\0", "records at byte 7: expected their end, 1 bytes follow"),
    ],
)
def test_malformed_records_are_refused_with_a_reason(data: bytes, reason: str, codec: RecordsCodec) -> None:
    with pytest.raises(BatchError) as caught:
        codec.read_records([RecordsPart(data, 0, 1, 1)])
    assert str(caught.value).startswith(reason)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("count", [1, 63, 64, 65])
def test_each_record_that_is_counted_must_be_there(codec: RecordsCodec, count: int) -> None:
    (batch,) = written(codec, Records([b"x" * 9] * count, 1))
    with pytest.raises(BatchError, match=f"length at byte {len(batch.data)}: expected a complete number"):
        codec.read_records([RecordsPart(batch.data, 0, count + 1, 1)])
    for cut in range(1, 9):
        with pytest.raises(BatchError):
            codec.read_records([RecordsPart(batch.data[:-cut], 0, count, 1)])


@pytest.mark.parametrize("codec", CODECS)
def test_offsets_of_every_size_come_back(codec: RecordsCodec) -> None:
    for values in ([b"x"] * 8200, pack([b"x"] * 8200), [b"x" * (number % 3) for number in range(8200)]):
        (batch,) = codec.write_records(values, None, None, None, 2**30, 2**31)
        assert list(codec.read_records([RecordsPart(batch.data, 0, 8200, 0)])[0]) == list(values)
        assert PURE.write_records(values, None, None, None, 2**30, 2**31) == [batch]


@pytest.mark.parametrize("codec", CODECS)
def test_numbers_may_be_longer_than_necessary(codec: RecordsCodec) -> None:
    data = record(b"\0", b"\x80\x00", b"\x80\x80\x00", b"\x82\x00", b"k", b"\x81\x80\x00", b"\x80\x00")
    values, keys, blocks, time = codec.read_records([RecordsPart(data, 0, 1, 7)])
    assert values == [None]
    assert keys == [b"k"]
    assert blocks is not None
    assert list(blocks) == [b"\x80\x00"]
    assert time == 7


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("column", [["text"], [1], [bytearray(b"v")]])
def test_columns_hold_bytes_or_none(column: Sequence[bytes], codec: RecordsCodec) -> None:
    with pytest.raises(TypeError):
        codec.write_records(column, None, None, None, 1, 1)
    with pytest.raises(TypeError):
        codec.write_records([b""], column, None, None, 1, 1)


@needs_compiled
@pytest.mark.parametrize(
    "arguments",
    [
        ([b"a"], [b"k", b"l"], None, None),
        ([b"a"], None, pack([b"\0", b"\0"]), None),
        ([b"a"], None, [None], None),
        ([b"a"], None, None, array("q", [0, 0])),
        (PackedContents(b"abc", (4).to_bytes(4, "big")), None, None, None),
        (PackedContents(b"abc", (2).to_bytes(4, "big")), None, None, None),
    ],
)
def test_columns_that_do_not_fit_are_refused(arguments: tuple[object, ...]) -> None:
    assert isinstance(COMPILED, CompiledCodec)
    with pytest.raises(ValueError, match=r"fit together|add up"):
        COMPILED.write_records(*arguments, 1, 1)  # type: ignore[arg-type, call-arg]


@needs_compiled
@pytest.mark.parametrize(("position", "count"), [(-1, 1), (8, 1), (0, 0), (0, 2), (1, 1), (0, 2**40)])
def test_places_outside_the_data_are_refused(position: int, count: int) -> None:
    assert isinstance(COMPILED, CompiledCodec)
    with pytest.raises(ValueError, match="no room"):
        COMPILED.read_records([RecordsPart(record(*PLAIN), position, count, 0)])


@needs_compiled
def test_batches_are_read_from_any_memory() -> None:
    batch = SHAPES["everything"].encode()
    SHAPES["everything"].expect(decode_batch(memoryview(bytearray(batch)), bytes_max=BYTES_MAX, codec=COMPILED))  # type: ignore[arg-type]
    SHAPES["everything"].expect(decode_batch(memoryview(batch), bytes_max=BYTES_MAX, codec=PURE))


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], RecordsCodec]]:
    """Return the codec that a process uses which is started with a value of the variable."""

    def choose_codec(value: str) -> RecordsCodec:
        monkeypatch.setenv(VARIABLE, value)
        records_codec.cache_clear()
        return records_codec()

    yield choose_codec
    records_codec.cache_clear()


def test_the_variable_selects_the_codec(choose: Callable[[str], RecordsCodec]) -> None:
    assert choose("off") is PURE
    assert choose("") is (PURE if isinstance(COMPILED, str) else COMPILED)
    with pytest.raises(ConfigError, match="on or off, not 'maybe'"):
        choose("maybe")


@pytest.mark.parametrize(
    ("error", "reason"),
    [(ModuleNotFoundError(), "it was not built; reinstall"), (ImportError("odd"), "it cannot be loaded: odd")],
)
def test_a_codec_that_cannot_be_loaded_has_a_reason(
    error: ImportError, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_name: str) -> None:
        raise error

    load = codec.load_compiled.__wrapped__
    with monkeypatch.context() as patch:
        patch.setattr("importlib.import_module", fail)
        assert str(load()).startswith(reason)
    if not isinstance(COMPILED, str):
        monkeypatch.setattr(codec, "_INTERFACE", -1)
        assert load() == "it was built from the sources of another version; reinstall dafka"


def test_headers_equal_those_with_the_same_names_and_values() -> None:
    plain = [(("a", b"1"),), (), (("a", None), ("a", b""))]
    packed = pack_headers(plain)
    assert packed == pack_headers(plain) == plain
    for other in (plain[:2], [*plain[:2], (("a", b""), ("a", b""))], [*plain, ()]):
        assert packed != pack_headers(other)
        assert packed != other
    assert (packed[0], list(packed[1:]), len(packed)) == (plain[0], plain[1:], 3)
    assert all(packed != wrong for wrong in (None, 3, b"", ""))
    assert pack_headers([]) == []
    assert pack_headers([]) != b"" != pack_headers([])
    assert pack_headers([]) != ""
    assert [pack_headers(each).has_any() for each in (plain, [(), ()], plain[1:2], plain[2:])] == [
        True,
        False,
        False,
        True,
    ]


def test_a_required_codec_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, choose: Callable[[str], RecordsCodec]
) -> None:
    monkeypatch.setattr(codec, "load_compiled", lambda: "it was not built")
    with pytest.raises(ConfigError, match="cannot be used: it was not built"):
        choose("on")
    assert choose("") is PURE
