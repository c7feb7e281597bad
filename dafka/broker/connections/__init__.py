"""What the servers for clients listen with: sockets, limits, memory and TLS."""
