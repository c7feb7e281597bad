"""Stands in for containers of Kafka, as Quix Streams' tests start them: each is a broker of Dafka."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class DockerContainer:
    """A container whose external listener of Kafka is served by a broker; others do not start."""

    def __init__(self, image: str, **_: Any) -> None:
        self._image = image
        self._variables: dict[str, str] = {}
        self._container: Any = None

    def with_env(self, name: str, value: str) -> DockerContainer:
        self._variables[name] = value
        return self

    def with_bind_ports(self, *_: int) -> DockerContainer:
        return self

    def with_network(self, _: object) -> DockerContainer:
        return self

    def start(self) -> None:
        if "KAFKA_ADVERTISED_LISTENERS" not in self._variables:
            raise RuntimeError(f"{self._image} does not run here")
        host, port = self._variables["KAFKA_ADVERTISED_LISTENERS"].rpartition("EXTERNAL://")[2].split(":")
        environment = {"ADVERTISED_HOST": host, "ADVERTISED_PORT": port, "NUM_PARTITIONS": "1"}
        self._container = import_module("docker").Container(environment)

    def get_logs(self) -> list[bytes]:
        return [b"Kafka Server started"] if self._container is not None and self._container.is_ready() else []

    def stop(self) -> None:
        if self._container is not None:
            self._container.stop()
