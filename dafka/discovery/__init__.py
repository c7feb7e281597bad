"""Discovery: plugins that advertise a node and find other nodes."""

from dafka.discovery.base import Advertisement, Discovery, open_discovery
from dafka.protocol import DiscoveryEvent, Settled

__all__ = ["Advertisement", "Discovery", "DiscoveryEvent", "Settled", "open_discovery"]
