"""`check_storage`: the checks that a storage plugin must pass."""

from dafka.testing.storage.contract import check_storage

__all__ = ["check_storage"]
