"""Brokers with users and TLS, and a client of Kafka that authenticates."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import attrs
import trustme
from confluent_kafka import Consumer, KafkaException, Producer

from dafka import Config
from dafka.broker.access.credentials import ITERATIONS_MIN, MECHANISMS, Credential, derive_credential
from dafka.broker.access.permissions import Permissions
from dafka.broker.access.users_file import User, write_users
from dafka.testing import RunningKafka, kafka

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

    @property
    def protocol(self) -> str:
        return ("SASL_" if self.mechanism else "") + ("PLAINTEXT" if self.authority is None else "SSL")


class Confluent:
    """confluent-kafka, which is librdkafka."""

    def _settings(self, servers: str, login: Login) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "bootstrap.servers": servers,
            "security.protocol": login.protocol,
            "log_level": 0,
            "error_cb": lambda _: None,
            "socket.timeout.ms": 3000,
        }
        if login.mechanism:
            settings |= {
                "sasl.mechanism": login.mechanism,
                "sasl.username": login.user,
                "sasl.password": login.password,
            }
        if login.authority is not None:
            settings["ssl.ca.location"] = str(login.authority)
        return settings

    def write(self, servers: str, topic: str, login: Login) -> None:
        """Publish a record and wait until it is acknowledged. Raises `RefusedError`."""
        results: list[Any] = []
        problems: list[Any] = []
        producer = Producer({**self._settings(servers, login), "error_cb": problems.append})
        producer.produce(topic, b"value", on_delivery=lambda error, _: results.append(error))
        deadline = time.monotonic() + DEADLINE_S
        while not results and not problems and time.monotonic() < deadline:
            producer.poll(0.1)
        if any(each is not None for each in results) or not results:
            producer.purge()
            raise RefusedError(str(problems or results))

    def read(self, servers: str, topic: str, login: Login) -> bytes:
        """Return the first record of a topic. Raises `RefusedError`."""
        settings = {"group.id": "readers", "auto.offset.reset": "earliest", "enable.auto.commit": False}
        consumer = Consumer({**self._settings(servers, login), **settings})
        try:
            consumer.subscribe([topic])
            for _ in range(DEADLINE_S):
                message = consumer.poll(1)
                if message is not None and message.error() is None:
                    return bytes(message.value() or b"")
                if message is not None and not message.error().retriable():
                    raise RefusedError(message.error())
            raise RefusedError("nothing was read")
        except KafkaException as error:
            raise RefusedError(error) from None
        finally:
            consumer.close()
