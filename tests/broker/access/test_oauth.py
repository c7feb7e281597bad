"""Tokens: only what the issuer has signed for this cluster counts, and what anybody has changed in it does not."""

from __future__ import annotations

import hmac
import json
import os
import sys
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, Key, KeySet, OctKey, OKPKey, RSAKey

from dafka.broker.access import oauth
from dafka.broker.access.issuer_keys import KeysFile, open_keys
from dafka.broker.access.login import LoginError, TokenLogin
from dafka.broker.access.oauth import InvalidTokenError, TokenVerifier, UnknownKeyError
from dafka.config import ClientsConfig, Config
from dafka.errors import ConfigError, MissingExtraError

RSA = RSAKey.generate_key(2048, {"kid": "rsa"})
EC = ECKey.generate_key("P-256", {"kid": "ec"})
OKP = OKPKey.generate_key("Ed25519", {"kid": "okp"})
STRANGER = RSAKey.generate_key(2048, {"kid": "rsa"})


def write_keys(path: Path, *keys: Key) -> None:
    path.write_text(json.dumps(KeySet(list(keys)).as_dict(private=False)))


@pytest.fixture
def verifier(tmp_path: Path) -> TokenVerifier:
    write_keys(tmp_path / "keys", RSA, EC, OKP)
    return open_verifier(settings(tmp_path / "keys"))


def open_verifier(clients: ClientsConfig) -> TokenVerifier:
    keys = open_keys(clients)
    assert keys is not None
    return TokenVerifier(clients, keys)


def settings(path: Path, **others: str) -> ClientsConfig:
    given: dict[str, Any] = {
        "oauth_issuer": "https://issuer.example",
        "oauth_audience": "dafka",
        "users": "users",
        **others,
    }
    return Config().with_clients(oauth_keys=str(path), **given).clients


def claims(**changed: Any) -> dict[str, Any]:
    found = {"iss": "https://issuer.example", "aud": "dafka", "sub": "anne", "exp": int(time.time()) + 600, **changed}
    return {name: each for name, each in found.items() if each is not None}


def sign(key: Key = RSA, algorithm: str = "RS256", header: dict[str, Any] | None = None, **changed: Any) -> str:
    fields = {"alg": algorithm, "kid": key.kid, **(header or {})}
    given = {name: each for name, each in fields.items() if each is not None}
    return jwt.encode(given, claims(**changed), key, algorithms=[algorithm])


async def test_tokens_of_the_issuer_name_their_user(verifier: TokenVerifier) -> None:
    for key, algorithm in ((RSA, "RS256"), (RSA, "PS512"), (EC, "ES256"), (OKP, "Ed25519")):
        expires_at = int(time.time()) + 100
        early = int(time.time()) + 15
        found = await verifier.verify(sign(key, algorithm, exp=expires_at, nbf=early, aud=["other", "dafka"]))
        assert found == ("anne", expires_at)


@pytest.mark.parametrize("expires_at", [2e10, 2**40 + 0.5, 2**63, 10**18, 1e300, 10**400])
async def test_times_of_expiry_are_numbers_of_any_size(verifier: TokenVerifier, expires_at: float) -> None:
    found = await verifier.verify(sign(exp=expires_at))
    assert 2e10 <= found.expires_at <= expires_at
    assert found.expires_at * 1000 < 2**63, "a response has it in ms"


def encode(value: Any) -> str:
    return urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def forge_without_signature() -> str:
    return f"{encode({'alg': 'none'})}.{encode(claims())}."


def sign_with_public_key() -> str:
    """Sign by a secret that everybody knows: the bytes of the public key."""
    signed = f"{encode({'alg': 'HS256', 'kid': 'rsa'})}.{encode(claims())}"
    signature = hmac.digest(RSA.as_pem(private=False), signed.encode(), "sha256")
    return f"{signed}.{urlsafe_b64encode(signature).rstrip(b'=').decode()}"


def change_claims() -> str:
    head, _, signature = sign().split(".")
    return f"{head}.{encode(claims(sub='root'))}.{signature}"


WRONG: dict[str, Callable[[], str]] = {
    "nothing": lambda: "",
    "no token": lambda: "a.b.c",
    "without signature": forge_without_signature,
    "by the public key": sign_with_public_key,
    "changed": change_claims,
    "another key": lambda: sign(STRANGER),
    "unknown key": lambda: sign(header={"kid": "other"}),
    "no key": lambda: sign(header={"kid": None}),
    "other algorithm of the key": lambda: sign(EC, "ES256", header={"kid": "rsa"}),
    "issuer": lambda: sign(iss="https://other.example"),
    "no issuer": lambda: sign(iss=None),
    "audience": lambda: sign(aud="other"),
    "audiences": lambda: sign(aud=["other", "dafka2"]),
    "no audience": lambda: sign(aud=None),
    "expired": lambda: sign(exp=int(time.time()) - 1),
    "no end": lambda: sign(exp=None),
    "no number as the end": lambda: sign(exp="never"),
    "too early": lambda: sign(nbf=int(time.time()) + 90),
    "no user": lambda: sign(sub=None),
    "empty user": lambda: sign(sub=""),
    "no name": lambda: sign(sub="a\0b"),
    "number as the user": lambda: sign(sub=7),
    "nested": lambda: f"{urlsafe_b64encode(b'[' * 10**5).decode().rstrip('=')}.x.y",
}


@pytest.mark.parametrize("what", WRONG)
async def test_all_other_tokens_are_refused(verifier: TokenVerifier, what: str) -> None:
    token = WRONG[what]()
    with pytest.raises(InvalidTokenError) as refused:
        await verifier.verify(token)
    assert not token or token not in str(refused.value)


@pytest.mark.parametrize(
    ("what", "claim"), [("issuer", "iss"), ("no audience", "aud"), ("audiences", "aud"), ("too early", "nbf")]
)
async def test_a_refusal_names_the_claim(verifier: TokenVerifier, what: str, claim: str) -> None:
    with pytest.raises(InvalidTokenError, match=f"the claim '{claim}' of the token is not accepted"):
        await verifier.verify(WRONG[what]())
    with pytest.raises(InvalidTokenError, match="the token has expired"):
        await verifier.verify(WRONG["expired"]())


async def test_another_claim_can_name_the_user(tmp_path: Path) -> None:
    write_keys(tmp_path / "keys", RSA)
    found = open_verifier(settings(tmp_path / "keys", oauth_user_claim="email"))
    assert (await found.verify(sign(email="anne@example.org"))).user == "anne@example.org"
    with pytest.raises(InvalidTokenError, match="the claim 'email' of the token is no name"):
        await found.verify(sign())


async def test_keys_are_read_again_and_mistakes_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    write_keys(path, RSA)
    keys = KeysFile(path)
    verifier, token = TokenVerifier(settings(path), keys), sign()
    path.write_text("{")
    with pytest.raises(ConfigError, match="expected a set of public keys"):
        keys.refresh()
    assert (await verifier.verify(token)).user == "anne"
    write_keys(path, EC)
    os.utime(path, ns=(1, 1))
    assert keys.refresh()
    assert (await verifier.verify(sign(EC, "ES256"))).user == "anne"
    with pytest.raises(UnknownKeyError):
        await verifier.verify(token)  # though it was verified by a former key


async def test_verified_tokens_are_remembered_until_they_expire(
    verifier: TokenVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, expires_at = sign(), time.time() + 600
    assert (await verifier.verify(token)).user == "anne"
    with monkeypatch.context() as patch:
        patch.setattr(jwt, "decode", None)
        assert (await verifier.verify(token)).user == "anne"
    monkeypatch.setattr(time, "time", lambda: expires_at + 1)
    with pytest.raises(InvalidTokenError, match="the token has expired"):
        await verifier.verify(token)


async def test_a_limited_number_of_tokens_is_remembered_and_the_last_used_ones_stay(
    verifier: TokenVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oauth, "VERIFIED_MAX", 2)
    tokens = [sign(exp=int(time.time()) + 600 + number) for number in range(3)]
    for number in (0, 1, 0, 2):
        await verifier.verify(tokens[number])
    monkeypatch.setattr(jwt, "decode", decode := Mock(side_effect=jwt.decode))
    for number in (0, 2, 1):
        await verifier.verify(tokens[number])
    assert [call.args[0] for call in decode.call_args_list] == [tokens[1]]


async def test_keys_that_are_not_for_tokens_are_left_out(tmp_path: Path) -> None:
    keys = [RSA.as_dict(private=False), {"kty": "new", "kid": "a"}, {"kty": "EC", "crv": "P-1", "x": "", "y": ""}]
    keys.append({**EC.as_dict(private=False), "use": "enc"})
    (tmp_path / "keys").write_text(json.dumps({"keys": keys}))
    verifier = open_verifier(settings(tmp_path / "keys"))
    assert (await verifier.verify(sign())).user == "anne"
    with pytest.raises(InvalidTokenError):
        await verifier.verify(sign(EC, "ES256"))


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"keys": 1}',
        '{"keys": [{}]}',
        '{"keys": [{"kty": "RSA"}]}',
        json.dumps({"keys": [OctKey.generate_key(256).as_dict(private=True)]}),
        json.dumps({"keys": [RSA.as_dict(private=True)]}),
    ],
)
def test_what_is_no_set_of_public_keys_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "keys").write_text(content)
    with pytest.raises(ConfigError, match="expected a set of public keys"):
        open_keys(settings(tmp_path / "keys"))


def test_settings_say_whose_tokens_count(tmp_path: Path) -> None:
    write_keys(tmp_path / "keys", RSA)
    assert open_keys(Config().clients) is None
    for name in ("oauth_issuer", "oauth_audience", "users"):
        with pytest.raises(ConfigError, match="expected oauth_issuer, oauth_audience and users"):
            open_keys(settings(tmp_path / "keys", **{name: ""}))
    with pytest.raises(ConfigError, match=r"cannot read the keys .*missing: No such file"):
        open_keys(settings(tmp_path / "missing"))


def test_tokens_need_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.partition(".")[0] == "joserfc"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=r"login by OAUTHBEARER needs joserfc: pip install 'dafka\[oauth\]'"):
        open_keys(settings(tmp_path / "keys"))


async def test_a_login_ends_with_the_token(verifier: TokenVerifier) -> None:
    async def log_in(message: str) -> tuple[str | None, bool, float]:
        login = TokenLogin(verifier)
        assert await login.answer(message.encode()) == b""
        return login.user, login.is_proved, login.expires_at

    expires_at = int(time.time()) + 50
    token = sign(exp=expires_at)
    for message in (
        f"n,,\1auth=Bearer {token}\1\1",
        f"n,a=anne,\1host=h\1port=1\1auth=bearer {token}\1\1",
        f"n,,\1auth=Bearer {token}\1traceId=7\1\1",
    ):
        assert await log_in(message) == ("anne", True, expires_at)
    for message in (
        "",
        "n,,",
        f"n,a=root,\1auth=Bearer {token}\1\1",
        f"n,,\1auth=Basic {token}\1\1",
        f"\1auth=Bearer {token}\1\1",
        "n,,\1auth=Bearer \1\1",
        "n,,\1auth\1\1",
        f"n,,\1auth=Bearer {sign(STRANGER)}\1\1",
    ):
        with pytest.raises(LoginError):
            await log_in(message)
