"""Kafka's protocol: messages, coordinators and connections. Everything that decides does no I/O."""
