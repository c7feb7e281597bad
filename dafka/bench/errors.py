"""What can go wrong with a benchmark."""

from dafka.errors import LocalError


class BenchError(LocalError):
    """A process that is measured did not do what it should, or what was asked for cannot be measured."""
