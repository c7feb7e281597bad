"""The brokers of a cluster, and the feature level that they share: a part of its state."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.metadata.commands import DrainBroker, ForgetBroker, RegisterBroker, SetFeatureLevel
from dafka.broker.core.metadata.features import FIRST_LEVEL, FeatureLevels, FeatureSupport, common_levels
from dafka.broker.core.metadata.outcome import DONE, Outcome
from dafka.broker.core.metadata.state_records import BROKER, FEATURE_LEVEL, FORGOTTEN, StateRecords, decode_records
from dafka.config.settings import BROKER_NUMBER_MAX
from dafka.errors import StorageFormatError

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
        features: The feature levels that it supports.
        former_ids: The ids that its store had before, and has given up.
    """

    store_id: str
    number: int
    is_draining: bool = False
    start: str = ""
    features: FeatureLevels = FIRST_LEVEL
    former_ids: tuple[str, ...] = ()


class RegisteredBrokers:
    """The registered brokers, by store id, the ids of the stores that were forgotten, and the feature level.

    The level is 0 until the cluster is opened. Every registered broker supports it.
    """

    def __init__(self, records: StateRecords, support: FeatureSupport) -> None:
        self.registered: dict[str, RegisteredBroker] = {}
        self.forgotten_ids: set[str] = set()
        self.feature_level = 0
        self.support = support
        self._records = records

    def find_number(self, number: int) -> RegisteredBroker | None:
        """Return the broker with a number; None if there is none."""
        return next((each for each in self.registered.values() if each.number == number), None)

    def find_store(self, store_id: str) -> RegisteredBroker | None:
        """Return the broker whose store has an id, or has given it up; None if there is none."""
        had = (each for each in self.registered.values() if store_id in each.former_ids)
        return self.registered.get(store_id) or next(had, None)

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
        if not 0 <= command.number <= BROKER_NUMBER_MAX:
            return Outcome(
                ErrorCode.INVALID_REGISTRATION, f"a number is from 0 to {BROKER_NUMBER_MAX}, not {command.number}"
            )
        taken = self.find_number(command.number)
        if taken is not None and taken.store_id != command.replaces:
            return Outcome(
                ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                f"the broker {taken.store_id} has the number {command.number}",
            )
        refused = self._check_features(command)
        if refused is not None:
            return refused
        former = self.registered.get(command.replaces)
        former_ids = () if former is None else (*former.former_ids, former.store_id)
        self.forget(ForgetBroker(command.replaces))
        self._put(
            RegisteredBroker(
                command.store_id,
                command.number,
                start=_start_of(command),
                features=command.features,
                former_ids=former_ids,
            )
        )
        return DONE

    def _register_start(self, known: RegisteredBroker, command: RegisterBroker) -> Outcome:
        if command.number not in {-1, known.number}:
            return Outcome(ErrorCode.INVALID_REGISTRATION, f"its number in the cluster is {known.number}")
        if known.start not in {"", *command.starts}:
            return Outcome(
                ErrorCode.STALE_BROKER_EPOCH, "the storage is an older copy or a clone: its last start is not in it"
            )
        refused = self._check_features(command)
        if refused is not None:
            return refused
        self._put(attrs.evolve(known, start=_start_of(command), features=command.features))
        return DONE

    def _check_features(self, command: RegisterBroker) -> Outcome | None:
        """Return why a broker with these features cannot be registered; None if it can."""
        others = [
            each.features
            for each in self.registered.values()
            if each.store_id not in {command.store_id, command.replaces}
        ]
        common = common_levels([*others, command.features])
        reason = command.features.explain(self.feature_level)
        if not reason and common.lowest > common.highest:
            reason = f"this broker supports the feature level {command.features}, and the others do not: update dafka"
        return Outcome(ErrorCode.UNSUPPORTED_VERSION, reason) if reason else None

    @property
    def levels(self) -> FeatureLevels:
        """The feature levels that all registered brokers support."""
        return common_levels(each.features for each in self.registered.values())

    def check_level(self, level: int) -> Outcome:
        """Return why the feature level cannot be raised to another one; `DONE` if it can."""
        if level < self.feature_level:
            reason = f"the cluster has the feature level {self.feature_level}, and it is never lowered"
            return Outcome(ErrorCode.INVALID_UPDATE_VERSION, reason)
        if not self.levels.has(level):
            unable = sorted(each.number for each in self.registered.values() if not each.features.has(level))
            brokers = ", ".join(f"broker {each}" for each in unable) or "this version of dafka"
            reason = f"the feature level {level} is not supported by {brokers}: update dafka there first"
            return Outcome(ErrorCode.INVALID_UPDATE_VERSION, reason)
        return DONE

    def set_level(self, command: SetFeatureLevel) -> Outcome:
        """Set the feature level. Raise `StorageFormatError` if this version of dafka does not support it."""
        level, outcome = command.level, self.check_level(command.level)
        if outcome is DONE and level > self.feature_level:
            self._check_support(level)
            self.feature_level = level
            self._records.put(FEATURE_LEVEL, level)
        return outcome

    def find_level_obstacle(self, kind: str) -> Outcome | None:
        """Return why a kind of command cannot be written at the level of the cluster; None if it can."""
        needed = self.support.level_of(kind)
        if self.feature_level >= needed or needed == 1:
            return None
        reason = f"the cluster has the feature level {self.feature_level}, and this needs the level {needed}"
        return Outcome(ErrorCode.UNSUPPORTED_VERSION, f"{reason}: raise it with `dafka cluster upgrade`")

    def _check_support(self, level: int) -> None:
        reason = self.support.levels.explain(level)
        if reason:
            raise StorageFormatError(reason)

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
        """Replace the brokers and the feature level by the ones in the keys and values of a state.

        Raise `StorageFormatError` if this version of dafka does not support the level.
        """
        (level,) = [*decode_records(records.items(), FEATURE_LEVEL, int)] or [0]
        self._check_support(level)
        self.feature_level = level
        self.registered.clear()
        self.registered.update(
            (each.store_id, each) for each in decode_records(records.items(), BROKER, RegisteredBroker)
        )
        self.forgotten_ids.clear()
        self.forgotten_ids.update(decode_records(records.items(), FORGOTTEN, str))


def _start_of(command: RegisterBroker) -> str:
    return command.starts[-1] if command.starts else ""
