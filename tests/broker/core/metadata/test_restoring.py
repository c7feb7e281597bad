"""A new cluster takes over users, ACLs, quotas and settings of groups, and permits nobody too much meanwhile."""

from __future__ import annotations

import json
from itertools import product
from random import Random
from typing import Any

import attrs
import pytest

from dafka.broker.access.credentials import MECHANISMS, derive_credential
from dafka.broker.core.acls import Acl, AclRules, Operation, ResourceType
from dafka.broker.core.client_quotas import EntityType, QuotaKey, make_entity
from dafka.broker.core.metadata import restoring
from dafka.broker.core.metadata.cluster_state import ClusterState
from dafka.broker.core.metadata.commands import (
    AlterClientQuota,
    AlterGroupSettings,
    Command,
    CreateAcls,
    CreateTopic,
    Order,
    SetScramCredential,
)
from dafka.broker.core.metadata.outcome import DONE
from dafka.broker.core.metadata.restoring import list_stages, take_restored
from dafka.broker.core.metadata.topics import Topic
from dafka.broker.core.scram_credentials import ScramCredential, ScramMechanism, encode_key
from dafka.errors import StorageFormatError
from tests.broker.access.test_acls import begin, draw_acl, questions
from tests.seeds import each_seed

CREDENTIALS = {each: derive_credential(each, "secret", 4096) for each in MECHANISMS}
USERS, HOSTS = ["anne", "bob"], ["10.0.0.1", "::1"]


def make_credential(user: str, mechanism: ScramMechanism, **others: Any) -> ScramCredential:
    found = CREDENTIALS[mechanism.sasl_name]
    keys = (encode_key(each) for each in (found.salt, found.stored_key, found.server_key))
    return attrs.evolve(ScramCredential(user, mechanism, found.iterations, *keys), **others)


def draw_command(draw: Random) -> Command:
    kind = draw.choice(["acls", "acls", "quota", "group", "credential", "topic"])
    name = draw.choice(["a", "b/c", '"é\\'])
    if kind == "acls":
        return CreateAcls(tuple(draw_acl(draw) for _ in range(draw.randint(1, 5))))
    if kind == "quota":
        parts: list[dict[EntityType, str | None]] = [
            {EntityType.USER: name},
            {EntityType.CLIENT_ID: None, EntityType.USER: name},
        ]
        return AlterClientQuota(make_entity(draw.choice(parts)), {QuotaKey.PRODUCER_BYTE_RATE.value: "1.5"})
    if kind == "group":
        return AlterGroupSettings(name, {"share.delivery.count.limit": str(draw.randint(1, 9))})
    if kind == "credential":
        return SetScramCredential(make_credential(draw.choice(USERS), draw.choice(list(ScramMechanism))))
    return CreateTopic(Topic(f"t{draw.randrange(10**9)}", f"{draw.randrange(16**32):032X}", 1, placement=(("a",),)))


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restoring, "COMMAND_ACLS_MAX", 4)


@each_seed(15)
def test_all_of_it_is_restored_and_nobody_may_do_more_meanwhile(seed: int) -> None:
    draw = Random(seed)
    state, restored = begin(), begin()
    for _ in range(draw.choice([1, 5, 20])):
        assert state.apply(Order(draw_command(draw))) == DONE
    records, size = take_restored(state.records), draw.choice([1, 3, 1000])
    for first in range(0, len(records), size):
        for stage in list_stages(records[first : first + size]):
            for command in draw.sample(stage, len(stage)):
                assert not isinstance(command, CreateAcls) or len(command.acls) <= 4
                assert restored.apply(Order(command)) == DONE
                check_permissions(restored, state)
    assert dict(take_restored(restored.records)) == dict(take_restored(state.records))
    assert not restored.topics


def check_permissions(restored: ClusterState, state: ClusterState) -> None:
    """Check that users who can log in are permitted nothing that they were not permitted before."""
    for user, host in product(restored.access.list_credentials(), HOSTS):
        present, former = (AclRules(each.access.list_acls_of(user, host)) for each in (restored, state))
        for question in questions():
            if present.allow(*question) and not present.deny(*question):
                assert former.allow(*question), question
                assert not former.deny(*question), question


def change(prefix: str, **fields: Any) -> dict[bytes, bytes]:
    """Return the records of a state of which one value has other fields."""
    state = begin()
    acl = Acl(ResourceType.TOPIC, "t", "User:anne", Operation.READ)
    quota = AlterClientQuota(make_entity({EntityType.USER: "anne"}), {"producer_byte_rate": "1"})
    group = AlterGroupSettings("g", {"share.delivery.count.limit": "2"})
    credential = SetScramCredential(make_credential("anne", ScramMechanism.SHA_256))
    for command in (CreateAcls((acl,)), quota, group, credential):
        assert state.apply(Order(command)) == DONE
    records = dict(take_restored(state.records))
    (key,) = (each for each in records if each.startswith(prefix.encode()))
    return {**records, key: json.dumps({**json.loads(records[key]), **fields}).encode()}


@pytest.mark.parametrize(
    ("prefix", "fields", "problem"),
    [
        ("acl/", {"host": "example.org"}, "expected one address as the host"),
        ("quota/", {"limits": {"producer_byte_rate": "0"}}, "producer_byte_rate: expected a number above 0"),
        ("quota/", {"limits": {"unknown": "1"}}, "there is no quota 'unknown'"),
        ("group/", {"settings": {"share.delivery.count.limit": "0"}}, "expected a number from 1 to 1000"),
        ("scram/", {"iterations": 1}, "expected 4096 to 16384 iterations"),
        ("scram/", {"salt": "YQ=="}, "expected a salt of 12 to 1024 bytes"),
        ("scram/", {"stored_key": "?"}, "expected the salt and the keys of a credential in base64"),
        ("scram/", {"server_key": "YQ=="}, "expected keys of 32 bytes for SCRAM-SHA-256"),
        ("scram/", {"iterations": "many"}, "a snapshot of the cluster is malformed"),
        ("acl/", {"new": 1}, "has the field new, which this version of dafka does not know"),
    ],
)
def test_what_clients_could_not_set_is_refused(prefix: str, fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(StorageFormatError, match=problem):
        list_stages(change(prefix, **fields).items())
