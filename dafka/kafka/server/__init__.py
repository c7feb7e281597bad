"""The server that Kafka's clients connect to."""
