"""Brokers with users and TLS, and clients of Kafka that authenticate."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import attrs
import trustme
from confluent_kafka import Producer

from dafka import Config
from dafka.broker.access.credentials import MECHANISMS, Credential, derive_credential
from dafka.broker.access.permissions import Permissions
from dafka.broker.access.users_file import User, write_users
from dafka.broker.core.scram_credentials import ITERATIONS_MIN
from dafka.testing import RunningKafka, kafka
from tests.kafka.server.clients import Confluent

DEADLINE_S = 60
PASSWORD = "right"
EVERYTHING = Permissions(*[("*",)] * 5)


class RefusedError(Exception):
    """The client could not do what it was asked to."""


@functools.cache
def make_credentials() -> Mapping[str, Credential]:
    return {each: derive_credential(each, PASSWORD, ITERATIONS_MIN) for each in MECHANISMS}


def write_user_file(path: Path, **permissions: Permissions) -> None:
    """Write a file of users, whose passwords are all `PASSWORD`."""
    write_users(path, {name: User(name, make_credentials(), each) for name, each in permissions.items()})


class Authority:
    """An authority that issues certificates."""

    def __init__(self, folder: Path) -> None:
        self._authority = trustme.CA()
        self._folder = folder
        self.path = folder / "authority.pem"
        self._authority.cert_pem.write_to_path(str(self.path))

    def issue(self, name: str, **settings: Any) -> Path:
        path = self._folder / f"{name}.pem"
        self._authority.issue_cert(name, **settings).private_key_and_cert_chain_pem.write_to_path(str(path))
        return path


def run_secured(**settings: Any) -> AbstractContextManager[RunningKafka]:
    return kafka("memory:", Config().with_clients(**settings))


@attrs.frozen
class Login:
    """What a client needs to connect: there is TLS if it has the authority of the broker's certificate."""

    mechanism: str = ""
    user: str = "alice"
    password: str = PASSWORD
    authority: Path | None = None
    certificate: Path | None = None

    @property
    def protocol(self) -> str:
        return ("SASL_" if self.mechanism else "") + ("PLAINTEXT" if self.authority is None else "SSL")

    def settings(self) -> dict[str, Any]:
        """Return the settings of librdkafka."""
        settings: dict[str, Any] = {"security.protocol": self.protocol, "socket.timeout.ms": 30_000}
        if self.mechanism:
            settings |= {"sasl.mechanism": self.mechanism, "sasl.username": self.user, "sasl.password": self.password}
        if self.authority is not None:
            settings["ssl.ca.location"] = str(self.authority)
        if self.certificate is not None:
            settings |= {"ssl.certificate.location": str(self.certificate), "ssl.key.location": str(self.certificate)}
        return settings


def write_as(login: Login, servers: str, topic: str) -> None:
    """Publish a record with confluent-kafka, and wait until it is acknowledged. Raises `RefusedError`."""
    results: list[Any] = []
    problems: list[Any] = []
    settings = {"bootstrap.servers": servers, "log_level": 0, "error_cb": problems.append}
    producer = Producer(settings | login.settings())
    producer.produce(topic, b"value", on_delivery=lambda error, _: results.append(error))
    deadline = time.monotonic() + DEADLINE_S
    while not results and not problems and time.monotonic() < deadline:
        producer.poll(0.1)
    if any(each is not None for each in results) or not results:
        producer.purge()
        raise RefusedError(str(problems or results))


def read_as(login: Login, servers: str, topic: str) -> bytes | None:
    """Return the value of the first record of a topic, as confluent-kafka reads it."""
    (found,) = Confluent(**login.settings()).read(servers, topic, 1)
    return found.value
