"""Queries the other brokers: for pages about the whole cluster, and for requests that only one broker can serve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import trio

from dafka.broker.broker import Broker
from dafka.broker.core.metadata.brokers import BrokerRegistration
from dafka.http.forwarding.broker_client import BrokerClient, BrokerError
from dafka.http.server.errors import WebError

SHOWN_WAIT_S = 2.0
"""How long a page waits for other brokers."""


class OtherBrokers:
    """The other brokers of the cluster.

    Args:
        broker: The broker and its coordinators.
        client: Connects to other brokers.
    """

    def __init__(self, broker: Broker, client: BrokerClient) -> None:
        self._broker = broker.node
        self._client = client

    async def request(self, broker: BrokerRegistration, method: str, target: str, document: Any = None) -> Any:
        """Send a request to a broker, and return the document in its answer.

        Args:
            broker: The broker.
            method: The method.
            target: The path and the query.
            document: The JSON document of the request; None for none.

        Returns:
            The document; None if the answer has none.

        Raises:
            WebError: The broker refuses the request, or does not answer.
        """
        try:
            return await self._client.request(broker, method, target, document)
        except BrokerError as error:
            raise WebError("broker_unavailable", f"broker {broker.number} {error}") from None

    async def get_all(self, target: str) -> Mapping[str, Any]:
        """Return the prompt responses of the other living brokers, by address.

        Args:
            target: The path and the query.

        Returns:
            The documents of the brokers that have answered.
        """
        found: dict[str, Any] = {}

        async def get(broker: BrokerRegistration) -> None:
            try:
                with trio.move_on_after(SHOWN_WAIT_S):
                    found[broker.address] = await self._client.request(broker, "GET", target, is_page=True)
            except (BrokerError, WebError):
                pass  # the page shows the rest without it

        own = self._broker.address
        async with trio.open_nursery() as nursery:
            for each in self._broker.brokers.living():
                if each.address != own and each.http_url:
                    nursery.start_soon(get, each)
        return found
