"""Frames and headers: where requests and responses begin and end in a stream, and which message they carry.

A frame is a size and as many bytes: a header and a message. The header of a request says which API and version the
message has; the header of a response only repeats the number of the request.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from dafka.broker.core.error_codes import ErrorCode
from dafka.errors import EncodingError, UnsupportedRequestError, WireError
from dafka.kafka.protocol.apis import DESCRIBED, REQUESTS, advertise
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.reading import ITEMS_MAX, read_uvarint, reader_of
from dafka.kafka.protocol.tables import NO_VERSIONS, Message, Request, Response, Versions
from dafka.kafka.protocol.writing import Buffer, writer_of

SIZE_BYTES = 4
"""The size of the number before a frame."""

FRAME_BYTES_MAX = 100 * 2**20
"""The default size of the largest frame, as Kafka's `socket.request.max.bytes`."""

COPIED_BYTES_MAX = 2**14
"""Parts of a response below this size are copied into one piece."""

_SIZE = struct.Struct(">i")
_REQUEST = struct.Struct(">hhi")
_LENGTH = struct.Struct(">h")
_NO_TAGS = b"\0"

R = TypeVar("R", bound=Response)


class RequestHeader(NamedTuple):
    """The header of a request. The response has the same version, and repeats the correlation id."""

    api_key: ApiKey
    api_version: int
    correlation_id: int
    client_id: str | None


_PART_BYTES_MIN = 2**12
"""The size of the smallest part of a frame that is kept as it was received."""


class FrameSplitter:
    """Finds the frames in a stream. It keeps what was received of a frame, and nothing for what a peer claims."""

    def __init__(self, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._size = b""
        self._missing: int | None = None
        self._parts: list[memoryview | bytearray] = []

    @property
    def pending_bytes(self) -> int:
        """The number of bytes that were received of a frame which is not complete."""
        return len(self._size) + sum(map(len, self._parts))

    @property
    def frame_bytes(self) -> int:
        """The size of the frame that is not complete, with the number before it; 0 if nothing is known of it yet."""
        return 0 if self._missing is None else self.pending_bytes + self._missing

    def limit(self, bytes_max: int) -> None:
        """Change the size of the largest frame, for example when a client has authenticated."""
        self._bytes_max = bytes_max

    def receive(self, data: bytes | bytearray | memoryview) -> list[bytes]:
        """Return the frames that end in the next bytes of the stream, without their sizes.

        Raise `WireError` if a size is negative or too large. The rest of the stream cannot be understood then.
        """
        if len(data) == self._missing and not self._parts:  # a large frame that is received in one piece
            self._size, self._missing = b"", None
            return [bytes(data)]
        view = memoryview(bytes(data))
        frames = []
        position = 0
        while position < len(view):
            if self._missing is None:
                part = view[position : position + SIZE_BYTES - len(self._size)]
                self._size += part
                position += len(part)
                if len(self._size) < SIZE_BYTES:
                    break
                (self._missing,) = _SIZE.unpack(self._size)
                if not 0 <= self._missing <= self._bytes_max:
                    raise WireError("size", f"a frame of at most {self._bytes_max} bytes, not {self._missing}")
            part = view[position : position + self._missing]
            self._add_part(part)
            position += len(part)
            self._missing -= len(part)
            if not self._missing:
                frames.append(b"".join(self._parts))
                self._parts.clear()
                self._size, self._missing = b"", None
        return frames

    def _add_part(self, part: memoryview) -> None:
        """Keep a part of a frame; small ones in one piece, as each piece takes memory beside its bytes."""
        if len(part) >= _PART_BYTES_MIN:
            self._parts.append(part)
        elif self._parts and isinstance(self._parts[-1], bytearray):
            self._parts[-1] += part
        else:
            self._parts.append(bytearray(part))


def read_request_header(frame: bytes, offered: Mapping[int, Versions] = DESCRIBED) -> tuple[RequestHeader, int]:
    """Return the header of a request, and the position of the message.

    Raise `UnsupportedRequestError` for an API or version that is not offered, `WireError` for a malformed header.
    """
    if len(frame) < _REQUEST.size:
        raise WireError("request header", f"{_REQUEST.size} bytes, the frame has {len(frame)}", 0)
    key, version, correlation_id = _REQUEST.unpack_from(frame)
    versions = offered.get(key, NO_VERSIONS)
    if not versions.has(version):
        supported = "the key of an API that is offered"
        if key in offered:
            supported = f"{ApiKey(key).name} in versions {versions}"
        try:
            client_id, _ = _read_client_id(frame)
        except WireError:
            client_id = None
        raise UnsupportedRequestError(key, version, correlation_id, supported, client_id)
    request = REQUESTS[key]
    client_id, position = _read_client_id(frame)
    if request.FLEXIBLE.has(version):
        position = _skip_tagged(frame, position)
    return RequestHeader(request.API_KEY, version, correlation_id, client_id), position


def _read_client_id(frame: bytes) -> tuple[str | None, int]:
    """Return the name that a client gives itself, and the position after it. Raises `WireError`."""
    position = _REQUEST.size
    if len(frame) < position + _LENGTH.size:
        raise WireError("client_id", f"a length of 2 bytes, {len(frame) - position} are left", position)
    (length,) = _LENGTH.unpack_from(frame, position)
    position += _LENGTH.size
    if length < 0:
        return None, position
    if length > len(frame) - position:
        raise WireError("client_id", f"a length from -1 to {len(frame) - position}, not {length}", position - 2)
    try:
        return frame[position : position + length].decode(), position + length
    except UnicodeDecodeError:
        raise WireError("client_id", "text in UTF-8", position) from None


def decode_request(
    frame: bytes, items_max: int = ITEMS_MAX, *, offered: Mapping[int, Versions] = DESCRIBED
) -> tuple[RequestHeader, Request]:
    """Return the header and the request in a frame, which can be followed by padding. Records are views of the frame.

    Raise `UnsupportedRequestError`, which `encode_unsupported` answers, for an API or version that is not offered, and
    `WireError` for a malformed frame. `items_max` limits the items in all arrays together.
    """
    header, position = read_request_header(frame, offered)
    request, _ = reader_of(REQUESTS[header.api_key], header.api_version)(frame, position, items_max)
    return header, request


def encode_response(header: RequestHeader, response: Response) -> bytes:
    """Return a response with its size and header.

    Raise `EncodingError` if the version cannot carry one of its values.
    """
    return b"".join(encode_response_parts(header, response))


def encode_response_parts(header: RequestHeader, response: Response) -> list[Buffer]:
    """Return what `encode_response` returns, in parts: large records are not copied."""
    parts: list[Buffer] = [_SIZE.pack(header.correlation_id)]
    if _has_tags(type(response), header.api_version):
        parts.append(_NO_TAGS)
    writer_of(type(response), header.api_version)(response, parts)
    return list(join_small([_pack_size(parts), *parts]))


def join_small(parts: Iterable[Buffer]) -> Iterator[Buffer]:
    """Yield parts of a stream, consecutive small ones in one piece: to send each by itself would take longer."""
    small: list[Buffer] = []
    for part in parts:
        if len(part) < COPIED_BYTES_MAX:
            small.append(part)
            continue
        if small:
            yield b"".join(small)
            small = []
        yield part
    if small:
        yield b"".join(small)


def encode_unsupported(error: UnsupportedRequestError, served: Iterable[ApiKey]) -> bytes | None:
    """Return the response to a request whose API or version is not supported; None if the connection must be closed.

    A client that asks for versions in a version which the broker does not know is answered in version 0, which every
    client reads; it then asks again. Other requests have no response that a client can read.
    """
    if error.api_key != ApiKey.API_VERSIONS:
        return None
    header = RequestHeader(ApiKey.API_VERSIONS, 0, error.correlation_id, None)
    return encode_response(header, advertise(served, ErrorCode.UNSUPPORTED_VERSION))


def encode_token(token: bytes) -> bytes:
    """Return a broker's message of the authentication after SaslHandshake in version 0.

    Frames are such messages then, in both directions and without headers, until the client is authenticated. aiokafka
    0.8 begins so whatever the broker advertises.
    """
    return _SIZE.pack(len(token)) + token


def encode_request(request: Request, api_version: int, correlation_id: int, client_id: str | None = None) -> bytes:
    """Return a request with its size and header.

    Raise `EncodingError` if the version cannot carry one of its values.
    """
    parts: list[Buffer] = [_REQUEST.pack(request.API_KEY, api_version, correlation_id)]
    if client_id is None:
        parts.append(_LENGTH.pack(-1))
    else:
        name = client_id.encode()
        parts += (_LENGTH.pack(len(name)), name)
    if request.FLEXIBLE.has(api_version):
        parts.append(_NO_TAGS)
    writer_of(type(request), api_version)(request, parts)
    return b"".join((_pack_size(parts), *parts))


def read_correlation_id(frame: bytes) -> int:
    """Return the number of the request that a response answers. Raises `WireError` if there is none."""
    if len(frame) < _SIZE.size:
        raise WireError("response header", f"{_SIZE.size} bytes, the frame has {len(frame)}", 0)
    (correlation_id,) = _SIZE.unpack_from(frame)
    return int(correlation_id)


def decode_response(frame: bytes, response: type[R], api_version: int, items_max: int = 10 * ITEMS_MAX) -> R:
    """Return the response in a frame, to a request of this version. Records are views of the frame.

    Raise `WireError` if the frame is malformed. `items_max` limits the items in all arrays together.
    """
    read_correlation_id(frame)
    position = _SIZE.size
    if _has_tags(response, api_version):
        position = _skip_tagged(frame, position)
    decoded, _ = reader_of(response, api_version)(frame, position, items_max)
    return decoded


def _has_tags(response: type[Message], version: int) -> bool:
    # A client that asks for versions does not know yet how flexible the broker is.
    return response.FLEXIBLE.has(version) and response.API_KEY is not ApiKey.API_VERSIONS


def _skip_tagged(frame: bytes, position: int) -> int:
    """Return the position after the tagged fields of a header, none of which dafka uses."""
    start = position
    try:
        count, position = read_uvarint(frame, position)
        if count * 2 > len(frame) - position or count > ITEMS_MAX:
            raise IndexError
        for _ in range(count):
            _, position = read_uvarint(frame, position)
            size, position = read_uvarint(frame, position)
            position += size
    except (IndexError, ValueError):
        raise WireError("header's tagged fields", "numbers, sizes and values", start) from None
    if position > len(frame):
        raise WireError("header's tagged fields", "their end in the frame", start)
    return position


def _pack_size(parts: Sequence[Buffer]) -> bytes:
    size = sum(map(len, parts))
    if size > 2**31 - 1:
        raise EncodingError("size", f"at most {2**31 - 1} bytes, not {size}")
    return _SIZE.pack(size)
