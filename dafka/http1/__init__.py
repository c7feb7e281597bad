"""An HTTP/1.1 server over h11: the heads, bodies and connections of clients. It has no routes, and opens no sockets."""
