from __future__ import annotations

import pickle

import pytest

from dafka import errors
from dafka.errors import (
    BatchError,
    BatchTooLargeError,
    ConfigError,
    DafkaError,
    EncodingError,
    LocalError,
    RefusedChangeError,
    RemoteError,
    StorageCorruptError,
    StorageError,
    UnacknowledgedError,
    UnansweredError,
    UnsupportedRequestError,
    WireError,
)
from dafka.exceptions import describe_group

KINDS: list[type[DafkaError]] = [getattr(errors, name) for name in errors.__all__]
SPECIAL: dict[type[DafkaError], DafkaError] = {
    EncodingError: EncodingError("subject", "text, not int"),
    WireError: WireError("version", "01", 3),
    BatchError: BatchError("magic", "2, not 1", 16),
    BatchTooLargeError: BatchTooLargeError("records", "5 bytes, not at most 4", 0),
    RefusedChangeError: RefusedChangeError("there is a topic 'orders' already", 36),
    UnacknowledgedError: UnacknowledgedError(3, 7, 2, ("tcp://127.0.0.1:5557",)),
    StorageCorruptError: StorageCorruptError("sequence 7 is damaged", 8),
    UnsupportedRequestError: UnsupportedRequestError(1, 99, 7, "FETCH in versions 0-18"),
    UnansweredError: UnansweredError("1 of 2 stores found", "stores", 1),
}


def test_every_exception_of_the_module_is_listed() -> None:
    defined = {name for name, value in vars(errors).items() if isinstance(value, type) and not name.startswith("_")}
    assert defined == set(errors.__all__)


def test_everything_raised_has_one_root_and_a_side_at_fault() -> None:
    for kind in KINDS:
        assert issubclass(kind, DafkaError)
        assert kind is DafkaError or issubclass(kind, LocalError) != issubclass(kind, RemoteError)


def test_errors_cross_processes() -> None:
    for kind in KINDS:
        error = SPECIAL.get(kind) or kind("what is wrong")
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is kind
        assert str(copy) == str(error)
        assert vars(copy) == vars(error)


def test_wire_error_says_field_place_and_expectation() -> None:
    assert str(WireError("version", "01", 3)) == "version at byte 3: expected 01"
    assert str(WireError("sequence", "a number")) == "sequence: expected a number"
    assert WireError("sequence", "a number").offset is None


def test_mistaken_values_are_also_value_errors() -> None:
    assert issubclass(EncodingError, ValueError)
    assert issubclass(WireError, ValueError)
    assert issubclass(ConfigError, ValueError)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (UnacknowledgedError(1, 7, 1), "1 record was not acknowledged by a store (from sequence 7)"),
        (
            UnacknowledgedError(2, 7, 1, ("tcp://127.0.0.1:5557",)),
            "2 records were not acknowledged by a store (from sequence 7): no tower is heard at tcp://127.0.0.1:5557",
        ),
        (UnacknowledgedError(3, 7, 2), "3 records were not acknowledged by 2 stores (from sequence 7)"),
    ],
)
def test_unacknowledged_records_are_counted_in_words(error: UnacknowledgedError, text: str) -> None:
    assert str(error) == text


def test_all_exceptions_of_nested_groups_are_described() -> None:
    inner = ExceptionGroup("inner", [StorageError("the disk is full"), StorageError("the file is gone")])
    group = ExceptionGroup("outer", [ExceptionGroup("single", [inner]), StorageError("the last one")])
    assert describe_group(group) == "the disk is full; the file is gone; the last one"
