"""Forwarding: what clients ask of a broker about logs that other brokers lead."""
