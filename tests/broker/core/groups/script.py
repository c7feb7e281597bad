"""Plays the commands of scenarios of groups: what their members ask for, and the answers.

`python -m tests.broker.core.groups.script` writes the outputs of all scenarios anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs

from dafka.broker.core.groups.results import JoinResult, LeavingMember, SyncResult
from dafka.broker.core.groups.settings import GroupSettings
from tests.broker.core.groups.group_client import NO_DELAY, Groups
from tests.broker.core.scenarios import find_command, write_outputs

SCENARIOS = Path(__file__).parent / "scenarios"


def fields_of(words: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields that words name, as in `session_timeout_ms=500`."""
    pairs = [word.partition("=")[::2] for word in words]
    return {name: int(value) if value.lstrip("-").isdigit() else value for name, value in pairs}


def protocols_of(text: str) -> tuple[tuple[str, bytes], ...]:
    """Return assignors with their metadata, such as `range,sticky:hex:00`; `-` for none."""
    pairs = [each.partition(":")[::2] for each in text.split(",") if each != "-"]
    return tuple((name, bytes.fromhex(data[4:]) if data.startswith("hex:") else data.encode()) for name, data in pairs)


def text_of(data: bytes) -> str:
    return data.decode() if data.isascii() and data.decode().isprintable() else data.hex()


@attrs.define
class Script:
    """One run of a scenario. A client that joins again sends the fields that it has sent, unless others are given."""

    groups: Groups = attrs.field(factory=Groups)
    ids: dict[str, str] = attrs.field(factory=dict)
    fields: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    joined: dict[str, JoinResult] = attrs.field(factory=dict)
    waiting: dict[int, str] = attrs.field(factory=dict)
    printed: list[str] = attrs.field(factory=list)

    def run(self, command: str) -> list[str]:
        self.printed = []
        if run := find_command(self, command):
            run()
            self.report()
        return self.printed

    def report(self, prefix: str = "") -> None:
        """Print the answers that have come."""
        found = [
            (self.waiting[each], self.groups.answers[each]) for each in self.waiting if each in self.groups.answers
        ]
        self.waiting = {token: name for token, name in self.waiting.items() if token not in self.groups.answers}
        self.ids |= {name: each.member_id for name, each in found if isinstance(each, JoinResult) and each.member_id}
        self.printed += [f"{prefix}{name} {self.describe(name, result)}" for name, result in found]

    def describe(self, name: str, result: Any) -> str:
        if isinstance(result, JoinResult):
            if result.error_code:
                return result.error_code.name
            self.joined[name] = result
            members = [f"{self.name_of(each.member_id)}:{text_of(each.metadata)}" for each in result.members]
            leads = f", leads {' '.join(members)}" if members else f", {self.name_of(result.leader)} leads"
            skips = ", does not assign" if result.skip_assignment else ""
            return f"joins generation {result.generation_id} with {result.protocol_name}{leads}{skips}"
        assert isinstance(result, SyncResult)
        return result.error_code.name if result.error_code else f"gets {result.assignment.decode() or 'nothing'}"

    def name_of(self, member_id: str) -> str:
        return next((name for name, each in self.ids.items() if each == member_id), "another one")

    def do_settings(self, *words: str) -> None:
        """`settings NAME=VALUE...`: begin again, with these settings and without the delay of a first rebalance."""
        self.begin(attrs.evolve(NO_DELAY, **fields_of(words)))

    def do_kafka(self) -> None:
        """`kafka`: begin with the settings that brokers have."""
        self.begin(GroupSettings())

    def begin(self, settings: GroupSettings) -> None:
        self.groups = Groups(settings)
        for each in (self.ids, self.fields, self.joined, self.waiting):
            each.clear()

    def do_join(self, name: str, *words: str) -> None:
        """`join CLIENT [FIELD=VALUE...]`: join, or join again."""
        given = {"member_id": self.ids.get(name, ""), **fields_of(words)}
        member_id = str(given.pop("member_id"))
        if "protocols" in given:
            given["protocols"] = protocols_of(given["protocols"])
        fields = self.fields[name] = self.fields.get(name, {}) | given
        self.waiting[self.groups.join(member_id, **fields)] = name

    def do_sync(self, name: str, *words: str) -> None:
        """`sync CLIENT [FIELD=VALUE...] [to CLIENT=ASSIGNMENT...]`: ask for the assignment; leaders send all."""
        place = words.index("to") if "to" in words else len(words)
        given = {
            self.ids[each]: data.encode() for each, _, data in (word.partition("=") for word in words[place + 1 :])
        }
        fields = {"member_id": self.ids[name], "group_instance_id": self.fields[name].get("group_instance_id")}
        token = self.groups.sync(self.joined[name], given, **fields | fields_of(words[:place]))
        self.waiting[token] = name

    def do_beat(self, *names: str) -> None:
        """`beat CLIENT...`: send heartbeats."""
        for name in names:
            error = self.groups.beat(self.joined[name], self.fields[name].get("group_instance_id"))
            self.printed.append(f"{name} {error.name}")

    def do_leave(self, *names: str) -> None:
        """`leave CLIENT...`: leave the group."""
        self.groups.leave(*(LeavingMember(self.ids[name]) for name in names))

    def do_group(self, group_id: str = "g") -> None:
        """`group [GROUP]`: describe a group."""
        found = self.groups.coordinator.describe_group(group_id)
        members = [f"{self.name_of(each.member_id)}:{each.assignment.decode()}" for each in found.members]
        kind = f"{found.protocol_type} {found.protocol}".strip()
        self.printed.append(
            f"{found.state} {found.generation_id} {kind or 'of no kind'}: {' '.join(members) or 'nobody'}"
        )

    def do_list(self, *words: str) -> None:
        """`list [states=STATE] [types=TYPE]`: list groups."""
        found = self.groups.coordinator.list_groups(**{name: [each] for name, each in fields_of(words).items()})
        self.printed.append(" ".join(each.group_id for each in found) or "no groups")

    def do_wait(self, duration_ms: str) -> None:
        """`wait MILLISECONDS`: let time pass."""
        began_ms = self.groups.now_ms
        end_ms = began_ms + int(duration_ms)
        while (due_ms := self.groups.coordinator.next_deadline_ms()) is not None and due_ms <= end_ms:
            self.groups.wait(max(due_ms - self.groups.now_ms, 0))
            self.report(f"{self.groups.now_ms - began_ms}ms ")
        self.groups.wait(end_ms - self.groups.now_ms)

    def do_restart(self) -> None:
        """`restart`: another coordinator reads the records. What waited for an answer gets none."""
        self.groups = self.groups.restart()
        self.waiting.clear()


if __name__ == "__main__":
    write_outputs(SCENARIOS, lambda: Script().run)
