"""Routes for the storage: its contents and its verification."""

from __future__ import annotations

import re
from typing import Annotated

from dafka.errors import StorageError
from dafka.http.api.registry import Parameter, RequiredPermission, Route
from dafka.http.server.documents import Count, Document, doc
from dafka.http.server.errors import WebError
from dafka.http.server.messages import Request
from dafka.http.server.storage_state import DamageDetails, StorageUsage, Verification, describe_damage
from dafka.records import Partition
from dafka.storage import HasColdTier, TierStatistics
from dafka.storage.tools.checksum import compute_checksum

TOPICS_SHOWN = 100
"""The maximum number of listed topics, the largest first."""


CHECKED_MAX = 100_000
"""The maximum number of records of one checksum."""


class StoredTopic(Document):
    """A topic in the storage."""

    name: Annotated[str, doc("The name. Names that begin with `$` are the broker's own.")]
    partitions: Annotated[Count, doc("Its partitions.")]
    records: Annotated[Count, doc("Its records.")]
    content_bytes: Annotated[Count, doc("The size of their values, keys and headers.")]
    last_stored_at: Annotated[Count | None, doc("When its last record was stored, in milliseconds since 1970.")]


class ColdTier(Document):
    """The object store that has older records."""

    place: Annotated[str, doc("The URL of the object store, without options.")]
    objects: Annotated[Count, doc("Its objects.")]
    records: Annotated[Count, doc("Their records.")]
    content_bytes: Annotated[Count, doc("The size of the values, keys and headers of these records.")]
    object_bytes: Annotated[Count, doc("The size of the objects.")]
    due_bytes: Annotated[Count, doc("The size of the records that should have been moved by now.")]
    damaged: Annotated[Count, doc("Pieces of objects whose records cannot be read.")]
    trouble: Annotated[str, doc("Why the object store was not reached, or nothing was moved; empty if all is well.")]

    @classmethod
    def of_tier(cls, tier: TierStatistics) -> ColdTier:
        """Return the description of a cold tier."""
        return cls.of(tier, objects=tier.segments, trouble=tier.request_error or tier.move_error)


class Storage(StorageUsage):
    """The contents of the storage."""

    location: Annotated[str, doc("The URL of the storage, without a password.")]
    topic_count: Annotated[Count, doc("The number of topics.")]
    topics: Annotated[list[StoredTopic], doc(f"The {TOPICS_SHOWN} largest topics.")]
    repairs: Annotated[list[DamageDetails], doc("Damage that was removed when the storage was opened.")]
    trouble: Annotated[str, doc("Why nothing can be stored; empty if all is well.")]
    cold: ColdTier | None


@Route(
    "GET /storage",
    RequiredPermission.ADMINISTRATOR,
    name="describeStorage",
    tag="Broker",
    errors=("storage_failed",),
)
async def describe_storage(request: Request) -> Storage:
    """Describe the contents of the storage."""
    broker = request.broker
    storage, health = broker.node.inventory.storage, broker.node.store.health()
    topics = await broker.node.inventory.stored_topics()
    return Storage.of(
        await request.web.storage_meter.measure(),
        location=hide_password(broker.config.store.storage),
        topic_count=len(topics),
        topics=[StoredTopic.of(each) for each in topics[:TOPICS_SHOWN]],
        repairs=[describe_damage(each) for each in storage.repairs],
        trouble=health.trouble,
        cold=ColdTier.of_tier(storage.tier_statistics()) if isinstance(storage, HasColdTier) else None,
    )


class Checksum(Document):
    """A checksum of records that this broker has stored."""

    first_sequence: Annotated[Count, doc("The sequence of the first record, perhaps after the requested one.")]
    end_sequence: Annotated[Count, doc("The sequence after the last record, perhaps before the requested one.")]
    checksum: Annotated[str, doc("The SHA-256 of their sequences, values, keys and headers; empty if one is damaged.")]
    error: Annotated[str, doc("Why they cannot be read; empty if they can.")]


@Route(
    "GET /storage/checksum",
    RequiredPermission.ADMINISTRATOR,
    name="computeChecksum",
    tag="Broker",
    parameters=[
        Parameter("topic", Annotated[str, doc("The name of the topic.")], is_required=True, example="orders"),
        Parameter(
            "partition", Annotated[str, doc("The address of the partition.")], is_required=True, example="A" * 32
        ),
        Parameter("first", Annotated[int, doc("The sequence of the first record.", ge=0)], 0),
        Parameter("count", Annotated[int, doc("How many records.", ge=1, le=CHECKED_MAX)], CHECKED_MAX),
    ],
)
async def compute_records_checksum(request: Request) -> Checksum:
    """Compute the checksum of stored records, to compare the replicas of several brokers."""
    query = request.query
    partition, first = Partition(query["topic"], query["partition"]), query["first"]
    try:
        found = await compute_checksum(request.broker.node.inventory.storage, partition, first, first + query["count"])
    except StorageError as error:
        return Checksum(first, first, "", str(error))
    return Checksum.of(found, error="")


@Route("GET /storage/verification", RequiredPermission.ADMINISTRATOR, name="describeVerification", tag="Broker")
async def describe_verification(request: Request) -> Verification:
    """Describe the result or the progress of the latest verification of the storage."""
    return request.web.verification.report


@Route(
    "POST /storage/verification",
    RequiredPermission.ADMINISTRATOR,
    name="startVerification",
    tag="Broker",
    status=202,
    errors=("conflict",),
)
async def start_verification(request: Request) -> Verification:
    """Start a verification of the storage, which reads every record once.

    The broker continues to work. One verification runs at a time.
    """
    if not request.web.verification.start():
        raise WebError("conflict", "the storage is being verified already")
    return request.web.verification.report


def hide_password(location: str) -> str:
    """Return the URL of a storage without its password."""
    return re.sub(r"(//[^/:@]*):[^/@]*@", r"\1:***@", location)
