"""Requests changes of the cluster from the controller, and waits until they are applied here."""

from __future__ import annotations

import logging
import math
import secrets

import trio

from dafka.broker.core.cluster_status import describe_quorum
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.metadata.commands import Command, CreateTopic, Order, encode_order
from dafka.broker.core.metadata.outcome import Outcome
from dafka.broker.core.tables import BrokerTables
from dafka.broker.interbroker.messenger import BrokerMessenger
from dafka.broker.metadata.controller import Controller, OrderRefused, OrderRequest
from dafka.broker.metadata.metadata_log import MetadataLog
from dafka.errors import NoControllerError, RefusedChangeError

_LOGGER = logging.getLogger("dafka.broker")

REPEAT_S = 0.5
"""Seconds after which a request is repeated for the first time: a message was lost, or the controller has changed."""

REPEAT_MAX_S = 4.0
"""The longest time between two repetitions at the same controller, in seconds. It can have thousands of requests."""

_NOBODY = ("", -1)

LOOK_S = 0.02
"""Seconds after which a request looks again for a controller."""

CHANGE_S = 30.0
"""The longest wait for a change, in seconds."""

CONTROLLER_S = 5.0
"""How long a request waits for a controller, in seconds."""


class ClusterChanges:
    """Changes of the cluster that are requested at one broker."""

    def __init__(
        self, tables: BrokerTables, metadata: MetadataLog, controller: Controller, messenger: BrokerMessenger
    ) -> None:
        self._tables = tables
        self._metadata = metadata
        self._controller = controller
        self._messenger = messenger
        self._later: set[object] = set()
        self._send_later, self._receive_later = trio.open_memory_channel[tuple[object, Command]](math.inf)
        messenger.on(OrderRefused, self._learn_refusal)

    async def run(self) -> None:
        """Send the requests of `request_later` until cancelled."""
        async with trio.open_nursery() as nursery:
            async for key, command in self._receive_later:
                nursery.start_soon(self._request_until_applied, key, command)

    def request_later(self, command: Command) -> None:
        """Request a command until it is applied or refused. It is not requested twice at once.

        A topic of producers' records is not either, whatever its id.
        """
        key = command.topic.name if isinstance(command, CreateTopic) else command
        if key not in self._later:
            self._later.add(key)
            self._send_later.send_nowait((key, command))

    async def _request_until_applied(self, key: object, command: Command) -> None:
        own, state = self._tables.brokers.own.address, self._tables.state
        await self._metadata.wait_until(lambda: state.is_open and own in state.brokers)
        is_pending = True
        while is_pending:
            try:
                await self.change(command)
                is_pending = False
            except RefusedChangeError as error:
                _LOGGER.info("the command %s is refused: %s", command.KIND, error)
                is_pending = False
            except NoControllerError:
                await trio.sleep(REPEAT_S)
        self._later.discard(key)

    async def change(self, command: Command, ordered_by: str = "") -> None:
        """Request a command, and wait until it is applied here.

        Raise `RefusedChangeError` if it cannot take effect, and `NoControllerError` if no controller has answered.
        """
        outcome = await self._find_outcome(command, ordered_by or self._name_broker())
        if outcome.error is not ErrorCode.NONE:
            raise RefusedChangeError(outcome.reason, outcome.error)

    def _name_broker(self) -> str:
        own = self._tables.brokers.own
        return f"broker {own.number}" if own.number >= 0 else f"store {own.address}"

    async def _find_outcome(self, command: Command, ordered_by: str) -> Outcome:
        refused = self._tables.state.members.find_level_obstacle(command.KIND)
        if refused is not None:
            return refused
        request_id = secrets.token_hex(8)
        order = Order(command, request_id, ordered_by)
        pending = self._metadata.expect(request_id)
        begun, was_sent = trio.current_time(), False
        sent_to, wait_s, due = _NOBODY, REPEAT_S, begun
        try:
            while (waited := (now := trio.current_time()) - begun) < (CHANGE_S if was_sent else CONTROLLER_S):
                controller = self._find_controller()
                if controller != sent_to:
                    wait_s, due = REPEAT_S, now
                if now >= due:
                    sent_to = _NOBODY
                    if self._send(order):
                        was_sent, sent_to, due = True, controller, now + wait_s
                        wait_s = min(2 * wait_s, REPEAT_MAX_S)
                with trio.move_on_after(LOOK_S if due <= now else min(due - now, REPEAT_S)):
                    await pending.arrived.wait()
                if pending.outcome is not None:
                    return pending.outcome
        finally:
            self._metadata.forget(request_id)
        raise NoControllerError(self._explain(waited, was_sent=was_sent))

    def _find_controller(self) -> tuple[str, int]:
        """Return the address of the controller, as far as this broker knows, and its leader epoch."""
        log = self._metadata.log
        return _NOBODY if log is None else (self._tables.brokers.leader_of(log.leadership), log.leadership.epoch)

    def _send(self, order: Order) -> bool:
        """Send an order to the controller. Return whether there is one."""
        log, brokers = self._metadata.log, self._tables.brokers
        if log is None:
            return False
        if log.leadership.is_led:
            refused = self._controller.submit(order)
            if refused is not None:
                self._metadata.settle(order.request_id, refused)
            return self._controller.is_active
        controller = log.leadership.leader or log.leadership.presumed_leader
        if controller == brokers.own.address or not brokers.is_heard(controller, trio.current_time()):
            return False
        self._messenger.send(controller, OrderRequest(encode_order(order).decode()))
        return True

    def _learn_refusal(self, _sender: str, message: OrderRefused) -> None:
        self._metadata.settle(message.request_id, Outcome(message.error, message.reason))

    def _explain(self, waited_s: float, *, was_sent: bool) -> str:
        quorum = describe_quorum(self._tables, trio.current_time())
        if quorum is None:
            return "this broker belongs to no cluster yet: nothing is changed; try again"
        if was_sent:
            return f"the change was not confirmed within {waited_s:.0f} s ({quorum}): look whether it was made"
        return f"the cluster has no controller ({quorum}): nothing is changed; try again"
