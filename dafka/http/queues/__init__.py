"""Queues: share groups for clients of HTTP and WebSocket, beside those of Kafka."""
