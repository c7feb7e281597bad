from __future__ import annotations

from dafka.protocol.ordering.buffers import RUN_RECORDS_MAX, RetransmitBuffer
from dafka.records import RecordBatch
from tests.protocol.helpers import HELLO, contents, sequences


def make_window(*ends: int, first: int = 0) -> RetransmitBuffer:
    """Return a buffer with one push for each end."""
    window = RetransmitBuffer(first)
    for end in ends:
        window.push(RecordBatch(HELLO, window.end_sequence, contents(window.end_sequence, end)))
    return window


def read(window: RetransmitBuffer, first: int, count: int, bytes_max: int = 2**20) -> list[int] | None:
    batch = window.read(first, count, bytes_max)
    return None if batch is None else sequences([batch])


def test_pushed_records_are_read_batch_by_batch() -> None:
    window = make_window(3, 8)
    assert read(window, 0, 100) == [0, 1, 2]
    assert read(window, 3, 100) == [3, 4, 5, 6, 7]
    assert read(window, 4, 2) == [4, 5]
    assert (len(window), window.content_bytes) == (8, 8)


def test_reading_a_record_that_is_not_held_returns_none() -> None:
    window = make_window(12, first=10)
    assert [read(window, first, 5) for first in (9, 12, 2**64)] == [None, None, None]
    assert read(RetransmitBuffer(), 0, 5) is None


def test_reading_stops_at_bytes_max_but_returns_at_least_one_record() -> None:
    window = make_window(20)
    assert read(window, 0, 20, bytes_max=4) == [0, 1, 2, 3]
    assert read(window, 10, 20, bytes_max=5) == [10, 11]
    assert read(window, 10, 20, bytes_max=1) == [10]


def test_release_frees_memory_by_whole_batches() -> None:
    window = make_window(4, 8)
    window.release(6)
    assert (window.first_sequence, window.content_bytes) == (6, 4)
    assert read(window, 5, 9) is None
    assert read(window, 6, 9) == [6, 7]
    window.release(8)
    assert (len(window), window.content_bytes) == (0, 0)


def test_release_never_moves_back_or_beyond_the_end() -> None:
    window = make_window(4)
    window.release(3)
    window.release(1)
    assert window.first_sequence == 3
    window.release(100)
    assert (window.first_sequence, window.end_sequence) == (4, 4)
    window.push(RecordBatch(HELLO, window.end_sequence, contents(4, 6)))
    assert read(window, 4, 9) == [4, 5]


def test_a_long_push_is_split() -> None:
    window = make_window(2 * RUN_RECORDS_MAX + 5)
    full = window.content_bytes
    window.release(RUN_RECORDS_MAX)
    assert window.content_bytes == full - sum(map(len, contents(0, RUN_RECORDS_MAX)))
    assert read(window, 2 * RUN_RECORDS_MAX, 10) == list(range(2 * RUN_RECORDS_MAX, 2 * RUN_RECORDS_MAX + 5))


def test_trim_keeps_the_latest_batches() -> None:
    window = make_window(2, 4, 6, 8)
    window.trim(records_max=5, bytes_max=100)
    assert (window.first_sequence, window.end_sequence) == (4, 8)
    window.trim(records_max=5, bytes_max=3)
    assert window.first_sequence == 6
    window.trim(records_max=1, bytes_max=1)
    assert read(window, 6, 9) == [6, 7]


def test_pushing_nothing_changes_nothing() -> None:
    window = make_window(2, 2)
    assert read(window, 0, 9) == [0, 1]
    assert len(window) == 2
