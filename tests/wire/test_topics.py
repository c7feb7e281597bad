import pytest

from dafka.errors import EncodingError
from dafka.wire import Command, Subscription, decode_subscription, subscription_prefix
from dafka.wire.commands import ADDRESSED_COMMANDS

PREFIXES = [
    (Command.RECORD, "", b"M"),
    (Command.RECORD, "hello", b"Mhello"),
    (Command.DIRECT_RECORD, "C9", b"DC9"),
    (Command.FETCH, "P1", b"FP1"),
    (Command.ACK, "P1", b"KP1"),
    (Command.HEAD, "hello", b"Hhello"),
    (Command.DIRECT_HEAD, "C9", b"EC9"),
    (Command.GET_HEADS, "", b"G"),
    (Command.CONSUMER_HELLO, "S5", b"WS5"),
    (Command.STORE_HELLO, "C9", b"LC9"),
    (Command.HEAD, "tøpic", b"Ht\xc3\xb8pic"),
    (Command.HEAD, "\udcff", b"H\xff"),
]


def test_a_prefix_is_the_command_id_and_the_topic() -> None:
    for command, topic, prefix in PREFIXES:
        assert subscription_prefix(command, topic) == prefix
        assert decode_subscription(b"\1" + prefix) == Subscription(command, topic, active=True)
        assert decode_subscription(b"\0" + prefix) == Subscription(command, topic, active=False)


def test_only_some_commands_are_subscribed_to_with_an_address() -> None:
    assert {command.value[0] for command in ADDRESSED_COMMANDS} == {*b"DKEWLTQPCSRN"}


def test_other_subscriptions_are_ignored() -> None:
    for frame in (b"", b"\1", b"\2M", b"Mhello", b"\1mhello", b"\1\0", b"\1Zx", b"\xff" * 9):
        assert decode_subscription(frame) is None, frame
    assert decode_subscription(b"\1L" + b"a" * 255) == Subscription(Command.STORE_HELLO, "a" * 255)
    assert decode_subscription(b"\1L" + b"a" * 256) is None, "it matches no message"


@pytest.mark.parametrize("topic", ["t" * 256, "\ud800"])
def test_a_topic_that_cannot_be_encoded_has_no_prefix(topic: str) -> None:
    with pytest.raises(EncodingError, match="topic"):
        subscription_prefix(Command.RECORD, topic)


COVERED = [
    (b"M", "hello", True),
    (b"M", "", True),
    (b"Mhello", "hello", True),
    (b"Mhello", "hello2", True),
    (b"Mhello2", "hello", False),
    (b"Mhello", "Hello", False),
    (b"Hhello", "hello", False),
    (b"M\xc3", "ø", True),
    (b"M\xc3", "é2", True),
    (b"M\xc3\xb8", "é", False),
    (b"M\xf0\x9f\xa6", "🦉", True),
    (b"M\xf0\x9f\xa6", "🙂", False),
    (b"M\xff", "\udcff", True),
    (b"M\xff", "\udcfe", False),
]


def test_a_subscription_covers_what_zeromq_would_deliver() -> None:
    for prefix, topic, covered in COVERED:
        subscription = decode_subscription(b"\1" + prefix)
        assert subscription is not None
        assert subscription.covers(Command.RECORD, topic) is covered, (prefix, topic)
        assert subscription_prefix(Command.RECORD, topic).startswith(prefix) is covered
