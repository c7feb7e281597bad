"""Routes for the storage: its contents and its verification."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import trio

from dafka.http.api.registry import Answer, RequiredPermission, route
from dafka.http.api.schemas import Array, Choice, Integer, Nullable, Object, Text
from dafka.http.server.errors import WebError
from dafka.http.server.http_server import HttpServer
from dafka.http.server.messages import AnyResponse, Request, respond
from dafka.http.server.verification import StorageVerification
from dafka.storage import HasColdTier, TierStatistics
from dafka.storage.base import Damage

TOPICS_SHOWN = 100
"""The maximum number of listed topics, the largest first."""

_USAGE_S = 3.0
"""How long a measurement of the storage is cached."""

USAGE = Object(
    "StorageUsage",
    {
        "partitions": Integer("Partitions."),
        "records": Integer("Records."),
        "content_bytes": Integer("The size of their values, keys and headers."),
        "stored_bytes": Integer("The space in use, with indexes."),
        "free_bytes": Nullable(Integer("The free space on the disk; null if the storage is not on one.")),
        "total_bytes": Nullable(Integer("The size of the disk; null if the storage is not on one.")),
    },
)

STORED_TOPIC = Object(
    "StoredTopic",
    {
        "name": Text("The name. Names that begin with `$` are the broker's own."),
        "partitions": Integer("Its partitions."),
        "records": Integer("Its records."),
        "content_bytes": Integer("The size of their values, keys and headers."),
        "last_stored_at": Nullable(Integer("When its last record was stored, in milliseconds since 1970.")),
    },
)

DAMAGE = Object(
    "Damage",
    {
        "location": Text("Where it is."),
        "reason": Text("What is damaged."),
        "topic": Text("The topic of the records affected; empty if none are."),
        "address": Text("The producer of the records affected; empty if none are."),
        "first_sequence": Integer("The sequence of the first record affected."),
        "end_sequence": Integer("The sequence behind the last record affected."),
    },
)

COLD_TIER = Object(
    "ColdTier",
    {
        "place": Text("The URL of the object store, without options."),
        "objects": Integer("Its objects."),
        "records": Integer("Their records."),
        "content_bytes": Integer("The size of the values, keys and headers of these records."),
        "object_bytes": Integer("The size of the objects."),
        "due_bytes": Integer("The size of the records that should have been moved by now."),
        "damaged": Integer("Pieces of objects whose records cannot be read."),
        "trouble": Text("Why the object store was not reached, or nothing was moved; empty if all is well."),
    },
)

STORAGE = Object(
    "Storage",
    {
        **USAGE.fields,
        "location": Text("The URL of the storage, without a password."),
        "topic_count": Integer("The number of topics."),
        "topics": Array(STORED_TOPIC, f"The {TOPICS_SHOWN} largest topics."),
        "repairs": Array(DAMAGE, "Damage that was removed when the storage was opened."),
        "trouble": Text("Why nothing can be stored; empty if all is well."),
        "cold": Nullable(COLD_TIER),
    },
)

VERIFICATION = Object(
    "Verification",
    {
        "state": Choice(("none", "running", "done", "failed")),
        "records_read": Integer("Records that were read."),
        "records_total": Integer("Records that there are to read."),
        "partitions": Integer("Partitions that were read, when it is done."),
        "damages": Array(DAMAGE, "The damage that it has found, when it is done."),
        "error": Text("Why it has failed; empty if it has not."),
        "started_at": Nullable(Integer("When it has begun, in milliseconds since 1970.")),
        "finished_at": Nullable(Integer("When it has ended, in milliseconds since 1970.")),
    },
)


@route(
    "GET",
    "/storage",
    needs=RequiredPermission.ADMINISTRATOR,
    tag="Broker",
    answers={200: Answer("The storage.", STORAGE)},
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
            "repairs": [_describe_damage(each) for each in storage.repairs],
            "trouble": health.trouble,
            "cold": _describe_tier(storage.tier_statistics()) if isinstance(storage, HasColdTier) else None,
        }
    )


@route(
    "GET",
    "/storage/verification",
    needs=RequiredPermission.ADMINISTRATOR,
    tag="Broker",
    answers={200: Answer("The latest verification.", VERIFICATION)},
)
async def describe_verification(request: Request) -> AnyResponse:
    """Describe the result or the progress of the latest verification of the storage."""
    return respond(_describe_verification(request.web.verification))


@route(
    "POST",
    "/storage/verification",
    needs=RequiredPermission.ADMINISTRATOR,
    tag="Broker",
    answers={202: Answer("The verification has begun.", VERIFICATION)},
    errors=("conflict",),
)
async def start_verification(request: Request) -> AnyResponse:
    """Start a verification of the storage, which reads every record once.

    The broker continues to work. One verification runs at a time.
    """
    if not request.web.verification.start():
        raise WebError("conflict", "the storage is being verified already")
    return respond(_describe_verification(request.web.verification), 202)


async def measure_usage(web: HttpServer) -> dict[str, Any]:
    """Return the size of the storage. Raises `StorageError`."""
    found = web.usage.find(trio.current_time(), _USAGE_S)
    if found is None:
        storage = web.broker.node.inventory.storage
        statistics = await storage.statistics()
        disk = await trio.to_thread.run_sync(_measure_disk, web.broker.config.store.storage)
        found = {
            "partitions": statistics.partitions,
            "records": statistics.records,
            "content_bytes": statistics.content_bytes,
            "stored_bytes": statistics.stored_bytes,
            "free_bytes": None if disk is None else disk[1],
            "total_bytes": None if disk is None else disk[0],
        }
        web.usage.put(found, trio.current_time())
    return found


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


def _describe_verification(found: StorageVerification) -> dict[str, Any]:
    return {
        "state": found.state,
        "records_read": found.records_read,
        "records_total": found.records_total,
        "partitions": found.partitions,
        "damages": [_describe_damage(each) for each in found.damages],
        "error": found.error,
        "started_at": found.started_at,
        "finished_at": found.finished_at,
    }


def _describe_damage(damage: Damage) -> dict[str, Any]:
    partition = damage.partition
    return {
        "location": damage.location,
        "reason": damage.reason,
        "topic": "" if partition is None else partition.topic,
        "address": "" if partition is None else partition.address,
        "first_sequence": damage.first_sequence,
        "end_sequence": damage.end_sequence,
    }
