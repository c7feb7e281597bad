"""Nodes sync before they promise: no ACK and no record of a spool leaves before its sync.

The nodes run in this process. Their file logs are recorded, with a mark for each message that they send.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from dafka import Config
from dafka.roles.sockets import NodeSockets
from dafka.testing import open_cluster
from dafka.wire import Ack, BatchedMessage, RecordRun
from tests.power.disk import NOTHING, Disk
from tests.power.recorder import Recorder
from tests.power.recording import Kind

COUNT = 60
DEADLINE_S = 60
VALUES = [b"record-%06d;" % number + b"x" * (number * 37 % 200) for number in range(COUNT)]


@contextmanager
def recording(root: Path) -> Iterator[Recorder]:
    """Record what is below a folder, with the last sequence of each ACK and of each run of records that is sent."""
    recorder = Recorder(root)
    send = NodeSockets._send

    def mark_and_send(self: NodeSockets, messages: Sequence[BatchedMessage]) -> None:
        for message in messages:
            if isinstance(message, Ack):
                recorder.mark(json.dumps(["ACK", message.sequence]))
            elif isinstance(message, RecordRun):
                recorder.mark(json.dumps(["RECORD", message.batch.end_sequence - 1]))
        send(self, messages)

    with recorder.recording(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(NodeSockets, "_send", mark_and_send)
        yield recorder


async def publish(config: Config, storage: str, spool: str) -> None:
    """Publish records, a few at a time, and wait until they are stored."""
    with trio.fail_after(DEADLINE_S):
        async with open_cluster(config, storage=storage) as cluster:
            own = cluster.config.with_producer(spool=spool)
            async with cluster.producer("orders", own) as producer:
                for start in range(0, COUNT, 10):
                    await producer.send_many(VALUES[start : start + 10])
                    if start % 20:
                        await producer.wait_stored()
                await producer.wait_stored()


def sent_too_early(recorder: Recorder, root: Path, what: str) -> list[tuple[int, int]]:
    """Return what was sent of a kind, with the end of the records that a power failure would have left."""
    disk = Disk(root)
    found, sent = [], set()
    for entry in recorder.entries:
        disk.apply(entry)
        if entry.kind is Kind.MARK:
            kind, sequence = json.loads(entry.first)
            if kind == what:
                left = b"".join(content or b"" for content in disk.tree(NOTHING).values())
                end = max((int(number) + 1 for number in re.findall(rb"record-(\d{6});", left)), default=0)
                sent.add(sequence)
                found += [(sequence, end)] if sequence >= end else []
    assert max(sent) == COUNT - 1
    return found


@pytest.mark.parametrize("what", ["ACK", "RECORD"])
async def test_nothing_is_sent_before_its_sync(what: str, tmp_path: Path) -> None:
    """A store syncs records before it acknowledges them, a producer with a spool before it publishes them."""
    log = f"filelog:{tmp_path}/root/log?segment_bytes=2000"
    (tmp_path / "root").mkdir()
    with recording(tmp_path / "root") as recorder:
        await publish(Config(), *((log, "") if what == "ACK" else ("memory:", log)))
    assert sent_too_early(recorder, tmp_path / "root", what) == []
