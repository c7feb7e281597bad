"""The exceptions that dafka raises.

There are two kinds. `LocalError`: a mistake of this program, or a failure on its machine; the message says what was
expected. `RemoteError`: a peer broke the protocol. Nodes catch every remote error where they receive messages: they
discard the message, count it by the wrong field, and continue.
"""

from __future__ import annotations

import attrs

__all__ = [
    "AddressInUseError",
    "BatchError",
    "BatchTooLargeError",
    "ConfigError",
    "DafkaError",
    "DiscoveryError",
    "EncodingError",
    "LocalError",
    "MissingExtraError",
    "NoControllerError",
    "NotLeaderError",
    "OutcomeUnknownError",
    "OutdatedStoreError",
    "RecordError",
    "RefusedChangeError",
    "RemoteError",
    "StateDiffersError",
    "StorageBusyError",
    "StorageCorruptError",
    "StorageError",
    "StorageFormatError",
    "StorageLostError",
    "StorageSequenceError",
    "StorageUnsupportedError",
    "TopicDeletedError",
    "TransportError",
    "UnacknowledgedError",
    "UnansweredError",
    "UnsupportedRequestError",
    "WireError",
    "WrongContextError",
]


class DafkaError(Exception):
    """The base class of all exceptions that dafka raises on purpose."""


class LocalError(DafkaError):
    """A mistake of this program, or a failure on its machine."""


class RemoteError(DafkaError):
    """A peer broke the protocol."""


class ConfigError(LocalError, ValueError):
    """A setting, a topic or another argument is invalid. The message names it and what it accepts."""


class MissingExtraError(LocalError, ImportError):
    """A part of dafka needs packages that are not installed. The message says how to install them."""


class WrongContextError(LocalError, RuntimeError):
    """A function was called where it cannot work, such as after a fork. The message says what to use instead."""


class RecordError(LocalError, ValueError):
    """A record cannot be published: its content is not bytes, or is larger than peers accept."""


@attrs.define(slots=False)
class _FieldError(ValueError):
    """A field of a message is wrong. The message of the error says what was expected."""

    field: str
    expected: str
    offset: int | None = None

    def __str__(self) -> str:
        where = "" if self.offset is None else f" at byte {self.offset}"
        return f"{self.field}{where}: expected {self.expected}"


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


class BatchError(WireError):
    """A record batch is malformed, damaged, or uses a part of Kafka's format that dafka does not read.

    Its field is such as `magic`, `crc` or `value length`. Its offset in bytes is from the start of the batch; or, in
    the records of a compressed batch, from the start of the decompressed records.
    """


class BatchTooLargeError(BatchError):
    """The decompressed records of a batch are larger than allowed."""


class UnsupportedRequestError(WireError):
    """A Kafka client sent a request with an unsupported API or version. Its arguments, except one, are attributes, too.

    Args:
        api_key: The key of the API.
        api_version: The version of the request.
        correlation_id: The number of the request, which a response must repeat.
        expected: The supported APIs or versions; not an attribute.
        client_id: The client's id; None if it sent none.
    """

    def __init__(
        self, api_key: int, api_version: int, correlation_id: int, expected: str, client_id: str | None = None
    ) -> None:
        super().__init__("request header", f"{expected}, not key {api_key} in version {api_version}")
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self._supported = expected

    def __reduce__(self) -> tuple[type[UnsupportedRequestError], tuple[int, int, int, str, str | None]]:
        arguments = (self.api_key, self.api_version, self.correlation_id, self._supported, self.client_id)
        return type(self), arguments


class TransportError(LocalError):
    """A socket could not be set up."""


class AddressInUseError(TransportError):
    """The endpoint to listen at is in use, not on this machine, or not permitted for this user."""


class DiscoveryError(LocalError):
    """The cluster cannot be found: no tower answered, or no discovery of that name is installed."""


class StorageError(LocalError):
    """A storage failed. The records stored before are intact."""


class StorageBusyError(StorageError):
    """Another process (or another open storage in this one) is writing to this storage."""


class StorageFormatError(StorageError):
    """The file or folder is not a dafka storage, or was written by a newer version."""


class StateDiffersError(StorageError):
    """The state of the cluster in a broker's storage differs from that of the other brokers. Nothing was deleted."""


class StorageLostError(StorageError):
    """The storage was removed, moved or replaced while it was open. Open it again.

    Records written to it since then are lost.
    """


@attrs.define(slots=False)
class StorageCorruptError(StorageError):
    """Stored records are damaged.

    Attributes:
        message: A description of the damage.
        end_sequence: The sequence after the damage. Records from this sequence on, if any, can be read.
    """

    message: str
    end_sequence: int

    def __str__(self) -> str:
        return self.message


class OutdatedStoreError(StorageError):
    """The storage of a broker is an older copy or a clone: other brokers know of later writes to its store.

    The store has another id from now on. Start the broker again: it then keeps the records, and becomes another broker.
    """


class StorageSequenceError(StorageError):
    """An append would leave a gap or overlap stored records. Nothing was written."""


class StorageUnsupportedError(StorageError):
    """A storage cannot hold keys, headers or null values. Nothing was written."""


@attrs.define(slots=False)
class TopicDeletedError(LocalError):
    """The topic of a log was deleted during an operation on the log.

    Attributes:
        topic: The name of the topic. Meanwhile, another topic may have this name.
    """

    topic: str

    def __str__(self) -> str:
        return f"the topic {self.topic!r} was deleted"


@attrs.define(slots=False)
class NotLeaderError(LocalError):
    """This broker does not lead a log: another one does, or no broker does now.

    Attributes:
        message: The operation that failed.
        leader: The address of the broker that leads the log; empty if there is none.
    """

    message: str
    leader: str = ""

    def __str__(self) -> str:
        return self.message


class NoControllerError(LocalError):
    """The cluster has no controller now, or it did not confirm a change in time. The message says which. Try again."""


@attrs.define(slots=False)
class RefusedChangeError(ConfigError):
    """A change of the cluster cannot take effect.

    Attributes:
        reason: The reason.
        error_code: The number of the reason, which is an error code of Kafka's protocol.
    """

    reason: str
    error_code: int

    def __str__(self) -> str:
        return self.reason


class OutcomeUnknownError(LocalError):
    """It is unknown whether records are in a log: its leader has changed, and the new leader did not answer in time."""


@attrs.define(slots=False)
class UnacknowledgedError(LocalError):
    """A producer was closed before enough stores had acknowledged all of its records.

    Attributes:
        count: The number of unacknowledged records. They may be stored nevertheless.
        first_sequence: The sequence of the first unacknowledged record.
        min_stores: The number of stores that must acknowledge each record.
        unheard_towers: The endpoints of the towers if none of them is heard; empty if one is.
    """

    count: int
    first_sequence: int
    min_stores: int
    unheard_towers: tuple[str, ...] = ()

    def __str__(self) -> str:
        stores = "a store" if self.min_stores == 1 else f"{self.min_stores} stores"
        records = "1 record was" if self.count == 1 else f"{self.count} records were"
        cause = f": no tower is heard at {', '.join(self.unheard_towers)}" if self.unheard_towers else ""
        return f"{records} not acknowledged by {stores} (from sequence {self.first_sequence}){cause}"


@attrs.define(slots=False)
class UnansweredError(LocalError):
    """The stores did not report the end of a partition in time.

    Attributes:
        message: A sentence that says what is missing.
        lacking: "stores" if fewer were found than required, "answers" if not all of them answered, "quiet" if they
            kept receiving records.
        stores: The number of stores that were found.
    """

    message: str
    lacking: str = "answers"
    stores: int = 0

    def __str__(self) -> str:
        return self.message
