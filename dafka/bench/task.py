"""What a client process is told to do, and the contents that it sends or expects.

Contents are of ASCII digits and padding: ten that tell the record's sequence and, where records are paced, twenty that
tell when it was made (`time.perf_counter_ns`, which all processes of a Linux machine share).
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import attrs

SEQUENCE_DIGITS = 10
STAMP_DIGITS = 20
STAMPED_SIZE_MIN = SEQUENCE_DIGITS + STAMP_DIGITS
TOPIC = "bench"
CHUNK_BYTES_MAX = 16 * 2**20
PREPARED_BYTES_MAX = 64 * 2**20


@attrs.frozen(kw_only=True)
class Task:
    """Attributes:
    records: how many to send, or to receive.
    size: of each content, in octets, at least 10.
    rate: records to send in a second; 0 for as fast as they go.
    is_late: the client opens only when it is told to go: what is measured includes the opening.
    from_beginning: a consumer begins with the earliest record.
    consumers: how many are to receive what is sent.
    stores: how many must have acknowledged a record.
    topics: to subscribe to.
    partitions: that records are spread over.
    settings: what the system tells its clients: where its servers are, and whatever else they need.
    """

    records: int
    size: int = 100
    rate: int = 0
    is_late: bool = False
    from_beginning: bool = False
    consumers: int = 0
    stores: int = 1
    topics: int = 1
    partitions: int = 1
    settings: dict[str, str] = attrs.field(factory=dict)

    def to_json(self) -> str:
        """As one line of text."""
        return json.dumps(attrs.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Task:
        """From what `to_json` gave."""
        return cls(**json.loads(text))

    def contents(self, first: int, count: int) -> list[bytes]:
        """The contents of records from a sequence on, none beyond the last one."""
        template = b"%%0%dd" % SEQUENCE_DIGITS + b"." * (self.size - SEQUENCE_DIGITS)
        return [template % sequence for sequence in range(first, min(first + count, self.records))]

    def chunks(self, count_max: int) -> Iterable[list[bytes]]:
        """All contents, at most so many or 16 MiB at a time: made here and now, unless that is too much to keep.

        What a producer sends is there before the clock starts: making it takes longer than sending it.
        """
        count = max(1, min(count_max, CHUNK_BYTES_MAX // self.size))
        made = (self.contents(first, count) for first in range(0, self.records, count))
        return list(made) if self.records * self.size <= PREPARED_BYTES_MAX else made

    def stamped_contents(self, first: int, count: int, now: int) -> list[bytes]:
        """Likewise, made at a time in nanoseconds."""
        padding = b"." * (self.size - STAMPED_SIZE_MIN)
        stamp = b"%0*d" % (STAMP_DIGITS, now)
        return [
            b"%0*d%b%b" % (SEQUENCE_DIGITS, sequence, stamp, padding)
            for sequence in range(first, min(first + count, self.records))
        ]

    def topic_names(self) -> list[str]:
        """The topics' names."""
        return [TOPIC] if self.topics == 1 else [f"{TOPIC}-{number}" for number in range(self.topics)]


def sequence_of(content: bytes) -> int:
    """The sequence that a content tells."""
    return int(content[:SEQUENCE_DIGITS])


def stamp_of(content: bytes) -> int:
    """When a paced record was made, in nanoseconds."""
    return int(content[SEQUENCE_DIGITS:STAMPED_SIZE_MIN])
