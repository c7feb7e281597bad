"""Caches surveys of the cluster. An observer runs only while clients ask for surveys."""

from __future__ import annotations

import logging
import re

import trio

from dafka.config import Config
from dafka.errors import DafkaError
from dafka.protocol.observer.cluster_survey import ClusterSurvey, HolderView
from dafka.roles import open_observer

INTERVAL_S = 2.0
"""The interval from the end of a survey to the next one."""

UNASKED_S = 20.0
"""How long the observer continues after the last request."""

RETRY_S = 10.0
"""How long after a failure the observer is opened again, if requested."""

SETTLE_S = 5.0
SURVEY_S = 5.0

_LOGGER = logging.getLogger("dafka.http")


class SurveyCache:
    """The newest survey of the cluster."""

    def __init__(self, config: Config) -> None:
        # The observer is a separate node, so it uses another port than the broker.
        self._config = config.with_node(bind=re.sub(r":[0-9]+$", ":*", config.node.bind))
        self._asked = trio.Event()
        self._asked_at = float("-inf")
        self._newest: ClusterSurvey | None = None
        self.problem = ""
        """Why there is no survey; empty if there is one, or one is being made."""
        if config.node.discovery != "tower":
            self.problem = "other nodes are not shown: this broker does not find them through towers"

    def newest(self) -> ClusterSurvey | None:
        """Return the newest survey; None if there is none yet. Surveys continue for a while."""
        self._asked_at = trio.current_time()
        self._asked.set()
        return self._newest

    def holders(self, topic: str, own_address: str) -> dict[str, list[HolderView]]:
        """Return what other stores have of the partitions of a topic, by the partition's address."""
        survey = self.newest()
        if survey is None:
            return {}
        return {
            each.partition.address: [holder for holder in each.holders if holder.store != own_address]
            for each in survey.partitions
            if each.partition.topic == topic
        }

    async def run(self) -> None:
        """Make surveys on demand, until cancelled."""
        if self._config.node.discovery != "tower":
            return
        while True:
            await self._asked.wait()
            try:
                await self._survey_while_asked()
                self.problem = ""
            except DafkaError as error:
                self.problem = f"the nodes cannot be observed: {error}"
                _LOGGER.warning("%s", self.problem)
            except Exception:
                # A bug in this program must not stop the broker.
                self.problem = "the nodes cannot be observed; the broker's log has the reason"
                _LOGGER.exception("The nodes cannot be observed")
            if self.problem:
                await trio.sleep(RETRY_S)
            self._newest = None
            self._asked = trio.Event()

    async def _survey_while_asked(self) -> None:
        async with open_observer((), self._config) as observer:
            with trio.move_on_after(SETTLE_S):
                await observer.wait_settled()
            while trio.current_time() - self._asked_at < UNASKED_S:
                self._newest = await observer.survey(SURVEY_S)
                self.problem = ""
                await trio.sleep(INTERVAL_S)
