"""What an operator needs besides records: structured logs, metrics, health, and word to the service manager."""
