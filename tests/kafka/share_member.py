"""A member of a share group that sends single requests, so that a test knows what was answered."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from dafka.batches import decode_records
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.groups.share.share_partition import AcknowledgeType
from dafka.kafka.protocol.constants import ApiKey
from dafka.records import Partition
from tests.kafka.apis.door import Client

DEADLINE_S = 60
_NO_LIMIT = {"min_bytes": 1, "max_bytes": 2**20, "forgotten_topics_data": []}


class Delivery(NamedTuple):
    """A record that a member has acquired."""

    log: int
    offset: int
    delivery_count: int
    value: bytes


Said = Mapping[int, Mapping[int, AcknowledgeType]]
"""What a member says of records: by log, and offset."""


class ShareMember:
    """A member that reads one topic. It has no session until it fetches."""

    def __init__(self, servers: str, group: str, topic: str, member_id: str) -> None:
        self.client = Client(servers)
        self.group, self.topic, self.member_id = group, topic, member_id
        self.epoch = self.session_epoch = 0
        self.topic_id = UUID(int=0)
        self.logs: list[int] = []

    def join(self) -> ShareMember:
        """Join the group, and wait for logs."""
        deadline = time.monotonic() + DEADLINE_S
        while not self.logs:
            self.beat()
            assert time.monotonic() < deadline
        return self

    def begin(self) -> ShareMember:
        """Join the group, and wait until its state is loaded, as a fetch requests it: it begins at the log's end."""
        self.join()
        deadline = time.monotonic() + DEADLINE_S
        while self.find_start() < 0:
            self.fetch()
            assert time.monotonic() < deadline
        return self

    def find_start(self) -> int:
        """Return the least start offset of the group in the logs of the member; -1 while it is not known."""
        asked = [{"topic_name": self.topic, "partitions": self.logs}]
        (group,) = self.client.ask(
            ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1, groups=[{"group_id": self.group, "topics": asked}]
        )["groups"]
        found: list[int] = [part["start_offset"] for topic in group["topics"] for part in topic["partitions"]]
        return min(found)

    def beat(self) -> ErrorCode:
        """Send a heartbeat; join again if the group does not know the member."""
        answer = self.client.ask(
            ApiKey.SHARE_GROUP_HEARTBEAT,
            1,
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=self.epoch,
            subscribed_topic_names=None if self.epoch > 0 else [self.topic],
        )
        error = ErrorCode(answer["error_code"])
        self.epoch = answer["member_epoch"] if error is ErrorCode.NONE else 0
        if answer["assignment"] is not None:
            for each in answer["assignment"]["topic_partitions"]:
                self.topic_id, self.logs = each["topic_id"], each["partitions"]
        return error

    def leave(self) -> None:
        """Leave the group."""
        self.epoch = -1
        self.beat()

    def fetch(self, said: Said | None = None, *, version: int = 2, is_last: bool = False, **values: Any) -> Any:
        """Acknowledge and acquire records. Return the response; see `deliveries_in`."""
        self.begin_fetch(said, version=version, is_last=is_last, **{"max_wait_ms": 200, **values})
        return self.end_fetch(version)

    def begin_fetch(self, said: Said | None = None, *, version: int = 2, is_last: bool = False, **values: Any) -> None:
        """Send a request to acknowledge and acquire records."""
        self.client.send(
            ApiKey.SHARE_FETCH,
            version,
            group_id=self.group,
            member_id=self.member_id,
            share_session_epoch=-1 if is_last else self.session_epoch,
            topics=self.topics(said or {}, self.logs if self.session_epoch == 0 else ()),
            **{"max_wait_ms": 50_000, "max_records": 10, "batch_size": 5, **_NO_LIMIT, **values},
        )

    def end_fetch(self, version: int = 2) -> Any:
        """Return the response to the request."""
        found = self.client.receive_answer(ApiKey.SHARE_FETCH, version)
        self.session_epoch += found["error_code"] == 0
        return found

    def acknowledge(self, said: Said, *, version: int = 2, is_last: bool = False, **values: Any) -> Any:
        """Acknowledge records, and return the response."""
        found = self.client.ask(
            ApiKey.SHARE_ACKNOWLEDGE, version, **self.acknowledging(said, is_last=is_last), **values
        )
        self.session_epoch += found["error_code"] == 0
        return found

    def acknowledging(self, said: Said, *, is_last: bool = False) -> dict[str, Any]:
        """Return the values of a request that acknowledges records."""
        return {
            "group_id": self.group,
            "member_id": self.member_id,
            "share_session_epoch": -1 if is_last else self.session_epoch,
            "topics": self.topics(said),
        }

    def topics(self, said: Said, others: Iterable[int] = ()) -> list[dict[str, Any]]:
        """Return the topics of a request that acknowledges records, and names other logs."""
        partitions = [
            {
                "partition_index": log,
                "acknowledgement_batches": [
                    {"first_offset": offset, "last_offset": offset, "acknowledge_types": [int(kind)]}
                    for offset, kind in sorted(said.get(log, {}).items())
                ],
            }
            for log in sorted({*said, *others})
        ]
        return [{"topic_id": self.topic_id, "partitions": partitions}] if partitions else []

    def deliveries_in(self, answer: Any) -> list[Delivery]:
        """Return the records that a response delivers."""
        found = []
        for topic in answer["responses"]:
            for part in topic["partitions"]:
                log, values = part["partition_index"], dict(read_values(part["records"]))
                for each in part["acquired_records"]:
                    offsets, count = range(each["first_offset"], each["last_offset"] + 1), each["delivery_count"]
                    found += [Delivery(log, offset, count, values[offset]) for offset in offsets]
        return found


def read_values(records: bytes) -> list[tuple[int, bytes]]:
    """Return the offsets and values in record batches."""
    found, partition = [], Partition("t", "p")
    while records:
        size = 12 + int.from_bytes(records[8:12], "big")
        found += [(each.sequence, each.value or b"") for each in decode_records(partition, records[:size])]
        records = records[size:]
    return found


def errors_of(answer: Any, name: str = "error_code") -> dict[int, ErrorCode]:
    """Return the errors of logs in a response."""
    return {
        part["partition_index"]: ErrorCode(part[name]) for topic in answer["responses"] for part in topic["partitions"]
    }
