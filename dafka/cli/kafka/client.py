"""A small client of Kafka's protocol: one connection to each broker, one request at a time."""

from __future__ import annotations

import itertools
import socket
import ssl
from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import click

from dafka.broker.access.credentials import load_scramp
from dafka.broker.access.login import PLAIN
from dafka.broker.core.error_codes import ErrorCode, error_name
from dafka.cli.terminal import UsageMistake
from dafka.errors import EncodingError, WireError
from dafka.kafka.protocol.apis import ADVERTISED, RESPONSES, TOPIC_ID_VERSIONS
from dafka.kafka.protocol.constants import ApiKey
from dafka.kafka.protocol.frames import FrameSplitter, decode_response, encode_request
from dafka.kafka.protocol.messages.cluster import MetadataRequest, MetadataRequestTopic
from dafka.kafka.protocol.messages.connections import ApiVersionsRequest, SaslAuthenticateRequest, SaslHandshakeRequest
from dafka.kafka.protocol.messages.membership import FindCoordinatorRequest
from dafka.kafka.protocol.tables import VERSION_MAX, Request, Response

TIMEOUT_S = 30.0
"""How long a broker may take to answer."""

CLIENT_ID = "dafka"
_READ_BYTES = 2**16
_GROUP = 0


class BrokerUnreachable(click.ClickException):
    """The broker does not answer. Prints one sentence; the exit status is 1."""


@attrs.frozen
class Access:
    """How to reach a broker, and as which user; without a user, there is no authentication.

    `tls_ca` is a file with the authorities of the broker's certificate; empty for those of the system. The client's own
    certificate and its key are two files, or one, so that `tls_key` is empty.
    """

    host: str
    port: int
    tls: bool = False
    tls_ca: str = ""
    tls_certificate: str = ""
    tls_key: str = ""
    user: str = ""
    mechanism: str = ""
    password: str = attrs.field(default="", repr=False)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class KafkaClient:
    """A connection to a broker. Use it as a context manager.

    Raise `BrokerUnreachable` if the broker does not answer, and `UsageMistake` if it refuses the user.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self._numbers = itertools.count(1)
        self._splitter = FrameSplitter(2**31 - 1)
        self._versions: dict[int, tuple[int, int]] = {}
        self._others: dict[tuple[str, int], KafkaClient] = {}
        self._socket = _connect(access)
        try:
            self._learn_versions()
            if access.user:
                self._log_in()
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> KafkaClient:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._others.values():
            each._socket.close()
        self._socket.close()

    def connect(self, host: str, port: int) -> KafkaClient:
        """Return a connection to another broker, as the same user. It is closed with this one."""
        access = self._access
        if (host, port) == (access.host, access.port):
            return self
        if (host, port) not in self._others:
            self._others[host, port] = KafkaClient(attrs.evolve(access, host=host, port=port))
        return self._others[host, port]

    def ask(self, request: Request) -> Any:
        """Return the response to a request, in the newest version that both sides know and that names topics.

        Raise `BrokerUnreachable` if the broker does not answer, and `UsageMistake` if it does not serve this API.
        """
        key = ApiKey(request.API_KEY)
        own = ADVERTISED[key]
        first, last = self._versions.get(key, (1, 0))
        version = min(own.last, last, TOPIC_ID_VERSIONS.get(key, VERSION_MAX) - 1)
        if version < max(own.first, first):
            raise UsageMistake(f"the broker at {self._access} does not serve {key.name}")
        return self._exchange(request, version)

    def serves(self, key: ApiKey) -> bool:
        """Return whether the broker serves an API."""
        return key in self._versions

    def find_metadata(self, topics: Sequence[str] | None) -> Any:
        """Return the response with the brokers, and with topics and their logs; all topics if None."""
        asked = None if topics is None else [MetadataRequestTopic(name=name) for name in dict.fromkeys(topics)]
        return self.ask(MetadataRequest(topics=asked, allow_auto_topic_creation=False))

    def connect_all(self) -> list[KafkaClient]:
        """Return a connection to each broker of the cluster."""
        brokers = self.find_metadata([]).brokers
        return [self] if len(brokers) < 2 else [self.connect(each.host, each.port) for each in brokers]

    def connect_coordinator(self, group: str) -> KafkaClient:
        """Return a connection to the broker that coordinates a group.

        Raise `UsageMistake` if no broker coordinates the group at present, or the user may not use it.
        """
        if len(self.find_metadata([]).brokers) < 2:
            return self
        answer = self.ask(FindCoordinatorRequest(key=group, key_type=_GROUP, coordinator_keys=[group]))
        found = answer.coordinators[0] if answer.coordinators else answer
        check_error(found.error_code, f"group {group!r}", found.error_message)
        return self.connect(found.host, found.port)

    def connect_leaders(self, logs: Sequence[tuple[str, int]]) -> dict[tuple[str, int], KafkaClient]:
        """Return a connection to the leader of each log, by topic and number.

        A log without a leader has this one, over which its broker says so.
        """
        response = self.find_metadata([topic for topic, _ in logs])
        brokers = {each.node_id: each for each in response.brokers}
        leaders = {
            (topic.name, part.partition_index): part.leader_id for topic in response.topics for part in topic.partitions
        }
        found = {}
        for log in logs:
            leader = brokers.get(leaders.get(log, -1))
            found[log] = self if leader is None or len(brokers) < 2 else self.connect(leader.host, leader.port)
        return found

    def _exchange(self, request: Request, version: int) -> Response:
        number = next(self._numbers)
        try:
            self._socket.sendall(encode_request(request, version, number, CLIENT_ID))
            return decode_response(self._receive(), RESPONSES[request.API_KEY], version)
        except EncodingError as error:
            raise UsageMistake(str(error)) from None
        except WireError as error:
            raise BrokerUnreachable(f"{self._access} does not answer as a broker: {error}") from None
        except OSError as error:
            raise BrokerUnreachable(
                f"the broker at {self._access} does not answer: {error.strerror or error}"
            ) from None

    def _receive(self) -> bytes:
        while True:
            data = self._socket.recv(_READ_BYTES)
            if not data:
                raise BrokerUnreachable(f"the broker at {self._access} ended the connection{self._advise()}")
            frames = self._splitter.receive(data)
            if frames:
                return frames[0]

    def _advise(self) -> str:
        if not self._access.tls:
            return "; if it expects TLS, use --tls or --tls-ca" + (
                "" if self._access.user else ", and if it expects authentication, --user"
            )
        return "" if self._access.user else "; if it expects authentication, use --user"

    def _learn_versions(self) -> None:
        response: Any = self._exchange(ApiVersionsRequest(), 0)
        if response.error_code:
            raise BrokerUnreachable(f"the broker at {self._access} refuses: {error_name(response.error_code)}")
        self._versions = {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}

    def _log_in(self) -> None:
        access = self._access
        shaken = self.ask(SaslHandshakeRequest(mechanism=access.mechanism))
        if shaken.error_code == ErrorCode.ILLEGAL_SASL_STATE:
            raise UsageMistake(f"the broker at {access} expects no authentication: omit --user")
        if shaken.error_code:
            known = ", ".join(shaken.mechanisms)
            raise UsageMistake(f"the broker at {access} does not know {access.mechanism}: use --mechanism with {known}")
        if access.mechanism == PLAIN:
            self._authenticate(f"\0{access.user}\0{access.password}".encode())
            return
        scramp = load_scramp()
        login = scramp.ScramClient([access.mechanism], access.user, access.password)
        try:
            login.set_server_first(self._authenticate(login.get_client_first().encode()).decode())
            login.set_server_final(self._authenticate(login.get_client_final().encode()).decode())
        except scramp.ScramException:
            raise UsageMistake(f"the broker at {access} does not prove that it knows the user") from None

    def _authenticate(self, message: bytes) -> bytes:
        answer = self.ask(SaslAuthenticateRequest(auth_bytes=message))
        if answer.error_code:
            reason = answer.error_message or error_name(answer.error_code)
            raise UsageMistake(f"the broker at {self._access} refuses the user {self._access.user!r}: {reason}")
        return bytes(answer.auth_bytes)


def check_error(code: int, what: str, message: str | None = None) -> None:
    """Raise `UsageMistake` if a response has an error.

    The sentence begins with what was asked for, with its name, such as "topic 'orders'"; the broker's explanation
    follows.
    """
    if code:
        explained = _EXPLAINED.get(code)
        raise UsageMistake(f"{what}: {message or explained or error_name(code)}")


def report_results(results: Iterable[tuple[str, str, int, str | None]]) -> None:
    """Print what was done, and raise the first error.

    Each result has what to print if it was done, what it is about, its error code and the broker's explanation.
    """
    refused = []
    for done, about, code, message in results:
        if code:
            refused.append((code, about, message))
        else:
            click.echo(done, err=True)
    if refused:
        check_error(*refused[0])


def report_deletions(kind: str, results: Iterable[tuple[str, int, str | None]]) -> None:
    """Print which names were deleted, and raise the first error; each name has an error code and an explanation."""
    report_results((f"deleted {name}", f"{kind} {name!r}", code, message) for name, code, message in results)


_EXPLAINED: dict[int, str] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "there is no such topic",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "a topic cannot have this name",
    ErrorCode.GROUP_ID_NOT_FOUND: "there is no such group",
    ErrorCode.NON_EMPTY_GROUP: "the group has members: stop them first",
    ErrorCode.UNKNOWN_MEMBER_ID: "the group has members: stop them first",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "it has no leader at present: too few of its replicas are alive",
    ErrorCode.LEADER_NOT_AVAILABLE: "it has no leader at present: too few of its replicas are alive",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "no broker coordinates it at present: try again",
    ErrorCode.NOT_COORDINATOR: "another broker coordinates it by now: try again",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "the user is not permitted to do this (TOPIC_AUTHORIZATION_FAILED)",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "the user is not permitted to do this (GROUP_AUTHORIZATION_FAILED)",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "the user is not permitted to do this (CLUSTER_AUTHORIZATION_FAILED)",
}


def _connect(access: Access) -> socket.socket:
    context = make_context(access.tls_ca, access.tls_certificate, access.tls_key) if access.tls else None
    try:
        found = socket.create_connection((access.host, access.port), TIMEOUT_S)
    except OSError as error:
        advice = "start a broker there with `dafka broker`, or name another with --kafka"
        raise BrokerUnreachable(f"cannot connect to {access}: {error.strerror or error}; {advice}") from None
    if context is None:
        return found
    try:
        return context.wrap_socket(found, server_hostname=access.host)
    except ssl.SSLCertVerificationError as error:
        found.close()
        raise UsageMistake(f"the certificate of {access} is not accepted: {error.verify_message}") from None
    except (OSError, ValueError) as error:
        found.close()
        raise BrokerUnreachable(f"{access} does not speak TLS: {error}") from None


def make_context(authority: str, certificate: str = "", key: str = "") -> ssl.SSLContext:
    """Return the context of TLS with these files, as `Access` has them.

    Raise `UsageMistake` if a file cannot be read, or is malformed.
    """
    try:
        context = ssl.create_default_context(cafile=authority or None)
        if certificate:
            context.load_cert_chain(certificate, key or None)
    except OSError as error:
        names = ", ".join(filter(None, (authority, certificate, key)))
        raise UsageMistake(f"cannot load the certificates of {names}: {error.strerror or error}") from None
    return context
