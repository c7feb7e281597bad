"""What a user may do is exactly what the ACLs that stand say, and the file: held against an evaluator of its own.

Histories of changes, restarts and snapshots are played. After each step, every user, address, operation and name of a
small world is asked for.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import attrs
import pytest

from dafka.broker.access import users as access_users
from dafka.broker.access.credentials import derive_credential
from dafka.broker.access.permissions import EffectivePermissions, Permission, Permissions
from dafka.broker.access.users import Users
from dafka.broker.access.users_file import User, write_users
from dafka.broker.core.acls import (
    CLUSTER_NAME,
    OPERATIONS,
    Acl,
    AclEffect,
    AclFilter,
    Operation,
    PatternType,
    ResourceType,
    find_acl_problem,
    normalize_host,
)
from dafka.broker.core.metadata.cluster_state import ClusterState
from dafka.broker.core.metadata.commands import (
    CreateAcls,
    DeleteAcls,
    DeleteScramCredential,
    Order,
    RegisterBroker,
    SetFeatureLevel,
    SetScramCredential,
)
from dafka.broker.core.metadata.features import CLIENT_ACCESS, SUPPORTED
from dafka.broker.core.metadata.outcome import DONE
from dafka.broker.core.metadata.snapshots import Snapshot, parse_snapshot
from dafka.broker.core.positions import Offset
from dafka.broker.core.scram_credentials import ScramCredential, ScramMechanism
from tests.seeds import each_seed

NAMES = ["a", "ab", "abc", "b", "*", ""]
USERS, HOSTS = ["anne", "bob", "*"], ["10.0.0.1", "::1"]
TYPES = [ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID, ResourceType.CLUSTER]
IMPLIED_BY = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}
CREDENTIALS = {"SCRAM-SHA-256": derive_credential("SCRAM-SHA-256", "secret", 4096)}


def evaluate(acls: set[Acl], user: str, host: str, operation: Operation, kind: ResourceType, name: str) -> bool:
    """Return what ACLs say, one by one: a denial counts more than anything that allows."""

    def is_about(acl: Acl) -> bool:
        named = name[: len(acl.name)] == acl.name if acl.pattern_type == 4 else acl.name in ("*", name)
        return (
            acl.resource_type == kind
            and acl.principal in ("User:" + user, "User:*")
            and acl.host in ("*", host)
            and named
        )

    found = [each for each in acls if is_about(each)]
    if any(each.effect == 2 and each.operation in (Operation.ALL, operation) for each in found):
        return False
    sufficient = {Operation.ALL, operation, *IMPLIED_BY.get(operation, ())}
    return any(each.effect == 3 and each.operation in sufficient for each in found)


def draw_acl(draw: Random) -> Acl:
    kind = draw.choice(TYPES)
    return Acl(
        kind,
        CLUSTER_NAME if kind is ResourceType.CLUSTER else draw.choice(NAMES[:-1]),
        "User:" + draw.choice(USERS),
        draw.choice([Operation.ALL, *OPERATIONS]),
        PatternType.LITERAL if kind is ResourceType.CLUSTER else draw.choice([*PatternType][2:]),
        draw.choice([*HOSTS, "*"]),
        draw.choice([AclEffect.ALLOW, AclEffect.ALLOW, AclEffect.DENY]),
    )


def draw_filter(draw: Random) -> AclFilter:
    acl = draw_acl(draw)
    some = {each.name: getattr(acl, each.name) for each in attrs.fields(AclFilter) if draw.random() < 0.4}
    found = AclFilter(**some)
    return attrs.evolve(found, pattern_type=PatternType.MATCH) if draw.random() < 0.3 else found


def is_selected(chosen: AclFilter, acl: Acl) -> bool:
    """Return whether a filter selects an ACL, by each of its fields."""
    exact = ("resource_type", "principal", "host", "operation", "effect")
    if any(getattr(chosen, each) not in (None, 1, getattr(acl, each)) for each in exact):
        return False
    if chosen.pattern_type is PatternType.MATCH and chosen.name is not None:
        return acl.name in (chosen.name, "*") if acl.pattern_type == 3 else chosen.name[: len(acl.name)] == acl.name
    return chosen.name in (None, acl.name) and chosen.pattern_type in (1, 2, acl.pattern_type)


def begin(level: int = CLIENT_ACCESS) -> ClusterState:
    state = ClusterState()
    state.found("C" * 32)
    for command in (RegisterBroker("a", 0, features=SUPPORTED.levels), SetFeatureLevel(level)):
        assert state.apply(Order(command)) == DONE
    return state


def restart(state: ClusterState) -> ClusterState:
    found = ClusterState()
    found.restore(dict(state.records))
    return found


def install_snapshot(state: ClusterState) -> ClusterState:
    """Return the state of a broker that had another one, and gets a snapshot."""
    found = begin()
    found.apply(Order(CreateAcls((Acl(ResourceType.TOPIC, "a", "User:*", Operation.ALL),))))
    found.apply(Order(SetScramCredential(ScramCredential("carl", ScramMechanism.SHA_256, 4096, "", "", ""))))
    found.restore(parse_snapshot(Snapshot(Offset(1000), dict(state.records)).text).records)
    return found


def as_acls(user: User) -> set[Acl]:
    """Return what the file permits, whose patterns here end with a star or have none."""
    found = set()
    kinds: dict[str, tuple[ResourceType, list[Operation]]] = {
        "read": (ResourceType.TOPIC, [Operation.READ, Operation.DESCRIBE_CONFIGS]),
        "write": (ResourceType.TOPIC, [Operation.WRITE, Operation.DESCRIBE_CONFIGS]),
        "admin": (
            ResourceType.TOPIC,
            [Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.ALTER_CONFIGS],
        ),
        "groups": (ResourceType.GROUP, [Operation.ALL]),
        "transactions": (ResourceType.TRANSACTIONAL_ID, [Operation.ALL]),
    }
    for kind, (resource_type, operations) in kinds.items():
        for pattern, operation in product(getattr(user.permissions, kind), operations):
            is_prefix = pattern != "*" and pattern[-1:] == "*"
            pattern_type = PatternType.PREFIXED if is_prefix else PatternType.LITERAL
            name = pattern[:-1] if is_prefix else pattern
            found.add(Acl(resource_type, name, "User:" + user.name, operation, pattern_type))
    if "*" in user.permissions.admin:
        for operation in set(OPERATIONS[:9]) - {Operation.READ, Operation.WRITE, Operation.DELETE}:
            if operation is not Operation.CLUSTER_ACTION:
                found.add(Acl(ResourceType.CLUSTER, CLUSTER_NAME, "User:" + user.name, operation))
    return found


def draw_file(draw: Random) -> dict[str, User]:
    def draw_patterns() -> tuple[str, ...]:
        return tuple(draw.choices(["a", "ab*", "*", "b"], k=draw.choice([0, 0, 1, 2])))

    permissions = Permissions(*(draw_patterns() for _ in range(5)))
    return {"anne": User("anne", CREDENTIALS, permissions)}


def questions() -> Iterator[tuple[Operation, ResourceType, str]]:
    for operation, kind in product(OPERATIONS, TYPES):
        for name in [CLUSTER_NAME] if kind is ResourceType.CLUSTER else NAMES:
            yield operation, kind, name


@each_seed(12)
def test_users_may_do_exactly_what_the_file_and_the_acls_that_stand_say(
    seed: int,
) -> None:
    with TemporaryDirectory() as folder:
        play_history(Random(seed), Path(folder) / "users")


def play_history(draw: Random, path: Path) -> None:
    file = draw_file(draw)
    write_users(path, file)
    users, state, model = Users(path), begin(), set[Acl]()
    users.join(state.access)
    for _ in range(25):
        step = draw.choice(["create", "create", "create", "delete", "restart", "snapshot", "join", "file"])
        if step == "create":
            acls = tuple(draw_acl(draw) for _ in range(draw.randint(1, 3)))
            assert state.apply(Order(CreateAcls(acls))) == DONE
            model |= {*acls}
        elif step == "delete":
            chosen = draw_filter(draw)
            selected = tuple(each for each in state.access.list_acls() if chosen.selects(each))
            assert {*selected} == {each for each in model if is_selected(chosen, each)}
            assert state.apply(Order(DeleteAcls(selected))) == DONE
            model -= {*selected}
        elif step == "file":
            file = draw_file(draw)
            write_users(path, file)
            users.refresh()
        elif step == "join":
            state, model = begin(), {draw_acl(draw)}
            state.apply(Order(CreateAcls((*model,))))
            users.join(state.access)
        else:
            state = restart(state) if step == "restart" else install_snapshot(state)
            users.join(state.access)
        assert {*state.access.list_acls()} == model
        assert {*users.list_file_acls()} == as_acls(file["anne"])
        check_all(users, file, model)


def check_all(users: Users, file: dict[str, User], model: set[Acl]) -> None:
    for name, host in product(("anne", "bob"), HOSTS):
        user = file.get(name) or User(name, {}, Permissions())
        granted = as_acls(user)
        found, is_fixed = users.permissions_of(user, host), "*" in user.permissions.admin
        for question in questions():
            expected = evaluate(model | granted, name, host, *question)
            expected = expected or (is_fixed and evaluate(granted, name, host, *question))
            assert found.allow(*question) is expected, (name, host, question)


def test_a_small_change_is_noticed_by_all_that_have_looked_before(tmp_path: Path) -> None:
    path = tmp_path / "users"
    write_users(path, {})
    users, state = Users(path), begin()
    users.join(state.access)
    assert users.find("bob") is None
    credential = ScramCredential("bob", ScramMechanism.SHA_512, 4096, "YQ==", "Yg==", "Yw==")
    state.apply(Order(SetScramCredential(credential)))
    bob = users.find("bob")
    assert bob is not None
    assert bob.credentials["SCRAM-SHA-512"].stored_key == b"b"
    acl = Acl(ResourceType.TOPIC, "t", "User:bob", Operation.READ, host="::1")
    for command, is_permitted in ((CreateAcls((acl,)), True), (DeleteAcls((acl,)), False)):
        state.apply(Order(command))
        assert users.permissions_of(bob, "::1").may_read("t") is is_permitted
        assert not users.permissions_of(bob, "::2").may_read("t")
        assert users.permissions_of(bob, "0:0:0:0:0:0:0:1").may_read("t") is is_permitted


def test_a_login_that_looks_a_user_up_while_it_is_removed_does_not_bring_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_users(tmp_path / "users", {})
    users, state = Users(tmp_path / "users"), begin()
    users.join(state.access)
    state.apply(Order(SetScramCredential(ScramCredential("bob", ScramMechanism.SHA_512, 4096, "YQ==", "Yg==", "Yw=="))))
    find = state.access.find_credentials

    def find_late(name: str) -> Mapping[ScramMechanism, ScramCredential]:
        found = dict(find(name))
        monkeypatch.undo()
        state.apply(Order(DeleteScramCredential(name, ScramMechanism.SHA_512)))
        assert users.find(name) is None
        return found

    monkeypatch.setattr(state.access, "find_credentials", find_late)
    assert users.find("bob") is not None, "it was there when the thread began"
    assert users.find("bob") is None


def test_a_limited_number_of_users_and_permissions_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_users, "CACHED_MAX", 3)
    write_users(tmp_path / "users", {})
    users, state = Users(tmp_path / "users"), begin()
    users.join(state.access)
    state.apply(Order(SetScramCredential(ScramCredential("bob", ScramMechanism.SHA_512, 4096, "YQ==", "Yg==", "Yw=="))))
    state.apply(Order(CreateAcls((Acl(ResourceType.TOPIC, "t", "User:bob", Operation.READ, host="::1"),))))
    bob = User("bob", {}, Permissions())

    def look_up() -> tuple[object, object]:
        return users.find("bob"), users.permissions_of(bob, "::2")

    fills: list[Callable[[str], object]] = [users.find, partial(users.permissions_of, bob)]
    for fill in fills:
        before = look_up()
        assert all(each is former for each, former in zip(look_up(), before, strict=True))
        for number in range(4):
            fill(f"other{number}")
        assert all(each is not former for each, former in zip(look_up(), before, strict=True))


def test_names_that_no_user_can_have_are_not_kept(tmp_path: Path) -> None:
    write_users(tmp_path / "users", {})
    users = Users(tmp_path / "users")
    tracemalloc.start()
    try:
        for number in range(500):
            assert users.find(f"{number}{'x' * 30_000}") is None
        assert tracemalloc.get_traced_memory()[0] < 2**21
    finally:
        tracemalloc.stop()


def test_acls_of_a_user_are_kept_once_for_all_addresses_unless_they_name_one(tmp_path: Path) -> None:
    write_users(tmp_path / "users", {})
    users, state = Users(tmp_path / "users"), begin()
    users.join(state.access)
    bob, carl = (User(each, {}, Permissions()) for each in ("bob", "carl"))

    def count(user: User) -> int:
        return len({id(users.permissions_of(user, f"10.0.0.{number}")) for number in range(100)})

    everywhere = Acl(ResourceType.TOPIC, "t", "User:bob", Operation.READ)
    state.apply(Order(CreateAcls((everywhere,))))
    assert (count(bob), count(carl)) == (1, 1)
    state.apply(Order(CreateAcls((attrs.evolve(everywhere, host="10.0.0.1"),))))
    assert (count(bob), count(carl)) == (100, 1)
    state.apply(Order(CreateAcls((attrs.evolve(everywhere, principal="User:*", host="10.0.0.1"),))))
    assert (count(bob), count(carl)) == (100, 100)


WRITE_PATTERNS = [
    Acl(ResourceType.TOPIC, name, "User:anne", Operation.WRITE, kind)
    for name, kind in [
        ("a", PatternType.LITERAL),
        ("a", PatternType.PREFIXED),
        ("ab", PatternType.PREFIXED),
        ("*", PatternType.LITERAL),
    ]
]


def test_writing_anywhere_needs_a_name_that_is_left_and_every_group_needs_all_names() -> None:
    """Names of up to three letters stand for all names, as the patterns have two at most, and perhaps a star."""
    names = ["".join(each) for size in range(1, 4) for each in product("abz", repeat=size)]
    denials = [attrs.evolve(each, effect=AclEffect.DENY) for each in WRITE_PATTERNS]
    for allowed, denied in product(product((False, True), repeat=4), repeat=2):
        acls = [acl for acl, is_in in zip(WRITE_PATTERNS, allowed, strict=True) if is_in]
        acls += [acl for acl, is_in in zip(denials, denied, strict=True) if is_in]
        acls += [attrs.evolve(acl, resource_type=ResourceType.GROUP, operation=Operation.READ) for acl in acls]
        for patterns, admin in product(((), ("ab*",), ("a*b",), ("*",)), ((), ("a*",), ("*",))):
            granted = EffectivePermissions(write=patterns, groups=patterns, admin=admin, acls=tuple(acls))
            assert granted.may_write_anywhere() is any(granted.may_write(name) for name in names)
            is_every = all(granted.may_use_group(name) for name in names)
            is_mixed = "*" in admin and patterns in {("ab*",), ("a*b",)}  # no rule gives all: the names are asked for
            assert granted.may_use_every_group in ({False, is_every} if is_mixed else {is_every})


TOPIC_ADMIN = (Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.ALTER_CONFIGS)
MAY: dict[str, tuple[Callable[[Permissions, str], bool], list[set[tuple[ResourceType, Operation]]]]] = {
    "create": (
        Permissions.may_create,
        [{(ResourceType.TOPIC, Operation.CREATE)}, {(ResourceType.CLUSTER, Operation.CREATE)}],
    ),
    "create by use": (
        Permissions.may_create_by_use,
        [{(ResourceType.TOPIC, Operation.CREATE)}, {(ResourceType.CLUSTER, Operation.CREATE)}],
    ),
    "move": (Permissions.may_move, [{(ResourceType.CLUSTER, Operation.ALTER)}]),
    "administer": (
        Permissions.may_administer,
        [{(ResourceType.TOPIC, each) for each in TOPIC_ADMIN}],
    ),
    "read": (Permissions.may_read, [{(ResourceType.TOPIC, Operation.READ)}]),
    "write": (Permissions.may_write, [{(ResourceType.TOPIC, Operation.WRITE)}]),
    "write anywhere": (
        lambda permissions, _: permissions.may_write_anywhere(),
        [{(ResourceType.TOPIC, Operation.WRITE)}, {(ResourceType.CLUSTER, Operation.IDEMPOTENT_WRITE)}],
    ),
    "use group": (Permissions.may_use_group, [{(ResourceType.GROUP, Operation.READ)}]),
    "use transaction": (Permissions.may_use_transaction, [{(ResourceType.TRANSACTIONAL_ID, Operation.WRITE)}]),
    "administer the cluster": (
        lambda permissions, _: permissions.is_administrator,
        [
            {
                (ResourceType.CLUSTER, each)
                for each in (
                    Operation.CREATE,
                    Operation.ALTER,
                    Operation.DESCRIBE,
                    Operation.ALTER_CONFIGS,
                    Operation.DESCRIBE_CONFIGS,
                )
            }
        ],
    ),
}


@pytest.mark.parametrize("question", MAY)
def test_a_question_needs_each_of_its_operations_and_no_other(question: str) -> None:
    ask, ways = MAY[question]

    def acl(kind: ResourceType, operation: Operation) -> Acl:
        return Acl(kind, CLUSTER_NAME if kind is ResourceType.CLUSTER else "t", "User:anne", operation)

    def is_permitted(acls: set[Acl]) -> bool:
        return ask(EffectivePermissions(acls=tuple(acls)), "t")

    every = {acl(*each) for each in product(TYPES, OPERATIONS)}
    for way in ways:
        exactly = {acl(*each) for each in way}
        assert is_permitted(exactly)
        for each in exactly:
            others = {acl(*one) for other in ways for one in other if other is not way}
            sources = {acl(each.resource_type, one) for one in (each.operation, *IMPLIED_BY.get(each.operation, ()))}
            assert not is_permitted(every - sources - others)
            assert not is_permitted(exactly - sources)
    denied = {attrs.evolve(acl(*each), effect=AclEffect.DENY) for way in ways for each in way}
    assert not is_permitted(every | denied)


SHOWN = {
    Permission.READ: "read",
    Permission.WRITE: "write",
    Permission.ADMIN: "administer",
    Permission.GROUPS: "use group",
    Permission.TRANSACTIONS: "use transaction",
}


@pytest.mark.parametrize("permission", Permission)
def test_the_names_that_a_user_is_shown_are_those_for_which_it_is_permitted(permission: Permission) -> None:
    ask, ((*needed,),) = MAY[SHOWN[permission]]
    for acls in [needed, *([each] for each in product(TYPES[:-1], [Operation.ALL, *OPERATIONS]))]:
        found = EffectivePermissions(acls=tuple(Acl(kind, "t", "User:anne", each) for kind, each in acls))
        assert found.patterns(permission) == (["t"] if ask(found, "t") else [])
    prefix = tuple(Acl(kind, "t", "User:anne", each, PatternType.PREFIXED) for kind, each in needed)
    held = EffectivePermissions(**{permission.value: ("a", "b*c")}, acls=prefix)
    assert held.patterns(permission) == ["a", "b*c", "t*"]
    assert {each.name for each in held.list_acls("anne")} == {"a", "b*c"}, "no ACL has a star before its end"


def test_an_administrator_of_the_file_cannot_be_locked_out() -> None:
    denial = Acl(ResourceType.CLUSTER, CLUSTER_NAME, "User:*", Operation.ALL, effect=AclEffect.DENY)
    assert EffectivePermissions(admin=("*",), acls=(denial,)).is_administrator
    others = [attrs.evolve(denial, resource_type=kind, name="*") for kind in TYPES[:-1]]
    found = EffectivePermissions(admin=("t*",), read=("*",), groups=("*",), write=("*",), acls=(denial, *others))
    assert not any(found.allow(*each) for each in questions())
    assert not found.may_create_by_use("t")
    assert not found.may_move("t")
    assert not found.may_write_anywhere()


@pytest.mark.parametrize("operation", [Operation.WRITE, Operation.CREATE])
def test_no_topic_is_created_by_use_for_a_writer_of_the_file_who_is_denied_to_write_it(operation: Operation) -> None:
    denial = Acl(ResourceType.TOPIC, "t", "User:*", operation, effect=AclEffect.DENY)
    found = EffectivePermissions(write=("*",), acls=(denial,))
    assert [found.may_create_by_use(each) for each in ("t", "u")] == [False, True]


PROBLEMS: list[tuple[dict[str, Any], str]] = [
    ({"resource_type": ResourceType.ANY}, "the resource type ANY"),
    ({"pattern_type": PatternType.ANY}, "the pattern type ANY"),
    ({"pattern_type": PatternType.MATCH}, "the pattern type MATCH"),
    ({"operation": Operation.ANY}, "name one operation"),
    ({"effect": AclEffect.ANY}, "name one operation, or ALL; and ALLOW or DENY"),
    ({"name": ""}, "the name of the resource is empty"),
    ({"resource_type": ResourceType.CLUSTER}, "the literal 'kafka-cluster', not 't'"),
    (
        {"resource_type": ResourceType.CLUSTER, "name": CLUSTER_NAME, "pattern_type": PatternType.PREFIXED},
        "the literal 'kafka-cluster'",
    ),
    ({"principal": "anne"}, "such as User:anne"),
    ({"principal": "User:"}, "such as User:anne"),
    ({"principal": "Group:anne"}, "such as User:anne"),
    *(({"host": host}, "expected one address as the host") for host in ("", "10.0.0.0/8", "localhost", "0:0::1")),
]


def test_an_acl_that_cannot_stand_is_refused_with_its_reason() -> None:
    acl = Acl(ResourceType.TOPIC, "t", "User:anne", Operation.READ)
    right: list[dict[str, Any]] = [{}, {"host": "10.0.0.1"}, {"host": "::1"}, {"principal": "User:*"}, {"name": "*"}]
    for change in right:
        assert not find_acl_problem(attrs.evolve(acl, **change))
    for problem, reason in PROBLEMS:
        assert reason in find_acl_problem(attrs.evolve(acl, **problem)), problem


def test_an_address_has_one_form() -> None:
    for host, expected in {
        "10.0.0.1": "10.0.0.1",
        "::ffff:10.0.0.1": "10.0.0.1",
        "0:0:0:0:0:0:0:1": "::1",
        "fe80::1%eth0": "fe80::1",
    }.items():
        assert normalize_host(host) == expected
