"""A cold tier: older records of a storage in an object store, as Parquet objects with a manifest.

`open_tiered` composes it with a hot storage. Records are read from both as from one storage.
"""

from dafka.storage.cold.opening import open_tiered
from dafka.storage.cold.options import ColdOptions

__all__ = ["ColdOptions", "open_tiered"]
