r"""Mutants: this project's nodes with one small, realistic fault, and the scenario that must detect each.

A mutant in `TABLE` begins with a line: its role and fault, the scenario that must detect it, the clause that it must be
reported to violate (`libdafka CLAUSE` in that dialect), and a part of the finding's text. Role and scenario may be
those of several roles, `{role}`. The lines below it are what is changed: in the source of a function,
`MODULE:FUNCTION: OLD => NEW` or `CLASS.METHOD: OLD => NEW`, or a name of a module or class, `MODULE:NAME := NEW`.
"""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial, reduce
from importlib import import_module
from inspect import getsource
from itertools import count
from textwrap import dedent
from types import ModuleType
from typing import Any, TypeAlias

import attrs
import pytest

from dafka import wire
from dafka.protocol import StoreMachine
from dafka.protocol.actions import Action
from dafka.records import Partition, RecordBatch
from dafka.storage.sqlite import SqliteStorage
from dafka_conformance.model import Dialect
from dafka_conformance.targets import embedded  # noqa: F401 (loads the modules that mutants change)
from dafka_conformance.targets.base import Target
from tests.conformance.mutant_process import process_target

Finding: TypeAlias = tuple[str, str]
"""The clause and the message of a finding."""

Apply: TypeAlias = Callable[[pytest.MonkeyPatch], None]
"""Applies a mutation."""

READERS = ("store", "consumer")

TABLE = r"""
store-acks-one-too-high | store.acknowledges | ack.no-gap | 10, but only
    StoreMachine._acknowledge: end - 1 => end
store-answers-without-last | store.answers | direct-record.sent | no DIRECT-RECORD 5 arrived
    wire.batch:_encode_run: batch = run.batch => batch = run.batch; end = batch.end_sequence - bool(run.requestor)
    wire.batch:_encode_run: if not len(batch): => if not len(batch := batch.between(batch.first_sequence, end)):
store-answers-any-subject | store.other-subject | subject.exact | should not have
    StoreAnswers.receive_fetch: partition = Partition(fetch.subject, fetch.partition) => \
        topic = next((each.topic for each in self._followed if each.address == fetch.partition), fetch.subject); \
        fetch = type(fetch)(fetch.partition, fetch.address, topic, fetch.sequence, fetch.count); \
        partition = Partition(topic, fetch.partition)
store-accepts-bad-signature | store.wrong-signature | signature.discarded | RECORD with the signature AA A0 was stored
    FrameReader.expect_bytes: != expected => != expected and field != "signature"
store-accepts-other-version | store.wrong-version | version.discarded | version 00
    FrameReader.expect_bytes: != expected => != expected and field != "version"
store-tells-one-head | store.heads | direct-head.store | no S:DIRECT-HEAD 1 topic=C
    HeadExchange._direct_heads: begin, begin + count) => 0, 1)
store-tells-head-beyond-gap | store.gap | direct-head.last-offset | DIRECT-HEAD
    HeadExchange._direct_heads: self._stored.durable.get(topic, {}).items() => known
    HeadExchange._direct_heads: heads = => known = \
        [(each.address, cursor.known_end) for each, cursor in self._followed.items() if cursor.known_end]; heads =
store-asks-once | store.fetch-repeated | fetch.repeated | was sent 1 times, then no more
    FetchPlanner.expire_pages := lambda self, now: []
    FetchPlanner.deadline := lambda self: float("inf")
    FetchPlanner.allow_refetch := lambda self, partition, cursor, now: None
store-stalls | store.catch-up | fetch.pages | were fetched and acknowledged, then no
    FetchPlanner.plan_fetch: return first, count => return (first, count) if first < 100_000 else None
store-asks-for-next | store.gap | fetch.sequence | with 4, expected 3, the first
    FetchPlanner.plan_fetch: return first, count => return first + 1, count
store-closes-one-gap | store.gaps | fetch.sent | ACK of 19 for P1, after 0..2, 5..6
    FetchPlanner.plan_fetch: return first, count => \
        return (first, count) if vars(self).setdefault("asked", {}).setdefault(partition, first) == first else None
store-takes-others-answers | store.others-answers | direct-record.requestor | another store,
    StoreMachine.start: for command in _COMMANDS] => for command in (*_COMMANDS, Command.DIRECT_RECORD)]
    StoreMachine._receive_run: run.requestor != self.address => False
store-starts-anew | store.resumes | ack.sent | 3 for P1, which continued after the store's
    StoreMachine.__init__: follow_partition(partition, end) => follow_partition(partition, 0)
store-forgets-silent-producer | store.silent-peer | robust.vanished-peer | 4 arrived for a
    ConnectionManager.shows_life := lambda *_, **__: False
    StoreMachine.peer_left: return => \
        return [self.stored.remove(Partition(each, address)) for each in list(self.stored.topics_of(address))] and
store-drops-empty-contents | store.any-content | record.any-size | no ACK of 10
    StoreMachine._receive_run: > SEQUENCE_MAX => > SEQUENCE_MAX or batch.values[0] == b""
store-sends-no-hello | store.hello-again | store-hello.sent | STORE-HELLO to C2 arrived
    StoreMachine._greet_peer: [Publish(wire.StoreHello(topic, self.address))] => []
store-crashes | store.malformed-requests | libdafka robust.malformed | the store ended
    BatchDecoder._decode_other: except WireError => except KeyError
store-takes-first-of-frames | store.record-frames | robust.multi-frame | RECORD with an additional frame was stored
    BatchDecoder._gather: frames = message => frames = message[:3] if message[0][:1] == b"M" else message
store-limits-topics | store.many-topics | topics.unlimited | no ACK of the record of
    StoreMachine._follow_partition: self.capacity.admit_partition( => \
        "many" if len(self.reassembler.cursors) >= 256 else self.capacity.admit_partition(

store-finds-by-time-of-storing | store.positions | position.first | the sequence
    storage.made_at:_find_made_at := lambda batch, _: batch.first_sequence
store-answers-about-another-time | store.positions | position.answered | no DIRECT-POSITION
    PositionResponder.complete: search.time_ms, => 1,
store-hears-others | store.positions | subscription.store.get-position | but not with
    StoreMachine.start: self.address) => "STORE" if command is Command.GET_POSITION else self.address)
store-skips-untimed-records | store.positions-stored | position.stored | expected 0 and 10
    storage.made_at:_find_made_at: timestamps = stored_at if => \
        timestamps = [-(2**63)] * len(batch) if not batch.timestamps or set(batch.timestamps) == {NO_TIMESTAMP} else \
        stored_at if
store-forgets-its-end | store.positions-stored | position.none | and the end 0 for
    PositionResponder.complete: self._durable_end(search.partition) => 0
store-holds-the-unknown | store.positions-unknown | position.unknown | the sequence 0
    PositionResponder.complete: wire.NUMBER_8_MAX if => 0 if
store-answers-everybody | store.positions-subscribers | position.subscribers-only | sent to C2
    SubscriberSet.__contains__: return => return self._command is Command.DIRECT_POSITION or

consumer-asks-for-heads-of-itself | consumer.get-heads | topic.GET-HEADS | the topic frame of GET-HEADS is C, not the
    ConsumerMachine._get_heads: GetHeads(topic => GetHeads(self.address
consumer-asks-for-no-heads | consumer.get-heads | get-heads.sent | no GET-HEADS arrived
    Node.act: outbound.append( => isinstance(action.message, wire.GetHeads) or outbound.append(
consumer-sends-no-hello | consumer.grammar.join-consumer.39 | consumer-hello.sent | no CONSUMER-HELLO arrived
    Node.act: outbound.append( => isinstance(action.message, wire.ConsumerHello) or outbound.append(
consumer-hello-with-another-topic | consumer.hello | consumer-hello.subjects | CONSUMER-HELLO has elsewhere, but
    ConsumerMachine._greet_store: tuple(self.topics) => ("elsewhere",)
consumer-delivers-twice | consumer.live | delivery.once | were delivered more
    ConsumerMachine._receive_run: actions.append(Deliver(ready)) => actions += [Deliver(ready), Deliver(ready)]
consumer-delivers-backwards | consumer.live | delivery.in-order | delivered,
    ConsumerMachine._receive_run: actions.append(Deliver(ready)) => \
        actions += [Deliver(ready.between(each.sequence, each.sequence + 1)) for each in reversed([*ready])]
consumer-drops-out-of-order-records | consumer.out-of-order | delivery.complete | not delivered
    Cursor.add_batch: if batch.first_sequence > self.next_sequence => if False
consumer-accepts-unknown-commands | consumer.unknown-command | robust.unknown-command | a STORE-HELLO with the id b'Z' \
        was not discarded: it caused a CONSUMER-HELLO
    FrameReader.expect_bytes: != expected => != expected and field != "command"
consumer-begins-at-zero-at-latest | consumer.latest | latest.new-only | were published
    ConsumerMachine.peer_joined: if not gap_resolver.is_settled => if False

producer-no-head | producer.heads-at-intervals | head.interval | no first HEAD arrived
    ProducerMachine._announce_head: return [Publish( => return [] and [Publish(
producer-first-offset-1 | producer.records | sequence.first | the offset 1, expected 0
    ProducerMachine.__init__: self.partition = partition => \
        self.partition, next_sequence, acknowledged_end = partition, 1, 1
producer-cuts-contents | producer.contents | record.command | has the content
    wire.batch:_encode_run: wrap_records(batch) => [each.partition(b"\0")[0] for each in wrap_records(batch)]
producer-same-partition | producer.two | partition.single-writer | has the same address
    roles.producer:new_address := lambda: "0123456789ABCDEF" * 2
producer-no-get-heads-subscription | producer.heads | direct-head.producer | no subscription at C for GET-HEADS
    Node.act: io.subscribe( => action.prefix[:1] == b"G" or io.subscribe(
producer-keeps-last-ten | producer.kept-until-ack | record.kept-until-ack | record 0, fetched, was not
    RetransmitBuffer.push: self.content_bytes += part.content_bytes => \
        self.content_bytes += part.content_bytes; self.release(self.end_sequence - 10)
producer-takes-foreign-fetches | producer.foreign-fetches | direct-record.checked | another topic was answered
    ProducerMachine._receive_fetch: Partition(fetch.subject => Partition(self.partition.topic

tower-no-welcome | tower.welcome | tower.welcome | was not sent the welcome message
    roles.tower:WELCOME := b""
tower-four-frames | tower.forwards | grammar.tower-beacon | uuid, endpoint),
    TowerMachine.forward_beacon: return _first_form(entry) => return list(frames)
tower-ignores-host | tower.given-host | tower.given-host | tcp://127.0.0.1
    TowerMachine._endpoint: host = beacon.host or => host =
tower-forwards-once | tower.later-nodes | tower.forwards | none was forwarded to
    TowerMachine.forward_beacon: return _first_form(entry) => seen = vars(self).setdefault("seen", {}); \
        return _first_form(entry) if seen.setdefault(entry.address, now) == now else None
tower-no-address | tower.peer-address | tower.peer-address | expected an IP address
    protocol.machines.tower:reachable_host := lambda _, __: "somewhere"
node-drops-all-peers | consumer.silent-peer | subscriber.connects | was dropped
    ConnectionManager.shows_life := lambda *_, **__: False
    PeerTable._record_peer: peer.expires = max(peer.expires, expires) => pass
node-one-beacon | producer.beacons | beacon.interval | no further beacon arrived
    BeaconMachine._choose_form: return [*actions => \
        self._beacon_due, self._interval = float("inf"), 3600.0; return [*actions
node-ignores-newcomers | consumer.beacons | beacon.on-new-peer | 6 new peers
    BeaconMachine._hear: return bool(changes) => return False
node-lower-case-address | producer.beacons | address.uuid | 32 upper-case hexadecimal digits
    roles.producer:new_address := (lambda make: lambda: make().lower())(new_address)
node-three-frames | store.beacons | grammar.node-beacon | not 3
    NodeBeacon.encode: self.host.encode("ascii"), =>
node-wrong-port | store.discovers | publisher.bound | cannot connect to the endpoint
    NodeSockets._advertisement: self._mesh.port => 9
node-deaf-after-restart | store.tower-restart | tower.restart | connect to a
    BeaconMachine._hear: self._heard_at = now => \
        self._heard_at = now; heard = vars(self).setdefault("n", []); heard += [0] * (list(frames) == [wire.WELCOME])
    BeaconMachine._hear: if list(frames) == => if len(heard) > 1 or list(frames) ==
    BeaconMachine._hear: return True => return len(heard) < 2

{role}-subscribes-to-no-batch | {role}.batch-subscriptions | subscription.{role}.record-batch | but not to RECORD-BATCH
    wire:with_batches: batch is None => batch in (None, Command.RECORD_BATCH)
{role}-subscribes-to-no-direct-batch | {role}.batch-subscriptions | subscription.{role}.direct-record-batch | \
        but not to DIRECT-RECORD-BATCH
    wire:with_batches: batch is None => batch in (None, Command.DIRECT_RECORD_BATCH)
{role}-reads-no-zstd | {role}.batch-compressions | batch.compressions | zstd
    BatchRunDecoder.add: names is None => names is None or data[22] & 7 == Compression.ZSTD.value
{role}-leaves-out-last | {role}.batches | batch.taken | sent in
    BatchRunDecoder._decode: RecordRun(records => \
        RecordRun(records.between(records.first_sequence, records.end_sequence - (len(records) > 1))
{role}-takes-any-crc | {role}.batch-malformed | batch.malformed | was not discarded
    wire.batch_runs:check_crc: found != header.crc => False
{role}-ends-at-malformed-batch | {role}.batch-malformed | batch.malformed | the {role} ended by itself
    BatchRunDecoder.add: except BatchError => except KeyError
{role}-ends-at-bomb | {role}.batch-bombs | batch.bombs | the {role} ended by itself
    BatchRunDecoder.decode: except BatchError as => except KeyError as
{role}-takes-envelopes-as-values | {role}.envelopes-taken | envelope.taken |
    wire.batch:unwrap_records := RecordBatch
{role}-empties-broken-envelopes | {role}.envelopes-taken | envelope.malformed |
    wire.envelope:_unwrap: sequence, content) => sequence, b"" if content.startswith(ENVELOPE_MAGIC) else content)
store-takes-no-surplus | store.batch-gap | batch.surplus | no ACK of 24
    StoreMachine._receive_run: run.requestor != self.address => \
        (run.requestor != self.address or batch.first_sequence == 0)
consumer-takes-no-surplus | consumer.batch-fetched | batch.surplus | fetched in a batch with more records
    ConsumerMachine._receive_run: run.requestor != self.address => \
        (run.requestor != self.address or batch.first_sequence == 0)
store-takes-values-only | store.batch-envelope | envelope.sent | has more than a
    BatchRunDecoder._decode: RecordRun(records => RecordRun(type(records)( \
        records.partition, records.first_sequence, [each or b"" for each in records.values])
store-drops-keys | store.batch-fetched | batch.records | has the value
    BatchRunDecoder._decode: RecordRun(records => RecordRun(type(records)( \
        records.partition, records.first_sequence, [each or b"" for each in records.values])
store-sends-values-only | store.batch-envelope | envelope.sent | has more than a value
    wire.batch:wrap_records := lambda records: [each or b"" for each in records.values]
store-sends-magic-as-it-is | store.batch-envelope | envelope.magic | begins with the magic
    wire.envelope:_wrap: and not value.startswith(ENVELOPE_MAGIC) =>
store-wraps-everything | store.batch-envelope | envelope.value | is nothing but a value
    wire.envelope:_wrap: if value is not None => if False
    wire.batch:wrap_records: if batch.has_only_values => if False
store-answers-no-batch | store.batch-fetched | batch.fetched | did not arrive
    wire.batch:_encode_batches: in encode_records( => in () if run.requestor is not None else encode_records(
store-answers-with-both | store.batch-fetched | batch.no-record | had subscribed to DIRECT-RECORD-BATCH
    transport.subscription_table:_SINGLE_OF := {key: each for key, each in _SINGLE_OF.items() if each != b"D"}
    transport.subscription_table:_BATCH_OF := {key: each for key, each in _BATCH_OF.items() if key != b"D"}
store-batches-to-all | store.batch-fetched | batch.subscribers-only | subscribed to everything
    transport.subscription_table:_RFC46_COMMANDS := frozenset(command.value for command in Command)
store-sends-only-batches | store.batch-fetched | batch.subscribers-only | got no DIRECT-RECORDs
    wire.batch:_encode_run := lambda _run, _dialect: ()
store-batches-one-too-far | store.batch-fetched | batch.base-offset | the base offset is wrong
    wire.batch:_encode_batches: message: RecordBatchMessage | DirectRecordBatchMessage => \
        content = (int.from_bytes(content[:8]) + 1).to_bytes(8) + content[8:]
store-batches-with-wrong-crc | store.batch-fetched | batch.crc | the CRC of the
    wire.batch:_encode_batches: message: RecordBatchMessage | DirectRecordBatchMessage => \
        content = content[:17] + bytes([content[17] ^ 1]) + content[18:]
store-batches-as-libdafka | store.batch-fetched | grammar.DIRECT-RECORD-BATCH | has 2 frames
    wire.batch:_encode_batches: yield codec.encode(message, Dialect.RFC46) => \
        topic, fields, content = codec.encode(message, Dialect.RFC46); yield [topic + b"\0" + fields[3:], content]
producer-batches-as-libdafka | producer.batches | libdafka grammar.RECORD-BATCH | has 2 frames
    wire.batch:_encode_batches: yield codec.encode(message, Dialect.RFC46) => \
        topic, fields, content = codec.encode(message, Dialect.RFC46); yield [topic + b"\0" + fields[3:], content]
producer-batches-under-another-topic | producer.batches | topic.RECORD-BATCH | is wrongly addressed
    wire.batch:_encode_batches: yield codec.encode(message, Dialect.RFC46) => \
        topic, *frames = codec.encode(message, Dialect.RFC46); yield [topic + b"2", *frames]
producer-batches-in-large | producer.batch-size | batch.size | bytes of records
    wire.batch:_encode_batches: compression, bytes_max): => compression, 2**20):
"""

LACKING = {
    "consumer": {"RECORD": b"M", "HEAD": b"H", "DIRECT-RECORD": b"D", "DIRECT-HEAD": b"E", "STORE-HELLO": b"L"},
    "producer": {"ACK": b"K", "FETCH": b"F"},
    "store": {"HEAD": b"H", "GET-HEADS": b"G", "FETCH": b"F", "CONSUMER-HELLO": b"W"},
}
"""Commands that a mutant of a role does not subscribe to."""


@attrs.frozen
class Mutant:
    """A mutant.

    Attributes:
        name: Role and fault, such as `store-acks-one-too-high`.
        scenario: The scenario that must detect it.
        clause: The clause that it must be reported to violate.
        message: A part of the finding's text.
        apply: Applies the mutation with a monkeypatch.
        dialect: The dialect.
        target: Makes a broken target, for faults of whole processes; by default, `embedded` with `apply`.
    """

    name: str
    scenario: str
    clause: str
    message: str
    apply: Apply
    dialect: Dialect = Dialect.RFC46
    target: Callable[[], Target] | None = None

    def is_found(self, findings: Iterable[Finding]) -> bool:
        """Return whether the mutant is detected by these findings."""
        return any(clause == self.clause and self.message in message for clause, message in findings)


_numbers = count()


def _find_module(name: str) -> ModuleType:
    """Return a module of the product that has this class."""
    return next(each for each in [*sys.modules.values()] if each.__name__.startswith("dafka.") and name in vars(each))


def change_source(changes: Iterable[str], patch: pytest.MonkeyPatch) -> None:
    """Apply lines of `TABLE` to this process."""
    for change in changes:
        found = re.fullmatch(r"(?:([\w.]+):)?([\w.]+)(?: := (.*)|: (.*) => ?(.*))", change)
        assert found is not None, change
        module_name, path, assigned, old, new = found.groups()
        module = import_module(f"dafka.{module_name}") if module_name else _find_module(path.partition(".")[0])
        *owners, name = path.split(".")
        owner: Any = reduce(getattr, owners, module)
        if assigned:
            patch.setattr(owner, name, eval(assigned, dict(vars(module))))
            continue
        function = getattr(owner, name)
        source = dedent(getsource(function))
        assert source.count(old) == 1, f"{change}: {source.count(old)} times in {source}"
        file = f"<mutant {next(_numbers)}>"
        source = source.replace(old, new)
        linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
        made: dict[str, Any] = {}
        exec(compile(source, file, "exec", annotations.compiler_flag), function.__globals__, made)
        patch.setattr(owner, name, made[name])


def _read_table() -> Iterator[Mutant]:
    blocks: list[list[str]] = []
    for line in TABLE.replace("\\\n        ", "").splitlines():
        if line.startswith(" "):
            blocks[-1].append(line.strip())
        elif line:
            blocks.append([line])
    for head, *changes in blocks:
        for role in READERS if "{role}" in head else ("",):
            name, scenario, clause, message = (part.strip() for part in head.replace("{role}", role).split("|"))
            *dialect, clause = clause.split()
            yield Mutant(
                name, scenario, clause, message, partial(change_source, changes), Dialect(*dialect or ["rfc46"])
            )


def overwrite(patch: pytest.MonkeyPatch) -> None:
    """Hold the last record that came with a sequence, instead of the first."""
    last: dict[tuple[Partition, int], bytes | None] = {}
    receive, read = StoreMachine._receive_run, SqliteStorage.read

    def receive_last(self: StoreMachine, run: wire.RecordRun, now: float) -> list[Action]:
        last.update({(record.partition, record.sequence): record.value for record in run.batch})
        return receive(self, run, now)

    async def read_last(self: SqliteStorage, *arguments: Any, **options: Any) -> RecordBatch | None:
        found = await read(self, *arguments, **options)
        return found and attrs.evolve(found, values=[last[each.partition, each.sequence] for each in found], encoded=())

    patch.setattr(StoreMachine, "_receive_run", receive_last)
    patch.setattr(SqliteStorage, "read", read_last)


def lack_subscription(role: str, command: str, prefix: bytes) -> Mutant:
    """Return a node that does not subscribe to a command."""
    change = f"Node.act: io.subscribe( => action.prefix[:1] == {prefix!r} or io.subscribe("
    name, clause = f"{role}-lacks-subscription-{command.lower()}", f"subscription.{role}.{command.lower()}"
    message = f"no subscription for {command}"
    return Mutant(name, f"{role}.subscriptions", clause, message, partial(change_source, [change]))


MUTANTS = {
    mutant.name: mutant
    for mutant in (
        *_read_table(),
        *(lack_subscription(role, *each) for role, commands in LACKING.items() for each in commands.items()),
        Mutant(
            "store-overwrites", "store.duplicates", "nodes.duplicate-record", "record 0 was overwritten by", overwrite
        ),
        Mutant(
            "store-acks-before-durable",
            "store.durable",
            "ack.durable",
            "were acknowledged, but after a kill and a restart the store has",
            lambda _patch: None,
            target=partial(process_target, "acks-before-durable"),
        ),
    )
}
