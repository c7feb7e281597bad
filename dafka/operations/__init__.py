"""Operation of a process that runs nodes: structured logs, metrics, health checks, and notifications for systemd."""

from dafka.operations.logs import SentenceFormatter, add_event, json_formatter
from dafka.operations.monitor import Monitor, MonitoredNode
from dafka.operations.supervision import begin_stopping, open_operations
from dafka.operations.systemd import Notifier

__all__ = [
    "Monitor",
    "MonitoredNode",
    "Notifier",
    "SentenceFormatter",
    "add_event",
    "begin_stopping",
    "json_formatter",
    "open_operations",
]
