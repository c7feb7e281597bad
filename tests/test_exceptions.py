"""What is said of the exceptions of a block with nurseries."""

from __future__ import annotations

from dafka.errors import StorageError
from dafka.exceptions import describe_group


def test_all_exceptions_of_nested_groups_are_described() -> None:
    inner = ExceptionGroup("inner", [StorageError("the disk is full"), StorageError("the file is gone")])
    group = ExceptionGroup("outer", [ExceptionGroup("single", [inner]), StorageError("the last one")])
    assert describe_group(group) == "the disk is full; the file is gone; the last one"
