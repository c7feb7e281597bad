import sys
from pathlib import Path

import pytest

from dafka_conformance.model import Dialect, Role
from dafka_conformance.targets import (
    Ability,
    Attachment,
    Delivery,
    Request,
    Target,
    TargetError,
    open_target,
    shipped_targets,
)
from dafka_conformance.targets.line_formats import InputFormat, LineParser, OutputFormat
from dafka_conformance.targets.toml_tables import Template

STORE = '[store]\ncommand = ["{python}", "{sub}", "{pub}"]\n'
CONSUMER = '[consumer]\ncommand = ["{python}", "{sub}", "{pub}", "{topic}"]\n'
HEAD = 'dialects = ["rfc46"]\n'


def open_text(folder: Path, text: str, **variables: str) -> Target:
    path = folder / "mine.toml"
    path.write_text(text)
    return open_target(str(path), variables)


def test_error_in_a_target_file_is_one_sentence(tmp_path: Path) -> None:
    for text, message in [
        ("dialects = [", "is not TOML"),
        ("", "dialects is missing: expected a list of texts"),
        ('dialects = ["rfc47"]', "dialects: expected one or more of rfc46, libdafka, not 'rfc47'"),
        ("dialects = []", "expected one or more of rfc46, libdafka, not none"),
        (HEAD, r"there is no role: expected \[tower\], \[producer\], \[consumer\], \[store\]"),
        ('dialects = ["rfc46", "libdafka"]\n' + STORE, "expected only one, or {dialect}"),
        (HEAD + "name = 3\n" + STORE, "name: expected a text, not 3"),
        (HEAD + STORE + "[shop]\n", "unknown key 'shop': expected .*producer, store, tower"),
        (HEAD + STORE + 'input = "{content}"\n', r"\[store\] unknown key 'input': expected attach, command, durable"),
        (HEAD + "[store]\n", r"\[store\] command is missing"),
        (HEAD + "[store]\ncommand = []\n", "command: expected a program and its arguments, not an empty list"),
        (HEAD + '[store]\ncommand = "x"\n', "command: expected a list of texts, not 'x'"),
        (HEAD + "[store]\ncommand = [3]\n", "command: expected a list of texts, not 3 in the list"),
        (HEAD + '[store]\ncommand = ["{python}", "{sub}"]\n', "endpoint is missing: expected {pub}"),
        (HEAD + '[store]\ncommand = ["{no}"]\n', r"unknown placeholder {no}: expected one of .*folder"),
        (HEAD + '[store]\ncommand = ["{topic}"]\n', r"unknown placeholder {topic}"),
        (HEAD + '[store]\ncommand = ["{sub"]\n', "command: '{sub': "),
        (HEAD + '[store]\ncommand = ["{sub!r}"]\n', "expected a name between { and }"),
        (HEAD + '[store]\ncommand = ["/no/such", "{sub}", "{pub}"]\n', "the program /no/such does not exist"),
        (HEAD + 'preload = "mine"\n' + STORE, "preload: expected a list of texts, not 'mine'"),
        (HEAD + 'preload = ["mine.py -x"]\n' + STORE, "preload: expected names of Python modules, not 'mine.py -x'"),
        (HEAD + STORE + 'stop = "HUP"\n', "stop: expected one of TERM, INT, KILL, not 'HUP'"),
        (HEAD + STORE + "durable = 1\n", "durable: expected true or false, not 1"),
        (HEAD + STORE + 'files = { "../x" = "" }\n', "expected a name within the node's folder, not '../x'"),
        (HEAD + CONSUMER + 'output = "{topic}{content}"\n', "expected a space, or something else, between"),
        (HEAD + CONSUMER + 'output = "{content} {topic}"\n', "expected {content} as the last placeholder"),
        (HEAD + CONSUMER + 'output = "{number} {content}"\n', "expected each of {topic}, "),
        (HEAD + '[consumer]\ncommand = ["{python}", "{sub}", "{pub}", "-{reset}"]\n', "{reset} as a whole argument"),
        (HEAD + '[producer]\ncommand = ["{python}", "{sub}", "{pub}"]\ninput = "x"\n', "expected {content} once"),
        (HEAD + '[store.attach]\nsub = "tcp://h:1"\n', r"\[store.attach\] pub is missing"),
        (HEAD + '[store.attach]\nsub = "h:1"\npub = "h:2"\n', "sub: expected an endpoint such as tcp://"),
        (HEAD + '[store.attach]\nsub = "tcp://h:1"\npub = "tcp://h:2"\ntopic = "t"\n', "unknown key 'topic'"),
        (HEAD + 'variables = { sub = "x" }\n' + STORE, "expected a name of letters and digits that is not yet a"),
        (
            HEAD + 'variables = { bin = "the folder of things" }\n' + STORE,
            "mine needs the folder of things: set it with --set bin=",
        ),
    ]:
        with pytest.raises(TargetError, match=message) as caught:
            open_text(tmp_path, text)
        assert "\n" not in str(caught.value)


def test_unknown_variable(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="--set: mine has no variable 'bim': expected bin"):
        open_text(tmp_path, HEAD + 'variables = { bin = "x" }\n' + STORE, bin="a", bim="b")


def test_abilities_follow_from_the_tables(tmp_path: Path) -> None:
    target = open_text(
        tmp_path,
        HEAD
        + STORE
        + 'durable = true\n[producer]\ncommand = ["{python}", "{sub}", "{pub}", "{topic}"]\ninput = "{content}"\n'
        + CONSUMER
        + 'output = "{content}"\nlatest = []\n[tower.attach]\nsub = "tcp://h:1"\npub = "tcp://h:2"\n',
    )
    assert target.name == "mine"
    assert target.dialects == (Dialect.RFC46,)
    assert target.abilities == {
        Role.TOWER: frozenset(),
        Role.STORE: {Ability.START, Ability.KILL},
        Role.PRODUCER: {Ability.START, Ability.FEED, Ability.CHOOSE_TOPIC},
        Role.CONSUMER: {Ability.START, Ability.COLLECT, Ability.CHOOSE_TOPIC, Ability.LATEST},
    }
    assert target.attachment(Role.TOWER) == Attachment("tcp://h:1", "tcp://h:2")
    assert target.attachment(Role.STORE) is None


def test_commands_without_formats_can_only_be_started(tmp_path: Path) -> None:
    target = open_text(tmp_path, HEAD + '[consumer]\ncommand = ["{python}", "{sub}", "{pub}"]\n')
    assert target.abilities == {Role.CONSUMER: {Ability.START}}


def test_records_with_line_breaks_do_not_fit_lines() -> None:
    target = open_target("dafka", {})
    assert target.carries(Role.CONSUMER, b"a line\r")
    assert not target.carries(Role.CONSUMER, b"two\nlines")
    assert not target.carries(Role.PRODUCER, b"two\nlines")
    assert target.carries(Role.STORE, b"two\nlines")


async def test_attached_node_cannot_be_controlled(tmp_path: Path) -> None:
    target = open_text(tmp_path, HEAD + '[producer.attach]\nsub = "tcp://h:1"\npub = "tcp://h:2"\ntopic = "orders"\n')
    assert target.attachment(Role.PRODUCER) == Attachment("tcp://h:1", "tcp://h:2", b"orders")
    request = Request(Role.PRODUCER, Dialect.RFC46, "tcp://h:1", "tcp://h:2", b"orders", tmp_path)
    async with target.start(request) as node:
        assert not node.ended.is_set()
        with pytest.raises(TargetError, match="the producer of mine was running already"):
            await node.feed([b"x"])
    with pytest.raises(TargetError, match=r"mine has no store: add \[store\] to its target file"):
        target.start(Request(Role.STORE, Dialect.RFC46, "tcp://h:1", "tcp://h:2", b"", tmp_path))


def test_shipped_targets_are_listed_for_an_unknown_one() -> None:
    assert shipped_targets() == ("dafka", "embedded", "libdafka")
    with pytest.raises(TargetError, match=r"unknown target 'kafka': expected dafka, embedded, libdafka, the path"):
        open_target("kafka", {})
    with pytest.raises(TargetError, match=r"cannot read the target file no\.toml: No such file"):
        open_target("no.toml", {})


def test_libdafka_needs_its_folder_and_has_every_role(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"libdafka needs the folder of dafka_towerd, .*: set it with --set bin="):
        open_target("libdafka", {})
    with pytest.raises(TargetError, match=r"\[tower\] command: the program .*/dafka_towerd does not exist"):
        open_target("libdafka", {"bin": str(tmp_path)})
    for name in ("dafka_towerd", "dafka_stored", "dafka_console_producer", "dafka_console_consumer"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    target = open_target("libdafka", {"bin": str(tmp_path)})
    assert target.abilities.keys() == set(Role)
    assert target.dialects == (Dialect.LIBDAFKA,)
    assert Ability.KILL in target.abilities[Role.STORE]
    assert Ability.LATEST in target.abilities[Role.CONSUMER]


def test_factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made_target.py").write_text(
        "from dafka_conformance.targets.embedded import EmbeddedTarget\n"
        "class Mine(EmbeddedTarget):\n    name = 'mine'\n"
        "def make(color):\n    target = Mine()\n    target.name = color\n    return target\n"
        "def nothing():\n    return 3\n"
        "number = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert open_target("made_target:Mine", {}).name == "mine"
    assert open_target("made_target:make", {"color": "red"}).name == "red"
    for name, message in {
        "made_target:make": "cannot be called with these variables .*: expected color",
        "made_target:nothing": "returned 3: expected a Target",
        "made_target:number": "is not a target: expected a class or function",
        "made_target:nobody": "cannot import the target .*nobody",
        "no_such_module:make": "cannot import the target no_such_module:make: ModuleNotFoundError",
    }.items():
        with pytest.raises(TargetError, match=message):
            open_target(name, {})


# Formats of lines


def test_input_is_one_line_per_record() -> None:
    plain = InputFormat.from_template(Template.parse("{content}"))
    assert plain.format([b"a", b"", b"\xff b"]) == b"a\n\n\xff b\n"
    assert plain.format([]) == b""
    wrapped = InputFormat.from_template(Template.parse("put {{{content}}};"))
    assert wrapped.format([b"a", b"b"]) == b"put {a};\nput {b};\n"
    for text in ("{content}\n", "a\n{content}", "{content}{content}", "{topic} {content}", "x"):
        with pytest.raises(ValueError, match="expected"):
            InputFormat.from_template(Template.parse(text))


def parser(text: str, topic: bytes = b"orders") -> LineParser:
    return OutputFormat.from_template(Template.parse(text)).parser(topic)


def test_output_has_the_fields_of_its_format() -> None:
    full = parser("{topic} {address} {sequence} {content}")
    assert full.feed(b"orders AB 17 some  content\n") == [Delivery(b"some  content", b"orders", b"AB", 17)]
    assert full.feed(b"orders2 AB 0 \n") == [Delivery(b"", b"orders2", b"AB", 0)]
    assert parser("{content}").feed(b"a\r\n\n\xff\n") == [Delivery(b"a\r"), Delivery(b""), Delivery(b"\xff")]
    assert parser("[{address}] {content}").feed(b"[X] ]\n") == [Delivery(b"]", address=b"X")]
    assert parser("{topic} {address} {content}", b"a b (c").feed(b"a b (c AB x y\n") == [
        Delivery(b"x y", b"a b (c", b"AB")
    ]


def test_lines_are_assembled_from_chunks() -> None:
    content = parser("{content}")
    chunks = [content.feed(chunk) for chunk in (b"a", b"b", b"c\nd\ne")]
    assert chunks == [[], [], [Delivery(b"abc"), Delivery(b"d")]]
    assert [content.finish(), content.finish()] == [[Delivery(b"e")], []]


def test_unparsed_lines_are_kept_apart() -> None:
    full = parser("{address} {sequence} {content}")
    assert full.feed(b"warning\nA 1 x\nA one x\n") == [Delivery(b"x", None, b"A", 1)]
    assert full.unparsed_lines == [b"warning", b"A one x"]
