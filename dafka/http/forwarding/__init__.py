"""Forwards requests of clients to the brokers that lead the logs."""
