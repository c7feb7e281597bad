"""Reads scripted scenarios from TOML and runs them. `script_steps` documents the steps.

[[scenario]]
name = "store.acknowledges"
title = "A store acknowledges what it saved."
clauses = ["ack.sent"]
steps = ["when P:RECORD 0..9", "then S:ACK 9"]
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio

from dafka_conformance.grammar import Message, Value
from dafka_conformance.interpreters.script_steps import ScriptError, Step, read_step
from dafka_conformance.model import Dialect, Role
from dafka_conformance.scenario import Scenario
from dafka_conformance.targets.base import Ability, Reset
from dafka_conformance.testbed.known_records import record_content
from dafka_conformance.testbed.scripted_peer import ScriptedPeer
from dafka_conformance.testbed.testbed import Testbed

_KEYS = {"name", "title", "clauses", "steps", "dialects", "reset", "topic", "starts_target", "shares_target", "needs"}
_TAMPER = {"signature", "version", "id", "cut", "append", "frames"}
_STEP_NEEDS = {
    "killed": {Ability.KILL},
    "restarts": {Ability.KILL},
    "tower": {Ability.START},
    "published": {Ability.FEED},
    "publishes": {Ability.FEED},
    "delivers": {Ability.COLLECT},
}
RESTART_PAUSE_S = 0.5
"""The time that the tower is gone in a restart."""


def read_scenarios(path: Path) -> list[Scenario]:
    """Return the scenarios of one file. Raise `ScriptError` if the file or a step is wrong."""
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ScriptError(f"cannot read the scenarios of {path}: {error}") from None
    return [_read_scenario(entry, path.name) for entry in document.get("scenario", [])]


def _read_scenario(entry: Mapping[str, Any], file: str) -> Scenario:
    name = str(entry.get("name", ""))
    unknown, missing = set(entry) - _KEYS, {"name", "title", "clauses", "steps"} - set(entry)
    if unknown or missing:
        fault = f"the key {min(unknown)} is unknown" if unknown else f"the key {min(missing)} is missing"
        raise ScriptError(f"{file}: {name or 'a scenario'}: {fault}")
    role = next((role for role in Role if role.title == name.partition(".")[0]), None)
    if role is None:
        raise ScriptError(f"{file}: {name}: expected a name that begins with a role, such as store.acknowledges")
    steps = [read_step(text) for text in entry["steps"]]
    needs = set[Ability]().union(*(_STEP_NEEDS.get(step.action, set()) for step in steps))
    reset = Reset(entry.get("reset", "earliest"))
    if reset is Reset.LATEST:
        needs.add(Ability.LATEST)
    if "topic" in entry:
        needs.add(Ability.CHOOSE_TOPIC)
    named = [clause for step in steps for clause in step.clauses]
    return Scenario(
        name,
        entry["title"],
        role,
        tuple(dict.fromkeys([*entry["clauses"], *named])),
        lambda testbed: _ScriptRunner(testbed, role, steps, entry["clauses"][0]).run(),
        needs=frozenset(needs),
        dialects=tuple(Dialect(value) for value in entry.get("dialects", [dialect.value for dialect in Dialect])),
        shares_target=entry.get("shares_target", False),
        starts_target=entry.get("starts_target", False),
        reset=reset,
        topic=entry["topic"].encode("utf-8") if "topic" in entry else None,
        script=tuple(entry["steps"]),
    )


class _ScriptRunner:
    """Runs one script on a testbed."""

    def __init__(self, testbed: Testbed, role: Role, steps: list[Step], clause: str) -> None:
        self._testbed = testbed
        self._role = role
        self._steps = steps
        self._clause = clause
        self._topics: dict[str, bytes] = {}
        self._last_requestor: ScriptedPeer | None = None
        self._answers_from = 0

    async def run(self) -> None:
        for step in self._steps:
            self._testbed.trace.add_note(step.text)
            clauses = step.clauses or (self._clause,)
            await getattr(self, f"_{step.keyword}_{step.action}")(step, clauses[0])
            for clause in clauses if step.keyword in {"then", "never"} else ():
                self._testbed.check_clause(clause, True)

    # Nodes and values

    async def _peer(self, label: str) -> ScriptedPeer:
        """Return a scripted peer. Add it if this is its first use."""
        if label not in self._testbed.peers:
            await self._testbed.add_peer(label, self._topics.get(label))
        return self._testbed.peers[label]

    async def _value(self, text: str) -> bytes:
        if text == "topic":
            return self._testbed.topic
        if text == self._testbed.label:
            return self._testbed.address
        if text[:1] in "PCS" and text[1:].isdigit() | (text[1:] == ""):
            return (await self._peer(text)).address
        return _parse_bytes(text)

    async def _partition_address(self, label: str) -> bytes:
        return self._testbed.address if label == self._testbed.label else (await self._peer(label)).address

    # given

    async def _given_joins(self, step: Step, _: str) -> None:
        await self._peer(step.node)

    async def _given_on(self, step: Step, _: str) -> None:
        self._topics[step.node] = _parse_bytes(step.values["topic"])

    async def _given_holds(self, step: Step, _: str) -> None:
        peer = await self._peer(step.node)
        peer.add_records(step.last + 1, (await self._peer(step.of)).partition if step.of else None)
        peer.answers_requests = True

    async def _given_stored(self, step: Step, clause: str) -> None:
        producer = await self._peer(step.of)
        await self._testbed.publish(producer, step.first, step.last)
        await self._testbed.expect(
            "ACK",
            clause,
            lambda message: message.topic == producer.address and message.get_number("sequence") >= step.last,
        )

    async def _given_published(self, step: Step, clause: str) -> None:
        testbed = self._testbed
        first = testbed.message_checks.published_count(testbed.address)
        await testbed.feed([record_content(testbed.address, first + index) for index in range(step.count)])
        await testbed.expect("RECORD", clause, lambda message: message["sequence"] == first + step.count - 1)

    # when

    async def _when_joins(self, step: Step, _: str) -> None:
        await self._peer(step.node)

    async def _when_publishes(self, step: Step, _: str) -> None:
        testbed = self._testbed
        first = testbed.message_checks.published_count(testbed.address)
        await testbed.feed([record_content(testbed.address, first + index) for index in range(step.count)])

    async def _when_leaves(self, step: Step, _: str) -> None:
        self._testbed.remove_peer(step.node)

    async def _when_killed(self, step: Step, _: str) -> None:
        await self._testbed.kill()

    async def _when_restarts(self, step: Step, _: str) -> None:
        await self._testbed.restart()

    async def _when_tower(self, step: Step, _: str) -> None:
        await self._testbed.restart_tower(RESTART_PAUSE_S)

    async def _when_pass(self, step: Step, _: str) -> None:
        await trio.sleep(step.seconds)

    async def _when_send(self, step: Step, _: str) -> None:
        peer = await self._peer(step.node)
        named = {name: value for name, value in step.values.items() if name not in _TAMPER}
        tampering = {name: value for name, value in step.values.items() if name in _TAMPER}
        if step.message in {"RECORD"} and not step.values:
            await self._testbed.publish(peer, step.first, step.last)
            return
        if step.message == "FETCH":
            self._last_requestor, self._answers_from = peer, len(self._testbed.received)
        sequences = range(step.first, step.last + 1) if step.message != "FETCH" else [step.first]
        for sequence in sequences:
            message = await self._make(peer, step, sequence, named)
            await self._testbed.wait_subscribed(peer, message.name, message.topic)
            if tampering:
                frames = tamper(self._testbed.grammar.formats.encode(message, self._testbed.dialect), tampering)
                shown = " ".join(f"{name}={value}" for name, value in tampering.items())
                peer.send_frames(frames, message.name, shown)
            else:
                peer.send(message.name, message.topic, message.values)

    async def _make(self, peer: ScriptedPeer, step: Step, sequence: int, named: Mapping[str, str]) -> Message:
        """Return a message with its usual fields and those that the step names."""
        testbed, name = self._testbed, step.message
        target = testbed.address
        partition = peer.address if peer.role is Role.PRODUCER else await self._some_partition(named)
        subject = testbed.known_records.partition(partition, peer.topic).topic if name != "GET-HEADS" else peer.topic
        topics: dict[str, bytes] = {
            "RECORD": subject,
            "HEAD": subject,
            "GET-HEADS": peer.topic,
            "FETCH": partition,
            "ACK": partition,
        }
        own = name in {"FETCH", "GET-HEADS", "STORE-HELLO", "CONSUMER-HELLO", "ACK"}
        values: dict[str, Value] = {
            "address": peer.address if own else partition,
            "subject": subject,
            "sequence": max(sequence, 0),
            "count": step.last - step.first + 1,
            "content": record_content(partition, sequence),
            "subjects": (peer.topic,),
        }
        form = testbed.grammar.formats.by_name[name]
        topic = topics.get(name, target)
        for field, text in named.items():
            if field == "topic":
                topic = await self._value(text)
            elif field == "partition":
                continue
            elif field in {"sequence", "count"}:
                values[field] = int(text)
            elif field == "subjects":
                values[field] = tuple([await self._value(part) for part in text.split(",")]) if text else ()
            else:
                values[field] = await self._value(text)
        return Message(name, topic, {field: values[field] for field in form.field_names})

    async def _some_partition(self, named: Mapping[str, str]) -> bytes:
        """Return the partition that a step names, or the only one."""
        if "partition" in named:
            return await self._partition_address(named["partition"])
        if self._role is Role.PRODUCER:
            return self._testbed.address
        return self._testbed.peers["P"].address if "P" in self._testbed.peers else b""

    # then, and never

    async def _then_send(self, step: Step, clause: str) -> None:
        wanted = await self._wanted(step)
        if step.message == "DIRECT-RECORD" and step.last > step.first:
            for sequence in range(step.first, step.last + 1):
                await self._expect(step, clause, {**wanted, "sequence": sequence}, f"{step.message} {sequence}")
            return
        if step.first >= 0:
            wanted["sequence"] = step.first
        await self._expect(step, clause, wanted, step.text.partition(" ")[2].partition(" [")[0])

    async def _expect(self, step: Step, clause: str, wanted: Mapping[str, Value], what: str) -> None:
        since = self._answers_from if step.message == "DIRECT-RECORD" else 0
        await self._testbed.expect(
            step.message, clause, lambda message: _matches(message, wanted), since=since, what=what
        )

    async def _never_send(self, step: Step, clause: str) -> None:
        wanted = await self._wanted(step)
        for received in self._testbed.received:
            message = received.message
            is_in_range = step.first < 0 or step.first <= message.get_number("sequence") <= step.last
            if message.name == step.message and _matches(message, wanted) and is_in_range:
                text = f"{message.name} should not have been sent: {self._testbed.describe(message)}"
                self._testbed.require_clause(clause, False, text, received.event)

    async def _wanted(self, step: Step) -> dict[str, Value]:
        wanted: dict[str, Value] = {}
        for field, text in step.values.items():
            number = text.removesuffix("+")
            wanted[field] = int(number) if number.isdigit() else await self._value(text)
        if step.message == "ACK" and "topic" not in wanted and len(self._producers()) == 1:
            wanted["topic"] = self._producers()[0].address
        if step.message == "DIRECT-RECORD" and "topic" not in wanted and self._last_requestor is not None:
            wanted["topic"] = self._last_requestor.address
        return wanted

    def _producers(self) -> list[ScriptedPeer]:
        return [peer for peer in self._testbed.peers.values() if peer.role is Role.PRODUCER]

    async def _then_delivers(self, step: Step, _: str) -> None:
        producer = await self._peer(step.of or "P")
        known = self._testbed.known_records.partition(producer.address, producer.topic).contents
        contents = [
            known.get(sequence, producer.partition.contents.get(sequence, record_content(producer.address, sequence)))
            for sequence in range(step.first, step.last + 1)
        ]
        await self._testbed.expect_delivered(contents)

    async def _never_delivers(self, step: Step, clause: str) -> None:
        producer = await self._peer(step.of or "P")
        for sequence in range(step.first, step.last + 1):
            content = record_content(producer.address, sequence)
            is_delivered = any(delivery.content == content for delivery in self._testbed.delivered)
            text = f"{self._testbed.trace.show(content)} was delivered, which it should not have been"
            self._testbed.require_clause(clause, not is_delivered, text)

    async def _then_subscribes(self, step: Step, clause: str) -> None:
        prefix = await self._prefix(step)
        peer = await self._any_peer()
        is_there = await self._testbed.wait(lambda: peer.subscriptions[prefix] > 0)
        text = f"the {self._role.title} has no subscription for {step.message} ({self._show_prefix(prefix)})"
        wider = [each for each, count in peer.subscriptions.items() if count > 0 and prefix.startswith(each)]
        if wider:
            text += f"; it subscribes to {self._show_prefix(max(wider, key=len))} instead"
        self._testbed.require_clause(clause, is_there, text)

    def _show_prefix(self, prefix: bytes) -> str:
        """Return a subscription as readable text."""
        topic = f" {self._testbed.trace.show(prefix[1:])}" if prefix[1:] else ""
        return f"{prefix[:1].decode('latin-1')}{topic}" or "everything"

    async def _never_subscribes(self, step: Step, clause: str) -> None:
        prefix = await self._prefix(step)
        peer = await self._any_peer()
        text = f"the {self._role.title} has a subscription for {step.message}"
        self._testbed.require_clause(clause, peer.subscriptions[prefix] <= 0, text)

    async def _prefix(self, step: Step) -> bytes:
        topic = await self._value(step.values["topic"]) if "topic" in step.values else b""
        return self._testbed.grammar.formats.id_of(step.message) + topic

    async def _any_peer(self) -> ScriptedPeer:
        if not self._testbed.peers:
            await self._peer("C" if self._role is Role.STORE else "S2")
        return next(iter(self._testbed.peers.values()))

    async def _then_lives(self, step: Step, clause: str) -> None:
        self._testbed.check_running(clause)


def _matches(message: Message, wanted: Mapping[str, Value]) -> bool:
    """Return whether a message has the expected fields. `subjects` must contain the expected topic."""
    for field, value in wanted.items():
        found = message.topic if field == "topic" else message.values.get(field)
        if isinstance(found, tuple):
            if value not in found:
                return False
        elif found is not None and found != value:
            return False
    return True


def tamper(frames: list[bytes], how: Mapping[str, str]) -> list[bytes]:
    """Return the frames of a message changed so that a node must discard it.

    Args:
        frames: The frames of a valid message.
        how: The changes, with the names and values of `script_steps`.

    Returns:
        The changed frames.
    """
    frames = list(frames)
    head = 1 if frames[1:2] and frames[1][:2] == b"\xaa\xa5" else 0
    start = 0 if head else frames[0].index(b"\0") + 1
    for name, text in how.items():
        frame = frames[head]
        if name == "signature" and head:
            frames[head] = bytes.fromhex(text) + frame[2:]
        elif name == "version":
            place = 3 if head else start
            frames[head] = frame[:place] + bytes.fromhex(text) + frame[place + 1 :]
        elif name == "id":
            frames[0] = bytes.fromhex(text) + frames[0][1:]
            if head:
                frames[1] = frames[1][:2] + bytes.fromhex(text) + frames[1][3:]
        elif name == "cut":
            frames[head] = frame[: -int(text)]
        elif name == "append":
            frames[head] = frame + b"\xff" * int(text)
        elif name == "frames":
            frames += [b"more"] * int(text) if int(text) > 0 else []
            frames = frames[: int(text)] if int(text) < 0 else frames
    return frames


def _parse_bytes(text: str) -> bytes:
    if text.startswith("hex:"):
        return bytes.fromhex(text[4:])
    return text.strip('"').encode("utf-8")
