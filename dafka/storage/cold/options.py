"""The options of a cold tier: in `tiered:HOT?cold=URL&...`, and in the file by which a hot storage knows its tier."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

import attrs

from dafka.errors import StorageError, StorageFormatError
from dafka.storage.filelog.files import make_durable_folders, read_file, replace_file
from dafka.storage.plugin_helpers import int_at_least
from dafka.storage.tiers import TIER_FILE, tier_folder

MIB = 2**20
HOUR_MS = 3_600_000

FORMAT = "dafka tier"

_PLACES = ("s3://", "s3a://", "gs://", "az://", "azure://", "abfs://", "abfss://", "adl://", "https://", "memory://")


def _place(text: str) -> str:
    if text.startswith(("/", "file:///", *_PLACES)):
        return text.rstrip("/")
    raise ValueError(f"expected s3://BUCKET/PREFIX, gs://..., az://... or file:///FOLDER, not {text!r}")


@attrs.frozen(kw_only=True)
class ColdOptions:
    """The options of a cold tier.

    Attributes:
        cold: The URL of the object store.
        local_retention_ms: How long records stay in the hot storage, in milliseconds; None for no limit.
        local_retention_bytes: The size of each partition that stays in the hot storage, in bytes; None for no limit.
        cold_segment_bytes: The size of the records in one object, in bytes.
        cold_segment_ms: How long records may wait for others until an object is smaller than that, in milliseconds.
        cold_interval_ms: The time between two looks for records to move, in milliseconds.
        cold_rate_bytes: How many bytes of objects are written per second at most; 0 for no limit.
        cold_cache_bytes: The size of the cache of records that were read from objects, in bytes.
        cold_timeout_ms: How long a request to the object store may take, in milliseconds.
    """

    cold: str
    local_retention_ms: int | None = None
    local_retention_bytes: int | None = None
    cold_segment_bytes: int = 64 * MIB
    cold_segment_ms: int = 24 * HOUR_MS
    cold_interval_ms: int = 60_000
    cold_rate_bytes: int = 0
    cold_cache_bytes: int = 64 * MIB
    cold_timeout_ms: int = 30_000

    @property
    def place(self) -> str:
        """The URL of the object store without options, which may be secret."""
        return self.cold.partition("?")[0]


_CONVERTERS: dict[str, Callable[[str], Any]] = {
    "cold": _place,
    "local_retention_ms": int_at_least(0),
    "local_retention_bytes": int_at_least(0),
    "cold_segment_bytes": int_at_least(1),
    "cold_segment_ms": int_at_least(0),
    "cold_interval_ms": int_at_least(1),
    "cold_rate_bytes": int_at_least(0),
    "cold_cache_bytes": int_at_least(0),
    "cold_timeout_ms": int_at_least(1),
}
"""Turns the text of each option into its value; raises `ValueError` if it is not valid."""


def split_tiered(location: str) -> tuple[str, ColdOptions]:
    """Split the location part of `tiered:HOT?options` into the URL of the hot storage and the options of the cold tier.

    The options of the hot storage may stand between those of the cold tier. Those of the cold tier that are missing are
    as when it was last opened, if it was opened with a cold tier before. Raise `StorageError` if one is missing or not
    valid.
    """
    hot, _, query = location.partition("?")
    own: dict[str, Any] = {}
    others = []
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name not in _CONVERTERS:
            others.append((name, text))
            continue
        try:
            own[name] = _CONVERTERS[name](text)
        except ValueError as error:
            raise StorageError(f"storage 'tiered:': {name}: {error}") from None
    hot += f"?{urlencode(others, quote_via=quote, safe=':/')}" if others else ""
    known = read_tier(hot) if "cold" not in own else None
    if known is not None:
        return hot, attrs.evolve(known, **own)
    if ":" not in hot or "cold" not in own:
        raise StorageError(
            "storage 'tiered:': expected a hot storage and a cold one, as in "
            "tiered:filelog:FOLDER?cold=s3://BUCKET/PREFIX&local_retention_ms=86400000"
        )
    return hot, ColdOptions(**own)


def read_tier(hot: str) -> ColdOptions | None:
    """Return the options of the cold tier with which a hot storage was last opened; None if it has none.

    Raise `StorageFormatError` if the file that has them is damaged, and `StorageError` if it cannot be read.
    """
    folder = tier_folder(hot)
    if folder is None:
        return None
    path = f"{folder}/{TIER_FILE}"
    try:
        data = read_file(path)
    except (OSError, ValueError) as error:
        raise StorageError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if data is None:
        return None
    try:
        document = json.loads(data)
        if document.pop("format") != FORMAT:
            raise ValueError
        return ColdOptions(**document)
    except (ValueError, KeyError, TypeError):
        raise StorageFormatError(f"{path} is damaged; write it again by opening the storage as tiered:...") from None


def write_tier(folder: str, options: ColdOptions) -> None:
    """Save the options of a cold tier, so that its hot storage is never opened without it. Raises `OSError`."""
    document: Mapping[str, object] = {"format": FORMAT, **attrs.asdict(options)}
    data = json.dumps(document, indent=1).encode()
    path = f"{folder}/{TIER_FILE}"
    if read_file(path) != data:
        make_durable_folders(folder)
        replace_file(path, data)
        if "?" in options.cold:
            os.chmod(path, 0o600)  # options of the object store may be secret
