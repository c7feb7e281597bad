"""The brokers of a cluster: a part of its state."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.metadata.commands import DrainBroker, ForgetBroker, RegisterBroker
from dafka.broker.core.metadata.outcome import DONE, Outcome
from dafka.broker.core.metadata.state_records import BROKER, FORGOTTEN, StateRecords, decode_records

BROKERS_MAX = 1024
"""The number of broker numbers."""

NO_BROKER = Outcome(ErrorCode.BROKER_ID_NOT_REGISTERED, "there is no such broker")
"""The outcome of a command for a broker that is not registered."""


@attrs.frozen
class RegisteredBroker:
    """A broker that belongs to the cluster.

    Attributes:
        store_id: The id of its store, which is its address.
        number: Its number, the broker id of Kafka.
        is_draining: Whether its logs move to other brokers before it is removed.
        start: The number of its last start.
    """

    store_id: str
    number: int
    is_draining: bool = False
    start: str = ""


class RegisteredBrokers:
    """The registered brokers, by store id, and the ids of the stores that were forgotten."""

    def __init__(self, records: StateRecords) -> None:
        self.registered: dict[str, RegisteredBroker] = {}
        self.forgotten_ids: set[str] = set()
        self._records = records

    def find_number(self, number: int) -> RegisteredBroker | None:
        """Return the broker with a number; None if there is none."""
        return next((each for each in self.registered.values() if each.number == number), None)

    def free_number(self) -> int:
        """Return the smallest number that no broker has."""
        taken = {each.number for each in self.registered.values()}
        return next(each for each in range(len(taken) + 1) if each not in taken)

    def register(self, command: RegisterBroker) -> Outcome:
        """Register a broker, or another start of a registered one."""
        if command.store_id in self.forgotten_ids:
            return Outcome(ErrorCode.INVALID_REGISTRATION, "the cluster has forgotten this store")
        known = self.registered.get(command.store_id)
        if known is not None:
            return self._register_start(known, command)
        if not 0 <= command.number < BROKERS_MAX:
            return Outcome(
                ErrorCode.INVALID_REGISTRATION, f"a number is from 0 to {BROKERS_MAX - 1}, not {command.number}"
            )
        taken = self.find_number(command.number)
        if taken is not None and taken.store_id != command.replaces:
            return Outcome(
                ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                f"the broker {taken.store_id} has the number {command.number}",
            )
        self.forget(ForgetBroker(command.replaces))
        self._put(RegisteredBroker(command.store_id, command.number, start=_start_of(command)))
        return DONE

    def _register_start(self, known: RegisteredBroker, command: RegisterBroker) -> Outcome:
        if command.number not in {-1, known.number}:
            return Outcome(ErrorCode.INVALID_REGISTRATION, f"its number in the cluster is {known.number}")
        if known.start not in {"", *command.starts}:
            return Outcome(
                ErrorCode.STALE_BROKER_EPOCH, "the storage is an older copy or a clone: its last start is not in it"
            )
        self._put(attrs.evolve(known, start=_start_of(command)))
        return DONE

    def drain(self, command: DrainBroker) -> Outcome:
        """Start or stop draining a broker."""
        known = self.registered.get(command.store_id)
        if known is None:
            return NO_BROKER
        self._put(attrs.evolve(known, is_draining=command.is_draining))
        return DONE

    def forget(self, command: ForgetBroker) -> Outcome:
        """Forget a broker."""
        store_id = command.store_id
        if store_id in self.forgotten_ids:
            return DONE
        if store_id not in self.registered:
            return NO_BROKER
        del self.registered[store_id]
        self.forgotten_ids.add(store_id)
        self._records.remove(BROKER + store_id)
        self._records.put(FORGOTTEN + store_id, store_id)
        return DONE

    def _put(self, broker: RegisteredBroker) -> None:
        self.registered[broker.store_id] = broker
        self._records.put(BROKER + broker.store_id, broker)

    def restore(self, records: Mapping[bytes, bytes]) -> None:
        """Replace the brokers by the ones in the keys and values of a state."""
        self.registered.clear()
        self.registered.update(
            (each.store_id, each) for each in decode_records(records.items(), BROKER, RegisteredBroker)
        )
        self.forgotten_ids.clear()
        self.forgotten_ids.update(decode_records(records.items(), FORGOTTEN, str))


def _start_of(command: RegisterBroker) -> str:
    return command.starts[-1] if command.starts else ""
