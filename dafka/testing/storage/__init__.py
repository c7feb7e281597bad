"""The contract of a storage plugin, as checks that `check_storage` runs."""

from dafka.testing.storage.contract import check_storage

__all__ = ["check_storage"]
