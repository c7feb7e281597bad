"""Buckets of S3 and its likes, Google Cloud Storage, and Azure Blob Storage, through `obstore`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl

import obstore
from obstore import exceptions
from obstore.store import from_url

from dafka.errors import StorageError
from dafka.storage.cold.object_store import (
    ListedObject,
    ObjectConflictError,
    ObjectMissingError,
    ObjectStoreError,
    Version,
)

UPLOAD_BYTES_PER_S_MIN = 2**20
"""The rate that an upload must reach, beyond the time limit of a request, in bytes per second."""

UPLOAD_BYTES_MAX = 256 * 2**20
"""The size up to which that rate is allowed for, in bytes."""

_MESSAGE_LENGTH_MAX = 300


class BucketStore:
    """Objects in a bucket.

    The URL is `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX` or `az://CONTAINER/PREFIX`; options of the client follow as
    `?endpoint=URL&region=NAME`. Raise `StorageError` if it is not valid. Credentials are found as the provider's own
    tools find them. Uploads may take longer than the timeout of a request, by their size.
    """

    def __init__(self, url: str, timeout_ms: int) -> None:
        self._place, _, query = url.partition("?")
        self._options: dict[str, Any] = dict(parse_qsl(query))
        self._timeout = timedelta(milliseconds=timeout_ms)
        try:
            self._requests = self._connect(self._timeout)
        except (exceptions.BaseError, ValueError) as error:
            raise StorageError(f"cold storage {self._place}: {_shorten(error)}") from None

    @cached_property
    def _uploads(self) -> Any:
        return self._connect(self._timeout + timedelta(seconds=UPLOAD_BYTES_MAX / UPLOAD_BYTES_PER_S_MIN))

    def _connect(self, timeout: timedelta) -> Any:
        if self._place.startswith("memory:"):
            return _open_memory(self._place)
        open_any: Any = from_url  # its types have one signature for each provider
        return open_any(
            self._place,
            config=self._options or None,
            client_options={
                "timeout": timeout,
                "connect_timeout": min(timeout, timedelta(seconds=10)),
                "allow_http": str(self._options.get("endpoint", "")).startswith("http:"),
            },
            retry_config={"max_retries": 0},  # every attempt is counted, and none may outlast the timeout
        )

    def read(self, name: str) -> tuple[bytes, Version]:
        """See `ObjectStore.read`."""
        with self._errors(name):
            found = obstore.get(self._requests, name)
            data = bytes(found.bytes())
            return data, Version(found.meta["e_tag"], found.meta["version"])

    def read_range(self, name: str, start: int, end: int) -> bytes:
        """See `ObjectStore.read_range`."""
        with self._errors(name):
            return bytes(obstore.get_range(self._requests, name, start=start, end=end))

    def write(self, name: str, data: bytes) -> None:
        """See `ObjectStore.write`. One request, so that nothing is left of one that was interrupted."""
        with self._errors(name):
            obstore.put(self._uploads, name, data, use_multipart=False)

    def replace(self, name: str, data: bytes, version: Version | None) -> Version:
        """See `ObjectStore.replace`."""
        mode: Any = "create"
        if version is not None:
            mode = {name: text for name, text in version._asdict().items() if text is not None}
        with self._errors(name):
            done = obstore.put(self._requests, name, data, mode=mode, use_multipart=False)
            return Version(done["e_tag"], done["version"])

    def delete(self, names: Iterable[str]) -> None:
        """See `ObjectStore.delete`."""
        for name in names:  # not in one request: Google Cloud Storage and many others have none for it
            try:
                with self._errors(name):
                    obstore.delete(self._requests, name)
            except ObjectMissingError:
                pass

    def list(self, prefix: str) -> Iterator[ListedObject]:
        """See `ObjectStore.list`."""
        with self._errors(prefix):
            for part in obstore.list(self._requests, prefix=prefix.rstrip("/")):
                for each in part:
                    yield ListedObject(each["path"], each["size"])

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, exceptions.NotFoundError):
            raise ObjectMissingError(f"{self._place}/{name}: there is no such object") from None
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
            raise ObjectConflictError(f"{self._place}/{name} was replaced by another process") from None
        except (exceptions.BaseError, OSError) as error:
            raise ObjectStoreError(f"{self._place}/{name}: {_shorten(error)}") from None


_memories: dict[str, Any] = {}


def _open_memory(place: str) -> Any:
    """Return the objects in the memory of this process that have this URL, for tests."""
    from obstore.store import MemoryStore  # noqa: PLC0415

    return _memories.setdefault(place, MemoryStore())


def _shorten(error: BaseException) -> str:
    """Return the first sentence of a message of `obstore`, which would go on with what Rust prints of the error."""
    line = str(error).partition("\n")[0]
    return line if len(line) <= _MESSAGE_LENGTH_MAX else f"{line[:_MESSAGE_LENGTH_MAX]}..."
