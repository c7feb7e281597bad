"""The second form of beacons, between nodes and towers that both know it (docs/reference/beacons.md).

    node to tower        [A] [registration]       the node, its role, and the roles that it wants to hear of
    tower to one node    [I address] [page]       the directory: all nodes of the roles that this node wants
    tower to nodes       [R role] [changes]       nodes of this role that joined, changed or left
    tower to all         [T] [pulse]              the tower lives; the number of the last change of each role

The first frame is the ZeroMQ topic: a node receives what it subscribes to. The second frame is the body. A body begins
with a version. Receivers ignore bytes that follow the fields they know, so that later versions can add fields.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

from dafka.endpoints import PeerEndpoint, is_host, is_key, is_peer_endpoint
from dafka.errors import WireError
from dafka.records import TEXT_BYTES_MAX, encode_text
from dafka.wire.commands import NUMBER_4_MAX
from dafka.wire.primitives import NUMBER_4, FrameReader, write_string

REGISTRATION = b"A"
"""The topic of a registration. A tower that knows the second form subscribes to it."""

INBOX = b"I"
"""The beginning of the topic of a directory page; the address of its receiver follows."""

ROLE_CHANGES = b"R"
"""The beginning of the topic of changes; the letter of the role follows."""

PULSE = b"T"
"""The topic of a tower's pulse."""

DIRECTORY_VERSION = 1
"""The version of the bodies. Receivers accept later versions, which only add fields."""

RECORD_FORMAT = "M"
"""The format of single records, RECORD and DIRECT-RECORD, which every node reads."""

TOWER_ID_BYTES = 8
"""The length of the random number that identifies one incarnation of a tower, in bytes."""

_NUMBER_2 = struct.Struct(">H")
_JOINED, _LEFT = b"+", b"-"


class Role(enum.Enum):
    """The role of a node. The value is its letter in the second form of beacons."""

    PRODUCER = "P"
    STORE = "S"
    CONSUMER = "C"
    READER = "R"
    OBSERVER = "O"
    ANY = "*"
    """A node whose role is not known: it uses the first form of beacons, or has a role of a later version."""

    @classmethod
    def of_letter(cls, letter: str) -> Role:
        """Return the role of a letter; `ANY` for a letter that this version does not know."""
        return _ROLES.get(letter, cls.ANY)


_ROLES = {role.value: role for role in Role}


@attrs.frozen
class Registration:
    """The beacon that a node sends to a tower.

    Attributes:
        address: The node's address.
        host: The host that peers connect to; empty for the host from which the tower sees the node connect.
        port: The port that peers connect to.
        role: The node's role.
        wanted: The roles that the node wants.
        formats: The letters of the formats in which the node reads records.
        asks_directory: Whether the tower should send its directory.
    """

    address: str
    host: str
    port: int
    role: Role = Role.ANY
    wanted: tuple[Role, ...] = ()
    formats: str = RECORD_FORMAT
    asks_directory: bool = False

    def encode(self) -> list[bytes]:
        """Return the frames of the registration."""
        wanted = "".join(role.value for role in self.wanted)
        return [
            REGISTRATION,
            bytes((DIRECTORY_VERSION, self.asks_directory))
            + write_string(self.address, "uuid")
            + write_string(self.host, "host")
            + _NUMBER_2.pack(self.port)
            + self.role.value.encode()
            + write_string(wanted, "wanted")
            + write_string(self.formats, "formats"),
        ]

    @classmethod
    def decode(cls, frames: Sequence[bytes]) -> Registration:
        """Return the registration that frames carry. Raises `WireError` if they are not a registration."""
        reader = _read_body(frames, REGISTRATION)
        asks_directory = bool(reader.read_number_1("flags") & 1)
        address = _read_address(reader)
        host = reader.read_string("host")
        if host and not is_host(host):
            raise WireError("host", "a host name or address")
        (port,) = _NUMBER_2.unpack(reader.read_bytes(2, "port"))
        if not port:
            raise WireError("port", "a number from 1 to 65535")
        role = Role.of_letter(_read_letter(reader))
        wanted = tuple(dict.fromkeys(map(Role.of_letter, reader.read_string("wanted"))))
        return cls(address, host, port, role, wanted, reader.read_string("formats"), asks_directory)


@attrs.frozen
class DirectoryEntry:
    """A node as towers announce it.

    Attributes:
        address: The node's address.
        endpoint: The endpoint that peers connect to, `tcp://host:port`.
        key: The node's public key, 40 characters of Z85; empty in a plain cluster.
        role: The node's role.
        formats: The letters of the formats in which the node reads records.
    """

    address: str
    endpoint: str
    key: str = ""
    role: Role = Role.ANY
    formats: str = RECORD_FORMAT

    @property
    def peer_endpoint(self) -> PeerEndpoint:
        """The node's endpoint with the key to expect there."""
        return PeerEndpoint(self.endpoint, self.key)

    def encode(self) -> bytes:
        """Return the entry with its length, as in pages and changes."""
        fields = (
            write_string(self.address, "uuid")
            + write_string(self.endpoint, "endpoint")
            + write_string(self.key, "key")
            + self.role.value.encode()
            + write_string(self.formats, "formats")
        )
        return _NUMBER_2.pack(len(fields)) + fields


@attrs.frozen
class RoleChanges:
    """Nodes of one role that joined, changed or left, as one tower announces them.

    Attributes:
        role: The role.
        tower: The identity of the tower's incarnation.
        number: The number of this message among those about this role, from 1.
        changes: Each entry, with whether the node joined or changed, rather than left.
    """

    role: Role
    tower: bytes
    number: int
    changes: tuple[tuple[bool, DirectoryEntry], ...]

    @classmethod
    def decode(cls, frames: Sequence[bytes], *, has_key: bool = False) -> RoleChanges:
        """Return the changes that frames carry. Raises `WireError` if they are invalid, or miss or have a key."""
        if len(frames) != 2 or frames[0][:1] != ROLE_CHANGES or len(frames[0]) != 2:
            raise WireError("topic", "R and a role")
        reader = _read_body(frames, frames[0])
        tower, number = reader.read_bytes(TOWER_ID_BYTES, "tower"), reader.read_number_4("number")
        changes: list[tuple[bool, DirectoryEntry]] = []
        while reader.offset < len(frames[1]):
            kind = reader.read_bytes(1, "change")
            entry = _read_entry(reader, has_key=has_key)
            if kind in (_JOINED, _LEFT):  # a later version may have other kinds of change
                changes.append((kind == _JOINED, entry))
        return cls(Role.of_letter(frames[0][1:].decode("latin-1")), tower, number, tuple(changes))


@attrs.frozen
class DirectoryPage:
    """A part of a tower's directory, for one node.

    Attributes:
        address: The address of the node that it is for.
        tower: The identity of the tower's incarnation.
        index: The position of this page, from 0.
        is_last: Whether this page is the last one.
        numbers: By role, the number of the last change that the directory contains.
        entries: The nodes.
    """

    address: str
    tower: bytes
    index: int
    is_last: bool
    numbers: Mapping[Role, int]
    entries: tuple[DirectoryEntry, ...]

    @classmethod
    def decode(cls, frames: Sequence[bytes], address: str, *, has_key: bool = False) -> DirectoryPage:
        """Return the page for this address that frames carry. Raises `WireError` if they are not such a page."""
        reader = _read_body(frames, inbox_topic(address))
        tower = reader.read_bytes(TOWER_ID_BYTES, "tower")
        is_last = bool(reader.read_number_1("flags") & 1)
        (index,) = _NUMBER_2.unpack(reader.read_bytes(2, "index"))
        numbers = _read_numbers(reader)
        entries: list[DirectoryEntry] = []
        while reader.offset < len(frames[1]):
            entries.append(_read_entry(reader, has_key=has_key))
        return cls(address, tower, index, is_last, numbers, tuple(entries))


@attrs.frozen
class Pulse:
    """A tower's heartbeat.

    Attributes:
        tower: The identity of the tower's incarnation.
        interval_ms: The longest allowed time between two registrations of a node, in milliseconds.
        numbers: By role, the number of the last change.
        pause_ms: The longest time until the next pulse, in milliseconds; 0 if the tower does not report it.
    """

    tower: bytes
    interval_ms: int
    numbers: Mapping[Role, int]
    pause_ms: int = 0

    def encode(self) -> list[bytes]:
        """Return the frames of the pulse."""
        heading = bytes((DIRECTORY_VERSION,)) + self.tower + NUMBER_4.pack(min(self.interval_ms, NUMBER_4_MAX))
        return [PULSE, heading + _write_numbers(self.numbers) + NUMBER_4.pack(min(self.pause_ms, NUMBER_4_MAX))]

    @classmethod
    def decode(cls, frames: Sequence[bytes]) -> Pulse:
        """Return the pulse that frames carry. Raises `WireError` if they are not a pulse."""
        reader = _read_body(frames, PULSE)
        tower, interval_ms = reader.read_bytes(TOWER_ID_BYTES, "tower"), reader.read_number_4("interval")
        numbers = _read_numbers(reader)
        return cls(tower, interval_ms, numbers, reader.read_number_4("pause") if reader.has_more else 0)


def inbox_topic(address: str) -> bytes:
    """Return the topic of the directory pages for one node, which it subscribes to."""
    return INBOX + encode_text(address, "uuid")


def changes_topic(role: Role) -> bytes:
    """Return the topic of the changes of one role."""
    return ROLE_CHANGES + role.value.encode()


def encode_changes(role: Role, tower: bytes, number: int, changes: Iterable[tuple[bool, bytes]]) -> list[bytes]:
    """Return the frames of a `RoleChanges` from encoded entries, each with whether the node joined or changed."""
    body = b"".join((_JOINED if is_joined else _LEFT) + entry for is_joined, entry in changes)
    return [changes_topic(role), bytes((DIRECTORY_VERSION,)) + tower + NUMBER_4.pack(number) + body]


def encode_pages(
    address: str, tower: bytes, numbers: Mapping[Role, int], entries: Sequence[bytes], page_bytes_max: int
) -> Iterator[list[bytes]]:
    """Yield the frames of each `DirectoryPage` of a directory, at least one, from encoded entries.

    A page has at most `page_bytes_max` bytes of entries, or one longer entry.
    """
    topic, known = inbox_topic(address), _write_numbers(numbers)
    pages: list[list[bytes]] = [[]]
    used = 0
    for entry in entries:
        if used + len(entry) > page_bytes_max and pages[-1]:
            pages.append([])
            used = 0
        pages[-1].append(entry)
        used += len(entry)
    for index, page in enumerate(pages):
        is_last = index == len(pages) - 1
        heading = bytes((DIRECTORY_VERSION,)) + tower + bytes((is_last,)) + _NUMBER_2.pack(index) + known
        yield [topic, heading + b"".join(page)]


def _read_body(frames: Sequence[bytes], topic: bytes) -> FrameReader:
    """Return a reader of the body, after its version."""
    if len(frames) != 2:
        raise WireError("frames", f"2, not {len(frames)}")
    if frames[0] != topic:
        raise WireError("topic", repr(topic), 0)
    reader = FrameReader(frames[1])
    if reader.read_number_1("version") < DIRECTORY_VERSION:
        raise WireError("version", f"at least {DIRECTORY_VERSION}", 0)
    return reader


def _read_address(reader: FrameReader) -> str:
    start = reader.offset
    address = reader.read_string("uuid")
    if not address:
        raise WireError("uuid", f"1 to {TEXT_BYTES_MAX} bytes, not 0", start)
    return address


def _read_letter(reader: FrameReader) -> str:
    return reader.read_bytes(1, "role").decode("latin-1")


def _read_entry(reader: FrameReader, *, has_key: bool) -> DirectoryEntry:
    (length,) = _NUMBER_2.unpack(reader.read_bytes(2, "entry"))
    fields = FrameReader(reader.read_bytes(length, "entry"))
    address = _read_address(fields)
    endpoint = fields.read_string("endpoint")
    if not is_peer_endpoint(endpoint):
        raise WireError("endpoint", "tcp://host:port")
    key = fields.read_string("key")
    if has_key != bool(key) or (key and not is_key(key)):
        raise WireError("key", "40 characters of Z85" if has_key else "no key in a plain cluster")
    role = Role.of_letter(_read_letter(fields))
    return DirectoryEntry(address, endpoint, key, role, fields.read_string("formats"))


def _read_numbers(reader: FrameReader) -> dict[Role, int]:
    """Read the numbers of roles; those of roles that this version does not know are ignored."""
    numbers: dict[Role, int] = {}
    for _ in range(reader.read_number_1("roles")):
        role, number = _ROLES.get(_read_letter(reader)), reader.read_number_4("number")
        if role is not None:
            numbers[role] = number
    return numbers


def _write_numbers(numbers: Mapping[Role, int]) -> bytes:
    pairs = b"".join(role.value.encode() + NUMBER_4.pack(number) for role, number in numbers.items())
    return bytes((len(numbers),)) + pairs
