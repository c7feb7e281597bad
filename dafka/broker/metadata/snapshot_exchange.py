"""Compares the snapshots of brokers by messages, and fetches one that this broker does not have."""

from __future__ import annotations

import logging
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Collection, Iterable

import attrs
import trio

from dafka.broker.core.metadata.commands import SnapshotTaken
from dafka.broker.core.metadata.snapshots import SNAPSHOT_BYTES_MAX, Snapshot, Snapshots, decompress_snapshot
from dafka.broker.core.positions import Offset
from dafka.broker.interbroker.messenger import BrokerMessenger, Message
from dafka.errors import StorageFormatError

_LOGGER = logging.getLogger("dafka.broker")

PART_BYTES = 2**16
"""The size of a part of a snapshot in a message, in bytes."""

ASK_AGAIN_S = 1.0
"""Seconds after which a broker is asked again."""

ASKED_MAX = 3
"""How often a broker is asked for a part of a snapshot."""


@attrs.frozen
class ChecksumsRequest(Message):
    """Asks for the checksums of the snapshots that a broker has stored."""

    KIND = "snapshot-checksums?"


@attrs.frozen
class Checksums(Message):
    """The snapshots that a broker has stored: their offsets and checksums."""

    KIND = "snapshot-checksums"
    offsets: tuple[int, ...]
    checksums: tuple[str, ...]


@attrs.frozen
class PartRequest(Message):
    """Asks for a part of a snapshot."""

    KIND = "snapshot-part?"
    offset: int
    part: int


@attrs.frozen
class PartAnswer(Message):
    """A part of a snapshot, in Base64, and how many parts there are; none if the broker does not have the snapshot."""

    KIND = "snapshot-part"
    offset: int
    part: int
    part_count: int
    data: str


class SnapshotExchange:
    """The messages about snapshots that one broker sends and receives."""

    def __init__(self, snapshots: Snapshots, messenger: BrokerMessenger) -> None:
        self._snapshots = snapshots
        self._messenger = messenger
        self._written: list[tuple[Offset, trio.Event]] = []
        self._checksums: dict[str, dict[int, str]] = {}
        self._asked_at = float("-inf")
        self._parts: dict[tuple[str, int, int], tuple[trio.Event, list[PartAnswer]]] = {}
        messenger.on(ChecksumsRequest, self._tell_checksums)
        messenger.on(Checksums, self._learn_checksums)
        messenger.on(PartRequest, self._send_part)
        messenger.on(PartAnswer, self._receive_part)

    def record_write(self, offset: Offset, written: trio.Event) -> None:
        """Record that the snapshots up to an offset are durable when an event is set."""
        self._written = [each for each in self._written if not each[1].is_set()]
        self._written.append((offset, written))

    def _durable(self) -> dict[int, str]:
        """Return the checksums of the snapshots that are durable here."""
        end = min((offset for offset, written in self._written if not written.is_set()), default=None)
        offsets = [each for each in self._snapshots.offsets if end is None or each < end]
        return {each: self._snapshots.checksum(each) for each in offsets}

    # Agreeing on a snapshot

    def find_agreed(self, voters: Collection[str], last_offset: int, now: float) -> SnapshotTaken | None:
        """Return the first own snapshot after an offset that most voters have stored; None if there is none.

        The other voters are asked meanwhile. Raise `StateDiffersError` if most voters have another one.
        """
        own, address = self._durable(), self._messenger.address
        pending = sorted(each for each in own if each > last_offset)
        stored = [own if each == address else self._checksums.get(each, {}) for each in voters]
        for offset in pending:
            checksum, count = Counter(each.get(offset, "") for each in stored).most_common(1)[0]
            if checksum and 2 * count > len(voters):
                command = SnapshotTaken(offset, checksum)
                self._snapshots.agree(command)
                return command
        if pending and now - self._asked_at >= ASK_AGAIN_S:
            self._asked_at = now
            for each in voters:
                if each != address:
                    self._messenger.send(each, ChecksumsRequest())
        return None

    def _tell_checksums(self, sender: str, _: ChecksumsRequest) -> None:
        found = self._durable()
        self._messenger.send(sender, Checksums(tuple(found), tuple(found.values())))

    def _learn_checksums(self, sender: str, message: Checksums) -> None:
        self._checksums[sender] = dict(zip(message.offsets, message.checksums, strict=False))

    # Fetching a snapshot

    async def fetch(self, wanted: SnapshotTaken, brokers: Iterable[str]) -> Snapshot | None:
        """Return a snapshot that one of these brokers has; None if none of them sends it."""
        for broker in brokers:
            data = await self._fetch_from(broker, wanted.offset)
            if data is None:
                continue
            try:
                snapshot = decompress_snapshot(data)
            except StorageFormatError as error:
                _LOGGER.warning("the snapshot of the broker %s is ignored: %s", broker, error)
                continue
            if (snapshot.offset, snapshot.checksum) == (wanted.offset, wanted.checksum):
                return snapshot
            _LOGGER.warning("the snapshot of the broker %s is ignored: its checksum is not the agreed one", broker)
        return None

    async def _fetch_from(self, broker: str, offset: int) -> bytes | None:
        found, part_count = bytearray(), 1
        part = 0
        while part < part_count:
            answer = await self._ask_part(broker, offset, part)
            if answer is None or not answer.data or len(found) > SNAPSHOT_BYTES_MAX:
                return None
            try:
                found += b64decode(answer.data, validate=True)
            except ValueError:
                return None
            part, part_count = part + 1, answer.part_count
        return bytes(found)

    async def _ask_part(self, broker: str, offset: int, part: int) -> PartAnswer | None:
        key = broker, offset, part
        arrived, answers = self._parts[key] = trio.Event(), []
        try:
            for _ in range(ASKED_MAX):
                self._messenger.send(broker, PartRequest(offset, part))
                with trio.move_on_after(ASK_AGAIN_S):
                    await arrived.wait()
                    return answers[0]
        finally:
            del self._parts[key]
        return None

    def _send_part(self, sender: str, message: PartRequest) -> None:
        data = self._snapshots.find(message.offset) or b""
        count, start = -(-len(data) // PART_BYTES), message.part * PART_BYTES
        part = b64encode(data[start : start + PART_BYTES]).decode() if message.part >= 0 else ""
        self._messenger.send(sender, PartAnswer(message.offset, message.part, count, part))

    def _receive_part(self, sender: str, message: PartAnswer) -> None:
        pending = self._parts.get((sender, message.offset, message.part))
        if pending is not None:
            pending[1].append(message)
            pending[0].set()
