"""WebSocket, HTTP and the console of a broker. This package needs the extra `dafka[web]`."""

from dafka.web.serve import serve_web
from dafka.web.web_listener import WebListener

__all__ = ["WebListener", "serve_web"]
