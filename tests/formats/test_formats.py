"""What a release has written, every later version reads; what a later version has written is refused or ignored."""

from __future__ import annotations

import json
import re
import sqlite3
from base64 import b64decode
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio
from crc32c import crc32c

from dafka import wire
from dafka.broker.access.users_file import read_users
from dafka.broker.core.coordination.state_records import StateRecord
from dafka.broker.core.log.entries import Entry
from dafka.broker.core.metadata.commands import Command
from dafka.broker.core.metadata.state_records import PREFIXES
from dafka.broker.core.rounds import read_round
from dafka.broker.interbroker.messenger import BrokerMessenger
from dafka.broker.metadata.snapshot_exchange import ChecksumsRequest
from dafka.errors import ConfigError, StorageError, StorageFormatError
from dafka.storage import open_storage
from dafka.storage.filelog.layout import MARKER_FILE
from tests.formats.samples import (
    COMMANDS,
    FOLDER,
    KEYED,
    LATER_COMMANDS,
    PARTITION,
    ROUNDS,
    USER,
    VALUES,
    apply_commands,
    read_all,
    unpack_storages,
)

T = TypeVar("T")

RELEASES = sorted(each for each in FOLDER.iterdir() if (each / "values.json").exists())
NEWER = re.compile("newer|does not know|this dafka reads|another version|expected [0-9]|use the dafka|update dafka")
WITHOUT_VERSION = {"snapshot", "snapshot of level 3"}
"""Values whose version is not a field of one JSON object or a first byte; they are tested below."""


@pytest.fixture(params=RELEASES, ids=lambda each: each.name)
def release(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


@pytest.fixture
def values(release: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((release / "values.json").read_text())
    return found


def test_all_values_of_a_release_are_read_and_newer_ones_refused(values: dict[str, Any]) -> None:
    for name, (said, _, read) in recorded(VALUES, values):
        data = b64decode(values[name])
        assert read(data) == said, name
        if name not in WITHOUT_VERSION:
            with pytest.raises(StorageFormatError, match=NEWER):
                read(make_newer(data))
    for name, (said, _, read_record) in recorded(KEYED, values):
        topic, key, value = values[name]
        found = StateRecord(topic, b64decode(key), b64decode(value))
        assert read_record(found) == said, name
        with pytest.raises(StorageFormatError, match=NEWER):
            read_record(found._replace(value=make_newer(b64decode(value))))
    for name, (said, _) in recorded(ROUNDS, values):
        assert read_round(wire.Ack(*values[name])) == said, name
    for name in WITHOUT_VERSION & values.keys():
        with pytest.raises(StorageFormatError, match=NEWER):
            VALUES[name][2](b64decode(values[name]).replace(b'"version": 1', b'"version": 2'))


def recorded(samples: Mapping[str, T], values: Mapping[str, Any]) -> list[tuple[str, T]]:
    """Return the samples that a release has recorded."""
    return [(name, each) for name, each in samples.items() if name in values]


def test_every_format_is_recorded() -> None:
    assert {type(each) for each in (*COMMANDS, *LATER_COMMANDS)} == set(Command.__args__)
    known = [json.loads((each / "values.json").read_text()).keys() for each in RELEASES]
    assert set().union(*known) == {*VALUES, *KEYED, *ROUNDS}
    entries: Any = [value for name, (value, _, _) in VALUES.items() if name.startswith("index")]
    assert {type(each) for found in entries for each in found} == set(Entry.__args__)


def make_newer(data: bytes) -> bytes:
    """Return a value with the next version."""
    if data[:1] != b"{":
        return bytes([data[0] + 2]) + data[1:]  # a varint
    fields = json.loads(data)
    return json.dumps(fields | {"version": fields["version"] + 1}).encode()


def test_what_is_written_is_what_the_release_has_written(values: dict[str, Any]) -> None:
    """Brokers of different versions compare snapshots byte for byte, and a new field is left out until it is used."""
    for name, (said, write, _) in recorded(VALUES, values):
        assert write(said) == b64decode(values[name]), name
    for name, (_, found, _read) in recorded(KEYED, values):
        assert [found.key, found.value] == [b64decode(each) for each in values[name][1:]], name


def test_every_kind_of_key_of_a_state_is_in_the_sample_of_a_snapshot() -> None:
    found = {key.decode().partition("/")[0] for key in apply_commands(*LATER_COMMANDS).records}
    assert found == {each.decode().rstrip("/") for each in PREFIXES}


async def test_the_storages_of_a_release_are_read_and_newer_ones_refused(release: Path, tmp_path: Path) -> None:
    urls = unpack_storages(release, tmp_path)
    for url in urls.values():
        records, positions = await read_all(url)
        assert [each[:3] + each[4:] for each in records] == [
            (PARTITION, 0, b"key", 1_700_000_000_000, b"first"),
            (PARTITION, 1, None, 1_700_000_000_001, None),
            (PARTITION, 2, None, 1_700_000_000_002, b"third"),
        ]
        assert [each[3] for each in records][2] == (("name", b"value"),)
        assert positions == {PARTITION: 2}
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        connection.execute(f"PRAGMA user_version={version + 1}")
    document = json.loads((tmp_path / "filelog" / MARKER_FILE).read_text())
    newer = document | {"version": document["version"] + 1}
    newer["crc32c"] = crc32c(f"{newer['format']} {newer['version']} {newer['identity']}".encode())
    (tmp_path / "filelog" / MARKER_FILE).write_text(json.dumps(newer))
    for url in urls.values():
        with pytest.raises(StorageError, match=NEWER):
            await open_briefly(url)


async def open_briefly(url: str) -> None:
    async with open_storage(url):
        await trio.lowlevel.checkpoint()


def test_the_users_of_a_release_are_read_and_newer_ones_refused(release: Path, tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text((release / "users.json").read_text())
    path.chmod(0o600)
    assert read_users(path) == {"anne": USER}
    path.write_text(path.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(ConfigError, match="another version of dafka has written them"):
        read_users(path)


def test_messages_of_a_newer_kind_are_ignored_and_those_with_unknown_fields_refused() -> None:
    received: list[ChecksumsRequest] = []
    messenger = BrokerMessenger("A", lambda *_: None)
    messenger.on(ChecksumsRequest, lambda _sender, message: received.append(message))
    sample = {"kind": ChecksumsRequest.KIND, "fields": {}}
    for change, refused in (({}, 0), ({"kind": "new"}, 0), ({"fields": {"new": 1}}, 1)):
        messenger.process("B", json.dumps(sample | change).encode())
        assert messenger.refused.total() == refused
    assert received == [ChecksumsRequest()]
