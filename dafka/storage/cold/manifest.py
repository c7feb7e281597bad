"""The manifest of a cold tier: which segments it consists of, as values. No I/O.

The manifest is a *root*, one small object that each change replaces as a whole, and *chunks*, which are never changed.
The root lists the chunks, and the segments that were added last. When those are many, they become a chunk. So a change
costs the same whether the tier has ten segments or a million. A chunk of which segments were dropped is dissolved: its
other segments return to the root, and become part of the next chunk.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any

import attrs
from crc32c import crc32c

from dafka.errors import StorageFormatError
from dafka.records import Partition
from dafka.storage.cold.segments import Segment

ROOT = "manifest.json"
"""The name of the root."""

CHUNKS_FOLDER = "manifest"
"""The folder of the chunks."""

CHUNK_SEGMENTS = 200
"""The number of segments in a chunk."""

FORMAT = "dafka cold tier"
VERSION = 1

_FIELDS = ("first", "end", "start", "content_bytes", "first_at", "last_at", "object_bytes", "tail_bytes", "tail_crc")


@attrs.frozen
class Chunk:
    """Segments that the root names by one object. Its name has a hash of what it contains."""

    name: str
    segments: tuple[Segment, ...]

    @classmethod
    def of(cls, segments: Sequence[Segment]) -> Chunk:
        """Return a chunk of segments."""
        digest = sha256(encode_segments(segments)).hexdigest()[:32]
        return cls(f"{CHUNKS_FOLDER}/{digest}.json", tuple(segments))


@attrs.frozen(kw_only=True)
class Manifest:
    """One version of the manifest.

    Attributes:
        store: The address of the store.
        number: Counts the versions.
        writer: A random mark of the change that made this version, by which its writer recognizes it.
        chunks: Most segments, in objects of their own.
        latest: The segments that are in no chunk yet.
        dropped: The names of objects that are not needed any more, and may not have been deleted yet.
    """

    store: str
    number: int = 0
    writer: str = ""
    chunks: tuple[Chunk, ...] = ()
    latest: tuple[Segment, ...] = ()
    dropped: tuple[str, ...] = ()

    def segments(self) -> list[Segment]:
        """Return all segments, in no particular order."""
        return [*self.latest, *(segment for chunk in self.chunks for segment in chunk.segments)]

    def change(
        self,
        writer: str,
        *,
        added: Sequence[Segment] = (),
        removed: Collection[Segment] = (),
        deleted: Collection[str] = (),
    ) -> Manifest:
        """Return the next version, by a change with a random mark.

        The objects of its chunks that this version does not have must be written before its root. `deleted` has names
        in `dropped` whose objects have been deleted. A segment that is added again, because the answer to its change
        was lost, is there once.
        """
        gone = set(removed)
        kept, rest, dissolved = [], [], []
        for chunk in self.chunks:
            if not gone or gone.isdisjoint(chunk.segments):
                kept.append(chunk)
            else:
                dissolved.append(chunk.name)
                rest += [segment for segment in chunk.segments if segment not in gone]
        rest += [segment for segment in self.latest if segment not in gone and segment not in added]
        rest += added
        while len(rest) >= 2 * CHUNK_SEGMENTS:
            kept.append(Chunk.of(rest[:CHUNK_SEGMENTS]))
            rest = rest[CHUNK_SEGMENTS:]
        needed = {segment.name for segment in added} | {chunk.name for chunk in kept}
        names = [*self.dropped, *dissolved, *(segment.name for segment in removed)]
        return Manifest(
            store=self.store,
            number=self.number + 1,
            writer=writer,
            chunks=tuple(kept),
            latest=tuple(rest),
            dropped=tuple(name for name in dict.fromkeys(names) if name not in needed and name not in deleted),
        )

    def encode(self) -> bytes:
        """Return the root as bytes."""
        document = {
            "format": FORMAT,
            "version": VERSION,
            "store": self.store,
            "number": self.number,
            "writer": self.writer,
            "chunks": [chunk.name for chunk in self.chunks],
            "latest": _to_document(self.latest),
            "dropped": self.dropped,
        }
        return _dump({**document, "crc32c": crc32c(_dump(document))})


@attrs.frozen
class Root:
    """A root as it was read: a manifest without its chunks, which have not been read yet."""

    manifest: Manifest
    chunk_names: tuple[str, ...]

    def complete(self, chunks: Mapping[str, Chunk]) -> Manifest:
        """Return the manifest with its chunks."""
        return attrs.evolve(self.manifest, chunks=tuple(chunks[name] for name in self.chunk_names))


def decode_root(data: bytes, place: str) -> Root:
    """Return what a root says that was found at a place.

    Raise `StorageFormatError` if it is damaged, is something else, or was written by a newer version.
    """
    try:
        document = json.loads(data)
        version = document["version"]
        is_valid = document["format"] == FORMAT and document.pop("crc32c") == crc32c(_dump(document))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        is_valid = False
    if not is_valid:
        raise StorageFormatError(f"{place} is damaged, or not the manifest of a cold tier")
    if version != VERSION:
        raise StorageFormatError(f"{place} has version {version}, expected {VERSION}; upgrade dafka")
    manifest = Manifest(
        store=document["store"],
        number=document["number"],
        writer=document["writer"],
        latest=tuple(_from_document(document["latest"])),
        dropped=tuple(document["dropped"]),
    )
    return Root(manifest, tuple(document["chunks"]))


def encode_segments(segments: Iterable[Segment]) -> bytes:
    """Return the object of a chunk."""
    return _dump(_to_document(segments))


def decode_chunk(name: str, data: bytes, place: str) -> Chunk:
    """Return the chunk of an object that was found at a place; raise `StorageFormatError` if it is damaged."""
    if sha256(data).hexdigest()[:32] not in name:
        raise StorageFormatError(f"{place}: a part of the manifest is damaged")
    return Chunk(name, tuple(_from_document(json.loads(data))))


def _to_document(segments: Iterable[Segment]) -> dict[str, Any]:
    partitions: dict[Partition, int] = {}
    rows = [
        [
            partitions.setdefault(segment.partition, len(partitions)),
            *(getattr(segment, field) for field in _FIELDS),
            segment.digest,
        ]
        for segment in segments
    ]
    return {"partitions": [[each.topic, each.address] for each in partitions], "segments": rows}


def _from_document(document: dict[str, Any]) -> Iterable[Segment]:
    partitions = [Partition(topic, address) for topic, address in document["partitions"]]
    for number, *values, digest in document["segments"]:
        yield Segment(partition=partitions[number], digest=digest, **dict(zip(_FIELDS, values, strict=True)))


def _dump(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()  # ASCII, so that lone surrogates are kept
