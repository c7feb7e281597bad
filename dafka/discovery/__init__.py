"""Who is out there: plugins that make a node known and find the others."""

from dafka.discovery.base import Advertisement, Discovery, open_discovery
from dafka.protocol import Report, Settled

__all__ = ["Advertisement", "Discovery", "Report", "Settled", "open_discovery"]
