import inspect
import warnings
from typing import Any

from dafka.broker.core.error_codes import ErrorCode

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # importing kafka-python uses what Python deprecates
    from kafka import errors as kafka_python

RENAMED = {-1, 0, 6, 10, 17, 39}
"""Codes whose names in kafka-python are not those of Kafka 4.0."""


def test_codes_are_those_of_kafka() -> None:
    classes: list[Any] = [each for _, each in inspect.getmembers(kafka_python, inspect.isclass)]
    theirs = {each.errno: each.message for each in classes if isinstance(getattr(each, "errno", None), int)}
    ours = {code.value: code.name for code in ErrorCode}
    assert len(theirs) > 100
    assert set(theirs) <= set(ours)
    assert set(ours) == set(range(-1, 130))
    assert {code for code in theirs if theirs[code] != ours[code]} == RENAMED
