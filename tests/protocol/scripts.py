"""Scripts: what happens to one machine, a line each, and everything that the machine then does.

A script begins with its title and the machine. Each further line is a time, an input, and after `=>` all actions,
events, and messages that were discarded; a line without `=>` has no consequences. Lines that continue one are indented:

    # A consumer fetches what a producer has announced
    consumer subscribe=hello offset_reset=earliest
    0.1 < HEAD 6 => FETCH 0:7
    until 2 => FETCH 0:7 at 0.6 1.6
    2.1 < DIRECT-RECORD 0:7 & HEAD OTHER 2 => deliver 0:7, FETCH OTHER 0:3
    +CONSUMER-HELLO STORE => CONSUMER-HELLO hello to=STORE
    peer_left STORE
    deadline => = 2.6

`<` receives messages, `+` and `-` subscriptions and their ends, `until` ticks whenever the machine wants it, up to a
time. Everything else is a method or an attribute of the machine, whose arguments are found by their names; `=` shows
what it returned. The time is that of the line before if there is none. A flag such as `is_ready` is shown when it
changes. `0:7` are the records 0 to 6. The partition is `hello/PRODUCER` if none is named, and the topic `hello` if
there is only an address; the machine itself is `ME`, and is the `from` of what it sends and the `to` of what it
receives if these are missing.
"""

from __future__ import annotations

import enum
import inspect
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import attrgetter
from typing import Any, ClassVar

import attrs
import pytest

from dafka import wire
from dafka.config import Config
from dafka.protocol import ConsumerMachine, Machine, ProducerMachine, ReaderMachine, StoreMachine
from dafka.protocol.actions import Append, Deliver, Notify, Publish, ResetPosition, Subscribe, Unsubscribe
from dafka.protocol.groups import GroupReaderMachine
from dafka.protocol.ordering.cursor import Cursor
from dafka.protocol.ordering.gap_resolver import HOLDS_NOTHING
from dafka.records import Partition, RecordBatch
from dafka.wire import Command
from tests.protocol.helpers import HELLO, run, sequences

ME = "ME"
FLAGS = ("is_ready", "is_complete", "is_stranded")
"""Attributes of machines that are shown when they change."""
_STEPS = {"settled", "subscribe", "stores", "answering", "asking", "published", "listened"}
_STEPS |= {"nodes", "claiming", "holding", "echoed", "listed"}
"""What has happened to a machine before the script begins."""
_KINDS: dict[str, Any] = {each.COMMAND.name.replace("_", "-"): each for each in wire.MESSAGES}
_RECIPIENTS = ("requestor", "store", "consumer")
_NUMBERS = ("unrecoverable_end", "time", "end", "remaining", "partitions")
_PLAIN = ("sequence", "count", "subjects")
"""Fields whose values are written without their names."""


def scripts_of(text: str) -> pytest.MarkDecorator:
    """Return the parameters of a test that plays each script of a text."""
    scripts = [part.strip().splitlines() for part in text.split("\n# ")[1:]]
    return pytest.mark.parametrize("script", scripts, ids=lambda script: script[0])


BEGINS = (0.0, 4096.0)
"""The times at which each script is played: a machine takes the times of any steady clock."""


def play(script: Sequence[str]) -> None:
    """Play a script, whose first line is its title, and compare all of what the machine does."""
    title, setup, *lines = script
    for begin in BEGINS:
        player = Player.kinds.get(setup.split()[0], Player)(setup, begin)
        for line in "\n".join(lines).replace("\n  ", " ").splitlines():
            given, _, expected = " ".join(line.split()).partition(" => ")
            done = player.play(given)
            assert done == expected, f"{title}: {given}\nexpected: {expected}\n  actual: {done}, begun at {begin}"


class Player:
    """One machine, made as the first line of a script says, and its inputs.

    A subclass plays machines of other kinds. Its methods are inputs, too.
    """

    kinds: ClassVar[dict[str, type[Player]]] = {}
    config = Config()
    """The configuration without the settings of the script."""

    def __init_subclass__(cls, kinds: Sequence[str]) -> None:
        Player.kinds |= dict.fromkeys(kinds, cls)

    def __init__(self, setup: str, begin: float = 0.0) -> None:
        kind, *words = setup.split()
        self.began_at = self.now = begin
        """The time that scripts call 0."""
        config, named, ranges, steps = self.config, dict[str, Any](), dict[Partition, range](), list[tuple[str, str]]()
        for word in words:
            name, _, value = word.partition("=")
            section, setting = self._find_setting(config, kind, name)
            if section:
                config = getattr(config, f"with_{section}")(**{setting: _value(value)})
            elif name in _STEPS:
                steps.append((name, value))
            elif name[0].islower() and "/" not in name:
                named[name] = value.split(",") if name == "topics" else _value(value)
            else:
                ranges[_partition(name)] = _range(value) if ":" in value else range(int(value), int(value))
        self.machine: Any = self.make(kind, config, named, ranges)
        self._flags: set[str] = set()
        for name, value in steps:
            self._set_up(name, value)
        self._flags = self._true_flags()

    def make(self, kind: str, config: Config, named: dict[str, Any], ranges: dict[Partition, range]) -> object:
        """Return the machine, started now."""
        machine: Machine
        if kind == "producer":
            machine = ProducerMachine(HELLO, config.producer, 100, **named)
        elif kind == "store":
            ends = {partition: each.stop for partition, each in ranges.items()}
            starts = {partition: each.start for partition, each in ranges.items() if each.start}
            machine = StoreMachine(ME, config, ends, starts)
        elif kind == "consumer":
            machine = ConsumerMachine(ME, config, {each: held.start for each, held in ranges.items()}, **named)
        elif kind == "group":
            machine = GroupReaderMachine(ME, config, HELLO.topic)
        else:
            machine = ReaderMachine(ME, config, **named)
        machine.start(self.now)
        return machine

    @staticmethod
    def _find_setting(config: Config, kind: str, name: str) -> tuple[str, str]:
        """Return the section and the name of a setting: the first section that has it, if none is named."""
        section, _, setting = name.rpartition(".")
        sections = [section] if section else [kind, "consumer", "fetch", "node", "beacon"]
        return next(((each, setting) for each in sections if hasattr(getattr(config, each, None), setting)), ("", ""))

    def _set_up(self, name: str, value: str) -> None:
        if name == "settled":
            self.machine.node_settled(self.now)
        elif name == "published":
            self.machine.publish(run(0, int(value)), self.now)
        elif name == "listened":
            self.machine.watch_listeners(lambda: True)
        elif name == "subscribe":
            for topic in value.split(","):
                self.machine.subscribe(topic, self.now)
        elif name == "answering":
            for store in value.split(","):
                self.play(f"+GET-POSITION {store} & +CONSUMER-HELLO {store}")
        elif name == "asking":
            self.play(f"{value} held_ends.add_partition")
        else:
            for store in value.split(","):
                self.machine.receive_subscriptions([wire.Subscription(Command.CONSUMER_HELLO, store)], self.now)

    def play(self, line: str) -> str:
        """Carry a line out, and return what the machine does."""
        first, _, rest = line.partition(" ")
        if first[0].isdigit():
            self.now, line = self.began_at + float(first), rest
            first, _, rest = line.partition(" ")
        discarded = self._discarded()
        done = (
            self._run(self.began_at + float(rest)) if first == "until" else self._result(self._input(first, rest, line))
        )
        done += self._changed_flags()
        lost = self._discarded() - discarded
        return ", ".join([*done, *(f"discarded {count} ({reason})" for reason, count in lost.items())])

    def _changed_flags(self) -> list[str]:
        """Return what has become true or false of the machine."""
        before, self._flags = self._flags, self._true_flags()
        ended = [f"not {name}" for name in FLAGS if name in before - self._flags]
        return ended + [name for name in FLAGS if name in self._flags - before]

    def _true_flags(self) -> set[str]:
        return {name for name in FLAGS if getattr(self.machine, name, False)}

    def _discarded(self) -> Counter[str]:
        return Counter(getattr(self.machine, "discarded", ()))

    def _input(self, first: str, rest: str, line: str) -> object:
        if first == "<":
            return self.machine.receive([message(each) for each in rest.split(" & ")], self.now)
        if first[0] in "+-":
            return self.machine.receive_subscriptions([_subscription(each) for each in line.split(" & ")], self.now)
        found = getattr(self, first) if first in vars(type(self)) else attrgetter(first)(self.machine)
        return found(**self._arguments(found, rest.split())) if callable(found) else found

    def _arguments(self, method: Callable[..., object], words: list[str]) -> dict[str, Any]:
        """Return the arguments of a method: the time, and the values of the words, as its parameters want them."""
        found: dict[str, Any] = {}
        for name in inspect.signature(method).parameters:
            if name == "now":
                found[name] = self.now
            elif name == "partition":
                found[name] = _partition(words.pop(0)) if words and not words[0][0].isdigit() else HELLO
            elif name in {"partitions", "selected"}:
                names = [words.pop(0) for word in list(words) if not word.isdigit()]
                found[name] = [_partition(word) if word.isupper() or "/" in word else word for word in names]
            elif name in {"ends", "earliest"}:
                pairs = [word.rpartition("=") for word in words]
                found[name] = {_partition(each) if each else HELLO: int(end) for each, _, end in pairs}
            elif name == "members":
                found[name] = frozenset(words)
            elif name == "messages":
                found[name] = [message(each) for each in " ".join(words).split(" & ")]
            elif name == "batch":
                partition = HELLO if words[0][0].isdigit() else _partition(words.pop(0))
                found[name] = run(_range(words[0]).start, _range(words[0]).stop, partition)
            elif words:
                found[name] = _value(words.pop(0))
        return found

    def _run(self, until: float) -> list[str]:
        """Run the timer, and return what the machine does, each with its times."""
        times: dict[str, list[float]] = {}
        while (due := self.machine.deadline()) <= until:
            self.now = max(due, self.now)
            for each in self._result(self.machine.tick(self.now)) + self._changed_flags():
                times.setdefault(each, []).append(self.now - self.began_at)
            assert self.machine.deadline() > self.now, "it spins"
        self.now = until
        return [f"{each} at {_times(at)}" for each, at in times.items()]

    def _result(self, result: object) -> list[str]:
        if isinstance(result, list) and all(type(each).__module__ == Publish.__module__ for each in result):
            return [_action(each) for each in result]
        return [] if result is None else [f"= {text(self._since_begin(result))}"]

    def _since_begin(self, result: object) -> object:
        """Return a result with the times in it as scripts have them."""
        if isinstance(result, Mapping):
            return {key: self._since_begin(each) for key, each in result.items()}
        is_time = isinstance(result, float) and self.began_at / 2 < result < float("inf")
        return result - self.began_at if is_time else result  # type: ignore[operator]


def _action(action: object) -> str:
    if isinstance(action, Publish):
        return text(action.message)
    if isinstance(action, (Subscribe, Unsubscribe)):
        sign = "+" if isinstance(action, Subscribe) else "-"
        found = wire.decode_subscription(b"\1" + action.prefix)
        assert found is not None
        return f"{sign}{found.command.name.replace('_', '-')} {found.topic}".strip()
    if isinstance(action, (Deliver, Append)):
        return f"{type(action).__name__.lower()} {text(action.batch)}"
    if isinstance(action, ResetPosition):
        return " ".join(["reset", *_named(action.partition), f"to {action.next_sequence}"])
    return text(action.event) if isinstance(action, Notify) else type(action).__name__


def text(value: Any) -> str:
    """Return how a value is written in scripts."""
    for kinds, write in _WRITERS:
        if isinstance(value, kinds):
            return write(value)
    if hasattr(type(value), "COMMAND"):
        return _message_text(value)
    if attrs.has(type(value)):
        fields = [getattr(value, each.name) for each in attrs.fields(type(value))]
        return " ".join([type(value).__name__, *(text(each) for each in fields if each != HELLO)])
    return str(value) or "nothing"


def _run_text(sent: wire.RecordRun) -> str:
    to = "" if sent.requestor in {None, ME} else f" to={sent.requestor}"
    return f"{'RECORD' if sent.requestor is None else 'DIRECT-RECORD'} {text(sent.batch)}{to}"


def _batch_text(batch: RecordBatch) -> str:
    sequences([batch])
    return " ".join([*_named(batch.partition), f"{batch.first_sequence}:{batch.end_sequence}"])


def _message_text(value: Any) -> str:
    fields = {each.name: getattr(value, each.name) for each in attrs.fields(type(value))}
    words = [value.COMMAND.name.replace("_", "-")]
    address = _partition_field(fields)
    if address:
        words += _named(Partition(fields.pop("subject"), fields.pop(address)))
    elif "subject" in fields:
        words.append(fields.pop("subject") or "*")
    if "count" in fields:
        words.append(text(range(fields["sequence"], fields.pop("sequence") + fields.pop("count"))))
    ends = []
    for name, each in fields.items():
        if name in _RECIPIENTS or name == "address":
            ends += [f"{'from' if name == 'address' else 'to'}={each}"] if each != ME else []
        elif name in _PLAIN:
            words.append(",".join(each) if name == "subjects" else _sequence_text(each))
        elif each or name not in {"unrecoverable_end", "after"}:
            ends.append(f"{name}={_sequence_text(each)}")
    return " ".join(filter(None, words + ends))


def message(words: str) -> wire.BatchedMessage:
    """Read a message as `text` writes it."""
    kind, *rest = words.split()
    named = dict(word.split("=") for word in rest if "=" in word)
    plain = [word for word in rest if "=" not in word]
    if kind in {"RECORD", "DIRECT-RECORD"}:
        records = _range(plain.pop())
        batch = run(records.start, records.stop, _partition(plain[0]) if plain else HELLO)
        return wire.RecordRun(batch, named.get("to", ME) if kind == "DIRECT-RECORD" else None)
    names = [each.name for each in attrs.fields(_KINDS[kind])]
    values: dict[str, Any] = {each: named.get("to", ME) for each in names if each in _RECIPIENTS}
    values |= {each: _sequence(named.get(each, "0")) for each in names if each in _NUMBERS}
    values |= {"address": named.get("from", ME)} if "address" in names else {}
    values |= {"after": named.get("after", "")} if "after" in names else {}
    if "count" in names:
        fetched = _range(plain.pop())
        values |= {"sequence": fetched.start, "count": len(fetched)}
    elif "sequence" in names:
        values["sequence"] = _sequence(plain.pop())
    if "subjects" in names:
        values["subjects"] = tuple(plain[0].split(",")) if plain else ()
    elif address := _partition_field(names):
        partition = _partition(plain[0]) if plain else HELLO
        values |= {"subject": partition.topic, address: partition.address}
    elif "subject" in names:
        values["subject"] = plain[0].replace("*", "")
    found: wire.BatchedMessage = _KINDS[kind](**values)
    return found


def _partition_field(names: Collection[str]) -> str:
    """Return the field of a message that names the partition, together with its `subject`."""
    if "subject" not in names or ("sequence" not in names and "time" not in names):
        return ""
    return "partition" if "partition" in names else "address"


def _subscription(words: str) -> wire.Subscription:
    command, _, topic = words[1:].partition(" ")
    return wire.Subscription(Command[command.replace("-", "_")], topic, words[0] == "+")


def _named(partition: Partition) -> list[str]:
    if partition == HELLO:
        return []
    is_short = partition.topic == HELLO.topic and "/" not in partition.address
    return [partition.address if is_short else f"{partition.topic}/{partition.address}"]


def _partition(word: str) -> Partition:
    split = word.rpartition if word.startswith("$") else word.partition  # a topic of groups, or a broker's partition
    topic, is_whole, address = split("/")
    return Partition(topic, address) if is_whole else Partition(HELLO.topic, word)


def _range(word: str) -> range:
    first, _, end = word.partition(":")
    return range(int(first), int(end))


def _sequence(word: str) -> int:
    return HOLDS_NOTHING if word == "nothing" else int(word)


def _sequence_text(sequence: object) -> str:
    return "nothing" if sequence == HOLDS_NOTHING else str(sequence)


def _number(number: float) -> str:
    return repr(round(number + 1e-6, 3)).removesuffix(".0")


def _times(times: Sequence[float]) -> str:
    """Return times as words. Of five and more in equal distances, there are the first two and the last."""
    words: list[str] = []
    while times:
        count = 2
        while count < len(times) and abs(times[count] - 2 * times[count - 1] + times[count - 2]) < 1e-6:
            count += 1
        if count < 5:
            words, times = [*words, _number(times[0])], times[1:]
        else:
            words += [_number(times[0]), _number(times[1]), "..", _number(times[count - 1])]
            times = times[count:]
    return " ".join(words)


def _value(word: str) -> Any:
    """Return a setting or an argument: a number, a truth, or a text."""
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            pass
    return {"True": True, "False": False, "": True}.get(word, word)


_WRITERS: list[tuple[Any, Callable[[Any], str]]] = [
    (wire.RecordRun, _run_text),
    (RecordBatch, _batch_text),
    (Partition, lambda value: " ".join(_named(value)) or "PRODUCER"),
    (Mapping, lambda value: " ".join(f"{text(key)}={text(each)}" for key, each in value.items()) or "nothing"),
    (Cursor, lambda value: f"{value.next_sequence}:{value.known_end}"),
    (range, lambda value: f"{value.start}:{value.stop}"),
    (enum.Enum, lambda value: value.name),
    ((set, frozenset), lambda value: " ".join(sorted(map(text, value))) or "nothing"),
    ((list, tuple), lambda value: " ".join(map(text, value)) or "nothing"),
    (float, _number),
]
