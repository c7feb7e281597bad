"""Makes a broker a member of a cluster: it forms one, joins the one that it sees, or goes on in its own."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import attrs
import trio

from dafka.broker.core.cluster_status import describe_quorum
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.metadata.commands import RegisterBroker
from dafka.broker.core.metadata.forming import LOOKED_S, Form, Join, Refuse, Wait, choose_step
from dafka.broker.core.metadata.store_check import takes_place
from dafka.broker.core.metadata.store_record import StoreRecord
from dafka.broker.core.tables import BrokerTables
from dafka.broker.interbroker.messenger import BrokerMessenger, Message
from dafka.broker.metadata.changes import ClusterChanges
from dafka.broker.metadata.metadata_log import MetadataLog
from dafka.broker.replication.membership import Membership
from dafka.broker.replication.store_identity import StoreIdentity
from dafka.config.settings import BrokerConfig
from dafka.errors import ConfigError, NoControllerError, OutdatedStoreError, RefusedChangeError
from dafka.records import new_address
from dafka.text import counted

_LOGGER = logging.getLogger("dafka.broker")

LOOK_S = 0.1
"""Seconds between two looks for a cluster to join."""

CONFIRM_S = 2.0
"""How long a broker that was registered before waits until the cluster has accepted its start, in seconds."""

OTHER_SECRET_S = 3.0
"""How long most brokers must have another secret than this one until it ends, in seconds."""

NOTIFY_S = 5.0
"""Seconds after which a forgotten broker is notified again."""

REMIND_S = 10.0
"""Seconds between two messages that say what a broker waits for."""


@attrs.frozen
class StoreForgotten(Message):
    """Notifies a broker that the cluster has forgotten its store, as it may not get further commands."""

    KIND = "store-forgotten"
    cluster_id: str


class Joining:
    """The way of one broker into its cluster, and out of it. `observe` makes it take part in the log of metadata."""

    def __init__(
        self,
        tables: BrokerTables,
        identity: StoreIdentity,
        metadata: MetadataLog,
        changes: ClusterChanges,
        membership: Membership,
        config: BrokerConfig,
        messenger: BrokerMessenger,
        observe: Callable[[StoreRecord], None],
    ) -> None:
        self._tables = tables
        self._state = tables.state
        self._brokers = tables.brokers
        self._identity = identity
        self._metadata = metadata
        self._changes = changes
        self._membership = membership
        self._config = config
        self._messenger = messenger
        self._observe = observe
        self._notified_at: dict[str, float] = {}
        self._heard_former_at = -math.inf
        self._was_forgotten = trio.Event()
        self._other_secret_since = math.inf
        messenger.on(StoreForgotten, self._learn_forgotten)
        self.has_joined = trio.Event()
        """Set when the broker is registered in an open cluster, so that it may serve clients."""
        self.is_accepted = trio.Event()
        """Set when the cluster has accepted this start of the broker."""
        self._waits_for = "it looks for other brokers"

    @property
    def waits_for(self) -> str:
        """A sentence about what this broker waits for; empty when it has joined an open cluster."""
        state, brokers = self._state, counted(len(self._state.brokers), "broker")
        if self.has_joined.is_set():
            return ""
        if not state.cluster_id:
            return self._waits_for
        if self._brokers.own.address not in state.brokers:
            quorum = describe_quorum(self._tables, trio.current_time())
            return f"it waits until the controller registers it in the cluster {state.cluster_id} ({quorum})"
        if not state.is_open:
            return f"it waits until the cluster {state.cluster_id} is open: only {brokers} joined so far"
        return f"it loads its logs, and waits until the cluster {state.cluster_id} has accepted its storage"

    async def run(self) -> None:
        """Join a cluster, and register there.

        A broker that was registered before waits for a while until the cluster has accepted its start; the cluster can
        be without a controller. Raise `ConfigError` if an operator has to decide something first, and
        `OutdatedStoreError` if the cluster refuses the store.
        """
        if self._identity.record is None:
            record = await self._find_cluster()
            await self._metadata.join(record).wait()
            self._observe(record)
            self._metadata.is_observed.set()
            self._membership.update_registration(cluster_id=record.cluster_id, first_voters=record.first_voters)
        elif self._config.cluster not in {"", self._state.cluster_id}:
            raise ConfigError(
                f"this store belongs to the cluster {self._state.cluster_id}, not to {self._config.cluster}: start it "
                "without --cluster, or with another storage"
            )
        was_registered = self._brokers.own.address in self._state.brokers
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._register)
            with trio.move_on_after(CONFIRM_S if was_registered else math.inf):
                await self.is_accepted.wait()
            await self._metadata.wait_until(lambda: self._state.is_open)
            self._membership.update_registration(is_open=True)
            self.has_joined.set()

    async def _find_cluster(self) -> StoreRecord:
        await self._membership.wait_others()
        begun = reminded_at = trio.current_time()
        while True:
            waited_s = trio.current_time() - begun
            step = choose_step(self._brokers.own, self._membership.seen(), self._config.cluster, waited_s)
            is_sure = self._config.initial_brokers > 1 or not self._membership.has_peers or waited_s >= LOOKED_S
            if isinstance(step, Form) and is_sure:
                return StoreRecord(new_address(), (self._brokers.own.address,))
            if isinstance(step, Join):
                return StoreRecord(step.cluster_id, step.first_voters)
            if isinstance(step, Refuse):
                raise ConfigError(step.reason)
            if isinstance(step, Wait):
                self._waits_for = step.reason
            if isinstance(step, Wait) and trio.current_time() - reminded_at >= REMIND_S:
                reminded_at = trio.current_time()
                _LOGGER.warning("this broker belongs to no cluster yet: %s", step.reason)
            await trio.sleep(LOOK_S)

    async def _register(self) -> None:
        """Register this start. Raise `ConfigError` if the broker cannot have the number in its settings."""
        own, number = self._brokers.own.address, self._config.number
        self._check_number()
        begun = trio.current_time()
        while not self._identity.is_accepted:
            record = self._identity.record
            assert record is not None
            try:
                levels, replaced = self._state.members.support.levels, await self._find_replaced(record, begun)
                await self._changes.change(RegisterBroker(own, number, record.starts, replaced, levels))
            except NoControllerError as error:
                _LOGGER.warning("this broker is not registered yet: %s%s", error, self._advise(record))
            except RefusedChangeError as error:
                if error.error_code is ErrorCode.STALE_BROKER_EPOCH:
                    raise OutdatedStoreError(str(error)) from None
                if error.error_code is ErrorCode.UNSUPPORTED_VERSION:
                    raise ConfigError(str(error)) from None
                if own in self._state.forgotten_ids:
                    await trio.sleep_forever()  # `wait_forgotten` raises the error
                is_taken = error.error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
                if number >= 0 or not is_taken:
                    advice = (
                        f"; if that one is lost, forget it with `dafka cluster forget {number}`" if is_taken else ""
                    )
                    raise ConfigError(f"{error}; start this broker with another number{advice}") from None
        self._check_number()
        self.is_accepted.set()

    async def _find_replaced(self, record: StoreRecord, begun: float) -> str:
        """Return the former id of this store if it takes its place; empty if a broker runs with it, as a clone has.

        It is empty, too, if this store is registered: then this was decided before.
        """
        while record.replaces and self._brokers.own.address not in self._state.brokers:
            now = trio.current_time()
            decided = takes_place(now - self._heard_former_at, now - begun)
            if decided is not None:
                return record.replaces if decided else ""
            await trio.sleep(LOOK_S)
        return ""

    def _advise(self, record: StoreRecord) -> str:
        """Return what to do if the former id of this store is needed to vote."""
        quorum = describe_quorum(self._tables, trio.current_time())
        former = self._state.members.find_store(record.replaces)
        if quorum is None or former is None or former.store_id not in quorum.voters:
            return ""
        return (
            ". The former id of this store votes on metadata, and never comes back: if most voters are lost, recover "
            "the cluster with `dafka cluster recover`"
        )

    def _check_number(self) -> None:
        registered, number = self._state.brokers.get(self._brokers.own.address), self._config.number
        if registered is not None and number not in {-1, registered.number}:
            raise ConfigError(
                f"this store has the number {registered.number} in its cluster, not {number}: start it with that number"
            )

    # Secrets

    def check_secret(self) -> None:
        """Connect to the brokers of the cluster that are heard, and raise `ConfigError` if most have another secret.

        Call this a few times a second. Heartbeats and votes need no secret: such a broker could become the controller,
        which no other one would reach.
        """
        own, now = self._brokers.own, trio.current_time()
        seen = [each for each in self._membership.seen() if each.cluster_id == own.cluster_id] if own.cluster_id else []
        for each in seen:
            self._messenger.connect(each.address)
        answers = {each: self._messenger.has_other_secret(each.address) for each in seen}
        others = [each for each, has_other in answers.items() if has_other]
        agreeing = sum(has_other is False for has_other in answers.values()) + (own.address in self._state.brokers)
        self._other_secret_since = min(self._other_secret_since, now) if len(others) > agreeing else math.inf
        if now - self._other_secret_since >= OTHER_SECRET_S:
            others.sort(key=lambda each: (each.number, each.address))
            names = ", ".join(each.address if each.number < 0 else str(each.number) for each in others)
            raise ConfigError(
                f"this broker has another secret than the brokers of its cluster ({names}), or one has none: start all "
                "of them with the same [broker] secret_file"
            )

    # Forgotten stores

    async def wait_forgotten(self) -> None:
        """Wait until the cluster has forgotten this broker, and raise `ConfigError`."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._await_command)
            await self._was_forgotten.wait()
            nursery.cancel_scope.cancel()
        raise self._describe_forgotten()

    async def _await_command(self) -> None:
        own = self._brokers.own.address
        await self._metadata.wait_until(lambda: own in self._state.forgotten_ids)
        self._was_forgotten.set()

    def record_heartbeats(self, brokers: frozenset[str]) -> None:
        """Record heartbeats, and notify forgotten brokers that have sent them."""
        now, record = trio.current_time(), self._identity.record
        if record is not None and record.replaces in brokers:
            self._heard_former_at = now
        for each in self._state.forgotten_ids.intersection(brokers):
            if now - self._notified_at.get(each, float("-inf")) >= NOTIFY_S:
                self._notified_at[each] = now
                self._messenger.send(each, StoreForgotten(self._state.cluster_id))

    def _learn_forgotten(self, sender: str, message: StoreForgotten) -> None:
        if message.cluster_id == self._state.cluster_id and sender in self._state.brokers:
            self._was_forgotten.set()

    def _describe_forgotten(self) -> ConfigError:
        return ConfigError(
            f"the cluster {self._state.cluster_id} has forgotten this store ({self._brokers.own.address}), so it never "
            "takes part again: start the broker with an empty storage"
        )
