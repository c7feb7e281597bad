"""The server that HTTP clients and browsers connect to."""
