"""The interface of assignors for consumer groups (KIP-848), which plugins can add to a broker.

An assignor is a class with a method `assign`. Its entry point in the group `dafka.assignors` has the name that clients
use, and names the class, or a function without arguments that makes the assignor.
"""

from dafka.broker.core.groups.consumer.assignors import Assignor, Subscriber
from dafka.broker.core.groups.consumer.members import Assignment
from dafka.broker.core.metadata.log_replicas import LogKey

__all__ = ["Assignment", "Assignor", "LogKey", "Subscriber"]
