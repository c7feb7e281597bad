"""Dafka's messages: a topic frame, a frame of fields, and in those with a record a frame of content."""

from dataclasses import dataclass

SIGNATURE = b"\xaa\xa5"
VERSION = b"\x01"
ADDRESS_AND_SEQUENCE = ("address", "subject", "sequence")
COMMANDS = {  # the name and fields of each command, by its id
    b"M": ("RECORD", ADDRESS_AND_SEQUENCE),
    b"D": ("DIRECT-RECORD", ADDRESS_AND_SEQUENCE),
    b"F": ("FETCH", (*ADDRESS_AND_SEQUENCE, "count")),
    b"K": ("ACK", ADDRESS_AND_SEQUENCE),
    b"H": ("HEAD", ADDRESS_AND_SEQUENCE),
    b"E": ("DIRECT-HEAD", ADDRESS_AND_SEQUENCE),
    b"G": ("GET-HEADS", ("address",)),
    b"L": ("STORE-HELLO", ("address",)),
    b"W": ("CONSUMER-HELLO", ("address", "subjects")),
}
IDS = {name: command for command, (name, _) in COMMANDS.items()}
WITH_CONTENT = ("RECORD", "DIRECT-RECORD")


@dataclass
class Message:
    """A message. Its command's id and its topic are what receivers subscribe to."""

    name: str
    topic: bytes
    address: bytes = b""
    subject: bytes = b""
    sequence: int = 0
    count: int = 0
    subjects: tuple[bytes, ...] = ()
    content: bytes = b""


def string(text: bytes) -> bytes:
    """Return a string as the grammar has it: its length, one byte, and its bytes."""
    return bytes([len(text)]) + text


def long_string(text: bytes) -> bytes:
    """Return a long string: its length, four bytes, and its bytes."""
    return len(text).to_bytes(4, "big") + text


def encode(message: Message) -> list[bytes]:
    """Return the frames of a message."""
    command = IDS[message.name]
    fields = {
        "address": string(message.address),
        "subject": string(message.subject),
        "sequence": message.sequence.to_bytes(8, "big"),
        "count": message.count.to_bytes(4, "big"),
        "subjects": len(message.subjects).to_bytes(4, "big") + b"".join(map(long_string, message.subjects)),
    }
    encoded = b"".join(fields[field] for field in COMMANDS[command][1])
    frames = [command + message.topic, SIGNATURE + command + VERSION + encoded]
    return [*frames, message.content] if message.name in WITH_CONTENT else frames


class Reader:
    """Reads the fields of a frame one after the other. It raises ValueError if the frame is too short."""

    def __init__(self, frame: bytes) -> None:
        self.frame = frame
        self.at = 0

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        part = self.frame[self.at : self.at + size]
        self.at += size
        if self.at > len(self.frame):
            raise ValueError("the frame is too short")
        return part

    def number(self, size: int) -> int:
        """Return the next number of this many bytes."""
        return int.from_bytes(self.take(size), "big")

    def field(self, name: str) -> bytes | int | tuple[bytes, ...]:
        """Return the next field, which has this name."""
        if name == "sequence":
            return self.number(8)
        if name == "count":
            return self.number(4)
        if name == "subjects":
            return tuple(self.take(self.number(4)) for _ in range(self.number(4)))
        return self.take(self.number(1))


def decode(frames: list[bytes]) -> Message | None:
    """Return the message of these frames, or None if they are malformed: nodes discard such messages silently."""
    command = frames[0][:1]
    if command not in COMMANDS:
        return None
    name, fields = COMMANDS[command]
    has_content = name in WITH_CONTENT
    if len(frames) != 2 + has_content:
        return None
    reader = Reader(frames[1])
    message = Message(name, frames[0][1:], content=frames[2] if has_content else b"")
    try:
        if reader.take(4) != SIGNATURE + command + VERSION:
            return None
        for field in fields:
            setattr(message, field, reader.field(field))
    except ValueError:
        return None
    return message if reader.at == len(reader.frame) else None
