"""Messages between brokers."""
