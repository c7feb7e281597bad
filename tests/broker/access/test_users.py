"""The file of users, permissions and logins."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from functools import partial
from hashlib import pbkdf2_hmac
from pathlib import Path
from types import SimpleNamespace

import attrs
import pytest
from scramp import ScramClient, ScramException

from dafka.broker.access.credentials import (
    MECHANISMS,
    create_token,
    derive_credential,
    derive_from_salted,
    prepare_password,
    verify_password,
)
from dafka.broker.access.login import PLAIN, LoginError, begin_login
from dafka.broker.access.permissions import Permissions
from dafka.broker.access.users import Users
from dafka.broker.access.users_file import User, find_user_name_problem, read_users, write_users
from dafka.broker.core.metadata.commands import Order, SetScramCredential
from dafka.broker.core.metadata.outcome import DONE
from dafka.broker.core.scram_credentials import ScramMechanism, find_credential_problem
from dafka.errors import ConfigError
from tests.broker.access.test_acls import begin

ITERATIONS = 4096
NOTHING = Permissions()


def make_user(name: str, password: str = "secret", **patterns: tuple[str, ...]) -> User:
    credentials = {each: derive_credential(each, password, ITERATIONS) for each in MECHANISMS}
    return User(name, credentials, Permissions(**patterns))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "users"
    write_users(found, {"alice": make_user("alice", read=("orders-*",)), "bob": make_user("bob", "other")})
    return found


refused = partial(pytest.raises, LoginError, match="^unknown user or wrong password$")
"""Expects a login to be refused, with the only answer that tells nothing."""


def log_in_by_scram(users: Users, mechanism: str, name: str, password: str) -> str | None:
    client = ScramClient([mechanism], name, password)
    login = begin_login(mechanism, users)
    client.set_server_first(login.answer(client.get_client_first().encode()).decode())
    client.set_server_final(login.answer(client.get_client_final().encode()).decode())
    return login.user


def test_users_are_read_as_they_were_written(path: Path) -> None:
    users = read_users(path)
    assert list(users) == ["alice", "bob"]
    assert users["alice"].permissions == Permissions(read=("orders-*",))
    copy = path.with_name("copy")
    write_users(copy, users)
    assert read_users(copy) == users


def test_file_has_no_password_and_only_its_owner_reads_it(path: Path) -> None:
    assert "secret" not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o604)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_users(path)


def test_same_password_has_different_credentials() -> None:
    first, second = (derive_credential("SCRAM-SHA-256", "secret", ITERATIONS) for _ in range(2))
    assert first.salt != second.salt
    assert first.stored_key != second.stored_key
    assert repr(first) == f"Credential(iterations={ITERATIONS})"
    assert "Credential" not in repr(make_user("alice"))
    for password in ("", "\a"):
        with pytest.raises(ConfigError, match=r"^password: "):
            derive_credential("SCRAM-SHA-256", password, ITERATIONS)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_users_log_in_with_the_mechanisms_that_they_have(path: Path, mechanism: str) -> None:
    alice = make_user("alice")
    write_users(path, {"alice": alice, "one": User("one", {mechanism: alice.credentials[mechanism]}, NOTHING)})
    users = Users(path)
    assert log_in_by_scram(users, mechanism, "alice", "secret") == "alice"
    for message in (b"\0one\0secret", b"one\0one\0secret"):
        login = begin_login(PLAIN, users)
        assert (login.answer(message), login.user) == (b"", "one")
    for each in MECHANISMS:
        with nullcontext() if each == mechanism else refused():
            assert log_in_by_scram(users, each, "one", "secret") == "one"


@pytest.mark.parametrize("mechanism", ScramMechanism)
@pytest.mark.parametrize("is_in_file", [True, False])
@pytest.mark.parametrize("is_in_cluster", [True, False])
def test_a_user_logs_in_by_the_file_or_else_by_the_cluster(
    path: Path, mechanism: ScramMechanism, is_in_file: bool, is_in_cluster: bool
) -> None:
    name, salt, password = mechanism.sasl_name, b"salt of this user", "se\u00adcre\u2168"
    write_users(path, {"anne": make_user("anne", "of the file")} if is_in_file else {})
    users, state = Users(path), begin()
    users.join(state.access)
    if is_in_cluster:
        salted = pbkdf2_hmac(mechanism.hash_name, prepare_password(password), salt, ITERATIONS + 1)
        credential = derive_from_salted("anne", mechanism, ITERATIONS + 1, salt, salted)
        assert find_credential_problem(credential) == ""
        assert state.apply(Order(SetScramCredential(credential))) == DONE
    for given, is_right in (("of the file", is_in_file), ("secreIX", is_in_cluster and not is_in_file)):
        with nullcontext() if is_right else refused():
            assert log_in_by_scram(users, name, "anne", given) == "anne"
        with nullcontext() if is_right else refused():
            begin_login(PLAIN, users).answer(f"\0anne\0{given}".encode())
    assert users.is_in_file("anne") is is_in_file
    assert [each.name for each in users.list_file_users()] == ["anne"] * is_in_file
    found = users.find("anne")
    assert (found is not None) is (is_in_file or is_in_cluster)
    assert users.find("anne", is_proved=True) == (found or User("anne", {}, NOTHING))


@pytest.mark.parametrize("password", ["", "\u00ad", "\a"])
def test_a_password_without_characters_or_with_forbidden_ones_is_refused(password: str) -> None:
    with pytest.raises(ConfigError, match=r"^password: "):
        prepare_password(password)


class Exchange:
    """A login with SCRAM, message by message."""

    def __init__(self, users: Users, mechanism: str, name: str = "alice", password: str = "secret") -> None:
        self.client = ScramClient([mechanism], name, password)
        self.login = begin_login(mechanism, users)

    def begin(self, message: bytes | None = None) -> bytes:
        """Return the first answer, to the client's message or another one."""
        return self.login.answer(self.client.get_client_first().encode() if message is None else message)

    def finish(self, first: bytes) -> bytes:
        """Return the client's last message."""
        self.client.set_server_first(first.decode())
        return bytes(self.client.get_client_final().encode())


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("name", "password"), [("alice", "other"), ("carol", "secret"), ("bob", "secret")])
def test_scram_refuses_wrong_passwords_and_unknown_users(path: Path, mechanism: str, name: str, password: str) -> None:
    exchange = Exchange(Users(path), mechanism, name, password)
    last = exchange.finish(exchange.begin())
    with refused():
        exchange.login.answer(last)
    assert exchange.login.user is None


def altered(message: bytes) -> Iterator[bytes]:
    """Yield a message with each byte changed, taken out and doubled, and each of its prefixes."""
    for place, byte in enumerate(message):
        yield message[:place] + bytes([byte ^ 1]) + message[place + 1 :]
        yield message[:place] + message[place + 1 :]
        yield message[:place]
    yield message + b"x"


def test_scram_refuses_every_altered_message(path: Path) -> None:
    """The proof is over all that was said, so that nobody between the two can change any of it."""
    users, mechanism = Users(path), MECHANISMS[0]
    first = Exchange(users, mechanism).client.get_client_first().encode()
    for message in altered(first):
        exchange = Exchange(users, mechanism)
        exchange.client.get_client_first()
        with suppress(ScramException), refused():
            exchange.login.answer(exchange.finish(exchange.begin(message)))
        assert exchange.login.user is None
    genuine = Exchange(users, mechanism)
    last = genuine.finish(genuine.begin())
    proof = last.index(b",p=") + 3
    for message in (*(each for each in altered(last[:proof])), *altered(last[proof : proof + 4])):
        exchange = Exchange(users, mechanism)
        server_nonce = exchange.begin().split(b",")[0]
        changed = message if len(message) < proof - 2 else message.ljust(len(last), b"A")
        with refused():
            exchange.login.answer(changed.replace(last.split(b",")[1], server_nonce))
        assert exchange.login.user is None


def test_scram_messages_cannot_be_played_again(path: Path) -> None:
    users, mechanism = Users(path), MECHANISMS[0]
    genuine = Exchange(users, mechanism)
    message = genuine.client.get_client_first().encode()
    answer = genuine.begin(message)
    last = genuine.finish(answer)
    assert genuine.login.user is None, "not before the proof"
    final = genuine.login.answer(last)
    assert genuine.login.user == "alice"
    genuine.client.set_server_final(final.decode())
    again = begin_login(mechanism, users)
    assert again.answer(message) != answer
    with refused():
        again.answer(last)
    for order in ([last], [message, message], [message, b""]):
        login = begin_login(mechanism, users)
        for each in order[:-1]:
            login.answer(each)
        with refused():
            login.answer(order[-1])
        assert login.user is None


def test_login_names_the_user_that_it_is_for(path: Path) -> None:
    users = Users(path)
    plain = begin_login(PLAIN, users)
    for message, user in ((b"a\0bob\0x", "bob"), (b"\0carol\0", "carol"), (b"bob\0x", ""), (b"\0\0\0", ""), (b"", "")):
        assert plain.claimed_user(message) == user
    exchange = Exchange(users, MECHANISMS[1], "dave")
    assert exchange.login.claimed_user(b"n,,n=bob,r=x") == ""
    exchange.begin()
    assert exchange.login.claimed_user(b"") == "dave"


def test_unknown_user_looks_like_a_known_one(path: Path) -> None:
    users = Users(path)

    def ask(name: str, mechanism: str = "SCRAM-SHA-256") -> dict[str, str]:
        text = begin_login(mechanism, users).answer(f"n,,n={name},r=abc".encode()).decode()
        return dict(part.split("=", 1) for part in text.split(","))

    write_users(
        path, {"alice": User("alice", {each: derive_credential(each, "secret") for each in MECHANISMS}, NOTHING)}
    )
    users.refresh()
    for mechanism in MECHANISMS:
        known, unknown, other = (ask(name, mechanism) for name in ("alice", "carol", "dave"))
        assert (known["i"], len(known["s"]), len(known["r"])) == (unknown["i"], len(unknown["s"]), len(unknown["r"]))
        assert ask("carol", mechanism)["s"] == unknown["s"] != other["s"]
    assert ask("carol", MECHANISMS[0])["s"] != ask("carol", MECHANISMS[1])["s"]


@pytest.mark.parametrize(
    "message",
    [
        b"\0alice\0wrong",
        b"\0carol\0secret",
        b"\0\0",
        b"\0alice\0",
        b"bob\0alice\0secret",
        b"alice\0secret",
        b"\xff",
        b"\0alice\0\a",
    ],
)
def test_plain_refuses(path: Path, message: bytes) -> None:
    login = begin_login(PLAIN, Users(path))
    with pytest.raises(LoginError):
        login.answer(message)
    assert login.user is None


def test_passwords_of_unknown_users_are_hashed_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the time until the answer would tell who is known."""
    hashed: list[str] = []
    monkeypatch.setattr("dafka.broker.access.login.verify_password", lambda *each: hashed.append(each[2]))
    for name in ("alice", "carol"):
        with refused():
            begin_login(PLAIN, Users(path)).answer(f"\0{name}\0{name}".encode())
    assert hashed == ["alice", "carol"]


@pytest.mark.parametrize(
    "first", [b"", b"n,,", b"n,,n=alice", b"p=x,,n=alice,r=a", b"\xff", b"n,,r=a,n=alice", b"," * 999]
)
def test_malformed_scram_is_refused(path: Path, first: bytes) -> None:
    with pytest.raises(LoginError):
        begin_login("SCRAM-SHA-256", Users(path)).answer(first)


def test_password_is_compared_to_its_last_byte() -> None:
    for mechanism in MECHANISMS:
        credential = derive_credential(mechanism, "secret", ITERATIONS)
        assert verify_password(mechanism, credential, "secret")
        for place in (0, 1, len(credential.stored_key) - 1):
            changed = bytearray(credential.stored_key)
            changed[place] ^= 1
            assert not verify_password(mechanism, attrs.evolve(credential, stored_key=bytes(changed)), "secret")


def test_changed_file_is_read_again(path: Path) -> None:
    users = Users(path)
    write_users(path, {"carol": make_user("carol")})
    assert users.find("carol") is None
    assert users.refresh()
    assert users.find("carol") is not None
    assert users.find("alice") is None
    path.write_text("{")
    with pytest.raises(ConfigError, match="expected what `dafka user add` writes"):
        users.refresh()
    assert users.find("carol") is not None
    assert not users.refresh()


CREDENTIALS = {"SCRAM-SHA-256": {"salt": "", "iterations": ITERATIONS, "stored_key": "", "server_key": ""}}
WRITTEN, TOKENS = "expected what `dafka user add` writes", "expected tokens with an id"
NO_USERS: list[object] = [[], {}, {"users": []}, {"users": {"alice": {}}}]
DAMAGES: list[tuple[object, str]] = [
    *((each, WRITTEN) for each in NO_USERS),
    ({"version": 2, "users": {}}, "another version of dafka has written them: update dafka"),
    *(({"users": {name: {"credentials": CREDENTIALS}}}, f"user '{name}': expected 1 to 100") for name in ("", "a b")),
    *(
        ({"users": {"alice": {"credentials": CREDENTIALS, **changed}}}, sentence)
        for changed, sentence in (
            ({"credentials": {}}, "user 'alice': expected credentials for SCRAM-SHA-256 or SCRAM-SHA-512"),
            ({"credentials": {**CREDENTIALS, "PLAIN": CREDENTIALS["SCRAM-SHA-256"]}}, "expected credentials for"),
            ({"credentials": {"SCRAM-SHA-256": {**CREDENTIALS["SCRAM-SHA-256"], "salt": "%"}}}, "keys in base64"),
            ({"permissions": {"read": [], "all": []}}, "groups, transactions, not 'all'"),
            ({"permissions": {"read": ["a", 1]}}, "user 'alice': expected texts as patterns"),
            ({"permissions": {"read": 1}}, WRITTEN),
            ({"tokens": [{"id": 1, "sha256": ""}]}, TOKENS),
            ({"tokens": [{"id": "a", "sha256": "", "expires_at_ms": "1"}]}, TOKENS),
            ({"tokens": [{"id": "a", "sha256": "="}]}, "keys in base64"),
            ({"tokens": [{"id": "a"}]}, WRITTEN),
        )
    ),
]


def test_damaged_files_are_refused_by_one_sentence(tmp_path: Path) -> None:
    found = tmp_path / "users"
    with pytest.raises(ConfigError, match=f"cannot read the users {found}: No such file"):
        read_users(found)
    found.touch(0o600)
    found.write_text(json.dumps({"users": {"alice": {"credentials": CREDENTIALS}}}))
    assert read_users(found)["alice"].permissions == NOTHING
    for document, sentence in DAMAGES:
        found.write_text(json.dumps(document))
        with pytest.raises(ConfigError, match=f"^users {found}: .*{re.escape(sentence)}"):
            read_users(found)


def test_weak_credentials_are_refused(path: Path) -> None:
    """One of a user's credentials is enough to guess the password."""
    users = read_users(path)
    for mechanism, credential in users["bob"].credentials.items():
        for iterations, is_weak in ((4096, False), (4095, True)):
            changed = {**users["bob"].credentials, mechanism: attrs.evolve(credential, iterations=iterations)}
            write_users(path, {"bob": attrs.evolve(users["bob"], credentials=changed)})
            with pytest.raises(ConfigError, match="at least 4096 iterations") if is_weak else nullcontext():
                read_users(path)


def test_file_has_a_largest_size(path: Path) -> None:
    content = path.read_text()
    path.write_text(content + " " * (16 * 2**20 - len(content)))
    read_users(path)
    path.write_text(content + " " * (16 * 2**20 - len(content) + 1))
    with pytest.raises(ConfigError, match="expected at most 16777216 bytes"):
        read_users(path)


def test_names_of_users() -> None:
    assert [find_user_name_problem(name) for name in ("a" * 100, "aZ09._@+-")] == ["", ""]
    assert all(find_user_name_problem(name) for name in ("a" * 101, "", *(f"a{each}" for each in " \n/*ä:")))


def test_tokens_are_found_until_they_expire(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dafka.broker.access.credentials.time", SimpleNamespace(time=lambda: 1000.0))
    valid = {None, 1_000_001, 2**53}
    made = {each: create_token(each) for each in (None, 0, 1, 1_000_000, 1_000_001, 2**53)}
    assert all(len(secret) - len("dafka_") >= 43 for secret, _ in made.values()), "256 bits in Base64"
    user = make_user("carol")
    write_users(path, {"carol": attrs.evolve(user, tokens=tuple(token for _, token in made.values()))})
    users = Users(path)
    for expires_at_ms, (secret, token) in made.items():
        found = users.find_token(secret)
        assert (found is not None) is (expires_at_ms in valid)
        assert found is None or (found[0].name, found[1]) == ("carol", token)
        assert secret not in path.read_text()
        for other in (secret[:-1], f"{secret}x", secret.removeprefix("dafka_"), ""):
            assert users.find_token(other) is None
    secret, token = made[None]
    write_users(path, {"carol": user, "dave": attrs.evolve(make_user("dave"), tokens=(token,))})
    users.refresh()
    found = users.find_token(secret)
    assert found is not None
    assert found[0].name == "dave"
    write_users(path, {"carol": user})
    users.refresh()
    assert users.find_token(secret) is None


def test_file_is_on_the_disk_before_it_replaces_the_previous_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def record_sync(descriptor: int) -> None:
        found = os.fstat(descriptor)
        done.append("sync folder" if stat.S_ISDIR(found.st_mode) else f"sync {found.st_size}")
        fsync(descriptor)

    def record_replacement(source: str, target: Path) -> None:
        done.append(f"replace {os.stat(source).st_size}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(os, "replace", record_replacement)
    path.chmod(0o640)
    write_users(path, read_users(path))
    size = path.stat().st_size
    assert done == [f"sync {size}", f"replace {size}", "sync folder"]
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(path.parent.iterdir()) == [path]


def test_file_that_cannot_be_written_stays_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path.read_bytes()

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(ConfigError, match=r"cannot write the users .*No space left"):
        write_users(path, {})
    assert (path.read_bytes(), list(path.parent.iterdir())) == (before, [path])
