"""Routes for the storage: its contents and its verification."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Annotated, Any

import trio

from dafka.http.api.registry import Answer, RequiredPermission, Route
from dafka.http.server.documents import Count, Document, doc
from dafka.http.server.errors import WebError
from dafka.http.server.http_server import HttpServer
from dafka.http.server.messages import AnyResponse, Request, respond
from dafka.http.server.verification import DamageDetails, Verification, describe_damage
from dafka.storage import HasColdTier, TierStatistics

TOPICS_SHOWN = 100
"""The maximum number of listed topics, the largest first."""

_USAGE_S = 3.0
"""How long a measurement of the storage is cached."""


class StorageUsage(Document):
    """The size of a storage."""

    partitions: Annotated[Count, doc("Partitions.")]
    records: Annotated[Count, doc("Records.")]
    content_bytes: Annotated[Count, doc("The size of their values, keys and headers.")]
    stored_bytes: Annotated[Count, doc("The space in use, with indexes.")]
    free_bytes: Annotated[Count | None, doc("The free space on the disk; null if the storage is not on one.")]
    total_bytes: Annotated[Count | None, doc("The size of the disk; null if the storage is not on one.")]


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
    needs=RequiredPermission.ADMINISTRATOR,
    name="describeStorage",
    tag="Broker",
    answers={200: Answer("The storage.", Storage)},
    errors=("storage_failed",),
)
async def describe_storage(request: Request) -> AnyResponse:
    """Describe the contents of the storage."""
    broker = request.broker
    storage, health = broker.node.inventory.storage, broker.node.store.health()
    topics = await broker.node.inventory.stored_topics()
    return respond(
        {
            **await measure_usage(request.web),
            "location": hide_password(broker.config.store.storage),
            "topic_count": len(topics),
            "topics": [each._asdict() for each in topics[:TOPICS_SHOWN]],
            "repairs": [describe_damage(each) for each in storage.repairs],
            "trouble": health.trouble,
            "cold": _describe_tier(storage.tier_statistics()) if isinstance(storage, HasColdTier) else None,
        }
    )


@Route(
    "GET /storage/verification",
    needs=RequiredPermission.ADMINISTRATOR,
    name="describeVerification",
    tag="Broker",
    answers={200: Answer("The latest verification.", Verification)},
)
async def describe_verification(request: Request) -> AnyResponse:
    """Describe the result or the progress of the latest verification of the storage."""
    return respond(request.web.verification.report)


@Route(
    "POST /storage/verification",
    needs=RequiredPermission.ADMINISTRATOR,
    name="startVerification",
    tag="Broker",
    answers={202: Answer("The verification has begun.", Verification)},
    errors=("conflict",),
)
async def start_verification(request: Request) -> AnyResponse:
    """Start a verification of the storage, which reads every record once.

    The broker continues to work. One verification runs at a time.
    """
    if not request.web.verification.start():
        raise WebError("conflict", "the storage is being verified already")
    return respond(request.web.verification.report, 202)


async def measure_usage(web: HttpServer) -> dict[str, Any]:
    """Return the size of the storage. Raises `StorageError`."""
    if web.usage is None or trio.current_time() - web.usage[0] >= _USAGE_S:
        storage = web.broker.node.inventory.storage
        statistics = await storage.statistics()
        disk = await trio.to_thread.run_sync(_measure_disk, web.broker.config.store.storage)
        usage = {
            "partitions": statistics.partitions,
            "records": statistics.records,
            "content_bytes": statistics.content_bytes,
            "stored_bytes": statistics.stored_bytes,
            "free_bytes": None if disk is None else disk[1],
            "total_bytes": None if disk is None else disk[0],
        }
        web.usage = trio.current_time(), usage
    return web.usage[1]


def _measure_disk(location: str) -> tuple[int, int] | None:
    """Return the size of a storage's disk and its free space; None if it is not on a disk."""
    kind, _, path = location.partition(":")
    if kind not in {"sqlite", "filelog"}:
        return None
    try:
        folder = Path(path).absolute()
        found = shutil.disk_usage(folder if folder.exists() else folder.parent)
    except OSError:
        return None
    return found.total, found.free


def hide_password(location: str) -> str:
    """Return the URL of a storage without its password."""
    return re.sub(r"(//[^/:@]*):[^/@]*@", r"\1:***@", location)


def _describe_tier(tier: TierStatistics) -> dict[str, Any]:
    return {
        "place": tier.place,
        "objects": tier.segments,
        "records": tier.records,
        "content_bytes": tier.content_bytes,
        "object_bytes": tier.object_bytes,
        "due_bytes": tier.due_bytes,
        "damaged": tier.damaged,
        "trouble": tier.request_error or tier.move_error,
    }
