"""Chooses the code that reads and writes the records of batches: in C if it was built, otherwise in Python.

The Python code is the reference. The C files in `dafka/batches/accelerator/` must return the same results and errors.
The environment variable `DAFKA_ACCELERATOR` selects the code, as for the loops of the transport.
"""

from __future__ import annotations

import functools
import importlib
import os
from array import array
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, cast

from dafka.batches import reading, writing
from dafka.batches.reading import Columns, RecordsPart
from dafka.batches.writing import WrittenRecords
from dafka.errors import BatchError, ConfigError
from dafka.packed_bytes import PackedContents, pack

VARIABLE = "DAFKA_ACCELERATOR"


class UnreadContents(PackedContents):
    """The values of checked record batches, decoded at the first access: a file log stores the batches unchanged.

    Each record has a value, and neither a key nor headers. `size` is the total size of the values, in bytes.
    """

    def __init__(
        self, read_records: Callable[[Sequence[RecordsPart]], Columns], parts: Sequence[RecordsPart], size: int
    ) -> None:
        self._read_records = read_records
        self._parts = parts
        self._count = sum(part.record_count for part in parts)
        self._size = size

    def __getattr__(self, name: str) -> bytes:
        """Read the contents when `data` or `lengths` is needed first."""
        if name not in {"data", "lengths"}:
            raise AttributeError(name)
        values, *_ = self._read_records(self._parts)
        assert isinstance(values, PackedContents)
        self.data, self.lengths = values.data, values.lengths
        return self.data if name == "data" else self.lengths

    def __len__(self) -> int:
        return self._count

    def size(self) -> int:
        """See `PackedContents.size`."""
        return self._size

    def join(self, others: Sequence[PackedContents]) -> PackedContents:
        """See `PackedContents.join`. Unread contents stay unread."""
        unread = [each for each in (self, *others) if isinstance(each, UnreadContents)]
        if len(unread) <= len(others):
            return super().join(others)
        parts = [*chain.from_iterable(each._parts for each in unread)]
        return UnreadContents(self._read_records, parts, sum(each.size() for each in unread))


class RecordsCodec:
    """Reads and writes the uncompressed records of batches, and packs contents, in Python: the reference."""

    name = "pure Python"
    read_records = staticmethod(reading.read_records)
    check_records = staticmethod(reading.read_records)
    """Returns what `read_records` returns. `CompiledCodec` may only check values, and read them when needed."""
    write_records = staticmethod(writing.write_records)

    def pack(self, contents: Sequence[bytes]) -> PackedContents:
        """Return contents in one piece; raise `TypeError` if one is not a bytes object."""
        if not {*map(type, contents)} <= {bytes}:
            raise TypeError("expected bytes")
        return pack(contents)


class CompiledCodec(RecordsCodec):
    """The codec in C, from the extension module `_accelerator`."""

    name = "compiled"

    def __init__(self, module: Any) -> None:
        module.connect(BatchError, PackedContents)
        self._read = module.read_records
        self._scan = module.scan_records
        self._write = module.write_records
        self._pack = module.pack

    def read_records(self, batches: Sequence[RecordsPart]) -> Columns:
        """See `RecordsCodec.read_records`."""
        values, keys, blocks, times = self._read(*batches)
        return values, keys, blocks, _as_times(times)

    def check_records(self, batches: Sequence[RecordsPart]) -> Columns:
        """See `RecordsCodec.check_records`. If a record has more than a value, or none, all are read at once."""
        scanned = self._scan(*batches)
        if scanned is None:
            return self.read_records(batches)
        size, times = scanned
        return UnreadContents(self.read_records, batches, size), None, None, _as_times(times)

    def write_records(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        blocks: PackedContents | None,
        times: array[int] | None,
        bytes_max: int,
        count_max: int,
    ) -> list[WrittenRecords]:
        """See `RecordsCodec.write_records`."""
        return [WrittenRecords(*each) for each in self._write(values, keys, blocks, times, bytes_max, count_max)]

    def pack(self, contents: Sequence[bytes]) -> PackedContents:
        """See `RecordsCodec.pack`."""
        return cast(PackedContents, self._pack(contents))


def _as_times(times: int | bytes) -> int | array[int]:
    return array("q", times) if isinstance(times, bytes) else times


_MODULE = "dafka.batches._accelerator"
_INTERFACE = 3
"""The version of the interface that `accelerator/module.c` must have."""


@functools.cache
def load_compiled() -> CompiledCodec | str:
    """Return the codec in C, or the reason why it is not available."""
    try:
        module: Any = importlib.import_module(_MODULE)
    except ModuleNotFoundError:
        return "it was not built; reinstall dafka with a C compiler and Python.h"
    except ImportError as error:
        return f"it cannot be loaded: {error}"
    if module.INTERFACE != _INTERFACE:
        return "it was built from the sources of another version; reinstall dafka"
    return CompiledCodec(module)


PURE = RecordsCodec()


@functools.cache
def records_codec() -> RecordsCodec:
    """Return the codec to use. It is chosen once, because reading the environment for each batch takes time.

    Raises `ConfigError` if `DAFKA_ACCELERATOR` is invalid, or requires a codec that is not available.
    """
    choice = os.environ.get(VARIABLE, "")
    if choice not in {"", "on", "off"}:
        raise ConfigError(f"{VARIABLE}: expected on or off, not {choice!r}")
    if choice == "off":
        return PURE
    compiled = load_compiled()
    if not isinstance(compiled, str):
        return compiled
    if choice == "on":
        raise ConfigError(f"{VARIABLE}: the accelerator of batches cannot be used: {compiled}")
    return PURE
