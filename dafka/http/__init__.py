"""HTTP, WebSocket and the console of a broker. This package needs the extra `dafka[web]`."""
