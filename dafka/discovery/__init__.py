"""Who is out there: plugins that make a node known and find the others."""

from dafka.discovery.base import Advertisement, Discovery, open_discovery
from dafka.protocol import DiscoveryEvent, Settled

__all__ = ["Advertisement", "Discovery", "DiscoveryEvent", "Settled", "open_discovery"]
