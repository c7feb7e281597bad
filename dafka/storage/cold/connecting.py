"""Opening the object store that a URL names."""

from __future__ import annotations

from urllib.parse import unquote

from dafka.extras import require_extra
from dafka.storage.cold.folders import FolderStore
from dafka.storage.cold.objects import ObjectStore
from dafka.storage.cold.options import ColdOptions


def connect(options: ColdOptions) -> ObjectStore:
    """Open the object store of a cold tier. No request is made.

    Args:
        options: The options of the cold tier.

    Returns:
        The object store.

    Raises:
        MissingExtraError: If it needs a package that is not installed.
        StorageError: If the URL is not valid.
    """
    if options.cold.startswith(("/", "file:")):
        return FolderStore(unquote(options.place.removeprefix("file://")))
    with require_extra("cold", f"the cold tier {options.place}"):
        from dafka.storage.cold.buckets import BucketStore  # noqa: PLC0415 (needs the extra)
    return BucketStore(options.cold, options.cold_timeout_ms)
