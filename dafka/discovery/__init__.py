"""Who is out there: plugins that make a node known and find the others."""

from dafka.discovery.base import Advertisement, Discovery, Report, Settled, open_discovery

__all__ = ["Advertisement", "Discovery", "Report", "Settled", "open_discovery"]
