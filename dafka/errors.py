"""Every exception dafka raises, under one root.

Two branches tell whose fault it is. `LocalError`: this program asked for something that cannot be done, and the
message says what would be right. `RemoteError`: a peer sent something that breaks the protocol; roles never let one of
these end a node, they discard the message and count it under the field that was wrong.
"""

from __future__ import annotations

__all__ = [
    "AddressInUseError",
    "ConfigError",
    "DafkaError",
    "DiscoveryError",
    "EncodingError",
    "LocalError",
    "MissingExtraError",
    "RecordError",
    "RemoteError",
    "StorageBusyError",
    "StorageCorruptError",
    "StorageError",
    "StorageFormatError",
    "StorageLostError",
    "StorageSequenceError",
    "TransportError",
    "UnacknowledgedError",
    "UnansweredError",
    "WireError",
]


class DafkaError(Exception):
    """The root of everything dafka raises on purpose."""


class LocalError(DafkaError):
    """This program's own request or surroundings are at fault."""


class RemoteError(DafkaError):
    """A peer broke the protocol."""


class ConfigError(LocalError, ValueError):
    """A setting has a value it cannot have. The message names the setting and what it accepts."""


class MissingExtraError(LocalError, ImportError):
    """A part of dafka needs packages that are not installed. The message says how to install them."""


class RecordError(LocalError, ValueError):
    """A record cannot be published: its content is not bytes, or is larger than peers accept."""


class _FieldError(ValueError):
    """A field of a message is wrong. The message of the error says what was expected."""

    def __init__(self, field: str, expected: str, offset: int | None = None) -> None:
        self.field = field
        self.offset = offset
        self.expected = expected
        where = "" if offset is None else f" at byte {offset}"
        super().__init__(f"{field}{where}: expected {expected}")

    def __reduce__(self) -> tuple[type[_FieldError], tuple[str, str, int | None]]:
        return type(self), (self.field, self.expected, self.offset)


class EncodingError(LocalError, _FieldError):
    """A message, topic or address cannot be written on the wire. Use a value that the message of the error describes.

    Attributes:
        field: the grammar's name of the value (`subject`, `sequence`, ...).
        expected: what would be accepted.
        offset: the position of the first byte that cannot be written; None if it is not a single byte.
    """


class WireError(RemoteError, _FieldError):
    """A message of a peer does not follow the grammar.

    Attributes:
        field: the grammar's name of the part that is wrong (`signature`, `version`, `sequence`, ...).
        expected: what would be right.
        offset: the position of the part, in bytes from the start of its frame; None if the whole message is wrong.
    """


class TransportError(LocalError):
    """A socket could not be set up as asked."""


class AddressInUseError(TransportError):
    """The endpoint to bind is taken, is not on this machine, or may not be used by this user."""


class DiscoveryError(LocalError):
    """The cluster cannot be found: no tower answered, or no discovery of that name is installed."""


class StorageError(LocalError):
    """A storage could not do what was asked of it. What it held before is unharmed."""


class StorageBusyError(StorageError):
    """Another process (or another open storage in this one) is writing to this storage."""


class StorageFormatError(StorageError):
    """What stands at this place is not a storage of ours, or is of a newer version."""


class StorageLostError(StorageError):
    """What was opened is no longer in its place: it was removed, moved or replaced. Open the storage again.

    What is written to it meanwhile is not durable, and counts as not written.
    """


class StorageCorruptError(StorageError):
    """Records are held here, but what stands in their place is not what was written.

    Attributes:
        end_sequence: the sequence after the damage: from there on records can be read again, if there are any.
    """

    def __init__(self, message: str, end_sequence: int) -> None:
        self.end_sequence = end_sequence
        super().__init__(message)

    def __reduce__(self) -> tuple[type[StorageCorruptError], tuple[str, int]]:
        return type(self), (str(self), self.end_sequence)


class StorageSequenceError(StorageError):
    """An append would leave a gap or overlap what is stored; nothing of it was written."""


class UnacknowledgedError(LocalError):
    """A producer closed before enough stores had confirmed all of its records.

    Attributes:
        count: how many records lack confirmation. They may be stored all the same, but nobody said so.
        first_sequence: the sequence of the first of them.
    """

    def __init__(self, count: int, first_sequence: int, min_stores: int) -> None:
        self.count = count
        self.first_sequence = first_sequence
        self.min_stores = min_stores
        stores = "a store" if min_stores == 1 else f"{min_stores} stores"
        records = "1 record was" if count == 1 else f"{count} records were"
        super().__init__(f"{records} not acknowledged by {stores} (from sequence {first_sequence})")

    def __reduce__(self) -> tuple[type[UnacknowledgedError], tuple[int, int, int]]:
        return type(self), (self.count, self.first_sequence, self.min_stores)


class UnansweredError(LocalError):
    """Stores did not tell, in time, how much of a partition they hold.

    Attributes:
        lacking: "stores" where fewer were found than there must be, "answers" where not all of them answered, "quiet"
            where what they hold went on growing.
        stores: how many were found.
    """

    def __init__(self, message: str, lacking: str = "answers", stores: int = 0) -> None:
        self.lacking = lacking
        self.stores = stores
        super().__init__(message)

    def __reduce__(self) -> tuple[type[UnansweredError], tuple[str, str, int]]:
        return type(self), (str(self), self.lacking, self.stores)
