"""Kafka's protocol, for clients that connect to a broker."""
