"""Groups whose coordinator assigns the logs (KIP-848), which Kafka calls consumer groups."""
