"""What all clients of HTTP and WebSocket share."""

from __future__ import annotations

from dafka.broker import Crowd, Service


class WebListener:
    """What all clients of HTTP and WebSocket share.

    Args:
        service: The broker and its coordinators.

    Attributes:
        service: The broker and its coordinators.
        url: Where the listener listens. Empty until then.
        crowd: The connections.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self.url = ""
        http = service.config.http
        self.crowd = Crowd(http.connections_max, http.connections_per_address_max)
