"""A broker whose console is shown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import attrs

from dafka import Config
from tests.http.running import SharedWeb, run_web


@attrs.frozen
class ServedBroker:
    """A broker in a thread of its own."""

    web: SharedWeb

    @property
    def url(self) -> str:
        """Where its console is."""
        return f"{self.web.broker.url}/"

    @property
    def bootstrap_servers(self) -> str:
        """Where clients of Kafka connect."""
        return self.web.broker.bootstrap_servers

    @property
    def tower_options(self) -> list[str]:
        """The options of commands whose nodes belong to its cluster."""
        beacon = self.web.config.beacon
        return ["--tower-sub", beacon.tower_sub[0], "--tower-pub", beacon.tower_pub[0]]

    def request(self, method: str, path: str, document: object = None, **headers: Any) -> Any:
        """Send a request, and return the document in the answer."""
        answer = self.web.ask(method, path, document=document, **headers)
        assert answer.status < 300, (answer.status, answer.body)
        return answer.document if answer.body else None

    def create_topic(self, name: str, log_count: int = 1, **headers: Any) -> None:
        """Create a topic."""
        self.request("POST", "/topics", {"name": name, "log_count": log_count}, **headers)

    def publish(self, topic: str, records: Iterable[Mapping[str, object]], **headers: Any) -> None:
        """Publish records, as the API has them."""
        body = "\n".join(json.dumps(each) for each in records).encode()
        target = f"/topics/{quote(topic, safe='')}/records"
        answer = self.web.ask("POST", target, body, Content_Type="application/x-ndjson", **headers)
        assert answer.status == 200, answer.body


@contextmanager
def serve_broker(folder: Path, config: Config | None = None) -> Iterator[ServedBroker]:
    """Run a broker during the block."""
    with run_web(f"filelog:{folder}", config) as web:
        yield ServedBroker(web)
