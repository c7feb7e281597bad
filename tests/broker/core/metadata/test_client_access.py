"""The ACLs and credentials of a cluster: which of them count for a client, and when that changes."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from dafka.broker.core.acls import Acl, Operation, ResourceType
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.metadata import client_access
from dafka.broker.core.metadata.cluster_state import ClusterState
from dafka.broker.core.metadata.commands import (
    Command,
    CreateAcls,
    DeleteAcls,
    DeleteScramCredential,
    Order,
    SetScramCredential,
)
from dafka.broker.core.metadata.outcome import DONE
from dafka.broker.core.scram_credentials import ScramCredential, ScramMechanism
from tests.broker.access.test_acls import begin, restart
from tests.broker.core.metadata.test_cluster_state import credentials_in, draw_acls, draw_credential
from tests.seeds import each_seed


@each_seed(20)
def test_clients_get_the_acls_of_their_user_and_address_and_notice_each_change(seed: int) -> None:
    draw, state = Random(seed), begin()
    acls, credentials = set[Acl](), dict[tuple[str, ScramMechanism], ScramCredential]()
    for _ in range(30):
        before, version = (set(acls), dict(credentials)), state.access.version
        match draw.choice(["create", "create", "delete", "set", "set", "take", "restore"]):
            case "create":
                acls.update(created := draw_acls(draw))
                state.apply(Order(CreateAcls(created)))
            case "delete":
                deleted = (*draw.sample(sorted(acls, key=repr), len(acls) // 3), *draw_acls(draw))
                acls.difference_update(deleted)
                state.apply(Order(DeleteAcls(deleted)))
            case "set":
                credential = draw_credential(draw)
                credentials[credential.user, credential.mechanism] = credential
                state.apply(Order(SetScramCredential(credential)))
            case "take":
                user, mechanism = draw.choice("ab"), draw.choice([*ScramMechanism])
                credentials.pop((user, mechanism), None)
                state.apply(Order(DeleteScramCredential(user, mechanism)))
            case "restore":
                other = begin()
                acls, credentials = set(created := draw_acls(draw)), {}
                other.apply(Order(CreateAcls(created)))
                state.restore(dict(other.records))
        assert state.access.version > version or (acls, credentials) == before
        found = credentials_in(state)
        assert {(user, kind): each for user, kinds in found.items() for kind, each in kinds.items()} == credentials
        assert all(found.values())
        assert [dict(state.access.find_credentials(each)) for each in "ab"] == [found.get(each, {}) for each in "ab"]
        assert len(listed := list(state.access.list_acls())) == len(acls)
        assert set(listed) == acls == {each for each in acls if state.access.has_acl(each)}
        for user, host in product(["a", "a/b", "*", "c"], ["::1", "10.0.0.1", "::2"]):
            own = {each for each in acls if each.principal in {f"User:{user}", "User:*"}}
            assert set(state.access.list_acls_of(user, host)) == {each for each in own if each.host in {"*", host}}
            assert state.access.names_host_for(user) == any(each.host != "*" for each in own)


CLIENT_ACCESS_KINDS = {
    "create-acls",
    "delete-acls",
    "set-scram-credential",
    "delete-scram-credential",
    "alter-client-quota",
}


@pytest.mark.parametrize("kind", [each.KIND for each in Command.__args__])
def test_nothing_is_written_that_an_older_broker_of_the_cluster_does_not_know(kind: str) -> None:
    needed = 3 if kind in CLIENT_ACCESS_KINDS | {"alter-group-settings"} else 0
    for level in (0, 1, 2, 3, 4):
        members = (begin(level) if level else ClusterState()).members
        refused = members.find_level_obstacle(kind)
        assert (refused is None) == (level >= needed)
        assert refused is None or refused.error is ErrorCode.UNSUPPORTED_VERSION


def test_a_cluster_has_a_limited_number_of_acls_and_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_access, "ENTRIES_MAX", 2)
    state, acls = begin(), [Acl(ResourceType.TOPIC, each, "User:anne", Operation.READ) for each in "abc"]
    assert state.apply(Order(CreateAcls((acls[0], acls[0], acls[1])))) == DONE
    assert "2 ACLs at most" in state.apply(Order(CreateAcls((acls[1], acls[2])))).reason
    assert restart(state).apply(Order(CreateAcls((acls[2],)))).error is ErrorCode.POLICY_VIOLATION
    state.restore(dict(state.records))
    state.apply(Order(DeleteAcls((acls[0], acls[2]))))
    assert state.apply(Order(CreateAcls((acls[2],)))) == DONE
    credentials = [ScramCredential(each, ScramMechanism.SHA_256, 4096, "", "", "") for each in "aabc"]
    outcomes = [state.apply(Order(SetScramCredential(each))).error for each in credentials]
    assert outcomes == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.NONE, ErrorCode.POLICY_VIOLATION]
