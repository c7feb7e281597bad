import pytest

from dafka_conformance.targets import Delivery
from dafka_conformance.targets.line_formats import InputFormat, OutputFormat
from dafka_conformance.targets.toml_tables import Template


def test_input_is_one_line_per_record() -> None:
    plain = InputFormat.from_template(Template.parse("{content}"))
    assert plain.format([b"a", b"", b"\xff b"]) == b"a\n\n\xff b\n"
    assert plain.format([]) == b""
    wrapped = InputFormat.from_template(Template.parse("put {{{content}}};"))
    assert wrapped.format([b"a", b"b"]) == b"put {a};\nput {b};\n"


@pytest.mark.parametrize("text", ["{content}\n", "a\n{content}", "{content}{content}", "{topic} {content}", "x"])
def test_input_format_must_be_one_line(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        InputFormat.from_template(Template.parse(text))


def parser(text: str, topic: bytes = b"orders"):  # type: ignore[no-untyped-def]
    return OutputFormat.from_template(Template.parse(text)).parser(topic)


def test_output_has_the_fields_of_its_format() -> None:
    full = parser("{topic} {address} {sequence} {content}")
    assert full.feed(b"orders AB 17 some  content\n") == [Delivery(b"some  content", b"orders", b"AB", 17)]
    assert full.feed(b"orders2 AB 0 \n") == [Delivery(b"", b"orders2", b"AB", 0)]
    assert parser("{content}").feed(b"a\r\n\n\xff\n") == [Delivery(b"a\r"), Delivery(b""), Delivery(b"\xff")]
    assert parser("[{address}] {content}").feed(b"[X] ]\n") == [Delivery(b"]", address=b"X")]


def test_topic_with_spaces_is_recognized() -> None:
    assert parser("{topic} {address} {content}", b"a b (c").feed(b"a b (c AB x y\n") == [
        Delivery(b"x y", b"a b (c", b"AB")
    ]


def test_lines_are_assembled_from_chunks() -> None:
    content = parser("{content}")
    assert content.feed(b"a") == []
    assert content.feed(b"b") == []
    assert content.feed(b"c\nd\ne") == [Delivery(b"abc"), Delivery(b"d")]
    assert content.finish() == [Delivery(b"e")]
    assert content.finish() == []


def test_unparsed_lines_are_kept_apart() -> None:
    full = parser("{address} {sequence} {content}")
    assert full.feed(b"warning\nA 1 x\nA one x\n") == [Delivery(b"x", None, b"A", 1)]
    assert full.unparsed_lines == [b"warning", b"A one x"]
