"""The parts that all servers for clients share: sockets, connection limits, memory and TLS."""
