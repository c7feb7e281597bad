"""The signatures of brokers: each counts once and for one connection, and nothing is remembered of it elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dafka.errors import ConfigError
from dafka.http.forwarding.credentials import SCHEME, RequestSigner, SignatureChecker, create_key, read_secret

SECRET = "s" * 32
A, B = "a" * 32, "b" * 32
REQUEST = ("GET", "/topics")


def connect(secret: str = SECRET, receiver: str = B) -> tuple[RequestSigner, SignatureChecker]:
    checker = SignatureChecker(SECRET, B)
    return RequestSigner(secret, A, receiver, checker.challenge()), checker


def credential(signer: RequestSigner, *request: str) -> str:
    return signer.sign(*(request or REQUEST)).removeprefix(f"{SCHEME} ")


def test_each_signature_counts_once() -> None:
    signer, checker = connect()
    first, second = credential(signer), credential(signer)
    assert not checker.check(second, *REQUEST)
    assert checker.check(first, *REQUEST)
    assert not checker.check(first, *REQUEST)
    assert checker.check(second, *REQUEST)
    assert not checker.check(second, *REQUEST)


def test_signatures_count_for_one_connection() -> None:
    (signer, checker), (_, other) = connect(), connect()
    signed = credential(signer)
    assert not other.check(signed, *REQUEST)
    checker.challenge()
    assert not checker.check(signed, *REQUEST)


def test_signatures_count_for_one_request() -> None:
    signer, checker = connect()
    signed = credential(signer, "GET", "/groups")
    assert not checker.check(signed, "GET", "/topics")
    assert not checker.check(signed, "DELETE", "/groups")
    assert checker.check(signed, "GET", "/groups")


@pytest.mark.parametrize(("secret", "receiver"), [("t" * 32, B), (SECRET, A), ("", B)])
def test_signatures_of_others(secret: str, receiver: str) -> None:
    signer, checker = connect(secret, receiver)
    assert not checker.check(credential(signer), *REQUEST)


@pytest.mark.parametrize("given", ["", "x", "a.1", "a.1.", ".1.\xff", "a.\xb2.x", "a.-1.x", "a.99999999999999999999.x"])
def test_malformed_credentials(given: str) -> None:
    _, checker = connect()
    assert not checker.check(given, *REQUEST)


def test_without_a_secret_nobody_is_a_broker() -> None:
    checker = SignatureChecker("", B)
    assert not checker.check(credential(RequestSigner("", A, B, checker.challenge())), *REQUEST)
    assert not SignatureChecker(SECRET, B).check(credential(RequestSigner(SECRET, A, B, "")), *REQUEST)


@pytest.mark.parametrize(
    ("content", "secret"),
    [
        (b"s" * 32, "s" * 32),
        (b" \n" + b"s" * 32 + b"\n", "s" * 32),
        (b"s" * 31, None),
        (b"\xff" * 40, None),
        (b"s" * 31 + b"\n", None),
    ],
)
def test_a_secret_has_a_smallest_length(tmp_path: Path, content: bytes, secret: str | None) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    if secret is not None:
        assert read_secret(str(path)) == secret
    else:
        with pytest.raises(ConfigError, match="secret_file"):
            read_secret(str(path))
    assert read_secret("") == ""
    with pytest.raises(ConfigError, match="cannot read"):
        read_secret(str(tmp_path / "none"))


def test_keys_differ() -> None:
    assert len({create_key() for _ in range(100)}) == 100


def test_requests_use_nothing_up() -> None:
    """Each request of a client made another broker remember a credential, until there were 100,000."""
    signer, checker = connect()

    def size() -> int:
        return sum(sys.getsizeof(each) for each in vars(checker).values())

    before = size()
    for _ in range(2_000):
        assert checker.check(credential(signer), *REQUEST)
    assert size() - before < 100
