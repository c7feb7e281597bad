"""What is written is read again: by our readers, and by kio's."""

from __future__ import annotations

import io
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dafka.batches.varints import write_uvarint
from dafka.kafka.protocol.reading import ITEMS_MAX, read_uvarint, reader_of
from dafka.kafka.protocol.tables import Message
from dafka.kafka.protocol.writing import Buffer, writer_of
from tests.kafka.protocol.layouts import kio_entity, messages
from tests.kafka.protocol.samples import random_message, versions_of


def written(message: Message, version: int) -> bytes:
    parts: list[Buffer] = []
    writer_of(type(message), version)(message, parts)
    return b"".join(parts)


@pytest.mark.parametrize("name", messages())
def test_every_version_is_read_as_it_was_written(name: str) -> None:
    table, random = messages()[name], Random(name)
    for version in versions_of(table):
        for _ in range(4):
            message = random_message(table, version, random)
            data = written(message, version)
            assert reader_of(table, version)(b"before" + data + b"after", 6, ITEMS_MAX) == (message, 6 + len(data))


@pytest.mark.parametrize("name", messages())
def test_kio_reads_and_writes_the_same_bytes(name: str) -> None:
    from kio.serial import entity_reader, entity_writer

    table, random = messages()[name], Random(name)
    for version in versions_of(table):
        entity: Any = kio_entity(table, version)
        if entity is None:
            continue
        for _ in range(2):
            data = written(random_message(table, version, random, tame=True), version)
            read, size = entity_reader(entity)(data, 0)
            assert size == len(data)
            rewritten = io.BytesIO()
            entity_writer(entity)(rewritten, read)
            assert rewritten.getvalue() == data


@given(st.integers(0, 2**32 - 1))
def test_unsigned_numbers(number: int) -> None:
    data = write_uvarint(number)
    assert read_uvarint(b"\xff" + data, 1) == (number, 1 + len(data))
