"""Snapshots of the state of a cluster, with which brokers compare their states and shorten the log of metadata.

A snapshot is a function of the commands before its offset. Each broker takes one at the same offsets, and voters agree
on its checksum. A broker that is further back than the log begins starts from a snapshot in place of the commands.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from functools import cached_property
from hashlib import sha256

import attrs

from dafka.broker.core.metadata.cluster_state import ClusterState
from dafka.broker.core.metadata.commands import SNAPSHOTS_KEPT, SnapshotTaken
from dafka.broker.core.metadata.features import SUPPORTED, FeatureSupport
from dafka.broker.core.positions import FIRST_OFFSET, Offset
from dafka.broker.core.typed_json import convert
from dafka.errors import StateDiffersError, StorageFormatError
from dafka.protocol.format_errors import format_errors

SNAPSHOT_OFFSETS = 1000
"""The distance between the offsets of two snapshots."""

SNAPSHOT_VERSION = 1
"""The version of the format."""

SNAPSHOT_BYTES_MAX = 2**28
"""The size of the largest snapshot, in bytes."""

CHECKSUM_BYTES = 64
"""The length of a checksum in hexadecimal digits."""

COMPRESSION_LEVEL = 1
"""The fastest one: a broker does nothing else meanwhile, and most of the text repeats."""

SNAPSHOTS_TOPIC = "$snapshots"
"""The topic in which a broker keeps its own snapshots, by offset. Only this broker reads it."""


@attrs.frozen(slots=False)
class Snapshot:
    """The state of a cluster at an offset of the log of metadata, as keys and values."""

    offset: Offset
    records: Mapping[bytes, bytes]

    @cached_property
    def text(self) -> bytes:
        """The snapshot as lines of JSON: a header, then a key and a value each, in the order of the keys."""
        header = json.dumps({"version": SNAPSHOT_VERSION, "offset": self.offset})
        lines = [b"[%s,%s]" % (json.dumps(key.decode()).encode(), value) for key, value in sorted(self.records.items())]
        return b"\n".join([header.encode(), *lines, b""])

    @cached_property
    def checksum(self) -> str:
        """The SHA-256 of the text, as hexadecimal digits."""
        return sha256(self.text).hexdigest()

    def restore(self, support: FeatureSupport = SUPPORTED) -> ClusterState:
        """Return the state. Raise `StorageFormatError` if it is malformed, or its feature level is not supported."""
        state = ClusterState(support)
        state.restore(self.records)
        state.applied = self.offset
        return state


def parse_snapshot(text: bytes) -> Snapshot:
    """Return the snapshot with a text. Raise `StorageFormatError` if it is malformed, or of a newer version."""
    with format_errors("a snapshot of the cluster"):
        header, *lines = text.splitlines()
        fields = json.loads(header)
        if fields["version"] > SNAPSHOT_VERSION:
            raise StorageFormatError("the snapshot has a newer version: update dafka")
        records = {}
        for line in lines:
            key = convert(str, json.loads(line)[0])
            records[key.encode()] = line[len(json.dumps(key)) + 2 : -1]
        found = Snapshot(Offset(convert(int, fields["offset"])), records)
        if found.text != text:
            raise ValueError
        return found


def write_snapshot_file(snapshot: Snapshot) -> str:
    """Return the text of a file with a snapshot: its lines, and a last one with its checksum."""
    return snapshot.text.decode() + json.dumps({"checksum": snapshot.checksum}) + "\n"


def read_snapshot_file(text: str) -> Snapshot:
    """Return the snapshot in a file. Raise `StorageFormatError` if the file is malformed, damaged or cut short."""
    lines, _, last = text.removesuffix("\n").rpartition("\n")
    try:
        checksum = json.loads(last)["checksum"]
    except (ValueError, TypeError, LookupError, RecursionError):
        raise StorageFormatError("it is no snapshot of a cluster, or it is cut short") from None
    snapshot = parse_snapshot(f"{lines}\n".encode())
    if snapshot.checksum != checksum:
        raise StorageFormatError("the file with a snapshot is damaged: it has another checksum than its last line says")
    return snapshot


def compress_snapshot(snapshot: Snapshot) -> bytes:
    """Return a snapshot as brokers store and send it: its checksum, and its text compressed."""
    return snapshot.checksum.encode() + zlib.compress(snapshot.text, COMPRESSION_LEVEL)


def decompress_snapshot(data: bytes) -> Snapshot:
    """Return a snapshot that a broker has stored or sent. Raise `StorageFormatError` if it is malformed or damaged."""
    unpacking = zlib.decompressobj()
    try:
        text = unpacking.decompress(data[CHECKSUM_BYTES:], SNAPSHOT_BYTES_MAX)
    except zlib.error:
        raise StorageFormatError("a snapshot of the cluster is damaged") from None
    if not unpacking.eof:
        raise StorageFormatError("a snapshot of the cluster is damaged or too large")
    snapshot = parse_snapshot(text)
    if snapshot.checksum.encode() != data[:CHECKSUM_BYTES]:
        raise StorageFormatError("a snapshot of the cluster is damaged: it has another checksum than was written")
    return snapshot


@attrs.define(eq=False)
class Snapshots:
    """The snapshots of one broker: the ones that voters have agreed on, and later ones."""

    _kept: dict[Offset, bytes] = attrs.field(factory=dict)
    _changes: list[tuple[bytes, bytes | None]] = attrs.field(factory=list)

    def load(self, stored: Mapping[bytes, bytes]) -> None:
        """Load the stored snapshots, by their keys. Raise `StorageFormatError` if a key is malformed."""
        with format_errors("the key of a snapshot"):
            self._kept = {Offset(int(key)): data for key, data in stored.items()}

    @property
    def offsets(self) -> list[Offset]:
        """The offsets of the snapshots, in order."""
        return sorted(self._kept)

    def find(self, offset: int) -> bytes | None:
        """Return the snapshot at an offset, compressed; None if this broker does not have it."""
        return self._kept.get(Offset(offset))

    def find_before(self, offset: int) -> bytes | None:
        """Return the last snapshot up to an offset, compressed; None if there is none."""
        return self._kept.get(max((each for each in self._kept if each <= offset), default=FIRST_OFFSET))

    def checksum(self, offset: int) -> str:
        """Return the checksum of the snapshot at an offset; empty if this broker does not have it."""
        return self._kept.get(Offset(offset), b"")[:CHECKSUM_BYTES].decode("ascii", "replace")

    def advance(self, state: ClusterState, offset: Offset) -> None:
        """Record that all commands before an offset are applied, and take the snapshots that are due before it."""
        first = state.applied - state.applied % SNAPSHOT_OFFSETS + SNAPSHOT_OFFSETS
        for due in range(first, offset + 1, SNAPSHOT_OFFSETS):
            self.add(Snapshot(Offset(due), dict(state.records)))
        state.applied = max(state.applied, offset)

    def add(self, snapshot: Snapshot) -> None:
        """Keep a snapshot."""
        data = self._kept[snapshot.offset] = compress_snapshot(snapshot)
        self._changes.append((_key_of(snapshot.offset), data))

    def agree(self, command: SnapshotTaken) -> None:
        """Check the checksum that the voters have agreed on. Raise `StateDiffersError` if the own one differs."""
        if self.checksum(command.offset) not in {"", command.checksum}:
            raise StateDiffersError(
                f"the state of the cluster in this storage differs from that of the other brokers at offset "
                f"{command.offset} of the log of metadata; nothing is deleted: start this broker with an empty storage"
            )

    def drop_before(self, offset: int) -> None:
        """Drop the snapshots before an offset, and any that are more than twice as many as are kept."""
        for each in self.offsets:
            if each < offset or len(self._kept) > 2 * SNAPSHOTS_KEPT:
                del self._kept[each]
                self._changes.append((_key_of(each), None))

    def take_changes(self) -> list[tuple[bytes, bytes | None]]:
        """Return the keys and values that have changed since the last call."""
        changes, self._changes = self._changes, []
        return changes


def _key_of(offset: Offset) -> bytes:
    return b"%020d" % offset
